"""The counts behind a report: path errors, confused siblings, confident errors, threshold curves and calibration.

`ErrorCounts` decodes scores in blocks of documents and passes each `Block` to all counters.
"""

from heapq import nlargest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.metrics.label_sets import NAMES, Counts, match_format, precision_recall_f1, row_blocks, steps_below
from hill.metrics.scores import ThresholdCurve
from hill.predictor import Predictor
from hill.sparse import Matrix, expand_rows, flat_indices, row_indices, with_values
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import AnyEdges, SparseEdges, lookup, scores_at_labels
from hill.types import BoolArray, FloatArray, IntArray

SparseMatrix = csr_array[Any]
"""One label set per document (B, L)."""


class Block:
    """Some documents (B): their label sets, always sparse, and their scores after decoding (B, L)."""

    def __init__(
        self, documents: IntArray, gold: SparseMatrix, chosen: SparseMatrix, scores: Matrix, edges: SparseEdges
    ) -> None:
        self.documents, self.gold, self.chosen, self.edges = documents, gold, chosen, edges
        self.scores: SparseMatrix = csr_array(scores)
        self.missed, self.wrong = gold > chosen, chosen > gold
        self.closed_gold, self.closed_chosen = edges.close(gold), edges.close(chosen)
        """With all ancestors."""
        self.gold_ends, self.chosen_ends = (
            closed > edges.with_child(closed) for closed in (self.closed_gold, self.closed_chosen)
        )
        """The most specific labels."""


class Sizes:
    """Counts documents by their number of labels, ancestors included, and of paths, gold and predicted."""

    def __init__(self, labels: int) -> None:
        self._counts = {name: np.zeros((2, labels + 1), dtype=np.int64) for name in ("labels", "paths")}

    def update(self, block: Block) -> None:
        """Count these documents."""
        sets = {"labels": (block.gold, block.chosen), "paths": (block.gold_ends, block.chosen_ends)}
        for name, counts in self._counts.items():
            for side, labels in enumerate(sets[name]):
                counts[side] += np.bincount(np.diff(labels.indptr), minlength=counts.shape[1])

    def to_dict(self) -> dict[str, dict[str, list[int]]]:
        """Return the numbers of documents with 0, 1, 2, ... labels and paths, up to the maximum."""
        sizes = {}
        for name, counts in self._counts.items():
            end = np.flatnonzero(counts.any(axis=0)).max(initial=0) + 1
            sizes[name] = {"gold": counts[0, :end].tolist(), "predicted": counts[1, :end].tolist()}
        return sizes


