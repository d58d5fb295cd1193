"""Triton kernels for packed documents of a few hundred tokens: attention, residual + LayerNorm, bias + GELU.

Attention follows FlashAttention: scores never leave the chip, and the backward pass computes them again. Its tiles are
small and listed once per batch, so that document ends and empty tiles cost little. The gradients of queries, keys and
values are written in one tensor, as the next matrix product reads them.

In the kernels, `row` is a token, `cols` are the columns of a tile, and `inside` masks what is out of bounds.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hill.encoders.packed import MAX_DISTANCE, TILE


class Tile(NamedTuple):
    """The launch settings of a kernel: tokens and columns per tile, warps per program, programs over all tokens."""

    tokens: int
    columns: int
    warps: int
    programs: int


class AttentionTile(NamedTuple):
    """The launch settings of an attention kernel: tokens per step of its loop, warps per program, pipeline stages."""

    span: int
    warps: int
    stages: int


NORM_FORWARD = Tile(1, 0, 2, 0)
NORM_BACKWARD = Tile(1, 256, 0, 2112)
GELU = Tile(4, 512, 4, 2112)
SUMS = Tile(16, 64, 4, 2112)
PARTS = Tile(256, 16, 8, 0)
GATHER = Tile(2, 0, 4, 0)
ATTENTION_FORWARD = AttentionTile(32, 4, 3)
KEYS = AttentionTile(64, 4, 3)
QUERIES = AttentionTile(32, 4, 3)
LOG2_E = 1.4426950408889634


@triton.jit
def hash_rows(seed, rows):
    """A pseudo-random 32-bit number per row."""
    mixed = (rows.to(tl.uint32) * 0x9E3779B1) ^ seed.to(tl.uint32)
    mixed = (mixed ^ (mixed >> 16)) * 0x7FEB352D
    mixed = (mixed ^ (mixed >> 15)) * 0x846CA68B
    return mixed ^ (mixed >> 16)


@triton.jit
def keep(hashed, cols, dropout):
    """Whether dropout keeps the value in a column of rows with these hashes; cheap, and different for every row."""
    mixed = hashed ^ (cols.to(tl.uint32) * 0x85EBCA77)
    return (mixed ^ (mixed >> 16)) * 0x846CA68B >= tl.cast(dropout * 4294967296.0, tl.uint32)


@triton.jit
def _tail(value, density):
    """Φ(-|x|), from exp(-x²/2): Abramowitz and Stegun 7.1.26, to 1e-7."""
    t = 1.0 / (1.0 + 0.23164188 * tl.abs(value))
    rest = t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    return 0.5 * density * t * (0.254829592 + rest)


@triton.jit
def _add_norm_forward(
    x, a, bias, gamma, beta, seeds, index, out, total, means, scales,
    count, width, dropout, epsilon, rows: tl.constexpr, block: tl.constexpr, drop: tl.constexpr, save: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    cols = tl.arange(0, block)
    inner = cols < width
    inside = (row < count)[:, None] & inner[None, :]
    place = row[:, None] * width + cols[None, :]
    added = tl.load(a + place, mask=inside, other=0.0).to(tl.float32)
    added += tl.load(bias + cols, mask=inner, other=0.0).to(tl.float32)[None, :]
    if drop:
        kept = keep(hash_rows(tl.load(seeds + index), row)[:, None], cols[None, :], dropout)
        added = tl.where(kept, added * (1.0 / (1.0 - dropout)), 0.0)
    value = added + tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    rounded = value.to(out.dtype.element_ty)
    if save:
        tl.store(total + place, rounded, mask=inside)
    value = tl.where(inside, rounded.to(tl.float32), 0.0)
    mean = tl.sum(value, axis=1) / width
    apart = tl.where(inside, value - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, axis=1) / width + epsilon)
    if save:
        tl.store(means + row, mean, mask=row < count)
        tl.store(scales + row, scale, mask=row < count)
    weight = tl.load(gamma + cols, mask=inner, other=0.0).to(tl.float32)[None, :]
    offset = tl.load(beta + cols, mask=inner, other=0.0).to(tl.float32)[None, :]
    tl.store(out + place, (apart * scale[:, None] * weight + offset).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_norm_backward(
    grad, total, means, scales, gamma, seeds, index, grad_x, grad_a, sums,
    count, width, dropout, rows: tl.constexpr, block: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, block)
    inner = cols < width
    weight = tl.load(gamma + cols, mask=inner, other=0.0).to(tl.float32)[None, :]
    sum_gamma = tl.zeros([rows, block], tl.float32)
    sum_beta = tl.zeros([rows, block], tl.float32)
    sum_bias = tl.zeros([rows, block], tl.float32)
    for first in range(tl.program_id(0) * rows, count, tl.num_programs(0) * rows):
        row = first + tl.arange(0, rows)
        inside = (row < count)[:, None] & inner[None, :]
        place = row[:, None] * width + cols[None, :]
        given = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(total + place, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row, mask=row < count, other=0.0)[:, None]
        mean = tl.load(means + row, mask=row < count, other=0.0)[:, None]
        normal = tl.where(inside, (value - mean) * scale, 0.0)
        scaled = given * weight
        along = tl.sum(scaled * normal, axis=1)[:, None] / width
        middle = tl.sum(scaled, axis=1)[:, None] / width
        back = tl.where(inside, (scaled - normal * along - middle) * scale, 0.0)
        tl.store(grad_x + place, back.to(grad_x.dtype.element_ty), mask=inside)
        if drop:
            kept = keep(hash_rows(tl.load(seeds + index), row)[:, None], cols[None, :], dropout)
            back = tl.where(kept, back * (1.0 / (1.0 - dropout)), 0.0)
        tl.store(grad_a + place, back.to(grad_a.dtype.element_ty), mask=inside)
        sum_gamma += given * normal
        sum_beta += given
        sum_bias += back
    place_out = tl.program_id(0) * width + cols
    step = tl.num_programs(0) * width
    tl.store(sums + place_out, tl.sum(sum_gamma, axis=0), mask=inner)
    tl.store(sums + step + place_out, tl.sum(sum_beta, axis=0), mask=inner)
    tl.store(sums + 2 * step + place_out, tl.sum(sum_bias, axis=0), mask=inner)


@triton.jit
def _gelu_forward(x, bias, out, rows, width, tokens: tl.constexpr, columns: tl.constexpr, tanh: tl.constexpr):
    row = tl.program_id(0) * tokens + tl.arange(0, tokens)
    cols = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = (row < rows)[:, None] & (cols < width)[None, :]
    place = row[:, None] * width + cols[None, :]
    offset = tl.load(bias + cols, mask=cols < width, other=0.0).to(tl.float32)
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + offset[None, :]
    if tanh:
        result = value * tl.sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))
    else:
        tail = _tail(value, tl.exp(-0.5 * value * value))
        result = value * tl.where(value < 0, tail, 1.0 - tail)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gelu_backward(
    grad, x, bias, back, sums, rows, width, tokens: tl.constexpr, columns: tl.constexpr, tanh: tl.constexpr
):
    cols = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = cols < width
    offset = tl.load(bias + cols, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([tokens, columns], tl.float32)
    for first in range(tl.program_id(0) * tokens, rows, tl.num_programs(0) * tokens):
        row = first + tl.arange(0, tokens)
        place = row[:, None] * width + cols[None, :]
        both = (row < rows)[:, None] & inside[None, :]
        value = tl.load(x + place, mask=both, other=0.0).to(tl.float32) + offset[None, :]
        given = tl.load(grad + place, mask=both, other=0.0).to(tl.float32)
        if tanh:
            half = tl.sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))
            slope = half + value * half * (1 - half) * 1.5957691216057308 * (1 + 0.134145 * value * value)
        else:
            density = tl.exp(-0.5 * value * value)
            tail = _tail(value, density)
            slope = tl.where(value < 0, tail, 1.0 - tail) + value * 0.3989422804014327 * density
        result = given * slope
        tl.store(back + place, result.to(back.dtype.element_ty), mask=both)
        total += tl.where(both, result, 0.0)
    tl.store(sums + tl.program_id(0) * width + cols, tl.sum(total, axis=0), mask=inside)


@triton.jit
def _column_sums(x, sums, rows, width, tokens: tl.constexpr, columns: tl.constexpr):
    cols = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = cols < width
    total = tl.zeros([tokens, columns], tl.float32)
    for first in range(tl.program_id(0) * tokens, rows, tl.num_programs(0) * tokens):
        row = first + tl.arange(0, tokens)
        both = (row < rows)[:, None] & inside[None, :]
        value = tl.load(x + row[:, None] * width + cols[None, :], mask=both, other=0.0)
        total += value.to(tl.float32)
    tl.store(sums + tl.program_id(0) * width + cols, tl.sum(total, axis=0), mask=inside)


@triton.jit
def _sum_parts(parts, out, count, width, rows: tl.constexpr, columns: tl.constexpr):
    cols = tl.program_id(0) * columns + tl.arange(0, columns)
    here = parts + tl.program_id(1) * count * width + cols[None, :]
    total = tl.zeros([rows, columns], tl.float32)
    for first in range(0, count, rows):
        row = first + tl.arange(0, rows)
        both = (row < count)[:, None] & (cols < width)[None, :]
        total += tl.load(here + row[:, None] * width, mask=both, other=0.0)
    place = out + tl.program_id(1) * width + cols
    tl.store(place, tl.sum(total, axis=0).to(out.dtype.element_ty), mask=cols < width)


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Add up the partial sums of programs, in fp32, and round: (K, programs, D) to (K, D)."""
    kinds, count, width = parts.shape
    out = torch.empty(kinds, width, dtype=dtype, device=parts.device)
    grid = (triton.cdiv(width, PARTS.columns), kinds)
    _sum_parts[grid](parts, out, count, width, PARTS.tokens, PARTS.columns, num_warps=PARTS.warps)
    return out


