"""HiAGM: labels as the nodes of a graph through which the text, or what labels look for in it, is passed.

Zhou et al., Hierarchy-Aware Global Model for Hierarchical Text Classification, ACL 2020. Where the paper and its
released code differ, the docstrings say which side is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hill.encoders import RCNN, TextEncoder
from hill.models.base import (
    COUNTS_FILE,
    GCN_AXES,
    LSTM_AXES,
    MAX_WIDTH,
    FamilyConfig,
    FamilyHead,
    ModelConfig,
    VectorModel,
    child_priors,
    total,
)
from hill.models.layers import LabelGCN, TreeLSTM, attend
from hill.settings import check_one_of, within
from hill.taxonomy import Taxonomy
from hill.types import Batch, Output, Packed

FUSIONS = ("tp", "la")
STRUCTURES = {"gcn": LabelGCN, "treelstm": TreeLSTM}
AXES = {"gcn": GCN_AXES, "treelstm": LSTM_AXES}


@dataclass(frozen=True)
class HiAGMConfig(FamilyConfig):
    """Settings of HiAGM."""

    fusion: str = "tp"
    """How text and labels meet: tp, the text is passed through the labels; la, labels attend to the tokens."""
    structure: str = "gcn"
    """What passes between labels: gcn or treelstm."""
    node_width: int = 300
    """tp: width of a label's node; in la it is that of a token's state."""
    readout_dropout: float = 0.1
    """Dropout on the nodes that the structure receives; the released code of HiAGM has 0.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of(self.fusion, FUSIONS, "model.fusion")
        check_one_of(self.structure, STRUCTURES, "model.structure")
        within(self.node_width, 2, MAX_WIDTH, "model.node_width")
        within(self.readout_dropout, 0, 1, "model.readout_dropout")


class HiAGM(VectorModel):
    """Nodes of all labels, passed along the taxonomy's edges, then one linear layer from all nodes to all labels.

    As in the paper, that layer has L · L · width weights: it is for hundreds of labels, not for many thousands. The
    released label attention reads a single vector of a text, over which a softmax is 1 and teaches the labels nothing;
    here, as in HTCInfoMax, labels attend to the tokens.
    """

    Config: ClassVar[type[ModelConfig]] = HiAGMConfig
    config: HiAGMConfig

    def __init__(self, text: TextEncoder, taxonomy: Taxonomy, config: HiAGMConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        labels, width = len(taxonomy), config.node_width if config.fusion == "tp" else text.state_width
        self.dropout = nn.Dropout(config.readout_dropout)
        self.head = FamilyHead(labels * width, taxonomy, config)
        priors = child_priors(taxonomy, assets[COUNTS_FILE])
        self.structure = STRUCTURES[config.structure](self.head.child, self.head.parent, priors, labels, width)
        if config.fusion == "tp":
            self.spread = nn.Linear(text.width, labels * width)
            return
        self.labels = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(labels, width)))
        if isinstance(text, RCNN):
            text.convolutions.requires_grad_(False)  # only a text's vector needs them

    @property
    def vector_only(self) -> bool:
        """Whether a document's vector is enough."""
        return self.config.fusion == "tp"

    @property
    def axes(self) -> dict[str, str]:
        """The weights that follow the taxonomy."""
        nodes = {"spread.weight": "L-", "spread.bias": "L"} if self.config.fusion == "tp" else {"labels": "L-"}
        structure = {f"structure.{name}": axes for name, axes in AXES[self.config.structure].items()}
        return super().axes | {"head.weight": "LZ"} | nodes | structure

    def forward(self, batch: Batch | Packed) -> Output:
        """Logits (B, L) of a batch, with a loss if it has labels."""
        if isinstance(batch, Packed) or self.vector_only:
            return super().forward(batch)
        return self._finish(self.attend(batch), batch.labels)

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """HiAGM-TP: vectors (B, D) to logits (B, L)."""
        return self._finish(self.propagate(text), labels)

    def _finish(self, nodes: Tensor, labels: Tensor | None) -> Output:
        logits = self.head(nodes.flatten(1))
        if labels is None:
            return Output(logits)
        return total(logits, {"labels": self.label_loss(logits, labels)} | self.head.regularisation())

    def propagate(self, text: Tensor) -> Tensor:
        """HiAGM-TP: the text's vector becomes a node of each label, and the nodes hear each other: (B, L, D)."""
        spread = self.dropout(self.spread(text))
        nodes: Tensor = self.structure(spread.unflatten(1, (-1, self.config.node_width)))
        return nodes

    def attend(self, batch: Batch) -> Tensor:
        """HiAGM-LA: labels hear each other, then each reads from the tokens what is like it: (B, L, S)."""
        labels = self.structure(self.dropout(self.labels)[None])[0]  # (L, S)
        return attend(labels, self.text.states(batch.ids, batch.mask), batch.mask)