class SiblingConfusion:
    """Counts documents in which a label is missed and a sibling wrongly predicted; all roots are siblings."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._parents = taxonomy.parent_table
        children, parents = taxonomy.edge_array.T
        self._edges = np.sort(children * len(taxonomy) + parents)
        self._root: BoolArray = np.diff(self._parents.indptr) == 0
        self.counts: csr_array[Any] = csr_array((len(taxonomy), len(taxonomy)), dtype=np.int64)
        """Number of documents per missed label and wrongly predicted label (L, L)."""

    def update(self, block: Block) -> None:
        """Count these documents."""
        missed, wrong = (labels.astype(np.int64) for labels in (block.missed, block.wrong))
        pairs = (missed.T @ wrong).tocoo()
        rows, columns = (index.astype(np.int64) for index in pairs.coords)
        siblings = self._are_siblings(rows, columns)
        entries = pairs.data[siblings], (rows[siblings], columns[siblings])
        self.counts = self.counts + csr_array(entries, shape=pairs.shape)

    def _are_siblings(self, one: IntArray, other: IntArray) -> BoolArray:
        """Return whether the labels of each pair share a parent, or are both roots."""
        above = self._parents[one]
        pair = np.repeat(np.arange(len(one)), np.diff(above.indptr))
        keys = other[pair] * len(self._root) + above.indices
        has_edge = np.append(self._edges, -1)[np.searchsorted(self._edges, keys)] == keys
        return _any(has_edge, pair, len(one)) | (self._root[one] & self._root[other])


class Error(NamedTuple):
    """A wrong or missed label of a document, how confident the model is, and all labels that it predicts."""

    confidence: float
    document: int
    row: int
    score: float
    predicted: tuple[int, ...]


class Errors:
    """Collects the most confident error per document, for the documents with the most confident errors.

    The confidence is the score of a wrong label, or 1 - score of a missed label. Ties go to the most specific label.
    """

    def __init__(self, taxonomy: Taxonomy, max_errors: int) -> None:
        self._depth, self._max_errors = taxonomy.depth, max_errors
        self.wrong: list[Error] = []
        self.missed: list[Error] = []

    def update(self, block: Block) -> None:
        """Add the errors of these documents."""
        wrong, missed = (lookup(block.scores, flat_indices(labels)) for labels in (block.wrong, block.missed))
        self.wrong = self._merge(self.wrong, block, block.wrong, wrong, wrong)
        self.missed = self._merge(self.missed, block, block.missed, missed, 1 - missed)

    def _merge(
        self,
        errors: list[Error],
        block: Block,
        labels: SparseMatrix,
        scores: npt.NDArray[Any],
        confidence: npt.NDArray[Any],
    ) -> list[Error]:
        """Add the most confident of these labels (B, L) per document, given the score and confidence of each entry."""
        documents, rows = row_indices(labels), labels.indices
        order = np.lexsort((rows, -self._depth[rows], -confidence, documents))
        best = order[np.flatnonzero(np.diff(documents[order], prepend=-1))]
        first = best[np.lexsort((block.documents[documents[best]], -confidence[best]))][: self._max_errors]
        new = []
        for i in first.tolist():
            document, predicted = (
                int(block.documents[documents[i]]),
                tuple(block.chosen[[documents[i]]].indices.tolist()),
            )
            new.append(Error(float(confidence[i]), document, int(rows[i]), float(scores[i]), predicted))
        return nlargest(self._max_errors, [*errors, *new], key=lambda error: (error.confidence, -error.document))


KINDS = ("right", "early", "deep", "sibling", "cousin", "far", "nothing")
RIGHT, EARLY, DEEP, SIBLING, COUSIN, FAR, NOTHING = range(len(KINDS))
SWAPPED = [RIGHT, DEEP, EARLY, SIBLING, COUSIN, FAR, NOTHING]
"""For predicted paths, `early` and `deep` are exchanged: a path that ends before the gold path is too early."""
NEVER = np.int64(2**40)
"""Deeper than any label."""


class PathErrors:
    """Counts paths by kind and by first wrong level, which is 0 for correct paths.

    A path is a most specific label with all its ancestors. The kind of a gold path is the first that applies:

    - right: the prediction contains it, and nothing below its end;
    - deep: the prediction contains it, and labels below its end;
    - sibling: its end is missed, and a wrong label has the same parent;
    - cousin: its end is missed, and a wrong label is below the last label that both share;
    - early: its end is missed, and the prediction ends at the last label that both share;
    - far: they share no label, and something wrong is predicted;
    - nothing: all other cases.

    For predicted paths, gold and predicted are exchanged.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._depth, self._lineage, self._parents = taxonomy.depth, taxonomy.lineage, taxonomy.parent_table
        levels = len(taxonomy.levels) + 1
        self.gold, self.predicted = np.zeros((2, len(KINDS), levels), dtype=np.int64)
        self.documents: IntArray = np.zeros(levels, dtype=np.int64)
        """Number of documents by the first level at which any label is wrong or missed."""

    def update(self, block: Block) -> None:
        """Count these documents."""
        differing = (block.closed_chosen > block.closed_gold) + (block.closed_gold > block.closed_chosen)
        first = np.full(len(block.documents), NEVER)
        np.minimum.at(first, row_indices(differing), self._depth[differing.indices])
        self.documents += np.bincount(np.where(first < NEVER, first, 0), minlength=len(self.documents))
        gold, predicted = (block.closed_gold, block.gold_ends), (block.closed_chosen, block.chosen_ends)
        self.gold += self._count(*gold, *predicted, block.edges)
        self.predicted += self._count(*predicted, *gold, block.edges)[SWAPPED]

    def _count(
        self,
        own: SparseMatrix,
        own_ends: SparseMatrix,
        other: SparseMatrix,
        other_ends: SparseMatrix,
        edges: SparseEdges,
    ) -> IntArray:
        """Count the P paths of closed label sets by kind and level, compared with other closed sets."""
        rows, documents, labels = own_ends.indices, row_indices(own_ends), own.shape[1]
        extra = other > own
        extra_below = edges.close(with_values(extra, NEVER - self._depth[extra.indices]))
        path, step = expand_rows(self._lineage, rows)  # every label of every path
        position, depth = documents[path] * labels + step, self._depth[step]
        shared = lookup(other, position)
        last_depth, first_wrong = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), NEVER)
        np.maximum.at(last_depth, path[shared], depth[shared])
        np.minimum.at(first_wrong, path[~shared], depth[~shared])
        last = shared & (depth == last_depth[path])
        cousin = _any(last & (lookup(extra_below, position) > 0), path, len(rows))
        early = _any(last & lookup(other_ends, position), path, len(rows))
        path, parent = expand_rows(self._parents, rows)
        sibling = _any(lookup(edges.with_child(extra), documents[path] * labels + parent), path, len(rows))
        end = flat_indices(own_ends)
        hit, ends = lookup(other, end), lookup(other_ends, end)
        far = (last_depth == 0) & (np.diff(extra.indptr) > 0)[documents]
        kind = np.select(
            [hit & ends, hit, sibling, cousin, early, far], [RIGHT, DEEP, SIBLING, COUSIN, EARLY, FAR], NOTHING
        )
        level = np.where(hit, np.where(ends, 0, NEVER - lookup(extra_below, end)), first_wrong)
        levels = self.gold.shape[1]
        return np.bincount(kind * levels + level, minlength=self.gold.size).reshape(-1, levels)


