"""What enters the metrics: checked arrays with a row a document, cut into blocks that fit a processor's cache."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hill.errors import ConfigError, DataError
from hill.types import BoolArray, FloatArray

BLOCK_CELLS = 2**18
MIN_DOCUMENTS = 64


class Accumulator(Protocol):
    """Counts over all documents seen, and the metrics that follow from them."""

    def update(self, labels: BoolArray, other: Any, /) -> None:
        """Count these documents."""

    def result(self) -> dict[str, float]:
        """The metrics of all documents counted."""


def accumulate(accumulator: Accumulator, labels: BoolArray, other: npt.NDArray[Any]) -> dict[str, float]:
    """The metrics of arrays that are all at hand."""
    for start, stop in blocks(*labels.shape):
        accumulator.update(labels[start:stop], other[start:stop])
    return accumulator.result()


def blocks(documents: int, width: int) -> Iterator[tuple[int, int]]:
    """Where to cut this many documents of this many labels."""
    size = max(MIN_DOCUMENTS, BLOCK_CELLS // max(width, 1))
    for start in range(0, documents, size):
        yield start, min(start + size, documents)


def check_labels(values: npt.ArrayLike, name: str, like: npt.NDArray[Any] | int | None = None) -> BoolArray:
    """These values as booleans, if they are a table of true and false, shaped as it must be."""
    array = np.asarray(values)
    _check_shape(array, name, like)
    truth = array.astype(bool, copy=False)
    if truth is not array and (wrong := array[truth != array]).size:
        raise DataError(
            f"{name} hold {wrong[0]}; expected true and false, or 1 and 0: compare scores with a threshold first"
        )
    return truth


def check_scores(values: npt.ArrayLike, like: npt.NDArray[Any] | int | None = None) -> npt.NDArray[np.floating]:
    """These values, if they are a table of numbers from 0 to 1, shaped as it must be."""
    array = np.asarray(values)
    _check_shape(array, "scores", like)
    if array.size:
        low, high = array.min(), array.max()
        if not (low >= 0 and high <= 1):
            worst = high if low >= 0 else low
            raise DataError(f"scores hold {worst}; expected numbers from 0 to 1: put logits through a sigmoid first")
    return array


def _check_shape(array: npt.NDArray[Any], name: str, like: npt.NDArray[Any] | int | None) -> None:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} are of type {array.dtype}; expected a table of numbers or of true and false")
    if array.ndim != 2:
        raise DataError(f"{name} have shape {array.shape}; expected two axes: a row a document, a column a label")
    if isinstance(like, int) and array.shape[1] != like:
        raise DataError(
            f"{name} have shape {array.shape}, but the taxonomy has {like} labels; "
            "expected one column for each, in the taxonomy's order"
        )
    if isinstance(like, np.ndarray) and array.shape != like.shape:
        raise DataError(
            f"{name} have shape {array.shape}, but labels have {like.shape}; expected the same documents and labels"
        )


def check_positive(value: int, name: str) -> int:
    """This value, if it is a whole number from 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}; expected a whole number from 1")
    return int(value)


def as_float(scores: npt.NDArray[np.floating]) -> FloatArray:
    """A block of scores in double precision."""
    return scores.astype(np.float64, copy=False)
