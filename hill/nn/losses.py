"""Losses: contrast between two views of a document, and one softmax a level for documents with a single path."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hill.nn.across import whole


def nt_xent(
    one: Tensor,
    other: Tensor,
    temperature: float = 1.0,
    negatives: Tensor | None = None,
    positives: Tensor | None = None,
) -> Tensor:
    """NT-Xent over both views of every document, as the released code computes it.

    Row i of `one` and row i of `other` (B, D) are partners; every other row of either view is a negative. Similarity is
    the cosine divided by the temperature; the loss is the mean of 2B cross entropies, each with the partner as target.
    With `negatives` (B, B), row j of either view counts that many times in the denominators of document i, 0 leaving
    it out; the diagonal is not read. With `positives` (B, B), row j of either view is a partner of document i too, with
    that weight beside the 1 of its own partner: the target of each cross entropy is then a distribution, as in
    supervised contrastive learning (Khosla et al., NeurIPS 2020). Of a batch that several processes share, B are all
    documents, those of `negatives` and `positives` too.
    """
    one, other = whole(one), whole(other)
    views = F.normalize(torch.cat([one, other]).float(), dim=1)  # (2B, D)
    with torch.autocast(views.device.type, enabled=False):  # a low temperature would magnify what bf16 rounds away
        similarity = views @ views.T / temperature  # (2B, 2B)
    if negatives is not None:
        weights = negatives.float().log().fill_diagonal_(0.0)  # partners count once
        similarity = similarity + weights.repeat(2, 2)
    similarity.fill_diagonal_(float("-inf"))
    if positives is not None:
        target = positives.float().clone().fill_diagonal_(1.0).repeat(2, 2).fill_diagonal_(0.0)
        logs = similarity.log_softmax(dim=1).masked_fill(target == 0, 0.0)  # of a document itself it is -inf
        return -(target * logs).sum(dim=1).div(target.sum(dim=1)).mean()
    partner = torch.arange(len(views), device=views.device).roll(len(one))
    return F.cross_entropy(similarity, partner)


def most_specific(labels: Tensor, child: Tensor, parent: Tensor) -> Tensor:
    """The labels of each document without those that have a child in it: (B, L) to (B, L), along these edges."""
    known = labels.float()
    below = torch.zeros_like(known).index_add(1, parent, known[:, child])  # (B, L)
    return known * (below == 0)


def share_none(labels: Tensor) -> Tensor:
    """1 for two documents without a common label, else 0: (B, L) to (B, B)."""
    return (_common(labels) == 0).float()


def dissimilarity(labels: Tensor) -> Tensor:
    """1 - Jaccard similarity of the labels of two documents, 1 where neither has any: (B, L) to (B, B)."""
    common = _common(labels)
    counts = labels.float().sum(dim=1)
    either = counts[:, None] + counts - common
    return 1 - common / either.clamp(min=1)


def _common(labels: Tensor) -> Tensor:
    """How many labels two documents share: (B, L) to (B, B)."""
    with torch.autocast(labels.device.type, enabled=False):  # bf16 counts to 256 only
        return labels.float() @ labels.float().T


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
