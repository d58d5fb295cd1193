"""A batch that several processes share: rows and sums of the whole batch, with gradients; alone, a batch is whole.

Every process computes the same loss from the whole batch, and the gradients of weights are averaged over processes
afterwards. So what passes back into a process is the gradient of its own rows times the number of processes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Shares:
    """How the documents of a batch are spread: how many each process has, and which process this is."""

    sizes: Sequence[int]
    rank: int


class _Now:
    """How the batch under way is spread. One place for all threads: torch.compile can read no context variable."""

    shares: Shares | None = None


@contextmanager
def sharing(shares: Shares | None) -> Iterator[None]:
    """While this lasts, a batch is one process's part of a larger one; or the whole, where there are no shares."""
    before, _Now.shares = _Now.shares, shares
    try:
        yield
    finally:
        _Now.shares = before


def is_shared() -> bool:
    """Whether other processes hold parts of the batch."""
    return _Now.shares is not None


def whole(part: Tensor) -> Tensor:
    """The rows of all processes in their order: (B of this one, ...) to (B of all, ...)."""
    shares = _Now.shares
    if shares is None:
        return part
    rows: Tensor = _Whole.apply(part, shares)  # type: ignore[no-untyped-call]
    return rows


def summed(part: Tensor) -> Tensor:
    """The sum over all processes of a tensor that has the same shape in each."""
    if not is_shared():
        return part
    found: Tensor = _Total.apply(part)  # type: ignore[no-untyped-call]
    return found


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, shares: Shares) -> Tensor:
        ctx.shares = shares
        sent = part.to(torch.uint8) if part.dtype == torch.bool else part
        sent = torch.cat([sent, sent.new_zeros(max(shares.sizes) - len(sent), *sent.shape[1:])])  # all send as much
        received = [torch.empty_like(sent) for _ in shares.sizes]
        dist.all_gather(received, sent)
        rows = torch.cat([each[:size] for each, size in zip(received, shares.sizes, strict=True)])
        return rows.to(part.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        shares = ctx.shares
        start = sum(shares.sizes[: shares.rank])
        return grad[start : start + shares.sizes[shares.rank]] * len(shares.sizes), None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return _all_reduced(part)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _all_reduced(grad)


def _all_reduced(part: Tensor) -> Tensor:
    found = part.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(found)
    return found
