"""Losses: contrast between two views of a document, and one softmax a level for documents with a single path."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent(one: Tensor, other: Tensor, temperature: float = 1.0) -> Tensor:
    """NT-Xent over both views of every document, as the released code computes it.

    Row i of `one` and row i of `other` (B, D) are partners; every other row of either view is a negative. Similarity is
    the cosine divided by the temperature; the loss is the mean of 2B cross entropies, each with the partner as target.
    """
    views = F.normalize(torch.cat([one, other]).float(), dim=1)  # (2B, D)
    similarity = views @ views.T / temperature  # (2B, 2B)
    similarity.fill_diagonal_(float("-inf"))
    partner = torch.arange(len(views), device=views.device).roll(len(one))
    return F.cross_entropy(similarity, partner)


def level_softmax(logits: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Probabilities that sum to 1 over the labels of each level: (B, L) to (B, L)."""
    scores = torch.zeros_like(logits, dtype=torch.float32)
    for rows in levels:
        scores[:, rows] = logits[:, rows].float().softmax(dim=1)
    return scores


def level_softmax_loss(logits: Tensor, labels: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Cross entropy at each level that a document reaches, averaged over documents and levels reached.

    Several labels on one level share the target equally.
    """
    total, reached = logits.new_zeros((), dtype=torch.float32), logits.new_zeros((), dtype=torch.float32)
    for rows in levels:
        gold = labels[:, rows].float()
        counts = gold.sum(dim=1)
        target = gold / counts.clamp(min=1)[:, None]
        total = total - (target * logits[:, rows].float().log_softmax(dim=1)).sum()
        reached = reached + (counts > 0).sum()
    return total / reached.clamp(min=1)
