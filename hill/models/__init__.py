"""Models by name. A model is one file here and one entry in `MODELS`."""

from hill.models.base import HTCModel, ModelConfig, VectorModel
from hill.models.flat import Flat, TextRCNN
from hill.models.hgclr import HGCLR
from hill.models.hiagm import HiAGM
from hill.models.hill import HILL
from hill.models.himatch import HiMatch
from hill.models.hitin import HiTIN
from hill.models.htcinfomax import HTCInfoMax
from hill.models.linear import Linear

MODELS: dict[str, type[HTCModel]] = {
    "flat": Flat,
    "hgclr": HGCLR,
    "hiagm": HiAGM,
    "hill": HILL,
    "himatch": HiMatch,
    "hitin": HiTIN,
    "htcinfomax": HTCInfoMax,
    "linear": Linear,
    "textrcnn": TextRCNN,
}

__all__ = [
    "HGCLR",
    "HILL",
    "MODELS",
    "Flat",
    "HTCInfoMax",
    "HTCModel",
    "HiAGM",
    "HiMatch",
    "HiTIN",
    "Linear",
    "ModelConfig",
    "TextRCNN",
    "VectorModel",
]
