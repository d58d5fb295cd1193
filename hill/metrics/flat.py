"""Measures that look at each label by itself: micro and macro precision, recall, F1, and subset accuracy."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, issparse

from hill.errors import ConfigError, DataError
from hill.sparse import Matrix, select_entries, to_dense, with_values
from hill.types import FloatArray, IntArray

BLOCK_CELLS = 2**18


MIN_DOCUMENTS = 64


LARGEST = 1_000_000
"""Largest number of bins, and of labels that a ranking is cut after."""


class Accumulator(Protocol):
    """Counts over all documents seen, and the metrics that follow from them."""

    def update(self, labels: Any, other: Any, /) -> None:
        """Count these documents, (B, L) each: both tables dense, or both sparse."""

    def result(self) -> dict[str, float]:
        """The metrics of all documents counted."""


def accumulate(accumulator: Accumulator, labels: Matrix, other: Matrix) -> dict[str, float]:
    """The metrics of tables that are all at hand."""
    labels, other = alike(labels, other)
    for start, stop in blocks_of(other):
        accumulator.update(labels[start:stop], other[start:stop])
    return accumulator.result()


def blocks(documents: int, width: int) -> Iterator[tuple[int, int]]:
    """Where to cut this many documents of this many labels."""
    size = max(MIN_DOCUMENTS, BLOCK_CELLS // max(width, 1))
    for start in range(0, documents, size):
        yield start, min(start + size, documents)


def blocks_of(table: Matrix) -> Iterator[tuple[int, int]]:
    """Where to cut a table."""
    return blocks(table.shape[0], width_of(table))


def width_of(table: Matrix) -> int:
    """Cells of a document; of a sparse table, about as many as each has."""
    return -(-table.nnz // max(table.shape[0], 1)) if isinstance(table, csr_array) else table.shape[1]


def alike(labels: Matrix, other: Matrix) -> tuple[Any, Any]:
    """Labels in a table of the other's kind, which tells how many labels there are to look at."""
    if isinstance(labels, csr_array) == isinstance(other, csr_array):
        return labels, other
    return (csr_array(labels) if isinstance(other, csr_array) else to_dense(labels)), other


def check_labels(values: npt.ArrayLike | csr_array[Any], name: str, like: Matrix | int | None = None) -> Any:
    """These values as booleans, if they are a table of true and false, shaped as it must be."""
    if issparse(values):
        checked = _check_data(values, name, like)
        return select_entries(with_values(checked, check_labels(checked.data[None], name)[0]), checked.data != 0)
    array = _as_array(values, name)
    _check_shape(array, name, like)
    truth = array.astype(bool, copy=False)
    if truth is not array and (wrong := array[truth != array]).size:
        raise DataError(
            f"{name} hold {wrong[0]}; expected true and false, or 1 and 0: compare scores with a threshold first"
        )
    return truth


def check_scores(values: npt.ArrayLike | csr_array[Any], like: Matrix | int | None = None) -> Any:
    """These values, if they are a table of numbers from 0 to 1, shaped as it must be."""
    if issparse(values):
        checked = _check_data(values, "scores", like)
        check_scores(checked.data[None])
        return checked
    array = _as_array(values, "scores")
    _check_shape(array, "scores", like)
    if array.size:
        low, high = array.min(), array.max()
        if not (low >= 0 and high <= 1):
            worst = high if low >= 0 else low
            raise DataError(f"scores hold {worst}; expected numbers from 0 to 1: put logits through a sigmoid first")
    return array


def _as_array(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:
        raise DataError(f"{name} have rows of different lengths; expected a column a label") from None


def _check_data(table: csr_array[Any], name: str, like: Matrix | int | None) -> csr_array[Any]:
    """The table, its cells in order and each there once."""
    _check_shape(table, name, like)
    table = csr_array(table)
    if not table.has_canonical_format:
        table = table.copy()
        table.sum_duplicates()
    return table


def _check_shape(array: Matrix, name: str, like: Matrix | int | None) -> None:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} are of type {array.dtype}; expected a table of numbers or of true and false")
    if array.ndim != 2:
        raise DataError(f"{name} have shape {array.shape}; expected two axes: a row a document, a column a label")
    if isinstance(like, int) and array.shape[1] != like:
        raise DataError(
            f"{name} have shape {array.shape}, but the taxonomy has {like} labels; "
            "expected one column for each, in the taxonomy's order"
        )
    if not isinstance(like, int | None) and array.shape != like.shape:
        raise DataError(
            f"{name} have shape {array.shape}, but labels have {like.shape}; expected the same documents and labels"
        )


