"""HTCInfoMax: HiAGM's label attention, with texts that know their labels and label vectors drawn to a prior.

Deng et al., HTCInfoMax: A Global Model for Hierarchical Text Classification via Information Maximization, NAACL 2021.
Where the paper and its released code differ, the docstrings say which side is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from hill.encoders import RCNN, TextEncoder
from hill.models.base import (
    COUNTS_FILE,
    GCN_AXES,
    LSTM_AXES,
    FamilyConfig,
    FamilyHead,
    HTCModel,
    ModelConfig,
    child_priors,
    total,
)
from hill.models.layers import LabelGCN, TreeLSTM, attend, mean_state
from hill.settings import check_one_of, within
from hill.taxonomy import Taxonomy
from hill.types import Batch, Output


class PairDiscriminator(nn.Module):
    """Tells whether a text and the mean of some labels belong together.

    Two convolutions over the token states and their mean over time, joined with the labels, then three linear layers.
    The released code's convolutions have no padding and read that of the batch; these are padded by 1 and see zeros
    beyond a document's end, so that short documents and the company of others make no difference.
    """

    def __init__(self, width: int, hidden: int = 512) -> None:
        super().__init__()
        self.near = nn.Conv1d(width, width, 3, padding=1)
        self.far = nn.Conv1d(width, hidden, 3, padding=1)
        self.judge = nn.Sequential(
            nn.Linear(hidden + width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def summarise(self, states: Tensor, mask: Tensor) -> Tensor:
        """Token states (B, T, S) to what is judged of a text (B, H)."""
        within = mask[:, None]
        near = self.near(states.transpose(1, 2) * within).relu()  # (B, S, T)
        return mean_state(self.far(near * within).transpose(1, 2), mask)

    def forward(self, labels: Tensor, summary: Tensor) -> Tensor:
        """Labels (B, S) and texts (B, H) to a logit each: (B)."""
        logits: Tensor = self.judge(torch.cat([labels, summary.to(labels.dtype)], dim=1))
        return logits[:, 0].float()


def pair_loss(discriminator: PairDiscriminator, labels: Tensor, states: Tensor, mask: Tensor) -> Tensor:
    """The Jensen-Shannon bound on mutual information, as a loss: each text with its labels and with another's.

    Labels (B, S), states (B, T, S). Others are found by a cyclic shift of random length: the released code shuffles,
    which can leave a text with its own labels. A batch of one has no other, and only the first term.
    """
    summary = discriminator.summarise(states, mask)
    loss = F.softplus(-discriminator(labels, summary)).mean()
    count = len(labels)
    if count == 1:
        return loss
    shift = torch.randint(1, count, (1,), device=labels.device)
    other = summary[(torch.arange(count, device=labels.device) + shift) % count]
    return loss + F.softplus(discriminator(labels, other)).mean()


class PriorDiscriminator(nn.Sequential):
    """Tells vectors of the prior, U[0, 1] in each feature, from those of labels: (L, S) to logits (L, 1)."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 1000), nn.ReLU(), nn.Linear(1000, 200), nn.ReLU(), nn.Linear(200, 1))


def prior_loss(discriminator: PriorDiscriminator, labels: Tensor) -> Tensor:
    """-[log D(u) + log(1 - D(v))], the mean over labels v (L, S) with a draw u of the prior for each.

    Only the discriminator has the gradient of this: it learns to tell labels from the prior. Labels have that of
    -log D(v), and learn to look like the prior, which is what the paper means by matching; in the released code they
    learn to be told apart. A reversed gradient would have the same aim, but it vanishes once the discriminator is sure,
    which with a few labels was seen after some tens of steps.
    """
    drawn, given = discriminator(torch.rand_like(labels)), discriminator(labels.detach())
    fixed = {name: weight.detach() for name, weight in discriminator.named_parameters()}
    fooled = F.softplus(-functional_call(discriminator, fixed, (labels,)).float())
    told = F.softplus(-drawn.float()) + F.softplus(given.float())
    return (told + fooled - fooled.detach()).mean()


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
        check_one_of(self.structure, STRUCTURES, "model.structure")
        within(self.readout_dropout, 0, 1, "model.readout_dropout")


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
