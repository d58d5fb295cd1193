"""Metrics of predicted label sets: flat precision, recall and F1, and metrics that take the taxonomy into account.

Also what all metrics share: blocks of documents, checks of labels and scores, and counts per label. In docstrings, G is
the set of gold labels of a document, P its predicted labels, C(·) a set with all ancestors. Sums are over documents.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, issparse

from hill.errors import ConfigError, DataError
from hill.sparse import Matrix, select_entries, to_dense, with_values
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import AnyEdges
from hill.types import FloatArray, IntArray

NAMES = ("precision", "recall", "f1")
BLOCK_ENTRIES = 2**18
"""Approximate number of matrix entries that are processed at a time."""
MIN_DOCUMENTS = 64
"""Minimum number of documents that are processed at a time."""
MAX_COUNT = 1_000_000
"""Maximum number of bins, and of labels at which a ranking is cut off."""

# Blocks of documents


def accumulate(metrics: Any, labels: Matrix, other: Matrix) -> dict[str, float]:
    """Update metrics with complete matrices (documents, L), in blocks, and return their result."""
    labels, other = match_format(labels, other)
    for start, stop in row_blocks(other):
        metrics.update(labels[start:stop], other[start:stop])
    result: dict[str, float] = metrics.result()
    return result


def row_blocks(matrix: Matrix) -> Iterator[tuple[int, int]]:
    """Yield the first row of each block of documents and the row after its last one."""
    size = max(MIN_DOCUMENTS, BLOCK_ENTRIES // max(row_width(matrix), 1))
    for start in range(0, matrix.shape[0], size):
        yield start, min(start + size, matrix.shape[0])


def row_width(matrix: Matrix) -> int:
    """The number of entries per document; the mean, rounded up, if the matrix is sparse."""
    return -(-matrix.nnz // max(matrix.shape[0], 1)) if isinstance(matrix, csr_array) else matrix.shape[1]


def match_format(labels: Matrix, other: Matrix) -> tuple[Any, Any]:
    """Convert labels to a dense or sparse matrix, as the other matrix is, and return both."""
    if isinstance(labels, csr_array) == isinstance(other, csr_array):
        return labels, other
    return (csr_array(labels) if isinstance(other, csr_array) else to_dense(labels)), other


# Checks


def check_labels(values: npt.ArrayLike | csr_array[Any], name: str, like: Matrix | int | None = None) -> Any:
    """Return a label matrix as booleans; raise if a value is neither 0 nor 1, or if the shape is wrong.

    `like` is a matrix of the expected shape, or the expected number of labels.
    """
    matrix = _check_matrix(values, name, like)
    data = matrix.data if isinstance(matrix, csr_array) else matrix
    truth = data.astype(bool, copy=False)
    if truth is not data and (wrong := data[truth != data]).size:
        raise DataError(
            f"{name} have the value {wrong[0]}; expected true and false, or 1 and 0: compare scores with a threshold "
            "first"
        )
    return select_entries(with_values(matrix, truth), truth) if isinstance(matrix, csr_array) else truth


def check_scores(values: npt.ArrayLike | csr_array[Any], like: Matrix | int | None = None) -> Any:
    """Return a matrix of scores; raise if a score is not between 0 and 1, or if the shape is wrong."""
    matrix = _check_matrix(values, "scores", like)
    data = matrix.data if isinstance(matrix, csr_array) else matrix
    if data.size:
        low, high = data.min(), data.max()
        if not (low >= 0 and high <= 1):
            worst = high if low >= 0 else low
            raise DataError(
                f"scores have the value {worst}; expected numbers from 0 to 1: apply a sigmoid to logits first"
            )
    return matrix


def _check_matrix(values: npt.ArrayLike | csr_array[Any], name: str, like: Matrix | int | None) -> Any:
    """Return a matrix of numbers, dense or in canonical sparse format; raise if it is anything else."""
    matrix: Any = values
    if not issparse(values):
        try:
            matrix = np.asarray(values)
        except ValueError:
            raise DataError(f"{name} have rows of different lengths; expected one column per label") from None
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"{name} have the dtype {matrix.dtype}; expected a matrix of numbers or booleans")
    if matrix.ndim != 2:
        raise DataError(f"{name} have shape {matrix.shape}; expected one row per document and one column per label")
    if isinstance(like, int) and matrix.shape[1] != like:
        raise DataError(
            f"{name} have shape {matrix.shape}, but the taxonomy has {like} labels; expected one column per label, in "
            "the order of the taxonomy"
        )
    if not isinstance(like, int | None) and matrix.shape != like.shape:
        raise DataError(
            f"{name} have shape {matrix.shape}, but labels have {like.shape}; expected the same documents and labels"
        )
    if issparse(values):
        matrix = csr_array(matrix)
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
    return matrix


def check_positive(value: int, name: str) -> int:
    """Return the value; raise if it is not a whole number from 1 to MAX_COUNT."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        raise ConfigError(f"{name} is {value!r}; expected a whole number from 1 to {MAX_COUNT:,}")
    return int(value)


