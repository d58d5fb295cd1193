"""Metrics: flat, hierarchical, ranking and calibration, computed in one call or batch by batch."""

from hill.metrics.label_sets import flat_scores, hierarchical_scores
from hill.metrics.scorer import Scorer, score
from hill.metrics.scores import calibration_scores, curve_scores, ranking_scores

__all__ = [
    "Scorer",
    "calibration_scores",
    "curve_scores",
    "flat_scores",
    "hierarchical_scores",
    "ranking_scores",
    "score",
]
