"""What labels and a text know of each other: attention of labels to tokens, and the discriminators of HTCInfoMax.

Deng et al., HTCInfoMax: A Global Model for Hierarchical Text Classification via Information Maximization, NAACL 2021.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call


def attend(labels: Tensor, states: Tensor, mask: Tensor) -> Tensor:
    """What each label reads of a text: labels (L, S) and token states (B, T, S) to (B, L, S).

    A softmax over the tokens of a document, padding left out, of the products of label and state.
    """
    fit = (labels @ states.transpose(1, 2)).float()  # (B, L, T)
    # the least number and not infinity, so that a document without tokens gets no NaN
    share = fit.masked_fill(mask[:, None] == 0, torch.finfo(fit.dtype).min).softmax(dim=2)
    return share.to(states.dtype) @ states


def mean_state(states: Tensor, mask: Tensor) -> Tensor:
    """The mean over a document's tokens, padding left out: (B, T, S) to (B, S)."""
    weights = mask[:, :, None].float()
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


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