@triton.jit
def _gather(table, ids, out, count, width, rows: tl.constexpr, block: tl.constexpr):
    row, cols = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, block)
    inside = (row < count)[:, None] & (cols < width)[None, :]
    number = tl.load(ids + row, mask=row < count, other=0).to(tl.int64)
    value = tl.load(table + number[:, None] * width + cols[None, :], mask=inside, other=0.0)
    tl.store(out + row[:, None] * width + cols[None, :], value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _scatter_add(grad, ids, out, count, width, padding, rows: tl.constexpr, block: tl.constexpr):
    row, cols = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, block)
    number = tl.load(ids + row, mask=row < count, other=0).to(tl.int64)
    inside = ((row < count) & (number != padding))[:, None] & (cols < width)[None, :]
    value = tl.load(grad + row[:, None] * width + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.atomic_add(out + number[:, None] * width + cols[None, :], value, mask=inside, sem="relaxed")


class Embed(torch.autograd.Function):
    """Rows of an embedding table (R, D) by id (P), in another precision: (P, D).

    The gradient is added atomically. PyTorch sorts the ids instead, which takes about 15 kernels.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, padding: int, dtype: torch.dtype) -> Tensor:
        """The rows; the row `padding` gets no gradient."""
        count, width = len(ids), table.shape[1]
        out = torch.empty(count, width, dtype=dtype, device=table.device)
        block = triton.next_power_of_2(width)
        _gather[(triton.cdiv(count, GATHER.tokens),)](
            table, ids, out, count, width, GATHER.tokens, block, num_warps=GATHER.warps
        )
        ctx.save_for_backward(ids)
        ctx.facts = table.shape, padding, block
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of the table, in fp32."""
        (ids,), (shape, padding, block) = ctx.saved_tensors, ctx.facts
        back = torch.zeros(shape, device=grad.device)
        _scatter_add[(triton.cdiv(len(ids), GATHER.tokens),)](
            grad.contiguous(), ids, back, len(ids), shape[1], padding, GATHER.tokens, block, num_warps=GATHER.warps
        )
        return back, None, None, None


class AddNorm(torch.autograd.Function):
    """LayerNorm(x + dropout(a + bias)) for x and a (P, D); seed number `index` decides which values are dropped."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, a: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor,
        seed: Tensor, index: int, dropout: float, epsilon: float, save: bool = True,
    ) -> Tensor:  # fmt: skip
        """The normalised sums; `save` what a backward pass needs."""
        rows, width = x.shape
        out, total = torch.empty_like(x), torch.empty_like(x) if save else x
        means, scales = (torch.empty(rows if save else 0, device=x.device) for _ in range(2))
        block = triton.next_power_of_2(width)
        _add_norm_forward[(triton.cdiv(rows, NORM_FORWARD.tokens),)](
            x, a, bias, gamma, beta, seed, index, out, total, means, scales,
            rows, width, dropout, epsilon, NORM_FORWARD.tokens, block, dropout > 0, save, num_warps=NORM_FORWARD.warps,
        )  # fmt: skip
        ctx.save_for_backward(total, means, scales, gamma, seed)
        ctx.facts = index, dropout, block
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, a, bias, gamma and beta, in one pass over the tokens."""
        total, means, scales, gamma, seed = ctx.saved_tensors
        index, dropout, block = ctx.facts
        rows, width = total.shape
        grad_x, grad_a = torch.empty_like(total), torch.empty_like(total)
        warps = max(block // NORM_BACKWARD.columns, 1)
        programs = min(NORM_BACKWARD.programs // warps, triton.cdiv(rows, NORM_BACKWARD.tokens))
        sums = torch.empty(3, programs, width, device=grad.device)
        _add_norm_backward[(sums.shape[1],)](
            grad.contiguous(), total, means, scales, gamma, seed, index, grad_x, grad_a, sums,
            rows, width, dropout, NORM_BACKWARD.tokens, block, dropout > 0, num_warps=warps,
        )  # fmt: skip
        grad_gamma, grad_beta, grad_bias = sum_parts(sums, gamma.dtype).unbind(0)
        return grad_x, grad_a, grad_bias, grad_gamma, grad_beta, None, None, None, None, None


class BiasGelu(torch.autograd.Function):
    """gelu(x + bias) for x (P, D)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, approximate: str) -> Tensor:
        """The activations."""
        out, (rows, width) = torch.empty_like(x), x.shape
        grid = (triton.cdiv(rows, GELU.tokens), triton.cdiv(width, GELU.columns))
        _gelu_forward[grid](x, bias, out, rows, width, *GELU[:2], approximate == "tanh", num_warps=GELU.warps)
        ctx.save_for_backward(x, bias)
        ctx.tanh = approximate == "tanh"
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x and bias, in one pass over the tokens."""
        x, bias = ctx.saved_tensors
        rows, width = x.shape
        back = torch.empty_like(x)
        grid = _grid(GELU, rows, width)
        sums = torch.empty(grid[0], width, device=x.device)
        _gelu_backward[grid](
            grad.contiguous(), x, bias, back, sums, rows, width, *GELU[:2], ctx.tanh, num_warps=GELU.warps
        )
        return back, sum_parts(sums[None], bias.dtype)[0], None


class LinearPass(torch.autograd.Function):
    """x Wᵀ + bias for x (P, D), and x for later use: the matrix product of the backward pass adds its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The product, and x."""
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return x @ weight.T if bias is None else torch.addmm(bias, x, weight.T), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, passed: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias; that of the passed x is changed in place, as nothing else uses it."""
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        sums = column_sums(grad) if ctx.biased else None
        return passed.addmm_(grad, weight), grad.T @ x, sums


def column_sums(x: Tensor) -> Tensor:
    """The sum over all tokens, in fp32, then rounded: (P, D) to (D)."""
    rows, width = x.shape
    grid = _grid(SUMS, rows, width)
    sums = torch.empty(1, grid[0], width, device=x.device)
    _column_sums[grid](x, sums, rows, width, *SUMS[:2], num_warps=SUMS.warps)
    return sum_parts(sums, x.dtype)[0]


def _grid(tile: Tile, rows: int, width: int) -> tuple[int, int]:
    across = triton.cdiv(width, tile.columns)
    return min(triton.cdiv(rows, tile.tokens), max(tile.programs // across, 1)), across


BLOCK = TILE
STRIDE = 32
"""Keys start at a multiple of this many tokens from queries; the span of the kernels that read keys."""


def bias_blocks(bias: Tensor, buckets: Tensor, longest: int) -> Tensor:
    """The relative position bias of tiles of queries and keys: (H, offsets, 64, 64), in powers of two.

    Tiles start at multiples of `STRIDE` tokens, so few tiles differ. Loading a tile is much faster than looking up the
    bias of each query and key.
    """
    most, inner = triton.cdiv(longest, STRIDE), torch.arange(BLOCK, device=bias.device)
    offsets = torch.arange(-most, most, device=bias.device) * STRIDE
    distance = (offsets[:, None, None] + inner - inner[:, None]).clamp(-MAX_DISTANCE, MAX_DISTANCE)
    return (bias.detach().float() * LOG2_E)[:, buckets[distance + MAX_DISTANCE]].contiguous()


def bucket_members(buckets: Tensor, count: int, longest: int) -> Tensor:
    """Which scores of tiles, by offset of keys from queries, have a bias of which of `count` buckets: 0 or 1."""
    spans, inner = triton.cdiv(longest, STRIDE), torch.arange(TILE, device=buckets.device)
    offsets = torch.arange(1 - spans, spans, device=buckets.device) * STRIDE
    distance = (offsets[:, None, None] + inner[:STRIDE] - inner[:, None]).clamp(-MAX_DISTANCE, MAX_DISTANCE)
    bucket = buckets[distance + MAX_DISTANCE].flatten()
    return (bucket[:, None] == torch.arange(count, device=buckets.device)).float()


@triton.jit
def _shift(
    score, blocks, count, head, apart, window, biased: tl.constexpr, local: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr, block: tl.constexpr, stride: tl.constexpr,
):  # fmt: skip
    """Add the bias to scores (rows, columns) of keys that start `apart` tokens after the queries; -inf if too far."""
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    if biased:
        number = head * count + apart // stride + count // 2
        score += tl.load(blocks + number * (block * block) + row * block + column)
    if local:
        distance = apart + column - row
        score = tl.where((distance <= window) & (distance >= -window), score, float("-inf"))
    return score


@triton.jit
def _attention_forward(
    qkv, bounds, tiles, seeds, index, blocks, count, window, out, logs, tiles_count, tokens, scale, dropout,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, span: tl.constexpr, drop: tl.constexpr,
    biased: tl.constexpr, local: tl.constexpr, block: tl.constexpr, stride: tl.constexpr,
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
    if local:  # keys beyond the window are not read; every query sees at least itself
        start, end = tl.maximum(start, first - window), tl.minimum(end, first + tile + window)
    for begin in range(start, end, span):
        other = begin + tl.arange(0, span)
        inside = (other < end)[:, None]
        key = tl.load(here + heads * width + other[:, None] * step, mask=inside, other=0.0)
        value = tl.load(here + 2 * heads * width + other[:, None] * step, mask=inside, other=0.0)
        score = tl.dot(query, tl.trans(key)) * scale
        if biased or local:
            score = _shift(score, blocks, count, head, begin - first, window, biased, local, tile, span, block, stride)
        score = tl.where((other < end)[None, :], score, float("-inf"))
        higher = tl.maximum(most, tl.max(score, axis=1))
        if local:  # a tile can lie outside the window of a query
            higher = tl.maximum(higher, -1e30)
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(most - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        if drop:
            weight = tl.where(keep(hashed[:, None], other[None, :], dropout), weight, 0.0)
        found = found * shrink[:, None] + tl.dot(weight.to(value.dtype), value)
        most = higher
    end = tl.load(bounds + document + 1)
    place_out = out + rows[:, None] * (heads * width) + head * width + cols[None, :]
    found *= (1.0 / (total * (1.0 - dropout)))[:, None]
    tl.store(place_out, found.to(out.dtype.element_ty), mask=(rows < end)[:, None])
    tl.store(logs + head * tokens + rows, most + tl.log2(total), mask=rows < end)


@triton.jit
def _backward_keys(
    qkv, bounds, tiles, seeds, index, blocks, count, window,
    grad, logs, sums, back, tiles_count, tokens, scale, unit, dropout,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, span: tl.constexpr, drop: tl.constexpr,
    biased: tl.constexpr, local: tl.constexpr, block: tl.constexpr, stride: tl.constexpr,
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
    low, high = start, end
    if local:
        low, high = tl.maximum(start, first - window), tl.minimum(end, first + tile + window)
    for begin in range(low, high, span):
        rows = begin + tl.arange(0, span)
        known = rows < end
        query = tl.load(here + rows[:, None] * step, mask=known[:, None], other=0.0)
        given = tl.load(
            grad + rows[:, None] * (heads * width) + head * width + cols[None, :], mask=known[:, None], other=0.0
        )
        log = tl.load(logs + head * tokens + rows, mask=known, other=float("inf"))
        along = tl.load(sums + head * tokens + rows, mask=known, other=0.0)
        score = tl.dot(query, tl.trans(key)) * scale
        if biased or local:
            score = _shift(score, blocks, count, head, first - begin, window, biased, local, span, tile, block, stride)
        weight = tl.where((other < end)[None, :], tl.exp2(score - log[:, None]), 0.0)
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
    qkv, bounds, tiles, seeds, index, blocks, count, window,
    grad, logs, sums, back, out, scores, spans, tiles_count, tokens, scale, unit, dropout,
    heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, span: tl.constexpr, drop: tl.constexpr,
    biased: tl.constexpr, local: tl.constexpr, block: tl.constexpr, stride: tl.constexpr,
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
    place = rows[:, None] * (heads * width) + head * width + cols[None, :]
    given = tl.load(grad + place, mask=known[:, None], other=0.0)
    found = tl.load(out + place, mask=known[:, None], other=0.0)
    log = tl.load(logs + head * tokens + rows, mask=known, other=float("inf"))
    along = tl.sum(given.to(tl.float32) * found.to(tl.float32), axis=1)
    tl.store(sums + head * tokens + rows, along, mask=known)  # `_backward_keys` reads them
    grad_query = tl.zeros([tile, width], tl.float32)
    hashed, up = hash_rows(tl.load(seeds + index) + head * 7919, rows), 1.0 / (1.0 - dropout)
    low, high = start, end
    if local:
        low, high = tl.maximum(start, first - window), tl.minimum(end, first + tile + window)
    for begin in range(low, high, span):
        other = begin + tl.arange(0, span)
        inside = (other < end)[:, None]
        key = tl.load(here + heads * width + other[:, None] * step, mask=inside, other=0.0)
        value = tl.load(here + 2 * heads * width + other[:, None] * step, mask=inside, other=0.0)
        score = tl.dot(query, tl.trans(key)) * scale
        if biased or local:
            score = _shift(score, blocks, count, head, begin - first, window, biased, local, tile, span, block, stride)
        weight = tl.where((other < end)[None, :], tl.exp2(score - log[:, None]), 0.0)
        dealt = tl.dot(given, tl.trans(value))
        if drop:
            dealt = tl.where(keep(hashed[:, None], other[None, :], dropout), dealt * up, 0.0)
        grad_score = weight * (dealt - along[:, None])
        grad_query += tl.dot(grad_score.to(key.dtype), key)
        if biased:  # kept for the gradient of the bias
            slot = (tl.program_id(0) * spans + (begin - start) // span) * heads + head
            inner = tl.arange(0, tile)[:, None] * span + tl.arange(0, span)[None, :]
            tl.store(scores + slot * (tile * span) + inner, grad_score.to(scores.dtype.element_ty))
    tl.store(
        back + head * width + cols[None, :] + rows[:, None] * step,
        (grad_query * unit).to(back.dtype.element_ty), mask=known[:, None],
    )  # fmt: skip


@triton.jit
def _sum_scores(
    scores, bounds, tiles, parts, spans, tiles_count, lowest,
    heads: tl.constexpr, tile: tl.constexpr, span: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of the scores of tiles whose keys are equally far from their queries.

    A program adds up every n-th tile for one offset of keys from queries and one head.
    """
    offset, head = (lowest + tl.program_id(0)) * span, tl.program_id(1)
    inner = tl.arange(0, tile)[:, None] * span + tl.arange(0, span)[None, :]
    total = tl.zeros([tile, span], tl.float32)
    for number in range(tl.program_id(2), tiles_count, tl.num_programs(2)):
        document = tl.load(tiles + number)
        if document >= 0:
            start, end = tl.load(bounds + document), tl.load(bounds + document + 1)
            begin = tl.load(tiles + tiles_count + number) + offset
            if (begin >= start) & (begin < end):
                slot = (number * spans + (begin - start) // span) * heads + head
                total += tl.load(scores + slot * (tile * span) + inner).to(tl.float32)
    part = (tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)) * heads + head
    tl.store(parts + part * (tile * span) + inner, total)


BIAS_PROGRAMS = 8
"""Programs that share the tiles of one offset and head."""


class PackedAttention(torch.autograd.Function):
    """Softmax attention inside each document: (P, 3, H, W) to (P, H, W).

    A seed and an index determine what is dropped. `bias` (H, buckets) is added to the scores by the bucket of the
    distance from query to key, given `bias_blocks` and `bucket_members`. With a window, tokens only attend to tokens at
    most that far away. No encoder has both.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, bounds: Tensor, tiles: Tensor, seeds: Tensor, index: int, dropout: float,
        bias: Tensor | None = None, blocks: Tensor | None = None, members: Tensor | None = None, window: int = 0,
    ) -> Tensor:  # fmt: skip
        """The attended values."""
        tokens, _, heads, width = qkv.shape
        out = torch.empty(tokens, heads, width, dtype=qkv.dtype, device=qkv.device)
        logs = torch.empty(heads, tokens, device=qkv.device)
        count = 0 if blocks is None else blocks.shape[1]
        flags = (dropout > 0, bias is not None, window > 0, BLOCK, STRIDE)
        _attention_forward[(tiles.shape[1], heads)](
            qkv, bounds, tiles, seeds, index, blocks, count, window, out, logs, tiles.shape[1], tokens,
            LOG2_E * width**-0.5, dropout, heads, width, TILE, ATTENTION_FORWARD.span, *flags,
            num_warps=ATTENTION_FORWARD.warps, num_stages=ATTENTION_FORWARD.stages,
        )  # fmt: skip
        ctx.save_for_backward(qkv, bounds, tiles, seeds, out, logs, bias, blocks, members)
        ctx.facts = index, dropout, count, window, flags
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of queries, keys and values in one tensor, and that of the bias."""
        qkv, bounds, tiles, seeds, out, logs, bias, blocks, members = ctx.saved_tensors
        index, dropout, count, window, flags = ctx.facts
        tokens, _, heads, width = qkv.shape
        grad, sums, back = grad.contiguous(), torch.empty_like(logs), torch.empty_like(qkv)
        common = (qkv, bounds, tiles, seeds, index, blocks, count, window, grad, logs, sums, back)
        rest = (tiles.shape[1], tokens, LOG2_E * width**-0.5, width**-0.5, dropout, heads, width, TILE)
        grid = (tiles.shape[1], heads)
        span, spans = QUERIES.span, count // 2
        size = (tiles.shape[1], spans, heads, TILE, span) if bias is not None else (0,)
        scores = torch.empty(size, dtype=qkv.dtype, device=qkv.device)
        layout = {"num_warps": QUERIES.warps, "num_stages": QUERIES.stages}
        _backward_queries[grid](*common, out, scores, spans, *rest, span, *flags, **layout)
        layout = {"num_warps": KEYS.warps, "num_stages": KEYS.stages}
        _backward_keys[grid](*common, *rest, KEYS.span, *flags, **layout)
        grad_bias = None
        if bias is not None and ctx.needs_input_grad[6]:
            offsets = 2 * spans - 1
            parts = torch.empty(BIAS_PROGRAMS, offsets, heads, TILE, span, device=qkv.device)
            _sum_scores[(offsets, heads, BIAS_PROGRAMS)](
                scores, bounds, tiles, parts, spans, tiles.shape[1], 1 - spans, heads, TILE, span, num_warps=4
            )
            grad_bias = (parts.sum(dim=0).transpose(0, 1).flatten(1) @ members).to(bias.dtype)  # (H, buckets)
        return back, None, None, None, None, None, grad_bias, None, None, None


def try_kernels() -> None:
    """Compile and run the main kernels, forward and backward."""
    one, seeds = torch.ones(4, 8, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    AddNorm.apply(one, one, one[0], one[0], one[0], seeds, 0, 0.1, 1e-12)
    qkv = torch.ones(64, 3, 2, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bounds = torch.tensor([0, 40, 64], device="cuda", dtype=torch.int32)
    tiles = torch.tensor([[0, 1], [0, 40]], device="cuda", dtype=torch.int32)
    attended = PackedAttention.apply(qkv, bounds, tiles, seeds, 0, 0.1)
    torch.autograd.grad(attended.float().sum(), qkv)
    torch.cuda.synchronize()
