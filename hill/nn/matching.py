"""HiMatch's matching of documents and labels: which labels a document is compared with, and its losses."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NEAR = 0.01
"""Squared distance to the parent of its label that a document may keep."""


class Drawn(NamedTuple):
    """Labels to compare each document with (B), and whether there is one (B)."""

    label: Tensor
    parent: Tensor
    sibling: Tensor
    other: Tensor
    has_label: Tensor
    has_sibling: Tensor
    has_other: Tensor


def matching(text: Tensor, labels: Tensor, drawn: Drawn, margin: float) -> tuple[Tensor, Tensor]:
    """L_joint and L_match of documents (B, J) and labels (L, J), each term a mean over documents that have it."""
    own, parent, sibling, other = ((text - labels[drawn[i]]).square().mean(dim=1) for i in range(4))  # (B)
    near = F.relu(parent - NEAR / text.shape[1])
    joint = _mean(own, drawn.has_label) + _mean(near, drawn.has_label)
    fine = _mean(F.relu(own - sibling + margin / 2), drawn.has_sibling)
    return joint, fine + _mean(F.relu(own - other + margin), drawn.has_other)


class Draw(nn.Module):
    """Draws for each document one of its labels, a parent and a sibling of that label, and a label it does not have.

    Roots hang from one more node, so that they are siblings of each other; a root's parent is itself.
    """

    child: Tensor
    parent: Tensor

    def __init__(self, child: Tensor, parent: Tensor, roots: Tensor, labels: int) -> None:
        super().__init__()
        self.top = labels
        self.register_buffer("child", torch.cat([child, roots]), persistent=False)
        self.register_buffer("parent", torch.cat([parent, torch.full_like(roots, labels)]), persistent=False)

    def forward(self, gold: Tensor) -> Drawn:
        """From the labels of each document (B, L), all choices equally likely."""
        label, has_label = _pick(gold)
        above = _reached(self.parent, self.child == label[:, None], self.top + 1)  # (B, L + 1)
        beside = _reached(self.child, above[:, self.parent], self.top)  # (B, L)
        parent, _ = _pick(above)
        sibling, has_sibling = _pick(beside & ~gold)
        other, has_other = _pick(~gold)
        parent = torch.where(parent == self.top, label, parent)
        return Drawn(label, parent, sibling, other, has_label, has_label & has_sibling, has_label & has_other)


def _pick(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """One of the allowed columns of each row, and whether there is any: (B, L) to (B), (B)."""
    chance, column = torch.rand(allowed.shape, device=allowed.device).masked_fill(~allowed, -1.0).max(dim=1)
    return column, chance >= 0


def _reached(ends: Tensor, edges: Tensor, nodes: int) -> Tensor:
    """The nodes at the ends of these edges: (B, edges) to (B, nodes)."""
    times = torch.zeros(len(edges), nodes, device=edges.device)
    return times.index_add(1, ends, edges.to(times.dtype)) > 0


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).sum() / counted.sum().clamp(min=1)
