"""Label lists: the labels of each document as a row of numbers (B, M), filled up with the number of labels.

With very many labels they take the place of targets (B, L), which are nearly all zeros.
"""

import torch
from torch import Tensor


def is_listed(labels: Tensor) -> bool:
    """Whether these are lists of labels (B, M) and not targets (B, L): numbers, not truths."""
    return labels.dtype == torch.int64


def to_lists(labels: Tensor) -> Tensor:
    """Targets (B, L) as lists as wide as the most labels of a document; it waits for the device."""
    known = labels > 0
    order = torch.where(known, torch.arange(labels.shape[1], device=labels.device), labels.shape[1]).sort(dim=1).values
    return order[:, : max(int(known.sum(dim=1).amax()), 1)]


def to_targets(lists: Tensor, count: int) -> Tensor:
    """Lists of so many labels (B, M) as targets (B, L)."""
    return torch.zeros(len(lists), count + 1, device=lists.device).scatter_(1, lists, 1.0)[:, :count]


def own_columns(lists: Tensor, count: int) -> Tensor:
    """Targets over the labels that the batch has, in place of all: (B, M) to (B, B * M).

    Each label has one column; those of its repetitions, and of what fills up the lists, are 0.
    """
    columns = lists.flatten()
    ordered, place = columns.sort(stable=True)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    first = torch.zeros_like(fresh).scatter(0, place, fresh & (ordered < count))
    has = (lists[:, :, None] == columns).any(dim=1)  # (B, B * M)
    return (has & first).float()


def drop_parents(lists: Tensor, edges: Tensor, count: int) -> Tensor:
    """Lists without the labels that have a child in the same list: (B, M) to (B, M).

    `edges` are the numbers parent * (L + 1) + child of the taxonomy's edges, sorted.
    """
    pairs = lists[:, :, None] * (count + 1) + lists[:, None, :]  # (B, M, M)
    place = torch.searchsorted(edges, pairs).clamp(max=len(edges) - 1)
    covered = (edges[place] == pairs).any(dim=2) if len(edges) else torch.zeros_like(lists, dtype=torch.bool)
    return lists.masked_fill(covered, count)
