"""HTCInfoMax: HiAGM's label attention with two more losses on the label vectors.

Deng et al., HTCInfoMax: A Global Model for Hierarchical Text Classification via Information Maximization, NAACL 2021.
The first loss maximises the mutual information of a text and its labels, the second matches label vectors to a prior.
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
from hill.settings import check_at_least, check_one_of, within
from hill.taxonomy import Taxonomy
from hill.types import AnyBatch, Output

STRUCTURES = {"gcn": LabelGCN, "treelstm": TreeLSTM}
AXES = {"gcn": GCN_AXES, "treelstm": LSTM_AXES}


class PairDiscriminator(nn.Module):
    """Tells whether a text and the mean vector of some labels belong together.

    Two convolutions over the token states (B, T, S), their mean over time (B, H), joined with the labels (B, S), then
    three linear layers. Unlike the released code, the convolutions are padded by 1 and ignore the padding of the batch.
    """

    def __init__(self, width: int, hidden: int = 512) -> None:
        super().__init__()
        self.near = nn.Conv1d(width, width, 3, padding=1)
        self.far = nn.Conv1d(width, hidden, 3, padding=1)
        self.judge = nn.Sequential(
            nn.Linear(hidden + width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def summarise(self, states: Tensor, mask: Tensor) -> Tensor:
        """Token states (B, T, S) to text features (B, H)."""
        is_token = mask[:, None]
        states = self.near(states.transpose(1, 2) * is_token).relu()  # (B, S, T)
        return mean_state(self.far(states * is_token).transpose(1, 2), mask)

    def forward(self, labels: Tensor, texts: Tensor) -> Tensor:
        """Label vectors (B, S) and text features (B, H) to logits (B)."""
        logits: Tensor = self.judge(torch.cat([labels, texts.to(labels.dtype)], dim=1))
        return logits[:, 0].float()


def pair_loss(discriminator: PairDiscriminator, labels: Tensor, states: Tensor, mask: Tensor) -> Tensor:
    """The Jensen-Shannon estimate of mutual information as a loss: each text with its labels and with those of another.

    Labels (B, S), states (B, T, S). Different from the released code: the other text is found by a cyclic shift of
    random length, since a shuffle can leave a text with its own labels. A batch of one has only the first term.
    """
    texts = discriminator.summarise(states, mask)
    loss = F.softplus(-discriminator(labels, texts)).mean()
    count = len(labels)
    if count == 1:
        return loss
    shift = torch.randint(1, count, (1,), device=labels.device)
    others = texts[(torch.arange(count, device=labels.device) + shift) % count]
    return loss + F.softplus(discriminator(labels, others)).mean()


class PriorDiscriminator(nn.Sequential):
    """Tells vectors of the prior, U[0, 1] per feature, from label vectors: (L, S) to logits (L, 1)."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 1000), nn.ReLU(), nn.Linear(1000, 200), nn.ReLU(), nn.Linear(200, 1))


def prior_loss(discriminator: PriorDiscriminator, labels: Tensor) -> Tensor:
    """-[log D(u) + log(1 - D(v))], the mean over label vectors v (L, S) with one draw u of the prior for each.

    Only the discriminator gets this gradient. The label vectors get that of -log D(v): they learn to look like the
    prior, which is what the paper means by matching. In the released code they learn to look different from it. A
    reversed gradient would have the same aim, but with few labels it vanishes after some tens of steps.
    """
    prior, detached = discriminator(torch.rand_like(labels)), discriminator(labels.detach())
    frozen = {name: weight.detach() for name, weight in discriminator.named_parameters()}
    generator_loss = F.softplus(-functional_call(discriminator, frozen, (labels,)).float())
    discriminator_loss = F.softplus(-prior.float()) + F.softplus(detached.float())
    return (discriminator_loss + generator_loss - generator_loss.detach()).mean()


@dataclass(frozen=True)
class HTCInfoMaxConfig(FamilyConfig):
    """Settings of HTCInfoMax."""

    structure: str = "gcn"
    """The graph encoder over labels: gcn or treelstm."""
    gru_width: int = 150
    """rcnn: width of the GRU, each direction."""
    readout_dropout: float = 0.1
    """Dropout on the label vectors before the graph encoder; the released code has 0.5."""
    information: float = 1.0
    """Weight of the two losses of mutual information; 1 as in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.information, 0, "model.information")
        check_one_of(self.structure, STRUCTURES, "model.structure")
        within(self.readout_dropout, 0, 1, "model.readout_dropout")


class HTCInfoMax(HTCModel):
    """Label vectors (L, S) attend to token states (B, T, S), then one linear layer (B, L · S) to logits (B, L).

    As in the paper, that layer has L² · S weights, so the model is for hundreds of labels, not for thousands. Different
    from the released code: padding gets no attention, and the discriminators and the weight F of their losses are
    trained, as the paper says; the released code leaves them out of the optimiser.
    """

    Config: ClassVar[type[ModelConfig]] = HTCInfoMaxConfig
    config: HTCInfoMaxConfig

    def __init__(
        self, text: TextEncoder, taxonomy: Taxonomy, config: HTCInfoMaxConfig, assets: Mapping[str, Any]
    ) -> None:
        super().__init__(text, taxonomy, config, assets)
        labels, width = len(taxonomy), text.state_width
        if isinstance(text, RCNN):
            text.convolutions.requires_grad_(False)  # token states do not use them
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
        """The weights that depend on the taxonomy."""
        structure = {f"structure.{name}": axes for name, axes in AXES[self.config.structure].items()}
        return super().axes | {"head.weight": "LZ", "labels": "L-", "weigh_labels.weight": "-Z"} | structure

    def forward(self, batch: AnyBatch) -> Output:
        """Logits (B, L) of a batch, with a loss if it has labels."""
        labels = self.structure(self.dropout(self.labels)[None])[0]  # (L, S)
        states, mask = self.text.token_states(batch)  # (B, T, S), (B, T)
        logits = self.head(attend(labels, states, mask).flatten(1))
        if batch.labels is None:
            return Output(logits)
        parts = {"labels": self.label_loss(logits, batch.labels)} | self.head.regularisation()
        return total(logits, parts | self.information_losses(self.project(labels), states, mask, batch.labels))

    def information_losses(self, vectors: Tensor, states: Tensor, mask: Tensor, gold: Tensor) -> dict[str, Tensor]:
        """F · pair loss and (1 - F) · prior loss, where F between 0 and 1 is learned.

        Label vectors (L, S), token states (B, T, S), gold labels (B, L).
        """
        mean = gold.to(vectors.dtype) @ vectors / gold.sum(dim=1, keepdim=True).clamp(min=1)  # (B, S)
        text = mean_state(states, mask).mean(dim=0)  # (S)
        weight = (self.weigh_text(text) + self.weigh_labels(vectors.flatten()))[0].float().sigmoid()
        return {
            "pairs": self.config.information * weight * pair_loss(self.pairs, mean, states, mask),
            "prior": self.config.information * (1 - weight) * prior_loss(self.prior, vectors),
        }
