"""What other thresholds would give, and whether scores are probabilities."""

from typing import Any

import numpy as np

from hill.metrics.counts import grades
from hill.metrics.curve import Curve
from hill.metrics.grid import steps_below
from hill.report.block import Scores
from hill.taxonomy import Taxonomy
from hill.types import BoolArray, FloatArray, IntArray

STEPS = 100
BINS = 15
"""As many as the expected calibration error has."""


class Thresholds:
    """For each label, documents and gold documents above the thresholds 0, 0.01, ..., 1 that all labels share."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._levels = taxonomy.levels
        self._hits, self._predicted = np.zeros((2, len(taxonomy), STEPS + 1), dtype=np.int64)
        self._curve = Curve(taxonomy)

    def update(self, labels: BoolArray, compared: Scores) -> None:
        """Count these documents, (B, L) each."""
        width = STEPS + 1
        cells = steps_below(compared.astype(np.float64), STEPS) + np.arange(labels.shape[1]) * width
        self._predicted += np.bincount(cells.ravel(), minlength=self._predicted.size).reshape(-1, width)
        self._hits += np.bincount(cells[labels], minlength=self._hits.size).reshape(-1, width)
        self._curve.update(labels, compared)

    def document(self) -> dict[str, Any]:
        """Every curve, a value for each threshold."""
        hits, predicted = _above(self._hits), _above(self._predicted)
        gold = np.repeat(self._hits.sum(axis=1, keepdims=True), STEPS + 1, axis=1)
        micro = grades(hits.sum(axis=0), predicted.sum(axis=0), gold.sum(axis=0))
        levels = [grades(*(counts[rows].sum(axis=0) for counts in (hits, predicted, gold))) for rows in self._levels]
        return {
            "threshold": (np.arange(STEPS + 1) / STEPS).tolist(),
            "micro_f1": micro[2].tolist(),
            "macro_f1": grades(hits, predicted, gold)[2].mean(axis=0).tolist(),
            "hierarchical_f1": self._curve.f1().tolist(),
            "precision": micro[0].tolist(),
            "recall": micro[1].tolist(),
            "levels": [{"precision": level[0].tolist(), "recall": level[1].tolist()} for level in levels],
        }


def _above(counts: IntArray) -> IntArray:
    """Documents above each threshold, from documents by the number of thresholds they exceed."""
    found: IntArray = counts.sum(axis=1, keepdims=True) - counts.cumsum(axis=1)
    return found


class Reliability:
    """Pairs of a document and a label by score: how many there are, their scores, and how many are gold."""

    def __init__(self) -> None:
        self._pairs, self._gold = np.zeros((2, BINS), dtype=np.int64)
        self._scores: FloatArray = np.zeros(BINS)

    def update(self, labels: BoolArray, scores: Scores) -> None:
        """Count these documents, (B, L) each."""
        values = scores.astype(np.float64)
        bins = np.maximum(steps_below(values, BINS) - 1, 0)
        self._pairs += np.bincount(bins.ravel(), minlength=BINS)
        self._scores += np.bincount(bins.ravel(), values.ravel(), minlength=BINS)
        self._gold += np.bincount(bins[labels], minlength=BINS)

    def document(self) -> list[dict[str, float]]:
        """Each bin that has any pair: their number, their mean score, and the share that is gold."""
        return [
            {"pairs": int(pairs), "score": float(scores / pairs), "gold": float(gold / pairs)}
            for pairs, scores, gold in zip(self._pairs, self._scores, self._gold, strict=True)
            if pairs
        ]
