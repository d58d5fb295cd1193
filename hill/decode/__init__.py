"""From scores to label sets that respect the taxonomy: calibration, strategies, thresholds, and what tunes them."""

from hill.decode.calibration import Calibrator, read_calibrator
from hill.decode.config import STRATEGIES, DecodeConfig
from hill.decode.decoder import Decoder
from hill.decode.held import Held, hold
from hill.decode.tuning import Tuned, tune

__all__ = ["STRATEGIES", "Calibrator", "DecodeConfig", "Decoder", "Held", "Tuned", "hold", "read_calibrator", "tune"]
