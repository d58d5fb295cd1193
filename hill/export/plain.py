"""The decisions of a model as thresholds on its own scores, for programs that know nothing of calibration."""

from typing import Any

import numpy as np

from hill.decode import Decoder
from hill.predictor import Predictor
from hill.types import IntArray

SPREAD = {"closure": "up", "auto": "up", "ancestors": "up", "top-down": "down", "raw": "off"}
"""How a decision spreads: up, what is chosen brings all above it; down, what is not chosen keeps out all below it."""
ONE = int(np.float32(1).view(np.int32))


def plain_rule(predictor: Predictor) -> dict[str, Any] | None:
    """A threshold for each label's score, and how decisions spread; nothing where the decoding needs more than that.

    A label counts if its score is above its threshold; the decisions are then exactly those of the predictor. They are
    since a label's probability never falls where its score rises. Where scores pass to the labels above or below before
    they are compared, it holds for a single threshold only.
    """
    config, several = predictor.decode_config, predictor.thresholds is not None
    if config.abstain or config.strategy not in SPREAD or (several and config.strategy not in ("ancestors", "raw")):
        return None
    thresholds = predictor.thresholds if predictor.thresholds is not None else np.float64(config.threshold)
    wanted = np.broadcast_to(thresholds, (len(predictor.taxonomy),))
    return {"spread": SPREAD[config.strategy], "thresholds": _invert(predictor.decoder(), wanted).tolist()}


def _invert(decoder: Decoder, wanted: Any) -> Any:
    """The highest score of each label whose probability is not above its threshold, by halving: (L).

    Scores between 0 and 1 are numbered by their bits, which rise as they do; number -1 stands for none.
    """
    low: IntArray = np.full(len(wanted), -1, dtype=np.int64)
    high: IntArray = np.full(len(wanted), ONE + 1, dtype=np.int64)
    while (high - low > 1).any():
        middle = (low + high) // 2
        scores = np.clip(middle, 0, ONE).astype(np.int32).view(np.float32)
        above = (decoder.calibrated(scores[None])[0] > wanted) | (middle > ONE)
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.where(low < 0, -1, np.maximum(low, 0).astype(np.int32).view(np.float32))
