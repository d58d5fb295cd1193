"""Conditional softmax: one softmax over each group of siblings, with Menon's logit adjustment.

Plaud et al., Revisiting Hierarchical Text Classification: Inference and Metrics, CoNLL 2024; Menon et al., Long-tail
Learning via Logit Adjustment, ICLR 2021.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

SHARE = 0.25
"""Score above which a label is chosen beside the likeliest path."""


class Siblings(nn.Module):
    """The children of each parent, and the roots, as groups in each of which the labels compete.

    `levels[0]` are the roots, and every edge leads from a later level (`child`) to an earlier one (`parent`). A label
    with several parents competes in several groups, with the same logit.

    The paper sums over a document's labels and has this loss for one path a document only (for several it has a sigmoid
    a label). Here the loss is a mean over groups, so that it does not grow with the depth; several labels in a group
    share the target equally; and a document may end above the leaves: then it reaches no group below.
    """

    child: Tensor
    parent: Tensor
    group: Tensor
    prior: Tensor

    def __init__(
        self, levels: Sequence[Tensor], child: Tensor, parent: Tensor, counts: Tensor, adjust: float = 0.0
    ) -> None:
        super().__init__()
        root = len(counts)
        depth = torch.empty(root, dtype=torch.long)
        for level, rows in enumerate(levels):
            depth[rows] = level
        child = torch.cat([levels[0], child])
        parent = torch.cat([torch.full_like(levels[0], root), parent])
        order = depth[child].argsort(stable=True)
        self._sizes = torch.bincount(depth[child]).tolist()
        groups, group = torch.unique(parent[order], return_inverse=True)
        self._groups = len(groups)
        # The sum over siblings that makes a prior of these counts is the same for all of a group, and cancels there.
        prior = adjust * (counts.double() + 1).log().float()
        buffers = {"child": child[order], "parent": parent[order], "group": group, "prior": prior}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy in each group that a document has labels of, averaged over documents and groups reached.

        With adjustment the logits are those plus τ log P(child | parent), one document added to the count of each.
        """
        gold = labels.float().index_select(1, self.child)  # (B, E)
        shared = self._sum(gold)  # (B, groups)
        target = gold / shared.clamp(min=1).index_select(1, self.group)
        total = -(target * self._conditional(logits.float() + self.prior)).sum()
        return total / (shared > 0).sum().clamp(min=1)

    def scores(self, logits: Tensor) -> Tensor:
        """The product of conditional probabilities from a root down, by the likeliest way: (B, L) to (B, L)."""
        steps = self._conditional(logits.float())  # (B, E)
        found = torch.full_like(logits, -torch.inf, dtype=torch.float32)
        found = torch.cat([found, torch.zeros_like(found[:, :1])], dim=1)  # (B, L + 1), above the roots log 1
        for edges in self._by_level():
            arriving = found.index_select(1, self.parent[edges]) + steps[:, edges]
            found = found.scatter_reduce(1, self.child[edges].expand_as(arriving), arriving, "amax")
        return found[:, :-1].exp()

    def choose(self, scores: Tensor) -> Tensor:
        """From the roots down the likeliest child of what is chosen, and all that scores above 0.25: (B, L) to (B, L).

        Where labels share a target none comes near 1, so that 0.5 finds too few. On documents with one path (ICD-10-CM)
        and with several (arXiv), micro F1 was at most 3 points below that of the best threshold; with 0.5, 7 to 36.
        """
        values = scores.float().index_select(1, self.child)
        best = (values == self._best(values).index_select(1, self.group)).float()  # (B, E)
        chosen = torch.zeros_like(scores, dtype=torch.float32)
        chosen = torch.cat([chosen, torch.ones_like(chosen[:, :1])], dim=1)  # (B, L + 1)
        for edges in self._by_level():
            arriving = chosen.index_select(1, self.parent[edges]) * best[:, edges]
            chosen = chosen.scatter_reduce(1, self.child[edges].expand_as(arriving), arriving, "amax")
        return (chosen[:, :-1] > 0) | (scores > SHARE)

    def _conditional(self, logits: Tensor) -> Tensor:
        """The log of P(child | parent), for every edge: (B, L) to (B, E)."""
        values = logits.index_select(1, self.child)
        best = self._best(values.detach())
        sums = self._sum((values - best.index_select(1, self.group)).exp())
        return values - (best + sums.log()).index_select(1, self.group)

    def _sum(self, values: Tensor) -> Tensor:
        """(B, E) to (B, groups)."""
        return values.new_zeros(len(values), self._groups).index_add(1, self.group, values)

    def _best(self, values: Tensor) -> Tensor:
        """(B, E) to (B, groups)."""
        lowest = values.new_full((len(values), self._groups), -torch.inf)
        return lowest.scatter_reduce(1, self.group.expand_as(values), values, "amax")

    def _by_level(self) -> Iterator[slice]:
        """The edges of each level, so that all above a label is known when its turn comes."""
        start = 0
        for size in self._sizes:
            yield slice(start, start + size)
            start += size
