"""What TextRCNN, HiAGM, HTCInfoMax, HiMatch and HiTIN share: either text encoder, as HILL has, and HiAGM's habits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from hill.models.base import ModelConfig
from hill.settings import at_least
from hill.taxonomy import Taxonomy


@dataclass(frozen=True)
class TextConfig(ModelConfig):
    """Settings of the models that exist with a TextRCNN and with a transformer."""

    TEXTS: ClassVar[tuple[str, ...]] = ("transformer", "rcnn")

    text: str = "transformer"
    """Kind of text encoder: transformer, or rcnn with words learned from the training documents."""
    vectors: str = ""
    """rcnn: a file of word vectors, a word and its numbers a line (GloVe, word2vec); else they start at random."""
    vocabulary: int = 50_000
    """rcnn: most words."""
    word_count: int = 2
    """rcnn: how often a word must occur in the training documents to be known."""
    word_width: int = 300
    """rcnn: width of a word's vector."""
    word_dropout: float = 0.5
    """rcnn: dropout on word vectors."""
    gru_width: int = 64
    """rcnn: width of the GRU, each direction."""
    gru_layers: int = 1
    """rcnn: layers of the GRU."""
    filters: int = 100
    """rcnn: filters of each of the kernels 2, 3 and 4."""
    top: int = 1
    """rcnn: how many of the largest values over time a filter gives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("word_width", "gru_width", "gru_layers", "filters", "top", "word_count"):
            at_least(getattr(self, name), 1, f"model.{name}")
        at_least(self.vocabulary, 3, "model.vocabulary")
        at_least(self.word_dropout, 0, "model.word_dropout")


@dataclass(frozen=True)
class FamilyConfig(TextConfig):
    """Settings that HiAGM and the models after it have too."""

    recursive: float = 1e-6
    """Weight of the recursive regularisation, which draws a label's row of the head to that of its parent."""
    logit_dropout: float = 0.0
    """Dropout on the logits; the released code of HiAGM has 0.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self.recursive, 0, "model.recursive")
        at_least(self.logit_dropout, 0, "model.logit_dropout")


GCN_AXES = {
    "up": "E",
    "down": "E",
    **{f"{bias}.{direction}": "L-" for bias in ("gate_bias", "bias") for direction in (0, 1)},
}
LSTM_AXES = {"up.weight": "E", "down.weight": "E"}


class FamilyHead(nn.Linear):
    """A linear head with HiAGM's habits: dropout on logits, and a regularisation along the taxonomy's edges."""

    child: Tensor
    parent: Tensor

    def __init__(self, width: int, taxonomy: Taxonomy, config: FamilyConfig) -> None:
        super().__init__(width, len(taxonomy))
        self.dropout = nn.Dropout(config.logit_dropout)
        self.recursive = config.recursive
        child, parent = (torch.from_numpy(ends.copy()) for ends in taxonomy.edge_array.T)
        self.register_buffer("child", child, persistent=False)
        self.register_buffer("parent", parent, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, D) to logits (B, L)."""
        logits: Tensor = self.dropout(super().forward(features))
        return logits

    def regularisation(self) -> dict[str, Tensor]:
        """Σ over edges ½‖w_parent - w_child‖², weighted, as a part of the loss; none where the weight is 0."""
        if not self.recursive:
            return {}
        apart = self.weight[self.parent] - self.weight[self.child]
        return {"recursive": self.recursive * apart.square().sum() / 2}


def child_priors(taxonomy: Taxonomy, counts: Sequence[int]) -> Tensor:
    """P(child | parent) of each edge of `taxonomy.edge_array`, from the documents of each label: (edges).

    A document of a child is one of its parent too, so that N(parent, child) = N(child). As in the released code of
    HiAGM, it is divided by the sum over the parent's children, not by N(parent). Equal where no child has a document.
    """
    child, parent = taxonomy.edge_array.T
    number = np.asarray(counts, dtype=np.float64)[child]
    among, siblings = (np.bincount(parent, of, minlength=len(taxonomy))[parent] for of in (number, None))
    priors = np.where(among > 0, number / np.maximum(among, 1), 1 / siblings)
    return torch.from_numpy(priors).float()
