"""From scores to label sets that respect the taxonomy."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from hill.decode.calibration import Calibrator
from hill.decode.config import DecodeConfig
from hill.decode.paths import Paths
from hill.metrics.edges import Edges
from hill.taxonomy import Taxonomy
from hill.types import BoolArray, FloatArray

Scores = npt.NDArray[np.floating]


class Decoder:
    """Turns scores (B, L) into label sets (B, L): it calibrates them, makes them consistent and compares them.

    Args:
        taxonomy: the labels.
        config: the settings; a strategy `auto` on which nothing was decided yet is `closure`.
        thresholds: one for each label (L), in place of the config's one.
        calibrator: makes scores probabilities, where one was fitted.
    """

    def __init__(
        self,
        taxonomy: Taxonomy,
        config: DecodeConfig,
        thresholds: FloatArray | None = None,
        calibrator: Calibrator | None = None,
    ) -> None:
        self.config = config
        self._taxonomy = taxonomy
        self._thresholds = np.float64(config.threshold) if thresholds is None else thresholds
        self._calibrator = calibrator
        self._edges = Edges(taxonomy)

    @cached_property
    def _paths(self) -> Paths:
        return Paths(self._taxonomy)

    def calibrated(self, scores: Scores) -> Scores:
        """Scores as probabilities, each label for itself: (B, L) to (B, L)."""
        return scores if self._calibrator is None else self._calibrator(scores)

    def effective(self, scores: Scores) -> Scores:
        """Probabilities that never rise on the way down (except `raw`): (B, L) to (B, L)."""
        return self._consistent(_columns(self.calibrated(scores))).T

    def decode(self, scores: Scores) -> BoolArray:
        """The predicted labels: (B, L) to (B, L)."""
        return self.decide(scores)[0]

    def decide(self, scores: Scores) -> tuple[BoolArray, Scores]:
        """The predicted labels and the effective scores: (B, L) each."""
        columns = _columns(self.calibrated(scores))
        effective = self._consistent(columns)
        chosen = self._choose(columns, effective)
        if self.config.abstain:
            chosen &= effective.max(axis=0) > np.float64(self.config.abstain)
        return chosen.T, effective.T

    def compared(self, scores: Scores) -> Scores:
        """What is compared with the thresholds: (B, L) to (B, L)."""
        columns = _columns(self.calibrated(scores))
        return self._compared(columns, self._consistent(columns)).T

    def _consistent(self, columns: Scores) -> Scores:
        match self.config.strategy:
            case "raw":
                return columns
            case "top-down":
                return self._edges.least_above(columns)
        return self._edges.close(columns)

    def _compared(self, columns: Scores, effective: Scores) -> Scores:
        match self.config.strategy:
            case "ancestors":
                return columns
            case "safe":
                return self._edges.close(np.where(self._paths.best(columns, self.config.k), columns, 0))
        return effective

    def _choose(self, columns: Scores, effective: Scores) -> BoolArray:
        if not self.config.thresholded:
            return self._paths.best(columns, self.config.k)
        compared = self._compared(columns, effective)
        return self._repair(compared > np.reshape(self._thresholds, (-1, 1)))

    def _repair(self, chosen: BoolArray) -> BoolArray:
        """Add or drop what thresholds that differ between a label and its parent left inconsistent."""
        match self.config.strategy:
            case "raw":
                return chosen
            case "top-down":
                return self._edges.least_above(chosen)
        return self._edges.close(chosen)


def _columns(scores: Scores) -> Scores:
    """A row a label, which `Edges` move fastest: (B, L) to (L, B)."""
    return np.ascontiguousarray(scores.T)
