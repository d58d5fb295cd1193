"""Keep the tokens that speak for a document's labels and drop the others, so that gradients still pass.

Wang et al., Incorporating Hierarchy into Text Encoder (HGCLR), ACL 2022; details follow the released code.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hill.nn.text import initialise

MOST_HEADS = 8


class TokenKeeper(nn.Module):
    """Which tokens of documents are kept, from the attention of tokens to labels.

    As in HGCLR's code: 8 heads (or the most below that divide D), averaged; the attention weights themselves, not
    their logarithms, are the logits of the Gumbel softmax, so that its noise decides more than they do; no token is
    exempt. Different: no projections of values and output, which nothing reads, and no bias of keys, which cancels.
    """

    def __init__(self, width: int, threshold: float, temperature: float = 1.0) -> None:
        super().__init__()
        self.heads = max(heads for heads in range(1, MOST_HEADS + 1) if width % heads == 0)
        self.threshold = threshold
        self.temperature = temperature
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        initialise(self)

    def forward(self, words: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
        """Words (B, T, D), vectors of labels (L, D) and the labels of documents (B, L) to 1 or 0 a token (B, T)."""
        scores = gold_scores(self.attend(words, vectors), labels, self.temperature)
        return straight_through(scores, self.threshold)

    def attend(self, words: Tensor, vectors: Tensor) -> Tensor:
        """How much each token attends to each label: (B, T, L), 1 over the labels."""
        query = self.query(words).unflatten(2, (self.heads, -1))  # (B, T, heads, D / heads)
        key = self.key(vectors).unflatten(1, (self.heads, -1))  # (L, heads, D / heads)
        scores = torch.einsum("bthd,lhd->bthl", query, key) / key.shape[2] ** 0.5
        attention: Tensor = scores.softmax(dim=3).mean(dim=2)
        return attention


def gold_scores(attention: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """k_t: what a Gumbel softmax over the labels gives to those of the document: (B, T, L), (B, L) to (B, T)."""
    sampled = F.gumbel_softmax(attention, tau=temperature, dim=2)
    return torch.einsum("btl,bl->bt", sampled, labels.to(sampled.dtype))


def straight_through(scores: Tensor, threshold: float) -> Tensor:
    """Exactly 1 where a score is above the threshold, with the gradient of the score, else 0, without one.

    So it is in HGCLR's code, where what should be 1 is so only up to rounding.
    """
    return (scores > threshold).to(scores.dtype) * (1 + (scores - scores.detach()))
