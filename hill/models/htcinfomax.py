"""HTCInfoMax: HiAGM's label attention, with texts that know their labels and label vectors drawn to a prior.

Deng et al., HTCInfoMax: A Global Model for Hierarchical Text Classification via Information Maximization, NAACL 2021.
Where the paper and its released code differ, the docstrings say which side is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hill.models.base import COUNTS_FILE, HTCModel, ModelConfig, total
from hill.models.family import GCN_AXES, LSTM_AXES, FamilyConfig, FamilyHead, child_priors
from hill.nn import RCNN, TextEncoder
from hill.nn.labelgcn import LabelGCN
from hill.nn.mutual import PairDiscriminator, PriorDiscriminator, attend, mean_state, pair_loss, prior_loss
from hill.nn.treelstm import TreeLSTM
from hill.settings import at_least, one_of
from hill.taxonomy import Taxonomy
from hill.types import Batch, Output

STRUCTURES = {"gcn": LabelGCN, "treelstm": TreeLSTM}
AXES = {"gcn": GCN_AXES, "treelstm": LSTM_AXES}


@dataclass(frozen=True)
class HTCInfoMaxConfig(FamilyConfig):
    """Settings of HTCInfoMax."""

    structure: str = "gcn"
    """What passes between labels: gcn or treelstm."""
    gru_width: int = 150
    """rcnn: width of the GRU, each direction."""
    readout_dropout: float = 0.1
    """Dropout on the label vectors that the structure receives; the released code has 0.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.structure, STRUCTURES, "model.structure")
        at_least(self.readout_dropout, 0, "model.readout_dropout")


class HTCInfoMax(HTCModel):
    """Labels attend to the tokens, one linear layer reads them all, and two more losses inform the label vectors.

    As in the paper, that layer has L · L · S weights: it is for hundreds of labels, not for many thousands. The
    released code attends to padding too, and leaves the discriminators and the weight of their losses out of the
    optimiser; here padding changes nothing and they are trained as the paper says.
    """

    Config: ClassVar[type[ModelConfig]] = HTCInfoMaxConfig
    config: HTCInfoMaxConfig

    def __init__(
        self, text: TextEncoder, taxonomy: Taxonomy, config: HTCInfoMaxConfig, assets: Mapping[str, Any]
    ) -> None:
        super().__init__(text, taxonomy, config, assets)
        labels, width = len(taxonomy), text.state_width
        if isinstance(text, RCNN):
            text.convolutions.requires_grad_(False)  # only a text's vector needs them
        self.labels = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(labels, width)))
        self.dropout = nn.Dropout(config.readout_dropout)
        self.head = FamilyHead(labels * width, taxonomy, config)
        priors = child_priors(taxonomy, assets[COUNTS_FILE])
        self.structure = STRUCTURES[config.structure](self.head.child, self.head.parent, priors, labels, width)
        self.project = nn.Linear(width, width, bias=False)
        nn.init.xavier_uniform_(self.project.weight)
        self.pairs, self.prior = PairDiscriminator(width), PriorDiscriminator(width)
        self.weigh_text, self.weigh_labels = nn.Linear(width, 1), nn.Linear(labels * width, 1)

    @property
    def axes(self) -> dict[str, str]:
        """The weights that follow the taxonomy."""
        structure = {f"structure.{name}": axes for name, axes in AXES[self.config.structure].items()}
        return super().axes | {"head.weight": "LZ", "labels": "L-", "weigh_labels.weight": "-Z"} | structure

    def forward(self, batch: Batch) -> Output:
        """Logits (B, L) of a batch, with a loss if it has labels."""
        labels = self.structure(self.dropout(self.labels)[None])[0]  # (L, S)
        states = self.text.states(batch.ids, batch.mask)  # (B, T, S)
        logits = self.head(attend(labels, states, batch.mask).flatten(1))
        if batch.labels is None:
            return Output(logits)
        parts = {"labels": self.label_loss(logits, batch.labels)} | self.head.regularisation()
        return total(logits, parts | self.inform(self.project(labels), states, batch.mask, batch.labels))

    def inform(self, vectors: Tensor, states: Tensor, mask: Tensor, gold: Tensor) -> dict[str, Tensor]:
        """F · (text and labels know each other) + (1 - F) · (label vectors match the prior), with F learned.

        Label vectors (L, S), token states (B, T, S), gold labels (B, L). A document's labels are the mean of their
        vectors, 0 where it has none.
        """
        mean = gold.to(vectors.dtype) @ vectors / gold.sum(dim=1, keepdim=True).clamp(min=1)  # (B, S)
        balance = self._balance(vectors, mean_state(states, mask).mean(dim=0))
        return {
            "pairs": balance * pair_loss(self.pairs, mean, states, mask),
            "prior": (1 - balance) * prior_loss(self.prior, vectors),
        }

    def _balance(self, vectors: Tensor, text: Tensor) -> Tensor:
        """F: a number between 0 and 1, from the label vectors (L, S) and the mean text (S)."""
        logit: Tensor = self.weigh_text(text) + self.weigh_labels(vectors.flatten())
        return logit[0].float().sigmoid()
