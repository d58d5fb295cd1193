"""The decoder turns scores into label sets that respect the taxonomy; `DecodeConfig` has its settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack

from hill.decode.calibration import Calibrator
from hill.settings import check_at_least, check_one_of, within
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import AnyEdges, downward_rounds
from hill.types import BoolArray, FloatArray, IntArray

STRATEGIES = ("auto", "closure", "ancestors", "top-down", "path", "safe", "raw")
TUNINGS = ("global", "level", "label", "off")
TUNE_METRICS = ("micro_f1", "macro_f1", "hierarchical_f1", "mean_f1")
CALIBRATIONS = ("auto", "temperature", "isotonic", "off")
BLOCK_DOCUMENTS = 16
"""Number of documents whose sparse scores are made dense at a time."""
PARENT_WEIGHT = 0.5
"""Weight of a parent relative to its child in the mean of a path, chosen on ICD-10-CM dev."""
MIN_SCORE = 1e-12


@dataclass(frozen=True)
class DecodeConfig:
    """How scores become label sets."""

    strategy: str = "auto"
    """auto: chosen on dev; closure: a label if its score or that of a descendant is above the threshold; ancestors:
    labels whose own score is above their threshold, with all ancestors; top-down: a label only if all its ancestors
    are predicted; path: the k best paths; safe: these paths, cut below the last label above the threshold; raw: each
    label by itself as in the paper, consistent or not."""
    threshold: float = 0.5
    """A label is predicted if its score is above this threshold."""
    tune: str = "global"
    """Choose thresholds on dev after training: global, one for all labels; level, one per level; label, one per label;
    off, none. Strategy auto chooses this setting too."""
    tune_metric: str = "micro_f1"
    """The metric that thresholds maximise: micro_f1, macro_f1, hierarchical_f1, or mean_f1, the mean of the three.
    Strategy auto chooses this setting too."""
    k: int = 1
    """Number of paths of the strategies path and safe."""
    abstain: float = 0.0
    """Documents whose highest score is not above this value get no label; 0 never abstains."""
    calibrate: str = "auto"
    """Fit calibration on dev: temperature, one per level; isotonic, one curve per label, or per level for labels with
    few documents; auto, the best of both and none; off, none."""
    keep: int = 0
    """Number of top scores per document; the others count as 0. 0: all scores, or 100 with over 10,000 labels."""

    def __post_init__(self) -> None:
        check_one_of(self.strategy, STRATEGIES, "decode.strategy")
        check_one_of(self.tune, TUNINGS, "decode.tune")
        check_one_of(self.tune_metric, TUNE_METRICS, "decode.tune_metric")
        check_one_of(self.calibrate, CALIBRATIONS, "decode.calibrate")
        check_at_least(self.k, 1, "decode.k")
        check_at_least(self.keep, 0, "decode.keep")
        within(self.threshold, 0, 1, "decode.threshold")
        within(self.abstain, 0, 1, "decode.abstain")

    @property
    def thresholded(self) -> bool:
        """Whether the strategy compares scores with thresholds."""
        return self.strategy != "path"

    @property
    def tunable(self) -> bool:
        """Whether anything is chosen on dev."""
        return self.strategy == "auto" or self.calibrate != "off" or (self.thresholded and self.tune != "off")


class Decoder:
    """Turns scores (B, L) into label sets (B, L): calibrates them, makes them consistent and applies thresholds.

    Dense scores give dense results. Sparse scores (`csr_array`, missing scores count as 0) give sparse results.

    Args:
        taxonomy: the labels.
        config: the settings; `auto` that was not tuned yet means `closure`.
        thresholds: one per label (L), instead of the single threshold of the config.
        calibrator: maps scores to probabilities.
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

    def decode(self, scores: Any) -> Any:
        """Return the predicted labels: (B, L) to (B, L)."""
        return self.decide(scores)[0]

    def decide(self, scores: Any) -> tuple[Any, Any]:
        """Return the predicted labels and the effective scores: (B, L) each."""
        edges = self._edges.of(scores)
        values = edges.enter(self.calibrated(scores))
        effective = self._consistent(edges, values)
        if not self.config.thresholded:
            predicted = self._best_paths(values)
        else:
            above = edges.above(self._compared(edges, values, effective), self._thresholds)
            predicted = self._consistent(edges, above)  # thresholds may differ between parent and child
        if self.config.abstain:
            predicted = edges.of_documents(predicted, edges.highest(effective) > np.float64(self.config.abstain))
        return edges.leave(predicted), edges.leave(effective)

    def calibrated(self, scores: Any) -> Any:
        """Return the scores as probabilities, each label by itself: (B, L) to (B, L)."""
        return scores if self._calibrator is None else self._calibrator(scores)

    def effective(self, scores: Any) -> Any:
        """Return probabilities in which no label is above its parents (except with `raw`): (B, L) to (B, L)."""
        edges = self._edges.of(scores)
        return edges.leave(self._consistent(edges, edges.enter(self.calibrated(scores))))

    def compared(self, scores: Any) -> Any:
        """Return the values that are compared with the thresholds: (B, L) to (B, L)."""
        edges = self._edges.of(scores)
        values = edges.enter(self.calibrated(scores))
        return edges.leave(self._compared(edges, values, self._consistent(edges, values)))

    def _consistent(self, edges: Any, values: Any) -> Any:
        """Make scores or label sets consistent: raise the ancestors, or with `top-down` lower the descendants."""
        if self.config.strategy == "raw":
            return values
        return edges.least_above(values) if self.config.strategy == "top-down" else edges.close(values)

    def _compared(self, edges: Any, values: Any, effective: Any) -> Any:
        if self.config.strategy == "safe":
            return edges.close(edges.within(values, self._best_paths(values)))
        return values if self.config.strategy == "ancestors" else effective

    # Paths

    def _best_paths(self, values: Any) -> Any:
        """Return the labels on the k best paths with all ancestors: (L, b) to (L, b), or sparse (b, L) to (b, L).

        The best path may end at a leaf whose score is missing, so sparse scores are made dense in small blocks.
        """
        if not isinstance(values, csr_array):
            return self._best_dense_paths(values)
        starts = range(0, values.shape[0], BLOCK_DOCUMENTS)
        parts = (self._best_dense_paths(values[start : start + BLOCK_DOCUMENTS].toarray().T).T for start in starts)
        empty: csr_array[Any] = csr_array((0, values.shape[1]), dtype=bool)
        return csr_array(vstack([empty, *map(csr_array, parts)]))

    def _best_dense_paths(self, scores: npt.NDArray[np.floating]) -> BoolArray:
        """Find the leaves whose paths have the highest weighted mean of log scores.

        Lower labels have larger weights, since they are more informative. The path of a label with several parents
        continues the path of the parent that gives it the highest mean.
        """
        logs = np.log(np.maximum(scores, MIN_SCORE))
        means = logs.copy()  # of the best path to each label: (L, b)
        means[self._taxonomy.depth > 1] = -np.inf
        sums, weights = logs.copy(), np.ones_like(logs)
        for children, parents in self._downward_rounds:
            total, weight = logs[children] + PARENT_WEIGHT * sums[parents], 1 + PARENT_WEIGHT * weights[parents]
            better = total / weight > means[children]
            for values, new in ((sums, total), (weights, weight), (means, total / weight)):
                values[children] = np.where(better, new, values[children])
        leaves = self._taxonomy.leaves
        k = min(self.config.k, len(leaves))
        means = means[leaves]
        ends = means.argmax(axis=0)[None] if k == 1 else np.argpartition(-means, k - 1, axis=0)[:k]  # (k, b)
        predicted = np.zeros(scores.shape, dtype=bool)
        predicted[leaves[ends], np.arange(scores.shape[1])] = True
        closed: BoolArray = self._edges.of(predicted).close(predicted)
        return closed

    @cached_property
    def _downward_rounds(self) -> list[tuple[IntArray, IntArray]]:
        return downward_rounds(self._taxonomy)
