"""Decoding: from scores to label sets that respect the taxonomy."""

from hill.decode.calibration import Calibrator, read_calibrator
from hill.decode.decoder import STRATEGIES, DecodeConfig, Decoder
from hill.decode.mixture import Mixture, fit_mixture, read_mixture
from hill.decode.tuning import CollectedScores, Tuned, collect_scores, tune

__all__ = [
    "STRATEGIES",
    "Calibrator",
    "CollectedScores",
    "DecodeConfig",
    "Decoder",
    "Mixture",
    "Tuned",
    "collect_scores",
    "fit_mixture",
    "read_calibrator",
    "read_mixture",
    "tune",
]
