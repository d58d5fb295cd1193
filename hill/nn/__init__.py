"""Tensors in, tensors out: text encoders, structure encoders, losses. Nothing here knows a taxonomy."""

from hill.nn.losses import level_softmax, level_softmax_loss, nt_xent
from hill.nn.rcnn import RCNN
from hill.nn.structure import TreeEncoder
from hill.nn.text import TextEncoder, Transformer

__all__ = ["RCNN", "TextEncoder", "Transformer", "TreeEncoder", "level_softmax", "level_softmax_loss", "nt_xent"]
