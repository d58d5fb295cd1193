"""Models with a linear head, which can be trained and asked by a part of its rows: for very many labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hill.errors import ConfigError
from hill.models.base import ModelConfig, VectorModel
from hill.nn import TextEncoder
from hill.nn.lists import is_listed, to_lists
from hill.nn.sampled import SampledLoss
from hill.nn.topk import best_rows
from hill.settings import at_least
from hill.taxonomy import Taxonomy
from hill.types import MANY_LABELS, Batch, Packed

SAMPLE = 4_096
DOCUMENTS = 4_096
"""Documents whose best labels are looked for at a time."""


@dataclass(frozen=True)
class WideConfig(ModelConfig):
    """Settings of models that can learn from a sample of the labels."""

    sample: int = 0
    """bce: labels drawn for the loss of a step, beside those near the documents' own; with as many as there are, or
    more, it is exact; 0 for that up to 10,000 labels and 4,096 above."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self.sample, 0, "model.sample")
        if self.sample and self.loss != "bce":
            raise ConfigError(
                f"model.sample is {self.sample}, but model.loss is '{self.loss}', which needs all labels; "
                "set model.loss=bce, or model.sample=0"
            )


class WideModel(VectorModel):
    """A document's features are read by one linear layer with a row a label."""

    head: nn.Linear
    sampled: SampledLoss | None
    """The loss over a sample of the labels, where it takes the place of the exact one in training."""

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: Any, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        labels = len(taxonomy)
        count = config.sample or (labels if labels <= MANY_LABELS else SAMPLE)
        self.sampled = None
        if config.loss == "bce" and count < labels:
            child, parent = (torch.from_numpy(ends.copy()) for ends in taxonomy.edge_array.T)
            self.sampled = SampledLoss(child, parent, torch.from_numpy(taxonomy.roots), labels, count)

    @property
    def listed(self) -> bool:
        """Whether the model learns from label lists."""
        return self.sampled is not None

    @property
    def together(self) -> int:
        """Documents whose features are computed at a time where only the best labels are wanted."""
        return DOCUMENTS

    def features(self, text: Tensor) -> Tensor:
        """What the head reads of documents: (B, D) to (B, S)."""
        return text

    def judge(self, features: Tensor, labels: Tensor | None) -> Tensor:
        """Logits (B, L), or none at all (B, 0) where the loss is over a sample."""
        return features.new_empty(len(features), 0) if self._samples(labels) else self.head(features)

    def judge_loss(self, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """The classification loss, of these logits or of a sample."""
        if self.sampled is None or not self._samples(labels):
            return self.label_loss(logits, labels)
        found: Tensor = self.sampled(features, self.head, labels if is_listed(labels) else to_lists(labels))
        return found

    def best(self, batch: Batch | Packed, count: int) -> tuple[Tensor, Tensor]:
        """The highest scores of each document and the labels they are of: (B, count) each, the best first."""
        if self.config.loss != "bce":
            return super().best(batch, count)
        text = self.text.read(batch).float()
        with torch.autocast(text.device.type, enabled=False):
            parts = [best_rows(self.features(part), self.head, count) for part in torch.split(text, self.together)]
        logits, rows = (torch.cat(each) for each in zip(*parts, strict=True))
        return logits.sigmoid(), rows

    def _samples(self, labels: Tensor | None) -> bool:
        return labels is not None and self.training and self.sampled is not None
