"""Models with a linear head, which can be trained and asked by a part of its rows: for very many labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, cat, nn

from hill.encoders import TextEncoder
from hill.errors import ConfigError
from hill.models.base import ModelConfig, VectorModel
from hill.models.layers import all_reduce_sum, is_label_list, to_label_lists
from hill.settings import check_at_least
from hill.taxonomy import Taxonomy
from hill.types import MANY_LABELS, Batch, Packed

CHILDREN = 4
"""Children that are drawn of each label of a document."""


class SampledLoss(nn.Module):
    """The loss over a sample of so many labels and those near a document's own, for labels with these edges."""

    starts: Tensor
    below: Tensor

    def __init__(self, child: Tensor, parent: Tensor, roots: Tensor, labels: int, count: int) -> None:
        super().__init__()
        self.labels = labels
        self.count = count
        above = torch.cat([parent, torch.full_like(roots, labels)])  # what fills up a list is the parent of the roots
        under = torch.cat([child, roots])[above.argsort(stable=True)]
        sizes = torch.bincount(above, minlength=labels + 1)
        self.register_buffer("starts", F.pad(sizes.cumsum(0), (1, 0)), persistent=False)
        self.register_buffer("below", F.pad(under, (0, 1), value=labels), persistent=False)

    def forward(self, features: Tensor, head: nn.Linear, lists: Tensor) -> Tensor:
        """The loss of documents that a linear head reads (B, D), with these lists of labels (B, M)."""
        rows, weight = self.draw(lists)
        kept = rows.clamp(max=self.labels - 1)
        logits = F.linear(features, head.weight.index_select(0, kept), head.bias.index_select(0, kept))  # (B, S)
        own = logits[:, : lists.numel()].reshape(-1, *lists.shape).diagonal(dim1=0, dim2=1).T  # (B, M)
        total = (F.softplus(logits) @ weight).sum() - (own * (lists < self.labels)).sum()
        return all_reduce_sum(total) / (all_reduce_sum(total.new_full((), float(len(lists)))) * self.labels)

    def draw(self, lists: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and how much each counts (S): those of the documents in their order, some children, and any others.

        Of what stands there several times each counts in part, and the number of labels, which fills up lists, not.
        """
        known = torch.cat([lists.flatten(), self._draw_children(lists)])
        others = torch.randint(self.labels, (self.count,), device=lists.device)
        times = torch.zeros(self.labels + 1, device=lists.device).index_add_(0, known, torch.ones_like(known).float())
        full = (known < self.labels) / times[known]
        drawn = (times[others] == 0) * (self.labels / self.count)
        return torch.cat([known, others]), torch.cat([full, drawn])

    def _draw_children(self, lists: Tensor) -> Tensor:
        """Some children of each label, drawn uniformly; the number of labels where there are none: (B * M * C)."""
        first, size = self.starts[lists], self.starts[lists + 1] - self.starts[lists]
        share = torch.rand(CHILDREN, *lists.shape, device=lists.device)
        place = first + (share * size).long().clamp(max=size - 1)  # a share of nearly 1 is rounded up
        return self.below[torch.where(size > 0, place, len(self.below) - 1)].flatten()


CELLS = 1 << 24
"""Logits that are held at a time."""


def best_rows(features: Tensor, head: nn.Linear, count: int) -> tuple[Tensor, Tensor]:
    """The highest logits of each document (B, D) and the labels they are of: (B, count) each, the best first.

    Exact: the best of all are among the best of each block of rows.
    """
    size = max(count, CELLS // max(len(features), 1))
    values, rows = features.new_empty(len(features), 0), None
    for start in range(0, head.out_features, size):
        block = slice(start, start + size)
        found = F.linear(features, head.weight[block], head.bias[block])  # (B, size)
        best = found.topk(min(count, found.shape[1]), dim=1)
        both = best.indices + start if rows is None else cat([rows, best.indices + start], dim=1)
        values, kept = cat([values, best.values], dim=1).topk(min(count, both.shape[1]), dim=1)
        rows = both.gather(1, kept)
    assert rows is not None
    return values, rows


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
        check_at_least(self.sample, 0, "model.sample")
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
        found: Tensor = self.sampled(features, self.head, labels if is_label_list(labels) else to_label_lists(labels))
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
