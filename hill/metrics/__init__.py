"""Metrics: flat, hierarchical, ranking and calibration, computed in one call or batch by batch."""

from hill.metrics.calibration import calibration_scores
from hill.metrics.flat import flat_scores
from hill.metrics.hierarchical import curve_scores, hierarchical_scores
from hill.metrics.ranking import ranking_scores
from hill.metrics.scorer import Scorer, score

__all__ = [
    "Scorer",
    "calibration_scores",
    "curve_scores",
    "flat_scores",
    "hierarchical_scores",
    "ranking_scores",
    "score",
]
