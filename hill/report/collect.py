"""The counts behind a report: path errors, confused siblings, confident errors, threshold curves and calibration.

`ErrorCounts` decodes scores in blocks of documents and passes each `Block` to all counters.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.decode import Decoder
from hill.metrics.label_sets import NAMES, Counts, match_format, precision_recall_f1, row_blocks, steps_below
from hill.metrics.scores import ThresholdCurve
from hill.predictor import Predictor, ScoredBatch
from hill.sparse import Matrix, expand_rows, flat_indices, row_indices, with_values
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import AnyEdges, SparseEdges, lookup, scores_at_labels
from hill.types import BoolArray, FloatArray, IntArray

SparseMatrix = csr_array[Any]
"""One label set per document (B, L)."""


@dataclass(frozen=True)
class Block:
    """Indices of documents (B), their gold and predicted labels, and their scores before and after decoding (B, L).

    Label sets are always sparse. Scores are dense or sparse, as the model returns them.
    """

    documents: IntArray
    gold: SparseMatrix
    chosen: SparseMatrix
    raw: Matrix
    effective: Matrix
    edges: AnyEdges

    @cached_property
    def missed(self) -> SparseMatrix:
        """Gold labels that are not predicted (B, L)."""
        return self.gold > self.chosen

    @cached_property
    def wrong(self) -> SparseMatrix:
        """Predicted labels that are not gold (B, L)."""
        return self.chosen > self.gold

    @cached_property
    def closed_gold(self) -> SparseMatrix:
        """Gold labels and their ancestors (B, L)."""
        return self.label_edges.close(self.gold)

    @cached_property
    def closed(self) -> SparseMatrix:
        """Predicted labels and their ancestors (B, L)."""
        return self.label_edges.close(self.chosen)

    @cached_property
    def gold_ends(self) -> SparseMatrix:
        """The most specific labels of the gold ones (B, L)."""
        return self.ends(self.closed_gold)

    @cached_property
    def chosen_ends(self) -> SparseMatrix:
        """The most specific labels of the predicted ones (B, L)."""
        return self.ends(self.closed)

    def ends(self, closed: SparseMatrix) -> SparseMatrix:
        """Return the most specific labels of closed sets: (B, L) to (B, L)."""
        return closed > self.label_edges.with_child(closed)

    def scores(self, labels: SparseMatrix) -> npt.NDArray[np.floating]:
        """Return the score after decoding of each label of these label sets."""
        return lookup(csr_array(self.effective), flat_indices(labels))

    def compared(self, decoder: Decoder) -> Matrix:
        """Return the scores above which a threshold shared by all labels predicts each label: (B, L)."""
        edges, config = self.edges.of(self.raw), decoder.config
        values = edges.enter(decoder.compared(self.raw))
        if config.strategy != "raw":
            values = edges.close(values)
        if config.abstain:
            predicted = edges.highest(edges.enter(self.effective)) > np.float64(config.abstain)
            values = edges.of_documents(values, predicted)
        scores: Matrix = edges.leave(values)
        return scores

    @property
    def label_edges(self) -> SparseEdges:
        """The operations on label sets along the edges of the taxonomy."""
        edges: SparseEdges = self.edges.of(self.gold)
        return edges


class Sizes:
    """Counts documents by their number of labels, ancestors included, and of paths, gold and predicted."""

    def __init__(self, labels: int) -> None:
        self._labels, self._paths = np.zeros((2, 2, labels + 1), dtype=np.int64)

    def update(self, block: Block) -> None:
        """Count these documents."""
        for place, (labels, ends) in enumerate(((block.gold, block.gold_ends), (block.chosen, block.chosen_ends))):
            self._labels[place] += self._count(labels)
            self._paths[place] += self._count(ends)

    def _count(self, labels: SparseMatrix) -> IntArray:
        return np.bincount(np.diff(labels.indptr), minlength=self._labels.shape[1])

    def to_dict(self) -> dict[str, dict[str, list[int]]]:
        """Return the numbers of documents with 0, 1, 2, ... labels and paths, up to the maximum."""
        sizes = {}
        for name, counts in (("labels", self._labels), ("paths", self._paths)):
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
        known = np.append(self._edges, -1)[np.searchsorted(self._edges, keys)] == keys
        shared = pair[known]
        return (np.bincount(shared, minlength=len(one)) > 0) | (self._root[one] & self._root[other])


ScoreArray = npt.NDArray[np.floating]


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
        self._depth = taxonomy.depth
        self._max_errors = max_errors
        self.wrong: list[Error] = []
        self.missed: list[Error] = []

    def update(self, block: Block) -> None:
        """Add the errors of these documents."""
        wrong, missed = block.scores(block.wrong), block.scores(block.missed)
        self.wrong = self._merge(self.wrong, block, block.wrong, wrong, wrong)
        self.missed = self._merge(self.missed, block, block.missed, missed, 1 - missed)

    def _merge(
        self, errors: list[Error], block: Block, labels: SparseMatrix, scores: ScoreArray, confidence: ScoreArray
    ) -> list[Error]:
        """Add the most confident of these labels (B, L) per document, given the score and confidence of each entry."""
        documents, rows = row_indices(labels), labels.indices
        order = np.lexsort((rows, -self._depth[rows], -confidence, documents))
        best = order[np.flatnonzero(np.diff(documents[order], prepend=-1))]
        front = best[np.lexsort((block.documents[documents[best]], -confidence[best]))][: self._max_errors]
        new = [
            Error(
                float(confidence[i]),
                int(block.documents[documents[i]]),
                int(rows[i]),
                float(scores[i]),
                tuple(block.chosen[[documents[i]]].indices.tolist()),
            )
            for i in front.tolist()
        ]
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
        self._depth = taxonomy.depth
        self._lineage, self._parents = taxonomy.lineage, taxonomy.parent_table
        levels = len(taxonomy.levels) + 1
        self.gold, self.predicted = np.zeros((2, len(KINDS), levels), dtype=np.int64)
        self.documents: IntArray = np.zeros(levels, dtype=np.int64)
        """Number of documents by the first level at which any label is wrong or missed."""

    def update(self, block: Block) -> None:
        """Count these documents."""
        differing = (block.closed > block.closed_gold) + (block.closed_gold > block.closed)
        first = np.full(len(block.documents), NEVER)
        np.minimum.at(first, row_indices(differing), self._depth[differing.indices])
        self.documents += np.bincount(np.where(first < NEVER, first, 0), minlength=len(self.documents))
        gold, predicted = (block.closed_gold, block.gold_ends), (block.closed, block.chosen_ends)
        self.gold += self._compare(gold, predicted, block)
        self.predicted += self._compare(predicted, gold, block)[SWAPPED]

    def _compare(
        self, mine: tuple[SparseMatrix, SparseMatrix], theirs: tuple[SparseMatrix, SparseMatrix], block: Block
    ) -> IntArray:
        """Count the paths of a label set by kind and level, compared with another set; both come with their ends."""
        (own, own_ends), (other, other_ends) = mine, theirs
        edges, extra = block.label_edges, other > own
        rows, documents = own_ends.indices, row_indices(own_ends)  # P paths
        below = edges.close(with_values(extra, NEVER - self._depth[extra.indices]))
        path, step = expand_rows(self._lineage, rows)
        place, depth = documents[path] * own.shape[1] + step, self._depth[step]
        found = lookup(other, place)
        reach, first = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), NEVER)
        np.maximum.at(reach, path[found], depth[found])
        np.minimum.at(first, path[~found], depth[~found])
        last = found & (depth == reach[path])
        astray = _any(last & (lookup(below, place) > 0), path, len(rows))
        stops = _any(last & lookup(other_ends, place), path, len(rows))
        path, parent = expand_rows(self._parents, rows)
        beside = lookup(edges.with_child(extra), documents[path] * own.shape[1] + parent)
        sibling = _any(beside, path, len(rows))
        end = flat_indices(own_ends)
        hit, ended = lookup(other, end), lookup(other_ends, end)
        lost = (reach == 0) & (np.diff(extra.indptr) > 0)[documents]
        kind = np.select(
            [hit & ended, hit, sibling, astray, stops, lost], [RIGHT, DEEP, SIBLING, COUSIN, EARLY, FAR], NOTHING
        )
        level = np.where(hit, np.where(ended, 0, NEVER - lookup(below, end)), first)
        width = self.gold.shape[1]
        return np.bincount(kind * width + level, minlength=self.gold.size).reshape(-1, width)


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
        levels = [_grades(*(each[rows].sum(axis=0) for each in (self._hits, self._predicted))) for rows in self._levels]
        micro = _grades(self._hits.sum(axis=0), self._predicted.sum(axis=0))
        return {
            "threshold": (np.arange(STEPS + 1) / STEPS).tolist(),
            "micro_f1": micro[2].tolist(),
            "macro_f1": self._macro_f1().tolist(),
            "hierarchical_f1": self._curve.f1().tolist(),
            "precision": micro[0].tolist(),
            "recall": micro[1].tolist(),
            "levels": [{"precision": level[0].tolist(), "recall": level[1].tolist()} for level in levels],
        }

    def _macro_f1(self) -> FloatArray:
        """Compute the mean F1 over all labels at each threshold; labels without gold documents have F1 0."""
        known, total = np.flatnonzero(self._hits.any(axis=1)), np.zeros(STEPS + 1)
        for start in range(0, len(known), BLOCK_LABELS):
            rows = known[start : start + BLOCK_LABELS]
            total += _grades(self._hits[rows], self._predicted[rows])[2].sum(axis=0)
        return total / max(len(self._hits), 1)


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
        self._labels = labels
        self._decoder = predictor.decoder()
        self._edges = AnyEdges(taxonomy)
        self.counts = Counts(len(taxonomy))
        self.paths = PathErrors(taxonomy)
        self.siblings = SiblingConfusion(taxonomy)
        self.sizes = Sizes(len(taxonomy))
        self.errors = Errors(taxonomy, max_errors)
        self.thresholds = Thresholds(taxonomy)
        self.before, self.after = Reliability(), Reliability()

    def update(self, scored: Iterable[ScoredBatch]) -> Iterator[ScoredBatch]:
        """Count scored batches, and yield them unchanged."""
        for documents, scores in scored:
            for start, stop in row_blocks(scores):
                part = documents[start:stop]
                gold: csr_array[Any] = self._labels[part].astype(bool)
                chosen, effective = self._decoder.decide(scores[start:stop])
                self._add(Block(part, gold, csr_array(chosen), scores[start:stop], effective, self._edges))
            yield documents, scores

    def _add(self, block: Block) -> None:
        hits = block.gold * block.chosen
        self.counts.add(*(block.label_edges.per_label(labels) for labels in (hits, block.chosen, block.gold)))
        for counter in (self.paths, self.siblings, self.sizes, self.errors):
            counter.update(block)
        self.thresholds.update(block.gold, block.compared(self._decoder))
        self.before.update(block.gold, block.raw)
        self.after.update(block.gold, block.effective)


# Labels

WORST = 15
"""Number of worst labels."""

SUPPORT = 10
"""Minimum number of gold documents of a worst label, if there are enough such labels."""

MAX_CONFUSED = 3
"""Number of siblings that a label is most often confused with."""


def label_rows(taxonomy: Taxonomy, counts: Counts) -> list[dict[str, Any]]:
    """Describe each label in the order of the taxonomy, with its counts, precision, recall and F1."""
    numbers = zip(counts.gold.tolist(), counts.predicted.tolist(), counts.hits.tolist(), strict=True)
    each = counts.each().T.tolist()
    facts = zip(taxonomy, taxonomy.path_names(), taxonomy.depth.tolist(), numbers, each, strict=True)
    return [
        {"id": label.id, "name": label.name, "path": path, "level": level}
        | dict(zip(("gold", "predicted", "hits"), count, strict=True))
        | dict(zip(NAMES, grades, strict=True))
        for label, path, level, count, grades in facts
    ]


def worst_labels(rows: list[dict[str, Any]], taxonomy: Taxonomy, confused: csr_array[Any]) -> list[dict[str, Any]]:
    """Return the labels with the lowest F1, and the siblings they are confused with in both directions.

    Labels with few gold documents are included only if there are too few others.
    """
    wrong = [place for place, row in enumerate(rows) if row["gold"] and row["f1"] < 1]
    known = [place for place in wrong if rows[place]["gold"] >= SUPPORT]
    order = sorted(known if len(known) >= WORST else wrong, key=lambda place: (rows[place]["f1"], -rows[place]["gold"]))
    columns = csr_array(confused.T)
    return [
        rows[place]
        | {
            "taken_for": _most_confused(confused, place, taxonomy),
            "taken_from": _most_confused(columns, place, taxonomy),
        }
        for place in order[:WORST]
    ]


def describe_label(taxonomy: Taxonomy, row: int) -> dict[str, str]:
    """Return id, name and path of a label."""
    return {"id": taxonomy[row].id, "name": taxonomy[row].name, "path": taxonomy.path_name(row)}


def path_names(taxonomy: Taxonomy, rows: IntArray) -> list[str]:
    """Return the paths of a label set, one per most specific label."""
    chosen = set(rows.tolist())
    return [taxonomy.path_name(row) for row in rows.tolist() if chosen.isdisjoint(taxonomy.children(row).tolist())]


def _most_confused(confused: csr_array[Any], row: int, taxonomy: Taxonomy) -> list[dict[str, Any]]:
    """Return the labels with the highest counts in a row."""
    places = slice(confused.indptr[row], confused.indptr[row + 1])
    others, counts = confused.indices[places], confused.data[places]
    order = np.lexsort((others, -counts))[:MAX_CONFUSED]
    return [describe_label(taxonomy, int(others[i])) | {"documents": int(counts[i])} for i in order]
