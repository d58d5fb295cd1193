"""How good predictions are: flat, hierarchical, ranking and calibration measures, in one call or batch by batch."""

from hill.metrics.calibration import calibration_scores
from hill.metrics.curve import curve_scores
from hill.metrics.flat import flat_scores
from hill.metrics.hierarchical import hierarchical_scores
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
