"""Text encoders: Hugging Face transformers, TextRCNN and TF-IDF."""

from hill.encoders.base import TextEncoder
from hill.encoders.rcnn import RCNN
from hill.encoders.transformer import Transformer

__all__ = ["RCNN", "TextEncoder", "Transformer"]
