"""The choice of thresholds: histograms of scores per label, and the thresholds that maximise F1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.decode.calibration import ScoreArray, sigmoid
from hill.decode.config import DecodeConfig
from hill.metrics.flat import ratio
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import scores_at_labels
from hill.types import BoolArray, FloatArray, IntArray

GRID: FloatArray = sigmoid(np.linspace(-9, 9, 361))
"""Candidate thresholds, evenly spaced in logits: dense near 0, where rare labels have their thresholds."""

WIDTH = len(GRID) + 1
"""Number of score ranges between the thresholds. Missing scores are in the first one, below all thresholds."""

MACRO_SHARE = {"micro_f1": 0.0, "hierarchical_f1": 0.0, "macro_f1": 1.0, "mean_f1": 1 / 3}
"""Weight of macro F1 in a metric. The rest is micro F1, which equals hierarchical F1 for consistent label sets."""

TIE = 1e-12
MAX_ROUNDS = 100
BLOCK_GROUPS = 4096
"""Number of groups of labels whose thresholds are searched at a time."""


def choose_thresholds(
    histograms: AnyHistograms, taxonomy: Taxonomy, config: DecodeConfig
) -> tuple[float, FloatArray | None]:
    """Choose one threshold for all labels, and one per label (L) if the config asks for it.

    Labels with too few gold documents share a threshold with the other such labels of their level. If these have too
    few together, they use the threshold of all labels.
    """
    if config.tune == "off":
        return config.threshold, None
    level = taxonomy.depth - 1
    shared = histograms.best(np.zeros_like(level), config.tune_metric)[0]
    if config.tune == "global":
        return float(shared), None
    groups = level
    if config.tune == "label":
        single = level.max(initial=0) + 1 + np.arange(len(level))
        groups = np.where(histograms.gold >= config.support, single, level)
    groups = np.unique(groups, return_inverse=True)[1]
    support = np.bincount(groups, histograms.gold)
    thresholds = np.where(support >= config.support, histograms.best(groups, config.tune_metric), shared)
    return float(shared), thresholds[groups]


class AnyHistograms(ABC):
    """Counts per label how many documents and how many gold documents score above each threshold of the grid."""

    @abstractmethod
    def update(self, labels: Any, scores: Any) -> None:
        """Count these documents, (B, L) each."""

    @property
    @abstractmethod
    def gold(self) -> IntArray:
        """Number of gold documents per label (L)."""

    @abstractmethod
    def counts(self, groups: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the number of hits and of predicted labels per group and threshold: (G, thresholds) each."""

    @abstractmethod
    def f1(self, groups: IntArray) -> FloatArray:
        """Return the sum of the F1 of the labels per group and threshold: (G, thresholds)."""

    def best(self, groups: IntArray, metric: str) -> FloatArray:
        """Return one threshold per group of labels (L, numbered from 0) that together maximise the metric.

        With f the micro F1 and n the number of predicted and gold labels of the previous round, a group contributes
        (2 hits - f predicted) / n to the micro F1, and the F1 of its labels / L to the macro F1. Each group maximises
        its contribution by itself. For the micro F1 this is Dinkelbach's method: f never decreases, and is optimal as
        soon as it stays the same.
        """
        share, gold = MACRO_SHARE[metric], self.gold.sum()
        hits, predicted = self.counts(groups)
        macro = self.f1(groups) / len(groups) if share else np.zeros((len(hits), 1))
        rows = np.arange(len(hits))
        best, f1, total = -1.0, 0.0, max(gold, 1)
        for _ in range(MAX_ROUNDS):
            blocks = (slice(start, start + BLOCK_GROUPS) for start in range(0, max(len(hits), 1), BLOCK_GROUPS))
            index = np.concatenate(
                [
                    _argmax_middle(share * macro[b] + (1 - share) * (2 * hits[b] - f1 * predicted[b]) / total)
                    for b in blocks
                ]
            )
            total = max(predicted[rows, index].sum() + gold, 1)
            f1 = 2 * hits[rows, index].sum() / total
            value = (share * macro[rows, index].sum() if share else 0.0) + (1 - share) * f1
            if value <= best + TIE:
                break
            best, chosen = value, index
        thresholds: FloatArray = GRID[chosen]
        return thresholds


