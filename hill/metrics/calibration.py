"""Whether scores mean what they say: expected calibration error and Brier score, overall and per level."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.metrics.flat import accumulate, as_float, check_labels, check_positive, check_scores, mean, share, steps_below
from hill.sparse import Matrix
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import scores_at_labels
from hill.types import FloatArray, IntArray


class CalibrationMetrics:
    """Sums of scores and gold labels per level and bin; bins are of equal width, open below and closed above."""

    def __init__(self, taxonomy: Taxonomy, bins: int = 15) -> None:
        self._bins = check_positive(bins, "bins")
        self._level = taxonomy.depth - 1
        self._sizes = np.bincount(self._level)
        self._surplus = np.zeros(len(self._sizes) * bins)
        self._squared = np.zeros(len(taxonomy))
        self._documents = 0

    def update(self, labels: Any, scores: Matrix, /) -> None:
        """Count these documents, (B, L) each."""
        self._documents += labels.shape[0]
        if isinstance(scores, csr_array):
            self._update_sparse(labels, scores)
            return
        values: FloatArray = as_float(scores)
        cells = self._cells(values, self._level)
        self._surplus += np.bincount(cells.ravel(), values.ravel(), minlength=len(self._surplus))
        self._surplus -= np.bincount(cells[labels], minlength=len(self._surplus))
        self._squared += np.square(values - labels).sum(axis=0)

    def _update_sparse(self, labels: csr_array[Any], scores: csr_array[Any]) -> None:
        rows, gold = scores_at_labels(labels, scores)
        cells = [
            self._cells(as_float(values), self._level[of])
            for values, of in ((scores.data, scores.indices), (gold, rows))
        ]
        self._surplus += np.bincount(cells[0], scores.data, minlength=len(self._surplus))
        self._surplus -= np.bincount(cells[1], minlength=len(self._surplus))
        apart = scores.astype(np.float64) - labels.astype(np.float64)
        self._squared += np.bincount(apart.indices, np.square(apart.data), minlength=len(self._squared))

    def _cells(self, scores: FloatArray, level: IntArray) -> IntArray:
        """The bin of each score, of those of all levels."""
        cells: IntArray = np.maximum(steps_below(scores, self._bins) - 1, 0) + level * self._bins
        return cells

    def result(self) -> dict[str, float]:
        """ECE = Σ over bins |Σ scores - gold labels| / cells and Brier = mean (score - gold)², over all cells."""
        surplus = self._surplus.reshape(-1, self._bins).sum(axis=0)
        return self._scores(surplus, self._squared, len(self._level))

    def levels(self) -> list[dict[str, float]]:
        """The same for the labels of each level alone."""
        squared = np.bincount(self._level, self._squared)
        surplus = self._surplus.reshape(-1, self._bins)
        return [self._scores(*level) for level in zip(surplus, squared, self._sizes, strict=True)]

    def ece(self) -> dict[str, float]:
        """The ECE over all cells, and the mean of the levels' own, in which a level of few labels weighs as much."""
        return {"ece": self.result()["ece"], "ece_levels": mean_over_levels(self.levels())}

    def _scores(self, surplus: FloatArray, squared: FloatArray, labels: int) -> dict[str, float]:
        cells = self._documents * labels
        return {"ece": share(np.abs(surplus).sum(), cells), "brier": share(squared.sum(), cells)}


def mean_over_levels(levels: list[dict[str, float]]) -> float:
    """The mean of the ECE of each level."""
    return mean(np.array([level["ece"] for level in levels]))


def calibration_scores(
    labels: npt.ArrayLike, scores: npt.ArrayLike, taxonomy: Taxonomy, bins: int = 15
) -> dict[str, float]:
    """Expected calibration error and Brier score over all documents and labels.

    >>> from hill.taxonomy import Label
    >>> calibration_scores([[1], [0]], [[0.75], [0.75]], Taxonomy([Label("a", "A")]))
    {'ece': 0.25, 'brier': 0.3125}
    """
    gold = check_labels(labels, "labels", len(taxonomy))
    return accumulate(CalibrationMetrics(taxonomy, bins), gold, check_scores(scores, gold))
