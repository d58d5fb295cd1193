"""TextRCNN: words, a GRU, convolutions and a linear head that knows nothing of the taxonomy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from hill.models.base import ModelConfig, VectorModel, total
from hill.models.family import FamilyConfig, FamilyHead
from hill.nn import TextEncoder
from hill.taxonomy import Taxonomy
from hill.types import Output


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
