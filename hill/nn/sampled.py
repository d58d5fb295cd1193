"""Binary cross entropy over a sample of the labels, whose expectation is the loss over all of them.

The labels of the batch's own documents count in full, for all its documents, and so do some children of each of them,
which are the hardest to tell from what a document has. All others are stood for by labels drawn uniformly, each with
the weight L / drawn; one that counts already has the weight 0. What is drawn has a fixed size, and nothing waits for
the device.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hill.nn.across import summed

CHILDREN = 4
"""Children that are drawn of each label of a document."""


class SampledLoss(nn.Module):
    """The loss over a sample of so many labels and those near a document's own, for labels with these edges."""

    starts: Tensor
    below: Tensor

    def __init__(self, child: Tensor, parent: Tensor, roots: Tensor, labels: int, count: int) -> None:
        super().__init__()
        self.labels = labels
        self.count = count
        above = torch.cat([parent, torch.full_like(roots, labels)])  # what fills up a list is the parent of the roots
        under = torch.cat([child, roots])[above.argsort(stable=True)]
        sizes = torch.bincount(above, minlength=labels + 1)
        self.register_buffer("starts", F.pad(sizes.cumsum(0), (1, 0)), persistent=False)
        self.register_buffer("below", F.pad(under, (0, 1), value=labels), persistent=False)

    def forward(self, features: Tensor, head: nn.Linear, lists: Tensor) -> Tensor:
        """The loss of documents that a linear head reads (B, D), with these lists of labels (B, M)."""
        rows, weight = self.draw(lists)
        kept = rows.clamp(max=self.labels - 1)
        logits = F.linear(features, head.weight.index_select(0, kept), head.bias.index_select(0, kept))  # (B, S)
        own = logits[:, : lists.numel()].reshape(-1, *lists.shape).diagonal(dim1=0, dim2=1).T  # (B, M)
        total = (F.softplus(logits) @ weight).sum() - (own * (lists < self.labels)).sum()
        return summed(total) / (summed(total.new_full((), float(len(lists)))) * self.labels)

    def draw(self, lists: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and how much each counts (S): those of the documents in their order, some children, and any others.

        Of what stands there several times each counts in part, and the number of labels, which fills up lists, not.
        """
        known = torch.cat([lists.flatten(), self._draw_children(lists)])
        others = torch.randint(self.labels, (self.count,), device=lists.device)
        times = torch.zeros(self.labels + 1, device=lists.device).index_add_(0, known, torch.ones_like(known).float())
        full = (known < self.labels) / times[known]
        drawn = (times[others] == 0) * (self.labels / self.count)
        return torch.cat([known, others]), torch.cat([full, drawn])

    def _draw_children(self, lists: Tensor) -> Tensor:
        """Some children of each label, drawn uniformly; the number of labels where there are none: (B * M * C)."""
        first, size = self.starts[lists], self.starts[lists + 1] - self.starts[lists]
        share = torch.rand(CHILDREN, *lists.shape, device=lists.device)
        place = first + (share * size).long().clamp(max=size - 1)  # a share of nearly 1 is rounded up
        return self.below[torch.where(size > 0, place, len(self.below) - 1)].flatten()
