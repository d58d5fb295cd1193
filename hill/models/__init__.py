"""Models by name. A model is one file here and one line in `MODELS`."""

from hill.models.base import HTCModel, ModelConfig, VectorModel
from hill.models.flat import Flat
from hill.models.hill import HILL
from hill.models.textrcnn import TextRCNN

MODELS: dict[str, type[HTCModel]] = {
    "flat": Flat,
    "hill": HILL,
    "textrcnn": TextRCNN,
}

__all__ = ["HILL", "MODELS", "Flat", "HTCModel", "ModelConfig", "TextRCNN", "VectorModel"]
