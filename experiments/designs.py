"""Models that can see the coding tree, for experiments; none is in the package.

HILL as published is the same learner on every tree of the same unlabelled shape (docs/theory.md). The designs below are
not: their leaves start from the names of the labels, so a node stands for known labels. All of them are the preset auto
without its linear model (text vector, names and ZLPR) and one more part:

    leaves     a contrastive loss between a document and the names of its labels, which needs no tree
    nodes      the same between a document and the nodes of its labels, on every level of the coding tree
    path       a logit per node, which is added to those of the labels below and learned with a loss of its own
    attention  label-wise attention over the tokens of a document, with queries that start from the names
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hill.data import Documents
from hill.models import MODELS
from hill.models.base import ModelConfig, total
from hill.models.hill import HILL, NEUTRAL_COSINE, TREE_FILE, HILLConfig
from hill.models.layers import initialise
from hill.taxonomy import Taxonomy
from hill.types import AnyBatch, Encoded, Output


@dataclass(frozen=True)
class DesignConfig(HILLConfig):
    """Settings of the designs."""

    weight: float = 0.3
    """Weight of the loss that the design adds."""
    sharpness: float = 10.0
    """What cosines are multiplied with: the inverse temperature of a contrast, or the start of an attention."""
    shuffle: int = 0
    """Permute the leaves of the coding tree with this seed; 0: do not. A trial with 1 uses the seed of its run."""


class Design(HILL):
    """The control, with the members of each node of the coding tree for its subclasses."""

    Config: ClassVar[type[ModelConfig]] = DesignConfig
    config: DesignConfig

    def __init__(self, text: Any, taxonomy: Taxonomy, config: DesignConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        ancestor = np.arange(len(taxonomy))
        self.heights = range(1, self.tree.height)
        for height, parents in zip(self.heights, self.tree.parents, strict=False):
            ancestor = parents[ancestor]
            members = F.one_hot(torch.from_numpy(ancestor.copy())).T.float()
            self.register_buffer(f"members{height}", members, persistent=False)

    @classmethod
    def prepare(cls, documents: Documents, taxonomy: Taxonomy, config: Any, tokenizer: Any) -> dict[str, Any]:
        """The assets of HILL, with permuted leaves if that is asked for."""
        assets = super().prepare(documents, taxonomy, config, tokenizer)
        if config.shuffle:
            leaves, *above = assets[TREE_FILE]["parents"]
            leaves = np.random.default_rng(config.shuffle).permutation(leaves).tolist()
            assets[TREE_FILE] = {"parents": [leaves, *above]}
        return assets

    def members(self) -> Iterator[Tensor]:
        """The labels below each node (N, L), for the levels between leaves and root."""
        for height in self.heights:
            yield self.get_buffer(f"members{height}")

    def node_vectors(self, members: Tensor) -> Tensor:
        """The mean of the names below each node, of length 1: (N, D)."""
        assert self.names is not None
        return F.normalize(members @ F.normalize(self.names.vectors, dim=1), dim=1)

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Text vectors (B, D) to logits (B, L), with the losses if labels are given."""
        output = super().classify(text, labels)
        if labels is None or output.loss is None:
            return output
        own = self.own_loss(text, labels.float())
        return output if own is None else total(output.logits, output.parts | {"own": self.config.weight * own})

    def own_loss(self, text: Tensor, labels: Tensor) -> Tensor | None:
        """The loss that a design adds."""
        return None

    def contrast_with(self, vectors: Tensor, text: Tensor, targets: Tensor) -> Tensor:
        """Minus the mean log share of the vectors (N, D) that belong to a document, by softmax of scaled cosines."""
        shares = (self.config.sharpness * (F.normalize(text, dim=1) @ vectors.T)).log_softmax(dim=1)
        return -((shares * targets).sum(dim=1) / targets.sum(dim=1).clamp(min=1)).mean()


class Leaves(Design):
    """Contrast with the names of the labels."""

    def own_loss(self, text: Tensor, labels: Tensor) -> Tensor:
        """The contrast with the leaves."""
        assert self.names is not None
        return self.contrast_with(F.normalize(self.names.vectors, dim=1), text, labels)


