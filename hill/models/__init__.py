"""Models by name. A model is one file here and one line in `MODELS`."""

from hill.models.base import HTCModel, ModelConfig
from hill.models.flat import Flat
from hill.models.hill import HILL

MODELS: dict[str, type[HTCModel]] = {
    "flat": Flat,
    "hill": HILL,
}

__all__ = ["HILL", "MODELS", "Flat", "HTCModel", "ModelConfig"]
