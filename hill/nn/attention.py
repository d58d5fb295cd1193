"""Triton kernels for attention inside packed documents, made for texts of a few hundred tokens.

Tiles are small and listed once a batch, so that neither the ends of documents nor empty tiles cost much, and gradients
of queries, keys and values are written where the matrix product reads them. The method is that of FlashAttention:
scores never leave the chip, and the backward pass computes them again.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hill.nn.kernels import hash_rows, keep
from hill.nn.packed import TILE

LOG2_E = 1.4426950408889634


class How(NamedTuple):
    """How a kernel is laid out: tokens that a tile meets at a time, warps of a program, loads under way."""

    span: int
    warps: int
    stages: int


FORWARD = How(32, 4, 3)
KEYS = How(64, 4, 3)
QUERIES = How(32, 4, 3)


@triton.jit
def _forward(
    qkv, bounds, tiles, seeds, index, out, logs, tiles_count, tokens, scale, dropout,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, span: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    document = tl.load(tiles + tl.program_id(0))
    if document < 0:
        return
    head = tl.program_id(1)
    first = tl.load(tiles + tiles_count + tl.program_id(0))
    start, end = tl.load(bounds + document), tl.load(bounds + document + 1)
    rows, cols = first + tl.arange(0, tile), tl.arange(0, width)
    step = 3 * heads * width
    here = qkv + head * width + cols[None, :]
    query = tl.load(here + rows[:, None] * step, mask=(rows < end)[:, None], other=0.0)
    most = tl.full([tile], float("-inf"), tl.float32)
    total = tl.zeros([tile], tl.float32)
    found = tl.zeros([tile, width], tl.float32)
    hashed = hash_rows(tl.load(seeds + index) + head * 7919, rows)
    for begin in range(start, end, span):
        other = begin + tl.arange(0, span)
        inside = (other < end)[:, None]
        key = tl.load(here + heads * width + other[:, None] * step, mask=inside, other=0.0)
        value = tl.load(here + 2 * heads * width + other[:, None] * step, mask=inside, other=0.0)
        score = tl.where((other < end)[None, :], tl.dot(query, tl.trans(key)) * scale, float("-inf"))
        higher = tl.maximum(most, tl.max(score, axis=1))
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(most - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        if drop:
            weight = tl.where(keep(hashed[:, None], other[None, :], dropout), weight, 0.0)
        found = found * shrink[:, None] + tl.dot(weight.to(value.dtype), value)
        most = higher
    place_out = out + rows[:, None] * (heads * width) + head * width + cols[None, :]
    found *= (1.0 / (total * (1.0 - dropout)))[:, None]
    tl.store(place_out, found.to(out.dtype.element_ty), mask=(rows < end)[:, None])
    tl.store(logs + head * tokens + rows, most + tl.log2(total), mask=rows < end)


@triton.jit
def _along(grad, out, sums, tokens, heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr):
    """Σ over a head's width of gradient times output, for every token."""
    rows, cols = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, width)
    head = tl.program_id(1)
    inside = (rows < tokens)[:, None]
    place = rows[:, None] * (heads * width) + head * width + cols[None, :]
    product = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    product *= tl.load(out + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + head * tokens + rows, tl.sum(product, axis=1), mask=rows < tokens)


