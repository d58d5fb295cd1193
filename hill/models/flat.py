"""Classifiers that ignore the taxonomy: `Flat` on a transformer, `TextRCNN` on words.

`Flat` is the row BERT of the papers. `TextRCNN` is the encoder of Lai et al., Recurrent Convolutional Neural Networks
for Text Classification, AAAI 2015, with the head that HiAGM's code calls the plain classifier.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hill.encoders import TextEncoder
from hill.models.base import FamilyConfig, FamilyHead, ModelConfig, VectorModel, total
from hill.models.large_label import LargeLabelConfig, LargeLabelModel
from hill.models.layers import initialise
from hill.taxonomy import Taxonomy
from hill.types import Output


class Flat(LargeLabelModel):
    """Dropout and one linear layer: text vectors (B, D) to logits (B, L)."""

    Config: ClassVar[type[ModelConfig]] = LargeLabelConfig

    def __init__(
        self, text: TextEncoder, taxonomy: Taxonomy, config: LargeLabelConfig, assets: Mapping[str, Any]
    ) -> None:
        super().__init__(text, taxonomy, config, assets)
        self.head = nn.Linear(text.width, len(taxonomy))
        initialise(self.head)

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Text vectors (B, D) to logits (B, L), with the classification loss if labels are given."""
        logits = self.head_logits(text, labels)
        if labels is None:
            return Output(logits)
        return total(logits, {"labels": self.head_loss(text, logits, labels)})

    @torch.no_grad()
    def start_head(self, weight: Tensor, bias: Tensor) -> None:
        """Set the weight (L, D) and the bias (L) of the head."""
        self.head.weight.copy_(weight)
        self.head.bias.copy_(bias)


@dataclass(frozen=True)
class TextRCNNConfig(FamilyConfig):
    """Settings of TextRCNN."""

    TEXTS: ClassVar[tuple[str, ...]] = ("rcnn",)

    text: str = "rcnn"
    """Kind of text encoder: rcnn."""


class TextRCNN(VectorModel):
    """One linear layer with HiAGM's regularisation: text vectors (B, D) to logits (B, L)."""

    Config: ClassVar[type[ModelConfig]] = TextRCNNConfig

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: FamilyConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        self.head = FamilyHead(text.width, taxonomy, config)

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Text vectors (B, D) to logits (B, L), with the loss if labels are given."""
        logits = self.head(text)
        if labels is None:
            return Output(logits)
        return total(logits, {"labels": self.label_loss(logits, labels)} | self.head.regularisation())
