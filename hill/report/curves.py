"""What other thresholds would give, and whether scores are probabilities."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.metrics.blocks import alike
from hill.metrics.counts import grades
from hill.metrics.curve import Curve
from hill.metrics.grid import steps_below
from hill.metrics.sparse import gold_scores
from hill.report.block import Cells
from hill.taxonomy import Taxonomy
from hill.taxonomy.cells import Table
from hill.types import FloatArray, IntArray

STEPS = 100
BINS = 15
"""As many as the expected calibration error has."""
LABELS = 4_096
"""Labels whose F1 at every threshold is computed at a time."""


class Thresholds:
    """For each label, documents and gold documents above the thresholds 0, 0.01, ..., 1 that all labels share.

    Scores of 0 are above none: those that are not kept need not be counted, unless they are of gold labels.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._levels = taxonomy.levels
        self._hits, self._predicted = np.zeros((2, len(taxonomy), STEPS + 1), dtype=np.int64)
        self._curve = Curve(taxonomy)

    def update(self, labels: Cells, compared: Table) -> None:
        """Count these documents, (B, L) each."""
        scores: Cells = csr_array(compared)
        rows, gold = gold_scores(labels, scores)
        np.add.at(self._hits, (rows, steps_below(gold.astype(np.float64), STEPS)), 1)
        np.add.at(self._predicted, (scores.indices, steps_below(scores.data.astype(np.float64), STEPS)), 1)
        self._curve.update(*alike(labels, compared))

    def document(self) -> dict[str, Any]:
        """Every curve, a value for each threshold."""
        levels = [_grades(*(each[rows].sum(axis=0) for each in (self._hits, self._predicted))) for rows in self._levels]
        micro = _grades(self._hits.sum(axis=0), self._predicted.sum(axis=0))
        return {
            "threshold": (np.arange(STEPS + 1) / STEPS).tolist(),
            "micro_f1": micro[2].tolist(),
            "macro_f1": self._macro_f1().tolist(),
            "hierarchical_f1": self._curve.f1().tolist(),
            "precision": micro[0].tolist(),
            "recall": micro[1].tolist(),
            "levels": [{"precision": level[0].tolist(), "recall": level[1].tolist()} for level in levels],
        }

    def _macro_f1(self) -> FloatArray:
        """The mean over all labels of the F1 at each threshold, which only those with gold documents have."""
        known, total = np.flatnonzero(self._hits.any(axis=1)), np.zeros(STEPS + 1)
        for start in range(0, len(known), LABELS):
            rows = known[start : start + LABELS]
            total += _grades(self._hits[rows], self._predicted[rows])[2].sum(axis=0)
        return total / max(len(self._hits), 1)


def _grades(hits: IntArray, predicted: IntArray) -> FloatArray:
    """Precision, recall and F1 above each threshold, from documents by the thresholds they exceed: (3, ..., steps)."""
    right, found = (counts.sum(axis=-1, keepdims=True) - counts.cumsum(axis=-1) for counts in (hits, predicted))
    return grades(right, found, np.repeat(hits.sum(axis=-1, keepdims=True), STEPS + 1, axis=-1))


class Reliability:
    """Pairs of a document and a label by score: how many there are, their scores, and how many are gold."""

    def __init__(self) -> None:
        self._pairs, self._gold = np.zeros((2, BINS), dtype=np.int64)
        self._scores: FloatArray = np.zeros(BINS)

    def update(self, labels: Cells, scores: Table) -> None:
        """Count these documents, (B, L) each; a pair without a score has 0, in the first bin."""
        held: Cells = csr_array(scores)
        values: FloatArray = held.data.astype(np.float64)
        bins = _bins(values)
        self._pairs += np.bincount(bins, minlength=BINS)
        self._pairs[0] += labels.shape[0] * labels.shape[1] - held.nnz
        self._scores += np.bincount(bins, values, minlength=BINS)
        self._gold += np.bincount(_bins(gold_scores(labels, held)[1].astype(np.float64)), minlength=BINS)

    def document(self) -> list[dict[str, float]]:
        """Each bin that has any pair: their number, their mean score, and the share that is gold."""
        return [
            {"pairs": int(pairs), "score": float(scores / pairs), "gold": float(gold / pairs)}
            for pairs, scores, gold in zip(self._pairs, self._scores, self._gold, strict=True)
            if pairs
        ]


def _bins(scores: FloatArray) -> IntArray:
    bins: IntArray = np.maximum(steps_below(scores, BINS) - 1, 0)
    return bins
