"""Models with a linear head for very many labels: a loss on a sample of labels, and top-k scores block by block."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hill.encoders import TextEncoder
from hill.errors import ConfigError
from hill.models.base import ModelConfig, VectorModel
from hill.models.layers import all_reduce_sum, is_label_list, to_label_lists
from hill.settings import check_at_least
from hill.taxonomy import Taxonomy
from hill.types import MANY_LABELS, AnyBatch

SAMPLE_SIZE = 4_096
"""The labels that are drawn per step, if there are more than `MANY_LABELS`."""
SAMPLED_CHILDREN = 4
"""The children that are drawn for each label of a document."""
MAX_LOGITS = 1 << 24
"""The most logits that `top_k_rows` has in memory at a time."""
TOP_K_DOCUMENTS = 4_096
"""The documents whose features `top_k` computes at a time."""


class SampledLoss(nn.Module):
    """Binary cross entropy on the labels of a batch, some of their children, and a random sample of `count` labels.

    Sampled labels are weighted: the expected loss and gradient are those over all labels.
    """

    starts: Tensor
    child_rows: Tensor

    def __init__(self, child: Tensor, parent: Tensor, roots: Tensor, labels: int, count: int) -> None:
        super().__init__()
        self.labels = labels
        self.count = count
        above = torch.cat([parent, torch.full_like(roots, labels)])  # the padding of lists is the parent of the roots
        children = torch.cat([child, roots])[above.argsort(stable=True)]
        sizes = torch.bincount(above, minlength=labels + 1)
        self.register_buffer("starts", F.pad(sizes.cumsum(0), (1, 0)), persistent=False)
        self.register_buffer("child_rows", F.pad(children, (0, 1), value=labels), persistent=False)

    def forward(self, features: Tensor, head: nn.Linear, lists: Tensor) -> Tensor:
        """The loss of features (B, D) that a linear head reads, with these label lists (B, M)."""
        rows, weight = self.draw(lists)
        valid = rows.clamp(max=self.labels - 1)
        logits = F.linear(features, head.weight.index_select(0, valid), head.bias.index_select(0, valid))  # (B, S)
        own = logits[:, : lists.numel()].reshape(-1, *lists.shape).diagonal(dim1=0, dim2=1).T  # (B, M)
        total = (F.softplus(logits) @ weight).sum() - (own * (lists < self.labels)).sum()
        return all_reduce_sum(total) / (all_reduce_sum(total.new_full((), float(len(lists)))) * self.labels)

    def draw(self, lists: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and their weights (S): those of the lists in their order, some of their children, and random ones.

        Repeated labels share a weight of 1; the padding of lists has weight 0.
        """
        # children of each label, drawn uniformly; the padding if there are none
        first, size = self.starts[lists], self.starts[lists + 1] - self.starts[lists]
        share = torch.rand(SAMPLED_CHILDREN, *lists.shape, device=lists.device)
        place = first + (share * size).long().clamp(max=size - 1)  # a share of nearly 1 is rounded up
        children = self.child_rows[torch.where(size > 0, place, len(self.child_rows) - 1)]
        near = torch.cat([lists.flatten(), children.flatten()])
        others = torch.randint(self.labels, (self.count,), device=lists.device)
        times = torch.zeros(self.labels + 1, device=lists.device).index_add_(0, near, torch.ones_like(near).float())
        weights = [(near < self.labels) / times[near], (times[others] == 0) * (self.labels / self.count)]
        return torch.cat([near, others]), torch.cat(weights)


def top_k_rows(features: Tensor, head: nn.Linear, k: int) -> tuple[Tensor, Tensor]:
    """The k highest logits of each document (B, D) and their labels: (B, k) each, the highest first.

    Exact: the top k of all labels are among the top k of each block of labels.
    """
    size = max(k, MAX_LOGITS // max(len(features), 1))
    values, rows = features.new_empty(len(features), 0), features.new_empty(len(features), 0, dtype=torch.int64)
    for start in range(0, head.out_features, size):
        logits = F.linear(features, head.weight[start : start + size], head.bias[start : start + size])  # (B, size)
        block = logits.topk(min(k, logits.shape[1]), dim=1)
        rows = torch.cat([rows, block.indices + start], dim=1)
        values, places = torch.cat([values, block.values], dim=1).topk(min(k, rows.shape[1]), dim=1)
        rows = rows.gather(1, places)
    return values, rows


@dataclass(frozen=True)
class LargeLabelConfig(ModelConfig):
    """Settings of models that can learn from a sample of the labels."""

    sample: int = 0
    """bce: labels that are drawn for the loss of each step, besides those of the documents; at least the number of
    labels for the exact loss; 0: exact up to 10,000 labels, 4,096 above."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.sample, 0, "model.sample")
        if self.sample and self.loss != "bce":
            raise ConfigError(
                f"model.sample is {self.sample}, but model.loss is '{self.loss}', which needs all labels; "
                "set model.loss=bce, or model.sample=0"
            )


class LargeLabelModel(VectorModel):
    """A model whose classifier is one linear layer on the features of a document."""

    head: nn.Linear
    sampled_loss: SampledLoss | None
    """The loss in training, if it is computed on a sample of the labels."""

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: Any, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        labels = len(taxonomy)
        count = config.sample or (labels if labels <= MANY_LABELS else SAMPLE_SIZE)
        self.sampled_loss = None
        self.uses_label_lists = config.loss == "bce" and count < labels
        self.top_k_batch_size = TOP_K_DOCUMENTS
        if self.uses_label_lists:
            child, parent = (torch.from_numpy(ends.copy()) for ends in taxonomy.edge_array.T)
            self.sampled_loss = SampledLoss(child, parent, torch.from_numpy(taxonomy.roots), labels, count)

    def features(self, text: Tensor) -> Tensor:
        """Text vectors (B, D) to the input of the head (B, S)."""
        return text

    def head_logits(self, features: Tensor, labels: Tensor | None) -> Tensor:
        """Logits (B, L); empty (B, 0) if the loss is computed on a sample."""
        sampled = self.training and labels is not None and self.sampled_loss is not None
        return features.new_empty(len(features), 0) if sampled else self.head(features)

    def head_loss(self, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """The classification loss: of the logits, or in training on a sample of the labels if there are very many."""
        if self.sampled_loss is None or not self.training:
            return self.label_loss(logits, labels)
        lists = labels if is_label_list(labels) else to_label_lists(labels)
        loss: Tensor = self.sampled_loss(features, self.head, lists)
        return loss

    def top_k(self, batch: AnyBatch, k: int) -> tuple[Tensor, Tensor]:
        """The k highest scores of each document and their labels: (B, k) each, the highest first."""
        if self.config.loss != "bce":
            return super().top_k(batch, k)
        text = self.text.read(batch).float()
        with torch.autocast(text.device.type, enabled=False):
            parts = [top_k_rows(self.features(part), self.head, k) for part in torch.split(text, self.top_k_batch_size)]
        logits, rows = (torch.cat(each) for each in zip(*parts, strict=True))
        return logits.sigmoid(), rows
