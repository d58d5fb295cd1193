"""Triton kernels for what a BERT layer does between its matrix products: each reads and writes every value once.

Normalisation, dropout and the sums over tokens that biases need are bound by memory, not arithmetic. PyTorch's own
kernels pass over the tokens about three times as often.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tile(NamedTuple):
    """How a kernel is laid out: tokens and columns of a tile, warps of a program, programs that share the tokens."""

    tokens: int
    columns: int
    warps: int
    programs: int


FORWARD = Tile(4, 0, 8, 0)
BACKWARD = Tile(2, 0, 2, 1056)
GELU = Tile(16, 128, 4, 4224)
SUMS = Tile(16, 64, 4, 2112)


@triton.jit
def hash_rows(seed, rows):
    """A number for every row, each bit of which is as good as random."""
    mixed = (rows.to(tl.uint32) * 0x9E3779B1) ^ seed.to(tl.uint32)
    mixed = (mixed ^ (mixed >> 16)) * 0x7FEB352D
    mixed = (mixed ^ (mixed >> 15)) * 0x846CA68B
    return mixed ^ (mixed >> 16)


@triton.jit
def keep(hashed, cols, dropout):
    """Whether the value in a column is kept, for rows with these hashes: little work a value, yet no two rows alike."""
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
    count, width, dropout, epsilon, rows: tl.constexpr, block: tl.constexpr, drop: tl.constexpr,
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
    rounded = value.to(total.dtype.element_ty)
    tl.store(total + place, rounded, mask=inside)
    value = tl.where(inside, rounded.to(tl.float32), 0.0)
    mean = tl.sum(value, axis=1) / width
    apart = tl.where(inside, value - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, axis=1) / width + epsilon)
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


class AddNorm(torch.autograd.Function):
    """LayerNorm(x + dropout(a + bias)) for x and a (P, D); a seed and an index say which values are dropped."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, a: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor,
        seed: Tensor, index: int, dropout: float, epsilon: float,
    ) -> Tensor:  # fmt: skip
        """The normalised sums."""
        rows, width = x.shape
        out, total = torch.empty_like(x), torch.empty_like(x)
        means, scales = (torch.empty(rows, device=x.device) for _ in range(2))
        block = triton.next_power_of_2(width)
        _add_norm_forward[(triton.cdiv(rows, FORWARD.tokens),)](
            x, a, bias, gamma, beta, seed, index, out, total, means, scales,
            rows, width, dropout, epsilon, FORWARD.tokens, block, dropout > 0, num_warps=FORWARD.warps,
        )  # fmt: skip
        ctx.save_for_backward(total, means, scales, gamma, seed)
        ctx.facts = index, dropout, block
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, a, bias, gamma and beta, in one pass over the tokens."""
        total, means, scales, gamma, seed = ctx.saved_tensors
        index, dropout, block = ctx.facts
        rows, width = total.shape
        grad_x, grad_a = torch.empty_like(total), torch.empty_like(total)
        sums = torch.empty(3, min(BACKWARD.programs, triton.cdiv(rows, BACKWARD.tokens)), width, device=grad.device)
        _add_norm_backward[(sums.shape[1],)](
            grad.contiguous(), total, means, scales, gamma, seed, index, grad_x, grad_a, sums,
            rows, width, dropout, BACKWARD.tokens, block, dropout > 0, num_warps=BACKWARD.warps,
        )  # fmt: skip
        grad_gamma, grad_beta, grad_bias = sums.sum(dim=1).to(gamma.dtype).unbind(0)
        return grad_x, grad_a, grad_bias, grad_gamma, grad_beta, None, None, None, None


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
        """Gradients of x and bias, in one pass over the tokens."""
        x, bias = ctx.saved_tensors
        rows, width = x.shape
        back = torch.empty_like(x)
        grid = _grid(GELU, rows, width)
        sums = torch.empty(grid[0], width, device=x.device)
        _gelu_backward[grid](
            grad.contiguous(), x, bias, back, sums, rows, width, *GELU[:2], ctx.tanh, num_warps=GELU.warps
        )
        return back, sums.sum(dim=0).to(bias.dtype), None


class LinearPass(torch.autograd.Function):
    """x W' + bias for x (P, D), and x itself for those that read it later: their gradient joins inside the product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The products, and x."""
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return x @ weight.T if bias is None else torch.addmm(bias, x, weight.T), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, passed: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, weight and bias; that of what was passed on is nobody else's and is added to in place."""
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        sums = column_sums(grad).to(grad.dtype) if ctx.biased else None
        return passed.addmm_(grad, weight), grad.T @ x, sums


def column_sums(x: Tensor) -> Tensor:
    """The sum over tokens: (P, D) to (D)."""
    rows, width = x.shape
    grid = _grid(SUMS, rows, width)
    sums = torch.empty(grid[0], width, device=x.device)
    _column_sums[grid](x, sums, rows, width, *SUMS[:2], num_warps=SUMS.warps)
    return sums.sum(dim=0)


def _grid(tile: Tile, rows: int, width: int) -> tuple[int, int]:
    across = triton.cdiv(width, tile.columns)
    return min(triton.cdiv(rows, tile.tokens), max(tile.programs // across, 1)), across


def try_out() -> None:
    """Compile and run a kernel."""
    one = torch.ones(4, 8, device="cuda")
    AddNorm.apply(one, one, one[0], one[0], one[0], torch.zeros(1, dtype=torch.int64, device="cuda"), 0, 0.1, 1e-12)
    torch.cuda.synchronize()
