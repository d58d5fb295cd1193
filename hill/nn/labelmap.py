"""The label side of the two-dimensional projector, folded with the first child sums of the tree.

In the released code |Y| equal copies of a document's features z pass through a |Y| x |Y| map, ReLU and a second such
map along the label axis, and the coding tree then sums the results of each group of labels. On equal copies the first
map is rank 1: it only knows its row sums s. Feature j thus enters node v of level 1 as the scalar function

    f_v(z_j) = Σ_k M_vk ReLU(s_k z_j + b_k) + c_v,    M = P W2 and c = P b2 with P the child sums.

f is piecewise linear with breaks at -b_k / s_k, the same for all documents and features. So the hidden layer of |Y|
values is never computed per document: slope and intercept between breaks are running sums over the sorted breaks, made
once a step, and each value of z looks its own up. This is exact, in training too, and costs B·D·N instead of B·D·N·|Y|.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW = 512
"""Up to so many labels, sums over labels are matrix products on a GPU, which else would sort or add row by row."""


class LabelMap(nn.Module):
    """Features (B, D) to what the level-1 nodes receive (B, D, N), for labels with these level-1 parents.

    With a rank r the second map is the product of |Y| x r and r x |Y| weights, so that many labels fit.
    """

    parents: Tensor
    outer: nn.Parameter | None

    def __init__(self, parents: Tensor, nodes: int, rank: int) -> None:
        super().__init__()
        labels = len(parents)
        self.nodes = nodes
        self.register_buffer("parents", parents, persistent=False)
        self.slope = nn.Parameter(torch.empty(labels))
        self.offset = nn.Parameter(torch.empty(labels))
        self.bias = nn.Parameter(torch.empty(labels))
        if rank:
            self.outer = nn.Parameter(torch.empty(labels, rank))
            self.weight = nn.Parameter(torch.empty(rank, labels))
        else:
            self.outer = None
            self.weight = nn.Parameter(torch.empty(labels, labels))
        self.reset()

    @torch.no_grad()
    def reset(self, deviation: float = 0.02) -> None:
        """As the released code starts: row sums of N(0, 0.02²) weights, entries of the second map N(0, 0.02²)."""
        labels = len(self.slope)
        self.slope.normal_(0.0, deviation * labels**0.5)
        self.offset.zero_()
        self.bias.zero_()
        if self.outer is None:
            self.weight.normal_(0.0, deviation)
        else:
            each = (deviation / self.outer.shape[1] ** 0.5) ** 0.5
            self.outer.normal_(0.0, each)
            self.weight.normal_(0.0, each)

    def forward(self, features: Tensor) -> Tensor:
        """What each level-1 node receives of every feature: (B, D) to (B, D, N)."""
        folded_bias = self._sum_children(self.bias[:, None])[:, 0]
        if self.outer is None:
            return self._hinges(features, self._sum_children(self.weight)) + folded_bias
        return self._hinges(features, self.weight) @ self._sum_children(self.outer).T + folded_bias

    def _sum_children(self, rows: Tensor) -> Tensor:
        """P rows: the sum over the labels of each level-1 node."""
        return rows.new_zeros(self.nodes, rows.shape[1]).index_add(0, self.parents, rows)

    def _hinges(self, features: Tensor, weight: Tensor) -> Tensor:
        """Σ_k weight[:, k] ReLU(slope_k x + offset_k) for every feature x: (B, D) to (B, D, rows of weight)."""
        flat = self.slope == 0
        breaks = torch.where(flat, torch.inf, -self.offset / torch.where(flat, 1.0, self.slope))
        breaks, order = breaks.detach().sort()
        falling = (self.slope < 0).to(weight.dtype)
        start_slope = weight @ (falling * self.slope)
        start_value = weight @ (falling * self.offset + flat * self.offset.relu())
        turns = weight.T[order]  # (L, rows)
        steep = torch.stack([self.slope.abs(), self.slope.sign() * self.offset])[:, order, None]  # (2, L, 1)
        lines = torch.stack([start_slope, start_value])[:, None] + _running(turns * steep)  # (2, L + 1, rows)
        place = torch.searchsorted(breaks, features.detach())
        found: Tensor = _Rows.apply(lines.transpose(0, 1).flatten(1), place)  # type: ignore[no-untyped-call]
        slopes, values = found.chunk(2, dim=2)
        return slopes * features.unsqueeze(2) + values


def _running(turns: Tensor) -> Tensor:
    """Sums of the first 0, 1, ..., L rows: (2, L, rows) to (2, L + 1, rows)."""
    count = turns.shape[1]
    if multiplies(turns, count):
        return turns.new_ones(count + 1, count).tril(-1) @ turns
    return F.pad(turns.cumsum(dim=1), (0, 0, 1, 0))


def multiplies(tensor: Tensor, count: int) -> bool:
    """Whether sums over so many labels are matrix products."""
    return tensor.is_cuda and count <= FEW


class _Rows(torch.autograd.Function):
    """Rows of a table by number: (R, W) to (..., W)."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, numbers: Tensor) -> Tensor:
        ctx.save_for_backward(numbers)
        ctx.count = len(table)
        return F.embedding(numbers, table)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (numbers,) = ctx.saved_tensors
        numbers, grad = numbers.flatten(), grad.flatten(0, -2)
        if multiplies(grad, ctx.count):
            belongs = torch.arange(ctx.count, device=grad.device)[:, None] == numbers
            return belongs.to(grad.dtype) @ grad, None
        return grad.new_zeros(ctx.count, grad.shape[1]).index_add(0, numbers, grad), None
