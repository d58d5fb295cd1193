"""TextRCNN: words, a GRU, convolutions and a linear head that knows nothing of the taxonomy."""

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
    """Dropout, then one linear layer from the text's vector to all labels."""

    Config: ClassVar[type[ModelConfig]] = LargeLabelConfig

    def __init__(
        self, text: TextEncoder, taxonomy: Taxonomy, config: LargeLabelConfig, assets: Mapping[str, Any]
    ) -> None:
        super().__init__(text, taxonomy, config, assets)
        self.head = nn.Linear(text.width, len(taxonomy))
        initialise(self.head)

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Vectors (B, D) to logits (B, L), with the classification loss if labels are given."""
        logits = self.head_logits(text, labels)
        if labels is None:
            return Output(logits)
        return total(logits, {"labels": self.head_loss(text, logits, labels)})

    @torch.no_grad()
    def start_head(self, weight: Tensor, bias: Tensor) -> None:
        """Set the head."""
        self.head.weight.copy_(weight)
        self.head.bias.copy_(bias)


@dataclass(frozen=True)
class TextRCNNConfig(FamilyConfig):
    """Settings of TextRCNN."""

    TEXTS: ClassVar[tuple[str, ...]] = ("rcnn",)

    text: str = "rcnn"
    """Kind of text encoder: rcnn."""


class TextRCNN(VectorModel):
    """The text's vector through one linear layer, which HiAGM's code calls the plain classifier."""

    Config: ClassVar[type[ModelConfig]] = TextRCNNConfig

    def __init__(
        self, text: TextEncoder, taxonomy: Taxonomy, config: TextRCNNConfig, assets: Mapping[str, Any]
    ) -> None:
        super().__init__(text, taxonomy, config, assets)
        self.head = FamilyHead(text.width, taxonomy, config)

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Vectors (B, D) to logits (B, L)."""
        logits = self.head(text)
        if labels is None:
            return Output(logits)
        return total(logits, {"labels": self.label_loss(logits, labels)} | self.head.regularisation())
