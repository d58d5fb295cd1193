"""What enters the metrics: checked tables with a row a document, cut into blocks that fit a processor's cache."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, issparse

from hill.errors import ConfigError, DataError
from hill.taxonomy.cells import Table, as_dense, only, with_values

BLOCK_CELLS = 2**18
MIN_DOCUMENTS = 64


class Accumulator(Protocol):
    """Counts over all documents seen, and the metrics that follow from them."""

    def update(self, labels: Any, other: Any, /) -> None:
        """Count these documents, (B, L) each: both tables dense, or both sparse."""

    def result(self) -> dict[str, float]:
        """The metrics of all documents counted."""


def accumulate(accumulator: Accumulator, labels: Table, other: Table) -> dict[str, float]:
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


def blocks_of(table: Table) -> Iterator[tuple[int, int]]:
    """Where to cut a table."""
    return blocks(table.shape[0], width_of(table))


def width_of(table: Table) -> int:
    """Cells of a document; of a sparse table, about as many as each has."""
    return -(-table.nnz // max(table.shape[0], 1)) if isinstance(table, csr_array) else table.shape[1]


def alike(labels: Table, other: Table) -> tuple[Any, Any]:
    """Labels in a table of the other's kind, which tells how many labels there are to look at."""
    if isinstance(labels, csr_array) == isinstance(other, csr_array):
        return labels, other
    return (csr_array(labels) if isinstance(other, csr_array) else as_dense(labels)), other


def check_labels(values: npt.ArrayLike | csr_array[Any], name: str, like: Table | int | None = None) -> Any:
    """These values as booleans, if they are a table of true and false, shaped as it must be."""
    if issparse(values):
        checked = _check_data(values, name, like)
        return only(with_values(checked, check_labels(checked.data[None], name)[0]), checked.data != 0)
    array = np.asarray(values)
    _check_shape(array, name, like)
    truth = array.astype(bool, copy=False)
    if truth is not array and (wrong := array[truth != array]).size:
        raise DataError(
            f"{name} hold {wrong[0]}; expected true and false, or 1 and 0: compare scores with a threshold first"
        )
    return truth


def check_scores(values: npt.ArrayLike | csr_array[Any], like: Table | int | None = None) -> Any:
    """These values, if they are a table of numbers from 0 to 1, shaped as it must be."""
    if issparse(values):
        checked = _check_data(values, "scores", like)
        check_scores(checked.data[None])
        return checked
    array = np.asarray(values)
    _check_shape(array, "scores", like)
    if array.size:
        low, high = array.min(), array.max()
        if not (low >= 0 and high <= 1):
            worst = high if low >= 0 else low
            raise DataError(f"scores hold {worst}; expected numbers from 0 to 1: put logits through a sigmoid first")
    return array


def _check_data(table: csr_array[Any], name: str, like: Table | int | None) -> csr_array[Any]:
    """The table, its cells in order and each there once."""
    _check_shape(table, name, like)
    table = csr_array(table)
    if not table.has_canonical_format:
        table = table.copy()
        table.sum_duplicates()
    return table


def _check_shape(array: Table, name: str, like: Table | int | None) -> None:
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
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}; expected a whole number from 1")
    return int(value)


def as_float(scores: Any) -> Any:
    """A block of scores in double precision."""
    return scores.astype(np.float64, copy=False)