def _any(mask: BoolArray, group: IntArray, groups: int) -> BoolArray:
    """Return whether the mask is true anywhere in each group."""
    return np.bincount(group[mask], minlength=groups) > 0


STEPS = 100
BINS = 15
"""The number of bins of the expected calibration error."""
BLOCK_LABELS = 4_096
"""Number of labels whose F1 at every threshold is computed at a time."""


class Thresholds:
    """Counts documents and gold documents per label above the shared thresholds 0, 0.01, ..., 1.

    Scores of 0 are above no threshold, so missing scores need not be counted, except those of gold labels.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._levels = taxonomy.levels
        self._hits, self._predicted = np.zeros((2, len(taxonomy), STEPS + 1), dtype=np.int64)
        self._curve = ThresholdCurve(taxonomy)

    def update(self, labels: SparseMatrix, compared: Matrix) -> None:
        """Count these documents, (B, L) each."""
        scores: SparseMatrix = csr_array(compared)
        rows, gold = scores_at_labels(labels, scores)
        np.add.at(self._hits, (rows, steps_below(gold.astype(np.float64), STEPS)), 1)
        np.add.at(self._predicted, (scores.indices, steps_below(scores.data.astype(np.float64), STEPS)), 1)
        self._curve.update(*match_format(labels, compared))

    def to_dict(self) -> dict[str, Any]:
        """Return every curve, with one value per threshold."""
        levels = [_grades(self._hits[rows].sum(axis=0), self._predicted[rows].sum(axis=0)) for rows in self._levels]
        micro = _grades(self._hits.sum(axis=0), self._predicted.sum(axis=0))
        macro_f1 = np.zeros(STEPS + 1)  # labels without gold documents have F1 0
        with_hits = np.flatnonzero(self._hits.any(axis=1))
        for start in range(0, len(with_hits), BLOCK_LABELS):
            rows = with_hits[start : start + BLOCK_LABELS]
            macro_f1 += _grades(self._hits[rows], self._predicted[rows])[2].sum(axis=0)
        return {
            "threshold": (np.arange(STEPS + 1) / STEPS).tolist(),
            "micro_f1": micro[2].tolist(),
            "macro_f1": (macro_f1 / max(len(self._hits), 1)).tolist(),
            "hierarchical_f1": self._curve.f1().tolist(),
            "precision": micro[0].tolist(),
            "recall": micro[1].tolist(),
            "levels": [{"precision": level[0].tolist(), "recall": level[1].tolist()} for level in levels],
        }


def _grades(hits: IntArray, predicted: IntArray) -> FloatArray:
    """Compute precision, recall and F1 per threshold from counts by number of exceeded thresholds: (3, ..., steps)."""
    right, found = (counts.sum(axis=-1, keepdims=True) - counts.cumsum(axis=-1) for counts in (hits, predicted))
    return precision_recall_f1(right, found, np.repeat(hits.sum(axis=-1, keepdims=True), STEPS + 1, axis=-1))


class Reliability:
    """Counts pairs of a document and a label by score: their number, the sum of their scores, and how many are gold."""

    def __init__(self) -> None:
        self._pairs, self._gold = np.zeros((2, BINS), dtype=np.int64)
        self._scores: FloatArray = np.zeros(BINS)

    def update(self, labels: SparseMatrix, scores: Matrix) -> None:
        """Count these documents, (B, L) each; missing scores count as 0, in the first bin."""
        sparse: SparseMatrix = csr_array(scores)
        values: FloatArray = sparse.data.astype(np.float64)
        bins = _bins(values)
        self._pairs += np.bincount(bins, minlength=BINS)
        self._pairs[0] += labels.shape[0] * labels.shape[1] - sparse.nnz
        self._scores += np.bincount(bins, values, minlength=BINS)
        self._gold += np.bincount(_bins(scores_at_labels(labels, sparse)[1].astype(np.float64)), minlength=BINS)

    def to_dict(self) -> list[dict[str, float]]:
        """Return the number of pairs, their mean score and the share of gold pairs, for each bin that is not empty."""
        return [
            {"pairs": int(pairs), "score": float(scores / pairs), "gold": float(gold / pairs)}
            for pairs, scores, gold in zip(self._pairs, self._scores, self._gold, strict=True)
            if pairs
        ]


def _bins(scores: FloatArray) -> IntArray:
    bins: IntArray = np.maximum(steps_below(scores, BINS) - 1, 0)
    return bins


class ErrorCounts:
    """All counts of a report.

    Args:
        predictor: decodes the scores.
        labels: the gold labels (documents, L).
        max_errors: number of errors of each kind that are collected.
    """

    def __init__(self, predictor: Predictor, labels: csr_array[Any], max_errors: int) -> None:
        taxonomy = predictor.taxonomy
        self._gold, self._decoder, self._edges = labels, predictor.decoder(), AnyEdges(taxonomy)
        self.labels = Counts(len(taxonomy))
        self.paths, self.siblings, self.sizes = PathErrors(taxonomy), SiblingConfusion(taxonomy), Sizes(len(taxonomy))
        self.errors = Errors(taxonomy, max_errors)
        self.thresholds = Thresholds(taxonomy)
        self.before, self.after = Reliability(), Reliability()

    def update(self, documents: IntArray, scores: Matrix) -> None:
        """Count documents with these indices (n) and scores (n, L), in blocks to limit memory."""
        for start, stop in row_blocks(scores):
            raw = scores[start:stop]
            gold: SparseMatrix = self._gold[documents[start:stop]].astype(bool)
            decided, effective = self._decoder.decide(raw)
            chosen: SparseMatrix = csr_array(decided)
            edges: SparseEdges = self._edges.of(gold)
            self.labels.add(*(edges.per_label(labels) for labels in (gold * chosen, chosen, gold)))
            block = Block(documents[start:stop], gold, chosen, effective, edges)
            for counter in (self.paths, self.siblings, self.sizes, self.errors):
                counter.update(block)
            self.thresholds.update(gold, self._compared(raw, effective))
            self.before.update(gold, raw)
            self.after.update(gold, effective)

    def _compared(self, raw: Matrix, effective: Matrix) -> Matrix:
        """Return the scores above which a threshold shared by all labels predicts each label: (B, L)."""
        edges, config = self._edges.of(raw), self._decoder.config
        values = edges.enter(self._decoder.compared(raw))
        if config.strategy != "raw":
            values = edges.close(values)
        if config.abstain:
            predicted = edges.highest(edges.enter(effective)) > np.float64(config.abstain)
            values = edges.of_documents(values, predicted)
        scores: Matrix = edges.leave(values)
        return scores


# Labels

WORST = 15
"""Number of worst labels."""
SUPPORT = 10
"""Minimum number of gold documents of a worst label, if there are enough such labels."""
MAX_CONFUSED = 3
"""Number of siblings that a label is most often confused with."""


def label_rows(taxonomy: Taxonomy, counts: Counts) -> list[dict[str, Any]]:
    """Describe each label in the order of the taxonomy, with its counts, precision, recall and F1."""
    columns: dict[str, Any] = {
        "id": taxonomy.ids,
        "name": [label.name for label in taxonomy],
        "path": taxonomy.path_names(),
        "level": taxonomy.depth.tolist(),
        "gold": counts.gold.tolist(),
        "predicted": counts.predicted.tolist(),
        "hits": counts.hits.tolist(),
    } | dict(zip(NAMES, counts.each().tolist(), strict=True))
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def worst_labels(rows: list[dict[str, Any]], taxonomy: Taxonomy, confused: csr_array[Any]) -> list[dict[str, Any]]:
    """Return the labels with the lowest F1, and the siblings they are confused with in both directions.

    Labels with few gold documents are included only if there are too few others.
    """
    wrong = [index for index, row in enumerate(rows) if row["gold"] and row["f1"] < 1]
    frequent = [index for index in wrong if rows[index]["gold"] >= SUPPORT]
    worst = sorted(
        frequent if len(frequent) >= WORST else wrong, key=lambda index: (rows[index]["f1"], -rows[index]["gold"])
    )
    directions = {"taken_for": confused, "taken_from": csr_array(confused.T)}
    return [
        rows[index] | {key: _most_confused(counts, index, taxonomy) for key, counts in directions.items()}
        for index in worst[:WORST]
    ]


def _most_confused(confused: csr_array[Any], row: int, taxonomy: Taxonomy) -> list[dict[str, Any]]:
    """Return the labels with the highest counts in a row."""
    entries = slice(confused.indptr[row], confused.indptr[row + 1])
    others, counts = confused.indices[entries], confused.data[entries]
    order = np.lexsort((others, -counts))[:MAX_CONFUSED]
    return [describe_label(taxonomy, int(others[i])) | {"documents": int(counts[i])} for i in order]


def describe_label(taxonomy: Taxonomy, row: int) -> dict[str, str]:
    """Return id, name and path of a label."""
    return {"id": taxonomy[row].id, "name": taxonomy[row].name, "path": taxonomy.path_name(row)}


def path_names(taxonomy: Taxonomy, rows: IntArray) -> list[str]:
    """Return the paths of a label set, one per most specific label."""
    chosen = set(rows.tolist())
    return [taxonomy.path_name(row) for row in rows.tolist() if chosen.isdisjoint(taxonomy.children(row).tolist())]