def _argmax_middle(values: FloatArray) -> IntArray:
    """Return the index of the maximum of each row; the middle one of ties."""
    highest = values >= values.max(axis=1, keepdims=True) - TIE
    rank = highest.cumsum(axis=1)
    index: IntArray = (rank > rank[:, -1:] // 2).argmax(axis=1)
    return index


class Histograms(AnyHistograms):
    """Counts for every label and every range."""

    def __init__(self, n_labels: int) -> None:
        self._hits, self._predicted = np.zeros((2, n_labels, WIDTH), dtype=np.int64)

    def update(self, labels: BoolArray, scores: ScoreArray) -> None:
        """Count these documents, (B, L) each."""
        ranges = np.searchsorted(GRID, scores.astype(np.float64)) + np.arange(labels.shape[1]) * WIDTH
        self._predicted += np.bincount(ranges.ravel(), minlength=self._predicted.size).reshape(-1, WIDTH)
        self._hits += np.bincount(ranges[labels], minlength=self._hits.size).reshape(-1, WIDTH)

    @property
    def gold(self) -> IntArray:
        """Number of gold documents per label (L)."""
        gold: IntArray = self._hits.sum(axis=1)
        return gold

    def counts(self, groups: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the number of hits and of predicted labels per group and threshold: (G, thresholds) each."""
        return _sum_groups(_above(self._hits), groups), _sum_groups(_above(self._predicted), groups)

    def f1(self, groups: IntArray) -> FloatArray:
        """Return the sum of the F1 of the labels per group and threshold: (G, thresholds)."""
        return _sum_groups(ratio(2 * _above(self._hits), _above(self._predicted) + self.gold[:, None]), groups)


def _above(counts: IntArray) -> IntArray:
    """Turn counts per range into counts above each threshold: (L, WIDTH) to (L, thresholds)."""
    above: IntArray = counts.sum(axis=1, keepdims=True) - counts.cumsum(axis=1)
    return above[:, :-1]


def _sum_groups(values: IntArray | FloatArray, groups: IntArray) -> FloatArray:
    """Sum the rows of each group, none of which is empty: (L, thresholds) to (G, thresholds)."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    return np.add.reduceat(values[order].astype(np.float64), starts, axis=0)


class SparseHistograms(AnyHistograms):
    """Counts only for the ranges in which a label has scores, except the first range, which no threshold is below.

    A range is numbered label * WIDTH + its index in the grid. The numbers are sorted.
    """

    def __init__(self, n_labels: int) -> None:
        self._gold: IntArray = np.zeros(n_labels, dtype=np.int64)
        self._ranges, self._predicted, self._hits = np.zeros((3, 0), dtype=np.int64)

    def update(self, labels: csr_array[Any], scores: csr_array[Any]) -> None:
        """Count these documents, (B, L) each."""
        gold_labels, gold_scores = scores_at_labels(labels, scores)
        self._gold += np.bincount(gold_labels, minlength=len(self._gold))
        predicted = _ranges(scores.indices.astype(np.int64), scores.data)
        hits = _ranges(gold_labels, gold_scores)
        ranges, index = np.unique(np.concatenate([self._ranges, predicted, hits]), return_inverse=True)
        known, new, gold = np.split(index, [len(self._ranges), len(self._ranges) + len(predicted)])
        self._predicted = _scatter(self._predicted, known, len(ranges)) + np.bincount(new, minlength=len(ranges))
        self._hits = _scatter(self._hits, known, len(ranges)) + np.bincount(gold, minlength=len(ranges))
        self._ranges = ranges

    @property
    def gold(self) -> IntArray:
        """Number of gold documents per label (L)."""
        return self._gold

    def counts(self, groups: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the number of hits and of predicted labels per group and threshold: (G, thresholds) each."""
        label, step = np.divmod(self._ranges, WIDTH)
        return _sum_above(groups, label, step, self._hits), _sum_above(groups, label, step, self._predicted)

    def f1(self, groups: IntArray) -> FloatArray:
        """Return the sum of the F1 of the labels per group and threshold: (G, thresholds).

        The F1 of a label changes only at its scores. The changes are summed from the highest score down.
        """
        label, step = np.divmod(self._ranges, WIDTH)
        ends = np.searchsorted(label, label, side="right")
        hits, predicted = (_sum_to_end(counts, ends) for counts in (self._hits, self._predicted))
        f1 = ratio(2 * hits, predicted + self._gold[label])
        f1_above = np.append(np.where(np.diff(label) == 0, f1[1:], 0), np.zeros(len(f1[-1:])))
        return _sum_above(groups, label, step, f1 - f1_above)


def _ranges(labels: IntArray, scores: Any) -> IntArray:
    """Return the number of the range of each score, without scores in the first range of a label."""
    steps = np.searchsorted(GRID, scores.astype(np.float64))
    ranges: IntArray = (labels * WIDTH + steps)[steps > 0]
    return ranges


def _scatter(values: IntArray, index: IntArray, size: int) -> IntArray:
    result = np.zeros(size, dtype=np.int64)
    result[index] = values
    return result


def _sum_above(groups: IntArray, label: IntArray, step: IntArray, values: IntArray | FloatArray) -> FloatArray:
    """Sum the values of all ranges above each threshold, per group: (G, thresholds)."""
    size = (groups.max(initial=-1) + 1) * WIDTH
    sums = np.bincount(groups[label] * WIDTH + step, values, minlength=size).reshape(-1, WIDTH)
    above: FloatArray = np.cumsum(sums[:, :0:-1], axis=1, dtype=np.float64)[:, ::-1]
    return above


def _sum_to_end(counts: IntArray, ends: IntArray) -> IntArray:
    """Sum the counts from each position up to its end."""
    sums = np.append(np.cumsum(counts[::-1])[::-1], 0)
    result: IntArray = sums[:-1] - sums[ends]
    return result