# Arithmetic


def ratio(part: npt.ArrayLike, whole: npt.ArrayLike) -> FloatArray:
    """Divide element by element; a division by 0 is 0.

    >>> ratio(np.array([1, 0]), np.array([2, 0]))
    array([0.5, 0. ])
    """
    out: FloatArray = np.zeros(np.shape(part))
    np.divide(part, whole, out=out, where=np.asarray(whole) > 0)
    return out


def mean(values: npt.NDArray[Any]) -> float:
    """The mean; 0 without values."""
    return float(values.mean()) if values.size else 0.0


def precision_recall_f1(hits: npt.ArrayLike, predicted: npt.ArrayLike, gold: npt.ArrayLike) -> FloatArray:
    """Precision = hits / predicted, recall = hits / gold, F1 = 2 hits / (predicted + gold), as three rows."""
    return np.stack([ratio(hits, predicted), ratio(hits, gold), ratio(np.multiply(2, hits), np.add(predicted, gold))])


def with_names(prefix: str, values: FloatArray, suffix: str = "") -> dict[str, float]:
    """Precision, recall and F1 by name."""
    return {f"{prefix}_{name}{suffix}": float(value) for name, value in zip(NAMES, values, strict=True)}


def steps_below(scores: FloatArray, steps: int) -> IntArray:
    """How many of the values 0, 1/steps, 2/steps, ..., 1 are below each score.

    >>> steps_below(np.array([0.0, 0.07, 0.071, 1.0]), 100)
    array([  0,   7,   8, 100])
    """
    # the product may be rounded up to a step that is not below the score, or down (0.29 * 100 < 29)
    low = (scores * steps).astype(np.int64)
    return low + (scores > (np.arange(steps + 1) / steps).take(low))


class Counts:
    """Hits, predicted documents and gold documents per label (L)."""

    def __init__(self, labels: int) -> None:
        self.hits, self.predicted, self.gold = np.zeros((3, labels), dtype=np.int64)

    def add(self, hits: IntArray, predicted: IntArray, gold: IntArray) -> None:
        """Add counts per label."""
        self.hits += hits
        self.predicted += predicted
        self.gold += gold

    def each(self) -> FloatArray:
        """Precision, recall and F1 per label: (3, L)."""
        return precision_recall_f1(self.hits, self.predicted, self.gold)

    def micro(self, rows: IntArray | None = None) -> FloatArray:
        """Precision, recall and F1 of the sums of the counts over these labels, or all."""
        at = slice(None) if rows is None else rows
        return precision_recall_f1(self.hits[at].sum(), self.predicted[at].sum(), self.gold[at].sum())

    def macro(self, rows: IntArray | None = None) -> FloatArray:
        """The means of precision, recall and F1 over these labels, or all."""
        each = self.each()[:, slice(None) if rows is None else rows]
        return each.mean(axis=1) if each.size else np.zeros(3)


# Flat metrics


class FlatMetrics:
    """Metrics of each label by itself, and subset accuracy."""

    def __init__(self, labels: int) -> None:
        self.counts = Counts(labels)
        self.documents = 0
        self._correct = 0

    def update(self, labels: Any, predicted: Any, /) -> None:
        """Count these documents, (B, L) each."""
        masks = labels * predicted, predicted, labels
        if isinstance(labels, csr_array):
            self.counts.add(*(np.bincount(mask.indices, minlength=mask.shape[1]) for mask in masks))
            correct = np.diff((labels != predicted).indptr) == 0
        else:
            self.counts.add(*(np.count_nonzero(mask, axis=0) for mask in masks))
            correct = (labels == predicted).all(axis=1)
        self.documents += labels.shape[0]
        self._correct += int(np.count_nonzero(correct))

    def result(self) -> dict[str, float]:
        """The metrics of all documents so far.

        - micro: of the counts over all labels: precision = Σ|G∩P| / Σ|P|, recall = Σ|G∩P| / Σ|G|.
        - macro: the mean over all labels; macro_f1_supported: over labels with at least one gold document.
        - subset_accuracy: the share of documents with G = P.
        """
        return {
            "documents": self.documents,
            **with_names("micro", self.counts.micro()),
            **with_names("macro", self.counts.macro()),
            "macro_f1_supported": mean(self.counts.each()[2, self.counts.gold > 0]),
            "subset_accuracy": float(ratio(self._correct, self.documents)),
        }


def flat_scores(labels: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float]:
    """Micro and macro precision, recall and F1 as in scikit-learn, and subset accuracy; see `FlatMetrics`.

    >>> flat_scores([[1, 0], [1, 1]], [[1, 0], [1, 0]])["macro_f1"]
    0.5
    """
    gold = check_labels(labels, "labels")
    return accumulate(FlatMetrics(gold.shape[1]), gold, check_labels(predicted, "predicted", gold))


