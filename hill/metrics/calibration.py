"""Whether scores mean what they say: expected calibration error and Brier score, overall and per level."""

import numpy as np
import numpy.typing as npt

from hill.metrics.blocks import accumulate, as_float, check_labels, check_positive, check_scores
from hill.metrics.counts import mean, share
from hill.metrics.grid import steps_below
from hill.taxonomy import Taxonomy
from hill.types import BoolArray, FloatArray


class Calibration:
    """Sums of scores and gold labels per level and bin; bins are of equal width, open below and closed above."""

    def __init__(self, taxonomy: Taxonomy, bins: int = 15) -> None:
        self._bins = check_positive(bins, "bins")
        self._level = taxonomy.depth - 1
        self._sizes = np.bincount(self._level)
        self._surplus = np.zeros(len(self._sizes) * bins)
        self._squared = np.zeros(len(taxonomy))
        self._documents = 0

    def update(self, labels: BoolArray, scores: npt.NDArray[np.floating], /) -> None:
        """Count these documents, (B, L) each."""
        scores = as_float(scores)
        cells = np.maximum(steps_below(scores, self._bins) - 1, 0) + self._level * self._bins
        self._surplus += np.bincount(cells.ravel(), scores.ravel(), minlength=len(self._surplus))
        self._surplus -= np.bincount(cells[labels], minlength=len(self._surplus))
        self._squared += np.square(scores - labels).sum(axis=0)
        self._documents += len(labels)

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
    return accumulate(Calibration(taxonomy, bins), gold, check_scores(scores, gold))
