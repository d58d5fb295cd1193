"""Hits, predicted and gold counts, and the precision, recall and F1 that follow from them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hill.types import FloatArray, IntArray

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
