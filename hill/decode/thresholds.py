"""The choice of thresholds: histograms of scores per label, and the thresholds that maximise F1."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.decode.calibration import sigmoid
from hill.decode.decoder import DecodeConfig
from hill.metrics.label_sets import ratio
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import scores_at_labels
from hill.types import FloatArray, IntArray

GRID: FloatArray = sigmoid(np.linspace(-9, 9, 361))
"""Candidate thresholds, evenly spaced in logits: dense near 0, where rare labels have their thresholds."""

WIDTH = len(GRID) + 1
"""Number of score ranges between the thresholds. Missing scores are in the first one, below all thresholds."""

MACRO_SHARE = {"micro_f1": 0.0, "hierarchical_f1": 0.0, "macro_f1": 1.0, "mean_f1": 1 / 3}
"""Weight of macro F1 in a metric. The rest is micro F1, which equals hierarchical F1 for consistent label sets."""

TIE = 1e-12
MAX_ROUNDS = 100
BLOCK_ROWS = 4096
"""Number of labels, or of groups of labels, that are processed at a time."""


def choose_thresholds(
    histograms: Histograms, taxonomy: Taxonomy, config: DecodeConfig
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


class Histograms:
    """Counts documents and gold documents per label and score range; scores are dense or sparse."""

    def __init__(self, n_labels: int) -> None:
        self.gold: IntArray = np.zeros(n_labels, dtype=np.int64)
        """Number of gold documents per label (L)."""
        self._hits: csr_array[Any] = csr_array((n_labels, WIDTH), dtype=np.int64)
        self._predicted = self._hits.copy()

    def update(self, labels: Any, scores: Any) -> None:
        """Count these documents: (B, L) each, both dense or both sparse."""
        if isinstance(scores, csr_array):
            gold_labels, gold_scores = scores_at_labels(labels, scores)
            predicted = self._count(scores.indices.astype(np.int64), scores.data)
        else:
            gold_labels, gold_scores = np.nonzero(labels)[1], scores[labels]
            predicted = self._count(np.tile(np.arange(scores.shape[1]), len(scores)), scores.ravel())
        self._predicted = self._predicted + predicted
        self._hits = self._hits + self._count(gold_labels, gold_scores)
        self.gold += np.bincount(gold_labels, minlength=len(self.gold))

    def _count(self, labels: IntArray, scores: Any) -> csr_array[Any]:
        """Count scores per label and range (L, WIDTH), without the first range, which is above no threshold."""
        steps = np.searchsorted(GRID, scores.astype(np.float64))
        ranges, counts = np.unique((labels * WIDTH + steps)[steps > 0], return_counts=True)
        return csr_array((counts, np.divmod(ranges, WIDTH)), shape=self._hits.shape)

    def counts(self, groups: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the number of hits and of predicted labels per group and threshold: (G, thresholds) each."""
        membership = _membership(groups)
        return _above(membership @ self._hits), _above(membership @ self._predicted)

    def f1(self, groups: IntArray) -> FloatArray:
        """Return the sum of the F1 of the labels per group and threshold: (G, thresholds)."""
        membership = _membership(groups)
        sums: FloatArray = np.zeros((membership.shape[0], len(GRID)))
        supported = np.flatnonzero(self.gold)  # the F1 of other labels is 0
        for start in range(0, len(supported), BLOCK_ROWS):
            rows = supported[start : start + BLOCK_ROWS]
            hits, predicted = _above(self._hits[rows]), _above(self._predicted[rows])
            sums += membership[:, rows] @ ratio(2 * hits, predicted + self.gold[rows, None])
        return sums

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
            parts = []
            for start in range(0, max(len(hits), 1), BLOCK_ROWS):
                block = slice(start, start + BLOCK_ROWS)
                micro = (2 * hits[block] - f1 * predicted[block]) / total
                parts.append(_argmax_middle(share * macro[block] + (1 - share) * micro))
            index = np.concatenate(parts)
            total = max(predicted[rows, index].sum() + gold, 1)
            f1 = 2 * hits[rows, index].sum() / total
            value = (share * macro[rows, index].sum() if share else 0.0) + (1 - share) * f1
            if value <= best + TIE:
                break
            best, chosen = value, index
        thresholds: FloatArray = GRID[chosen]
        return thresholds


def _membership(groups: IntArray) -> csr_array[Any]:
    """Return a matrix (G, L) with 1 if a label is in a group."""
    ones, columns = np.ones(len(groups)), np.arange(len(groups))
    return csr_array((ones, (groups, columns)), shape=(groups.max(initial=-1) + 1, len(groups)))


def _above(counts: csr_array[Any]) -> FloatArray:
    """Turn counts per range into counts above each threshold: (rows, WIDTH) to dense (rows, thresholds)."""
    above: FloatArray = np.cumsum(counts.toarray()[:, :0:-1], axis=1, dtype=np.float64)[:, ::-1]
    return above


def _argmax_middle(values: FloatArray) -> IntArray:
    """Return the index of the maximum of each row; the middle one of ties."""
    highest = values >= values.max(axis=1, keepdims=True) - TIE
    rank = highest.cumsum(axis=1)
    index: IntArray = (rank > rank[:, -1:] // 2).argmax(axis=1)
    return index
