"""Flat: the text encoder with a linear head that knows nothing of the taxonomy (the row BERT of the paper's table).

With loss=conditional-softmax and adjust=1 it is the strong modern baseline: Plaud et al., Revisiting Hierarchical Text
Classification: Inference and Metrics, CoNLL 2024.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hill.models.base import ModelConfig, total
from hill.models.wide import WideConfig, WideModel
from hill.nn import TextEncoder
from hill.nn.text import initialise
from hill.taxonomy import Taxonomy
from hill.types import Output


class Flat(WideModel):
    """Dropout, then one linear layer from the text's vector to all labels."""

    Config: ClassVar[type[ModelConfig]] = WideConfig

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: WideConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        self.head = nn.Linear(text.width, len(taxonomy))
        initialise(self.head)

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Vectors (B, D) to logits (B, L), with the classification loss if labels are given."""
        logits = self.judge(text, labels)
        if labels is None:
            return Output(logits)
        return total(logits, {"labels": self.judge_loss(text, logits, labels)})

    @torch.no_grad()
    def start_head(self, weight: Tensor, bias: Tensor) -> None:
        """Set the head."""
        self.head.weight.copy_(weight)
        self.head.bias.copy_(bias)