@triton.jit
def _backward_keys(
    qkv, bounds, tiles, seeds, index, grad, logs, sums, back, tiles_count, tokens, scale, unit, dropout,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, span: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    document = tl.load(tiles + tl.program_id(0))
    if document < 0:
        return
    head = tl.program_id(1)
    first = tl.load(tiles + tiles_count + tl.program_id(0))
    start, end = tl.load(bounds + document), tl.load(bounds + document + 1)
    other, cols = first + tl.arange(0, tile), tl.arange(0, width)
    step = 3 * heads * width
    here = qkv + head * width + cols[None, :]
    inside = (other < end)[:, None]
    key = tl.load(here + heads * width + other[:, None] * step, mask=inside, other=0.0)
    value = tl.load(here + 2 * heads * width + other[:, None] * step, mask=inside, other=0.0)
    grad_key = tl.zeros([tile, width], tl.float32)
    grad_value = tl.zeros([tile, width], tl.float32)
    seed, up = tl.load(seeds + index) + head * 7919, 1.0 / (1.0 - dropout)
    for begin in range(start, end, span):
        rows = begin + tl.arange(0, span)
        known = rows < end
        query = tl.load(here + rows[:, None] * step, mask=known[:, None], other=0.0)
        given = tl.load(
            grad + rows[:, None] * (heads * width) + head * width + cols[None, :], mask=known[:, None], other=0.0
        )
        log = tl.load(logs + head * tokens + rows, mask=known, other=float("inf"))
        along = tl.load(sums + head * tokens + rows, mask=known, other=0.0)
        weight = tl.exp2(tl.dot(query, tl.trans(key)) * scale - log[:, None])
        weight = tl.where((other < end)[None, :], weight, 0.0)
        dealt = tl.dot(given, tl.trans(value))
        if drop:
            kept = keep(hash_rows(seed, rows)[:, None], other[None, :], dropout)
            grad_value += tl.dot(tl.trans(tl.where(kept, weight, 0.0).to(given.dtype)), given)
            dealt = tl.where(kept, dealt * up, 0.0)
        else:
            grad_value += tl.dot(tl.trans(weight.to(given.dtype)), given)
        grad_score = weight * (dealt - along[:, None])
        grad_key += tl.dot(tl.trans(grad_score.to(query.dtype)), query)
    there = back + head * width + cols[None, :] + other[:, None] * step
    tl.store(there + heads * width, (grad_key * unit).to(back.dtype.element_ty), mask=inside)
    tl.store(there + 2 * heads * width, (grad_value * up).to(back.dtype.element_ty), mask=inside)


@triton.jit
def _backward_queries(
    qkv, bounds, tiles, seeds, index, grad, logs, sums, back, tiles_count, tokens, scale, unit, dropout,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, span: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    document = tl.load(tiles + tl.program_id(0))
    if document < 0:
        return
    head = tl.program_id(1)
    first = tl.load(tiles + tiles_count + tl.program_id(0))
    start, end = tl.load(bounds + document), tl.load(bounds + document + 1)
    rows, cols = first + tl.arange(0, tile), tl.arange(0, width)
    step = 3 * heads * width
    here = qkv + head * width + cols[None, :]
    known = rows < end
    query = tl.load(here + rows[:, None] * step, mask=known[:, None], other=0.0)
    given = tl.load(
        grad + rows[:, None] * (heads * width) + head * width + cols[None, :], mask=known[:, None], other=0.0
    )
    log = tl.load(logs + head * tokens + rows, mask=known, other=float("inf"))
    along = tl.load(sums + head * tokens + rows, mask=known, other=0.0)
    grad_query = tl.zeros([tile, width], tl.float32)
    hashed, up = hash_rows(tl.load(seeds + index) + head * 7919, rows), 1.0 / (1.0 - dropout)
    for begin in range(start, end, span):
        other = begin + tl.arange(0, span)
        inside = (other < end)[:, None]
        key = tl.load(here + heads * width + other[:, None] * step, mask=inside, other=0.0)
        value = tl.load(here + 2 * heads * width + other[:, None] * step, mask=inside, other=0.0)
        weight = tl.exp2(tl.dot(query, tl.trans(key)) * scale - log[:, None])
        weight = tl.where((other < end)[None, :], weight, 0.0)
        dealt = tl.dot(given, tl.trans(value))
        if drop:
            dealt = tl.where(keep(hashed[:, None], other[None, :], dropout), dealt * up, 0.0)
        grad_score = weight * (dealt - along[:, None])
        grad_query += tl.dot(grad_score.to(key.dtype), key)
    tl.store(
        back + head * width + cols[None, :] + rows[:, None] * step,
        (grad_query * unit).to(back.dtype.element_ty), mask=known[:, None],
    )  # fmt: skip


class PackedAttention(torch.autograd.Function):
    """Softmax attention inside each document: (P, 3, H, W) to (P, H, W); a seed and an index say what is dropped."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, bounds: Tensor, tiles: Tensor, seeds: Tensor, index: int, dropout: float
    ) -> Tensor:
        """What each token finds."""
        tokens, _, heads, width = qkv.shape
        out = torch.empty(tokens, heads, width, dtype=qkv.dtype, device=qkv.device)
        logs = torch.empty(heads, tokens, device=qkv.device)
        _forward[(tiles.shape[1], heads)](
            qkv, bounds, tiles, seeds, index, out, logs, tiles.shape[1], tokens, LOG2_E * width**-0.5,
            dropout, heads, width, TILE, FORWARD.span, dropout > 0, num_warps=FORWARD.warps, num_stages=FORWARD.stages,
        )  # fmt: skip
        ctx.save_for_backward(qkv, bounds, tiles, seeds, out, logs)
        ctx.facts = index, dropout
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of queries, keys and values, in one tensor."""
        qkv, bounds, tiles, seeds, out, logs = ctx.saved_tensors
        index, dropout = ctx.facts
        tokens, _, heads, width = qkv.shape
        grad, sums, back = grad.contiguous(), torch.empty_like(logs), torch.empty_like(qkv)
        _along[(triton.cdiv(tokens, TILE), heads)](grad, out, sums, tokens, heads, width, TILE, num_warps=4)
        for kernel, how in ((_backward_keys, KEYS), (_backward_queries, QUERIES)):
            kernel[(tiles.shape[1], heads)](
                qkv, bounds, tiles, seeds, index, grad, logs, sums, back, tiles.shape[1], tokens,
                LOG2_E * width**-0.5, width**-0.5, dropout, heads, width, TILE, how.span, dropout > 0,
                num_warps=how.warps, num_stages=how.stages,
            )  # fmt: skip
        return back, None, None, None, None, None


def try_out() -> None:
    """Compile and run the kernels, there and back."""
    qkv = torch.ones(64, 3, 2, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bounds = torch.tensor([0, 40, 64], device="cuda", dtype=torch.int32)
    tiles = torch.tensor([[0, 1], [0, 40]], device="cuda", dtype=torch.int32)
    seeds = torch.zeros(1, dtype=torch.int64, device="cuda")
    found = PackedAttention.apply(qkv, bounds, tiles, seeds, 0, 0.1)
    torch.autograd.grad(found.float().sum(), qkv)
    torch.cuda.synchronize()
