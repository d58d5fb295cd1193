"""Thresholds that are best for documents whose labels are known, from histograms of their scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from hill.decode.config import DecodeConfig
from hill.metrics.counts import ratio
from hill.taxonomy import Taxonomy
from hill.types import BoolArray, FloatArray, IntArray

Scores = npt.NDArray[np.floating]

GRID: FloatArray = 1 / (1 + np.exp(-np.linspace(-9, 9, 361)))
"""Thresholds that are tried, at evenly spaced logits: close together near 0, where rare labels have theirs."""
MACRO_SHARE = {"micro_f1": 0.0, "hierarchical_f1": 0.0, "macro_f1": 1.0, "mean_f1": 1 / 3}
"""How much of a metric is macro F1; the rest is micro F1, which hierarchical F1 is for consistent label sets."""
WIDTH = len(GRID) + 1
"""Ranges of scores that thresholds part; no threshold is below the first, where missing scores are."""
TIE = 1e-12
ROUNDS = 100
GROUPS = 4096
"""Groups of labels whose thresholds are looked for at a time."""


class AnyHistograms(ABC):
    """For each label, how many documents and how many gold ones score above each threshold of the grid."""

    @abstractmethod
    def update(self, labels: Any, scores: Any) -> None:
        """Count these documents, (B, L) each."""

    @property
    @abstractmethod
    def gold(self) -> IntArray:
        """Gold documents of each label (L)."""

    @abstractmethod
    def counts(self, groups: IntArray) -> tuple[FloatArray, FloatArray]:
        """Hits and predicted labels of each group above each threshold: (G, thresholds) each."""

    @abstractmethod
    def f1(self, groups: IntArray) -> FloatArray:
        """The sum of the F1 of the labels of each group above each threshold: (G, thresholds)."""

    def best(self, groups: IntArray, metric: str) -> FloatArray:
        """One threshold for each group of labels, which are best for the metric together; groups (L) count from 0.

        With f and n the F1 and the predicted and gold labels of the round before, a group adds (2 hits - f predicted)
        / n to the micro F1, and the F1 of its labels / L to the macro F1: each maximises its part of the metric alone.
        For the micro F1 this is Dinkelbach's method: f never falls, and where it stands still nothing is better.
        """
        share, gold = MACRO_SHARE[metric], self.gold.sum()
        hits, predicted = self.counts(groups)
        macro = self.f1(groups) / len(groups) if share else np.zeros((len(hits), 1))
        rows = np.arange(len(hits))
        best, f1, total = -1.0, 0.0, max(gold, 1)
        for _ in range(ROUNDS):
            parts = (slice(start, start + GROUPS) for start in range(0, max(len(hits), 1), GROUPS))
            places = np.concatenate(
                [_middle(share * macro[at] + (1 - share) * (2 * hits[at] - f1 * predicted[at]) / total) for at in parts]
            )
            total = max(predicted[rows, places].sum() + gold, 1)
            f1 = 2 * hits[rows, places].sum() / total
            value = (share * macro[rows, places].sum() if share else 0.0) + (1 - share) * f1
            if value <= best + TIE:
                break
            best, chosen = value, places
        found: FloatArray = GRID[chosen]
        return found


class Histograms(AnyHistograms):
    """Counts of every label at every threshold."""

    def __init__(self, labels: int) -> None:
        self._hits, self._predicted = np.zeros((2, labels, len(GRID) + 1), dtype=np.int64)

    def update(self, labels: BoolArray, scores: Scores) -> None:
        """Count these documents, (B, L) each."""
        cells = np.searchsorted(GRID, scores.astype(np.float64)) + np.arange(labels.shape[1]) * WIDTH
        self._predicted += np.bincount(cells.ravel(), minlength=self._predicted.size).reshape(-1, WIDTH)
        self._hits += np.bincount(cells[labels], minlength=self._hits.size).reshape(-1, WIDTH)

    @property
    def gold(self) -> IntArray:
        """Gold documents of each label (L)."""
        gold: IntArray = self._hits.sum(axis=1)
        return gold

    def counts(self, groups: IntArray) -> tuple[FloatArray, FloatArray]:
        """Hits and predicted labels of each group above each threshold: (G, thresholds) each."""
        return _sums(_above(self._hits), groups), _sums(_above(self._predicted), groups)

    def f1(self, groups: IntArray) -> FloatArray:
        """The sum of the F1 of the labels of each group above each threshold: (G, thresholds)."""
        each = ratio(2 * _above(self._hits), _above(self._predicted) + self.gold[:, None])
        return _sums(each, groups)


def choose_thresholds(
    histograms: AnyHistograms, taxonomy: Taxonomy, config: DecodeConfig
) -> tuple[float, FloatArray | None]:
    """One threshold for all labels, and one for each (L) where the config asks for it.

    Labels with less support than the config asks for share one with the others like them of their level; where these
    have too little together, they take the one of all.
    """
    if config.tune == "off":
        return config.threshold, None
    level = taxonomy.depth - 1
    whole = histograms.best(np.zeros_like(level), config.tune_metric)[0]
    if config.tune == "global":
        return float(whole), None
    own = config.tune == "label"
    groups = _groups(level, histograms.gold >= config.support if own else np.zeros(len(level), dtype=bool))
    support = np.bincount(groups, histograms.gold)
    found = np.where(support >= config.support, histograms.best(groups, config.tune_metric), whole)
    return float(whole), found[groups]


def _groups(level: IntArray, alone: BoolArray) -> IntArray:
    """Labels that stand alone each in a group of its own, the others of a level in one: (L) to (L)."""
    apart = np.where(alone, level.max(initial=0) + 1 + np.arange(len(level)), level)
    return np.unique(apart, return_inverse=True)[1]


def _above(counts: IntArray) -> IntArray:
    """Documents above each threshold, from documents between thresholds: (L, thresholds + 1) to (L, thresholds)."""
    found: IntArray = counts.sum(axis=1, keepdims=True) - counts.cumsum(axis=1)
    return found[:, :-1]


def _sums(values: FloatArray | IntArray, groups: IntArray) -> FloatArray:
    """Sums of rows of the same group, none of which is empty: (L, n) to (G, n)."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    return np.add.reduceat(values[order].astype(np.float64), starts, axis=0)


def _middle(values: FloatArray) -> IntArray:
    """The place of the highest value of each row; of equals the middle one."""
    highest = values >= values.max(axis=1, keepdims=True) - TIE
    rank = highest.cumsum(axis=1)
    found: IntArray = (rank > rank[:, -1:] // 2).argmax(axis=1)
    return found