# Hierarchical metrics


class HierarchicalMetrics:
    """Metrics of label sets with their ancestors, of consistent labels, of paths and of lowest common ancestors."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._edges = AnyEdges(taxonomy)
        self._consistent = Counts(len(taxonomy))
        self._paths = Counts(len(taxonomy))
        self._closed = np.zeros(3, dtype=np.int64)
        self._common = np.zeros(3, dtype=np.int64)
        self._per_document = np.zeros(3)
        self._documents = 0
        self._violating = 0

    def update(self, labels: Matrix, predicted: Matrix, /) -> None:
        """Count these documents, (B, L) each."""
        edges = self._edges.of(labels)
        gold, chosen = edges.enter(labels), edges.enter(predicted)  # G, P
        closed_gold, closed = edges.close(gold), edges.close(chosen)  # C(G), C(P)
        hits = closed_gold * closed
        self._documents += labels.shape[0]
        self._violating += int(np.count_nonzero(edges.highest(closed > chosen)))
        per_document = np.stack([edges.per_document(mask) for mask in (hits, closed, closed_gold)])
        self._closed += per_document.sum(axis=1)
        self._per_document += precision_recall_f1(*per_document).sum(axis=1)
        rooted = edges.least_above(chosen)  # labels of P whose ancestors are all in P
        self._consistent.add(*map(edges.per_label, (edges.least_above(gold) * rooted, chosen, gold)))
        gold_ends, ends = closed_gold > edges.with_child(closed_gold), chosen > edges.with_child(chosen)
        self._paths.add(*map(edges.per_label, (gold_ends * ends * rooted, ends, gold_ends)))
        missed, extra = closed_gold > closed, closed > closed_gold
        common = hits > (edges.with_child(closed_gold) > edges.with_child(missed))
        common = common > (edges.with_child(closed) > edges.with_child(extra))
        n_common, n_extra, n_missed = (edges.per_document(mask).sum() for mask in (common, extra, missed))
        self._common += (n_common, n_common + n_extra, n_common + n_missed)

    def result(self) -> dict[str, float]:
        """The metrics of all documents so far.

        - hierarchical: precision = Σ|C(G)∩C(P)| / Σ|C(P)|, recall = Σ|C(G)∩C(P)| / Σ|C(G)| (Kiritchenko et al., 2006);
          with the suffix _documents, the mean over documents of their own precision, recall and F1.
        - consistent: F1 in which a label is a hit only if it and all its ancestors are in G and in P (C-F1 of Yu et
          al., 2022).
        - path: F1 of paths. Gold paths end at labels of C(G) without a child in C(G), predicted ones at labels of P
          without a child in P. A hit is the end of both and has all its ancestors in P. The macro F1 is the mean over
          labels at which some path ends.
        - lca: M, the lowest common ancestors, are the labels in C(G)∩C(P) below which each of the two sets either ends
          or has a label that the other lacks. Precision = Σ|M| / Σ(|M| + |C(P)\\C(G)|), recall = Σ|M| / Σ(|M| +
          |C(G)\\C(P)|), and F1 is their harmonic mean (after Kosmopoulos et al., 2015).
        - violations: the share of documents with P ≠ C(P).
        """
        common, predicted, gold = self._common
        precision, recall = float(ratio(common, predicted)), float(ratio(common, gold))
        ends = np.flatnonzero(self._paths.predicted + self._paths.gold)
        return {
            **with_names("hierarchical", precision_recall_f1(*self._closed)),
            **with_names("hierarchical", self._per_document / max(self._documents, 1), "_documents"),
            "consistent_micro_f1": float(self._consistent.micro()[2]),
            "consistent_macro_f1": mean(self._consistent.each()[2]),
            "path_micro_f1": float(self._paths.micro()[2]),
            "path_macro_f1": mean(self._paths.each()[2, ends]),
            "lca_precision": precision,
            "lca_recall": recall,
            "lca_f1": float(ratio(2 * precision * recall, precision + recall)),
            "violations": float(ratio(self._violating, self._documents)),
        }


def hierarchical_scores(labels: npt.ArrayLike, predicted: npt.ArrayLike, taxonomy: Taxonomy) -> dict[str, float]:
    """Metrics of label sets with their ancestors, of paths and of lowest common ancestors; see `HierarchicalMetrics`.

    A sibling of the gold label shares its parent, so half of the labels are right:

    >>> from hill.taxonomy import Label
    >>> taxonomy = Taxonomy([Label("a", "A"), Label("b", "B", ("a",)), Label("c", "C", ("a",))])
    >>> hierarchical_scores([[1, 1, 0]], [[1, 0, 1]], taxonomy)["hierarchical_f1"]
    0.5
    """
    gold = check_labels(labels, "labels", len(taxonomy))
    return accumulate(HierarchicalMetrics(taxonomy), gold, check_labels(predicted, "predicted", gold))
