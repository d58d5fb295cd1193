"""Histograms of scores of very many labels, of most of which few thresholds are passed."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.decode.thresholds import GRID, WIDTH, AnyHistograms
from hill.metrics.counts import ratio
from hill.metrics.sparse import gold_scores
from hill.types import FloatArray, IntArray


class SparseHistograms(AnyHistograms):
    """Counts of the ranges between thresholds in which a label has scores, all but the first, which none is below."""

    def __init__(self, labels: int) -> None:
        self._gold: IntArray = np.zeros(labels, dtype=np.int64)
        self._cells, self._predicted, self._hits = np.zeros((3, 0), dtype=np.int64)

    def update(self, labels: csr_array[Any], scores: csr_array[Any]) -> None:
        """Count these documents, (B, L) each."""
        rows, gold = gold_scores(labels, scores)
        self._gold += np.bincount(rows, minlength=len(self._gold))
        seen, hits = _cells(scores.indices.astype(np.int64), scores.data), _cells(rows, gold)
        cells = np.concatenate([self._cells, seen, hits])
        predicted = np.concatenate([self._predicted, np.ones_like(seen), np.zeros_like(hits)])
        found = np.concatenate([self._hits, np.zeros_like(seen), np.ones_like(hits)])
        order = np.argsort(cells, kind="stable")
        starts = np.flatnonzero(np.diff(cells[order], prepend=-1))
        self._cells = cells[order][starts]
        if len(starts):
            self._predicted = np.add.reduceat(predicted[order], starts)
            self._hits = np.add.reduceat(found[order], starts)

    @property
    def gold(self) -> IntArray:
        """Gold documents of each label (L)."""
        return self._gold

    def counts(self, groups: IntArray) -> tuple[FloatArray, FloatArray]:
        """Hits and predicted labels of each group above each threshold: (G, thresholds) each."""
        label, step = np.divmod(self._cells, WIDTH)
        hits, predicted = (_steps(groups, label, step, counts) for counts in (self._hits, self._predicted))
        return hits, predicted

    def f1(self, groups: IntArray) -> FloatArray:
        """The sum of the F1 of the labels of each group above each threshold: (G, thresholds).

        The F1 of a label changes where it has scores only: what it changes by is summed, from the highest scores down.
        """
        label, step = np.divmod(self._cells, WIDTH)
        hits, predicted = (_from_above(counts, label) for counts in (self._hits, self._predicted))
        f1 = ratio(2 * hits, predicted + self._gold[label])
        above = np.append(np.where(np.diff(label) == 0, f1[1:], 0), np.zeros(len(f1[-1:])))
        return _steps(groups, label, step, f1 - above)


def _cells(labels: IntArray, scores: Any) -> IntArray:
    """The range of each score, of those of all labels; without those in the first."""
    steps = np.searchsorted(GRID, scores.astype(np.float64))
    cells: IntArray = (labels * WIDTH + steps)[steps > 0]
    return cells


def _steps(groups: IntArray, label: IntArray, step: IntArray, added: IntArray | FloatArray) -> FloatArray:
    """What is added in ranges above each threshold, by group: (G, thresholds)."""
    size = (groups.max(initial=-1) + 1) * WIDTH
    sums = np.bincount(groups[label] * WIDTH + step, added, minlength=size).reshape(-1, WIDTH)
    found: FloatArray = np.cumsum(sums[:, :0:-1], axis=1, dtype=np.float64)[:, ::-1]
    return found


def _from_above(counts: IntArray, label: IntArray) -> IntArray:
    """The counts of each range and those above it of the same label; ranges are in order."""
    sums = np.cumsum(counts[::-1])[::-1]
    ends = np.searchsorted(label, label, side="right")
    found: IntArray = sums - np.append(sums, 0)[ends]
    return found
