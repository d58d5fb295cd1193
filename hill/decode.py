"""From scores to label sets that respect the taxonomy.

Every strategy but `path` gives each label an effective score that never rises on the way down, and predicts the labels
whose effective score is above the threshold: so any threshold gives a consistent set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hill.errors import ConfigError
from hill.metrics.edges import Edges
from hill.settings import one_of
from hill.taxonomy import Taxonomy
from hill.types import BoolArray, FloatArray, IntArray

STRATEGIES = ("closure", "top-down", "path", "raw")
STEPS = 200
PARENT_WEIGHT = 0.5

Scores = npt.NDArray[np.floating]


@dataclass(frozen=True)
class DecodeConfig:
    """How scores become label sets."""

    strategy: str = "closure"
    """closure: a label counts if it or one below it does; top-down: only if all above it do; path: the one best path;
    raw: every label for itself, consistent or not, as in the paper."""
    threshold: float = 0.5
    """Score above which a label is predicted."""
    tune: str = "global"
    """Choose on dev after training: global, one threshold; label, one for each label; off, none."""
    tune_metric: str = "micro_f1"
    """What the threshold is chosen for: micro_f1 or macro_f1."""

    def __post_init__(self) -> None:
        one_of(self.strategy, STRATEGIES, "decode.strategy")
        one_of(self.tune, ("global", "label", "off"), "decode.tune")
        one_of(self.tune_metric, ("micro_f1", "macro_f1"), "decode.tune_metric")
        if not 0 <= self.threshold <= 1:
            raise ConfigError(f"decode.threshold is {self.threshold}; expected a number from 0 to 1")


class Decoder:
    """Turns scores (B, L) into label sets (B, L); `thresholds` (L) take the place of the config's one threshold."""

    def __init__(self, taxonomy: Taxonomy, config: DecodeConfig, thresholds: FloatArray | None = None) -> None:
        self.config = config
        self._thresholds = thresholds
        self._taxonomy = taxonomy
        self._edges = Edges(taxonomy)

    def effective(self, scores: Scores) -> Scores:
        """Scores that never rise on the way down (except `raw`): (B, L) to (B, L)."""
        columns = np.ascontiguousarray(scores.T)  # (L, B)
        match self.config.strategy:
            case "closure" | "path":
                return self._edges.close(columns).T
            case "top-down":
                return self._edges.least_above(columns).T
        return scores

    def decode(self, scores: Scores) -> BoolArray:
        """The predicted labels: (B, L) to (B, L)."""
        if self.config.strategy == "path":
            return self._best_path(scores)
        if self._thresholds is None:
            chosen: BoolArray = self.effective(scores) > self.config.threshold
            return chosen
        return self._repair(self.effective(scores) > self._thresholds)

    def _repair(self, chosen: BoolArray) -> BoolArray:
        """Add or drop what thresholds that differ between a label and its parent left inconsistent."""
        columns = np.ascontiguousarray(chosen.T)
        match self.config.strategy:
            case "closure":
                return self._edges.close(columns).T
            case "top-down":
                return self._edges.least_above(columns).T
        return chosen

    def _best_path(self, scores: Scores) -> BoolArray:
        """The leaf whose path from a root has the highest mean log score, with all its ancestors.

        In the mean a label weighs twice as much as its parent: it knows more (measured on ICD-10-CM dev).
        """
        sums, weights = np.log(np.maximum(scores, 1e-12)), np.ones(scores.shape)
        for level in self._taxonomy.levels[1:]:
            for row in level.tolist():
                parents = self._taxonomy.parents(row)
                best = parents[(sums[:, parents] / weights[:, parents]).argmax(axis=1)]
                documents = np.arange(len(scores))
                sums[:, row] += PARENT_WEIGHT * sums[documents, best]
                weights[:, row] += PARENT_WEIGHT * weights[documents, best]
        leaves = self._taxonomy.leaves
        ends = leaves[(sums / weights)[:, leaves].argmax(axis=1)]
        chosen = np.zeros(scores.shape, dtype=bool)
        chosen[np.arange(len(scores)), ends] = True
        return self._edges.close(np.ascontiguousarray(chosen.T)).T


class ThresholdTuner:
    """Finds the threshold that is best on the documents it saw, from histograms: memory does not grow with them."""

    def __init__(self, decoder: Decoder, labels: int) -> None:
        self._decoder = decoder
        self._hits, self._predicted = np.zeros((2, labels, STEPS + 1), dtype=np.int64)

    def update(self, labels: BoolArray, scores: Scores) -> None:
        """Count these documents."""
        effective = self._decoder.effective(scores)
        bins = np.clip(np.ceil(effective * STEPS - 1e-9).astype(np.int64), 0, STEPS)  # t < score: bins above t
        cells = bins + np.arange(labels.shape[1]) * (STEPS + 1)
        self._predicted += np.bincount(cells.ravel(), minlength=self._predicted.size).reshape(self._predicted.shape)
        self._hits += np.bincount(cells[labels], minlength=self._hits.size).reshape(self._hits.shape)

    def best(self) -> float:
        """The one threshold with the highest metric."""
        hits, predicted, gold = self._counts()
        if self._decoder.config.tune_metric == "micro_f1":
            return _middle_of_best(2 * hits.sum(axis=0) / np.maximum(predicted.sum(axis=0) + gold.sum(), 1))
        return _middle_of_best((2 * hits / np.maximum(predicted + gold, 1)).mean(axis=0))

    def best_by_label(self) -> FloatArray:
        """For each label the threshold with its highest F1; where there is no gold, the best of all."""
        hits, predicted, gold = self._counts()
        f1, together = 2 * hits / np.maximum(predicted + gold, 1), self.best()
        return np.array([_middle_of_best(row) if row.any() else together for row in f1])

    def _counts(self) -> tuple[IntArray, IntArray, IntArray]:
        """Hits and predictions of each label above each threshold (L, STEPS + 1), and its gold (L, 1)."""
        gold = self._hits.sum(axis=1, keepdims=True)
        predicted = self._predicted.sum(axis=1, keepdims=True) - self._predicted.cumsum(axis=1)
        return gold - self._hits.cumsum(axis=1), predicted, gold


def _middle_of_best(f1: FloatArray) -> float:
    """The threshold of the highest value; of equals the middle one."""
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(best[len(best) // 2] / STEPS)
