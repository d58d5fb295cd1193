"""HiAGM: labels are nodes of a graph, and a GCN or a Tree-LSTM passes messages along the edges of the taxonomy.

Zhou et al., Hierarchy-Aware Global Model for Hierarchical Text Classification, ACL 2020. In text propagation (tp) the
nodes start from the text's vector; in label attention (la) they start from label vectors and then attend to the tokens.
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
from hill.types import AnyBatch, Output

STRUCTURES = {"gcn": LabelGCN, "treelstm": TreeLSTM}
AXES = {"gcn": GCN_AXES, "treelstm": LSTM_AXES}


@dataclass(frozen=True)
class HiAGMConfig(FamilyConfig):
    """Settings of HiAGM."""

    fusion: str = "tp"
    """tp: the text's vector is propagated through the label graph; la: labels attend to the tokens."""
    structure: str = "gcn"
    """The graph encoder: gcn or treelstm."""
    node_width: int = 300
    """tp: width of a label's node; with la it is the width of a token's state."""
    readout_dropout: float = 0.1
    """Dropout on the nodes before the graph encoder; the released code of HiAGM has 0.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of(self.fusion, ("tp", "la"), "model.fusion")
        check_one_of(self.structure, STRUCTURES, "model.structure")
        within(self.node_width, 2, MAX_WIDTH, "model.node_width")
        within(self.readout_dropout, 0, 1, "model.readout_dropout")


class HiAGM(VectorModel):
    """Nodes of all labels (B, L, W) through the graph encoder, then one linear layer (B, L · W) to logits (B, L).

    As in the paper, that layer has L² · W weights, so the model is for hundreds of labels, not for thousands.
    Different from the released code: with la, labels attend to the tokens, as in HTCInfoMax. The released label
    attention attends to a single vector; its softmax is always 1, and the labels get no gradient. There is no dropout
    on the logits, which the released code has at 0.5.
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
            text.convolutions.requires_grad_(False)  # token states do not use them

    @property
    def vector_only(self) -> bool:
        """Whether a document's vector is enough."""
        return self.config.fusion == "tp"

    @property
    def axes(self) -> dict[str, str]:
        """The weights that depend on the taxonomy."""
        nodes = {"spread.weight": "L-", "spread.bias": "L"} if self.config.fusion == "tp" else {"labels": "L-"}
        structure = {f"structure.{name}": axes for name, axes in AXES[self.config.structure].items()}
        return super().axes | {"head.weight": "LZ"} | nodes | structure

    def forward(self, batch: AnyBatch) -> Output:
        """Logits (B, L) of a batch, with a loss if it has labels."""
        if self.vector_only:
            return super().forward(batch)
        labels = self.structure(self.dropout(self.labels)[None])[0]  # (L, S)
        return self._classify_nodes(attend(labels, *self.text.token_states(batch)), batch.labels)

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """HiAGM-TP: text vectors (B, D) to logits (B, L), with a loss if labels are given."""
        nodes = self.dropout(self.spread(text)).unflatten(1, (-1, self.config.node_width))  # (B, L, W)
        return self._classify_nodes(self.structure(nodes), labels)

    def _classify_nodes(self, nodes: Tensor, labels: Tensor | None) -> Output:
        logits = self.head(nodes.flatten(1))
        if labels is None:
            return Output(logits)
        return total(logits, {"labels": self.label_loss(logits, labels)} | self.head.regularisation())