class Nodes(Design):
    """Contrast with the nodes above the labels, on every level."""

    def own_loss(self, text: Tensor, labels: Tensor) -> Tensor:
        """The sum over levels of the contrast with their nodes."""
        losses = [
            self.contrast_with(self.node_vectors(members), text, (labels @ members.T > 0).float())
            for members in self.members()
        ]
        return torch.stack(losses).sum()


class PathLogits(Design):
    """A logit per node, started from names: labels below get its log probability, and it is learned by a loss."""

    def __init__(self, text: Any, taxonomy: Taxonomy, config: DesignConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        self.head_nodes = nn.ModuleList(nn.Linear(text.width, len(members)) for members in self.members())
        initialise(self.head_nodes)

    def node_logits(self, text: Tensor) -> list[Tensor]:
        """The logits of the nodes of each level: (B, N) each."""
        unit = F.normalize(text, dim=1)
        return [
            head(text) + self.config.name_weight * (unit @ self.node_vectors(members).T - NEUTRAL_COSINE)
            for head, members in zip(self.head_nodes, self.members(), strict=True)
        ]

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Logits of labels plus the log probabilities of the nodes above them."""
        levels = self.node_logits(text)
        output = super(Design, self).classify(text, None)
        above = [F.logsigmoid(level) @ members for level, members in zip(levels, self.members(), strict=True)]
        logits = output.logits + torch.stack(above).sum(dim=0)
        if labels is None:
            return Output(logits)
        losses = [
            self.label_loss(level, (labels.float() @ members.T > 0).float())
            for level, members in zip(levels, self.members(), strict=True)
        ]
        return total(
            logits, {"labels": self.label_loss(logits, labels), "own": self.config.weight * torch.stack(losses).sum()}
        )


class Attention(Design):
    """Label-wise attention: label l pools the token states by softmax of its query, and reads them with its row.

    The logit only needs Σ_t a_tl (w_l · h_t), so tokens × labels numbers are computed, not labels × width vectors.
    """

    def __init__(self, text: Any, taxonomy: Taxonomy, config: DesignConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        self.queries = nn.Parameter(torch.zeros(len(taxonomy), text.width))
        self.head_values = nn.Linear(text.width, len(taxonomy), bias=False)
        initialise(self.head_values)

    @property
    def vector_only(self) -> bool:
        """It needs the states of tokens."""
        return False

    def start(self) -> None:
        """Start the queries from the names."""
        super().start()
        assert self.names is not None
        self.queries.data.copy_(self.config.sharpness * F.normalize(self.names.vectors.data, dim=1))

    def forward(self, batch: AnyBatch) -> Output:
        """The logits of the control plus those of the attention."""
        assert not isinstance(batch, Encoded)
        encoder: Any = self.text
        states, mask = encoder.token_states(batch)
        weights = mask[:, :, None].float()
        with torch.autocast(states.device.type, enabled=False):
            states = states.float()
            text = (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
            if encoder.pooling == "cls":
                text = states[:, 0]
            output = super(Design, self).classify(encoder.dropout(text), None)
            logits = output.logits + self.attended(encoder.dropout(states), mask)
            if batch.labels is None:
                return Output(logits)
            return total(logits, {"labels": self.label_loss(logits, batch.labels)})

    def attended(self, states: Tensor, mask: Tensor) -> Tensor:
        """Token states (B, T, D) and the mask of tokens (B, T) to what the attention adds to the logits (B, L)."""
        scores = F.normalize(states, dim=2) @ self.queries.T  # (B, T, L)
        shares = scores.masked_fill(mask[:, :, None] == 0, torch.finfo(scores.dtype).min).softmax(dim=1)
        sums: Tensor = (shares * self.head_values(states)).sum(dim=1)
        return sums


DESIGNS: dict[str, type[HILL]] = {"leaves": Leaves, "nodes": Nodes, "path": PathLogits, "attention": Attention}


def register() -> None:
    """Add the designs to the models that `HillClassifier` knows, as design-leaves and so on."""
    MODELS.update({f"design-{name}": design for name, design in DESIGNS.items()})
