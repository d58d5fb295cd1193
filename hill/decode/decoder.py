"""From scores to label sets that respect the taxonomy."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from hill.decode.calibration import Calibrator
from hill.decode.config import DecodeConfig
from hill.decode.paths import Paths
from hill.metrics.sparse import AnyEdges
from hill.taxonomy import Taxonomy
from hill.types import FloatArray


class Decoder:
    """Turns scores (B, L) into label sets (B, L): it calibrates them, makes them consistent and compares them.

    What comes in a dense array goes out in dense arrays; what comes in a `csr_array` of some scores, the others of
    which count as 0, goes out in `csr_array`s.

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
        self._edges = AnyEdges(taxonomy)

    @cached_property
    def _paths(self) -> Paths:
        return Paths(self._taxonomy)

    def calibrated(self, scores: Any) -> Any:
        """Scores as probabilities, each label for itself: (B, L) to (B, L)."""
        return scores if self._calibrator is None else self._calibrator(scores)

    def effective(self, scores: Any) -> Any:
        """Probabilities that never rise on the way down (except `raw`): (B, L) to (B, L)."""
        edges = self._edges.of(scores)
        return edges.leave(self._consistent(edges, edges.enter(self.calibrated(scores))))

    def decode(self, scores: Any) -> Any:
        """The predicted labels: (B, L) to (B, L)."""
        return self.decide(scores)[0]

    def decide(self, scores: Any) -> tuple[Any, Any]:
        """The predicted labels and the effective scores: (B, L) each."""
        edges = self._edges.of(scores)
        values = edges.enter(self.calibrated(scores))
        effective = self._consistent(edges, values)
        chosen = self._choose(edges, values, effective)
        if self.config.abstain:
            chosen = edges.of_documents(chosen, edges.highest(effective) > np.float64(self.config.abstain))
        return edges.leave(chosen), edges.leave(effective)

    def compared(self, scores: Any) -> Any:
        """What is compared with the thresholds: (B, L) to (B, L)."""
        edges = self._edges.of(scores)
        values = edges.enter(self.calibrated(scores))
        return edges.leave(self._compared(edges, values, self._consistent(edges, values)))

    def _consistent(self, edges: Any, values: Any) -> Any:
        match self.config.strategy:
            case "raw":
                return values
            case "top-down":
                return edges.least_above(values)
        return edges.close(values)

    def _compared(self, edges: Any, values: Any, effective: Any) -> Any:
        match self.config.strategy:
            case "ancestors":
                return values
            case "safe":
                return edges.close(edges.within(values, self._paths.best(values, self.config.k)))
        return effective

    def _choose(self, edges: Any, values: Any, effective: Any) -> Any:
        if not self.config.thresholded:
            return self._paths.best(values, self.config.k)
        chosen = edges.above(self._compared(edges, values, effective), self._thresholds)
        return self._repair(edges, chosen)

    def _repair(self, edges: Any, chosen: Any) -> Any:
        """Add or drop what thresholds that differ between a label and its parent left inconsistent."""
        match self.config.strategy:
            case "raw":
                return chosen
            case "top-down":
                return edges.least_above(chosen)
        return edges.close(chosen)
