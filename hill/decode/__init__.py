"""Decoding: from scores to label sets that respect the taxonomy."""

from hill.decode.calibration import Calibrator, read_calibrator
from hill.decode.decoder import STRATEGIES, DecodeConfig, Decoder
from hill.decode.tuning import CollectedScores, Tuned, collect_scores, tune

__all__ = [
    "STRATEGIES",
    "Calibrator",
    "CollectedScores",
    "DecodeConfig",
    "Decoder",
    "Tuned",
    "collect_scores",
    "read_calibrator",
    "tune",
]