def check_positive(value: int, name: str) -> int:
    """This value, if it is a whole number from 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value <= LARGEST:
        raise ConfigError(f"{name} is {value!r}; expected a whole number from 1 to {LARGEST:,}")
    return int(value)


def as_float(scores: Any) -> Any:
    """A block of scores in double precision."""
    return scores.astype(np.float64, copy=False)


NAMES = ("precision", "recall", "f1")


def ratio(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> FloatArray:
    """Each part of its whole, 0 where there is no whole.

    >>> ratio(np.array([1, 0]), np.array([2, 0]))
    array([0.5, 0. ])
    """
    out: FloatArray = np.zeros(np.shape(part))
    np.divide(part, whole, out=out, where=whole > 0)
    return out


def mean(values: npt.NDArray[Any]) -> float:
    """The mean, 0 where there is no value."""
    return float(values.mean()) if values.size else 0.0


def share(part: float | np.number[Any], whole: float | np.number[Any]) -> float:
    """Part of a whole, 0 where there is no whole."""
    return float(part / whole) if whole else 0.0


def grades(hits: npt.NDArray[Any], predicted: npt.NDArray[Any], gold: npt.NDArray[Any]) -> FloatArray:
    """Precision hits / predicted, recall hits / gold and F1 2 hits / (predicted + gold), as three rows."""
    return np.stack([ratio(hits, predicted), ratio(hits, gold), ratio(2 * hits, predicted + gold)])


def named(prefix: str, values: FloatArray, suffix: str = "") -> dict[str, float]:
    """Precision, recall and F1 under their names."""
    return {f"{prefix}_{name}{suffix}": float(value) for name, value in zip(NAMES, values, strict=True)}


class Counts:
    """For each of a number of labels: how often it was a hit, predicted, and gold."""

    def __init__(self, labels: int) -> None:
        self.hits, self.predicted, self.gold = np.zeros((3, labels), dtype=np.int64)

    def add(self, hits: IntArray, predicted: IntArray, gold: IntArray) -> None:
        """Count more, label by label."""
        self.hits += hits
        self.predicted += predicted
        self.gold += gold

    def each(self) -> FloatArray:
        """Precision, recall and F1 of each label: shape (3, L)."""
        return grades(self.hits, self.predicted, self.gold)

    def micro(self, rows: IntArray | None = None) -> FloatArray:
        """Precision, recall and F1 of the counts summed over these labels, or all."""
        at = slice(None) if rows is None else rows
        return grades(self.hits[at].sum(), self.predicted[at].sum(), self.gold[at].sum())

    def macro(self, rows: IntArray | None = None) -> FloatArray:
        """The mean over these labels, or all, of each one's precision, recall and F1."""
        each = self.each()[:, slice(None) if rows is None else rows]
        return each.mean(axis=1) if each.size else np.zeros(3)


def steps_below(scores: FloatArray, steps: int) -> IntArray:
    """How many of 0, 1/steps, 2/steps, ..., 1 each score exceeds.

    >>> steps_below(np.array([0.0, 0.07, 0.071, 1.0]), 100)
    array([  0,   7,   8, 100])
    """
    # a product may round up to a step that the score does not exceed, or down from the one it is on (0.29 * 100 < 29)
    low = (scores * steps).astype(np.int64)
    return low + (scores > (np.arange(steps + 1) / steps).take(low))


class FlatMetrics:
    """Counts label by label and document by document."""

    def __init__(self, labels: int) -> None:
        self.counts = Counts(labels)
        self.documents = 0
        self._exact = 0

    def update(self, labels: Any, predicted: Any, /) -> None:
        """Count these documents, (B, L) each."""
        self.counts.add(*(_per_label(mask) for mask in (labels * predicted, predicted, labels)))
        self.documents += labels.shape[0]
        self._exact += _count_same(labels, predicted)

    def result(self) -> dict[str, float]:
        """Micro and macro over all labels, macro F1 over labels with gold, share of documents with no error at all."""
        return {
            "documents": self.documents,
            **named("micro", self.counts.micro()),
            **named("macro", self.counts.macro()),
            "macro_f1_supported": mean(self.counts.each()[2, self.counts.gold > 0]),
            "subset_accuracy": share(self._exact, self.documents),
        }


def _per_label(mask: Matrix) -> IntArray:
    if isinstance(mask, csr_array):
        return np.bincount(mask.indices, minlength=mask.shape[1])
    counts: IntArray = np.count_nonzero(mask, axis=0)
    return counts


def _count_same(labels: Any, predicted: Any) -> int:
    """Documents without an error."""
    if isinstance(labels, csr_array):
        return int(np.count_nonzero(np.diff((labels != predicted).indptr) == 0))
    return int(np.count_nonzero((labels == predicted).all(axis=1)))


def flat_scores(labels: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float]:
    """Micro and macro precision, recall and F1 as scikit-learn counts them, and subset accuracy.

    >>> flat_scores([[1, 0], [1, 1]], [[1, 0], [1, 0]])["macro_f1"]
    0.5
    """
    gold = check_labels(labels, "labels")
    return accumulate(FlatMetrics(gold.shape[1]), gold, check_labels(predicted, "predicted", gold))
