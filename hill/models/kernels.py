"""Triton kernels for the structure encoder of HILL: the label map, batch norm with ReLU, and NT-Xent.

PyTorch computes them with about 250 kernels, most of which take as long as a launch. Matrix products are TF32, as are
the others of structure and head in a fast training. In the kernels, `inside` masks what is out of bounds.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hill.encoders.kernels import hash_rows, keep, sum_parts

BLOCK = 64
"""Nodes, labels and columns per tile."""
MAP_PROGRAMS = 64
"""Programs that share the documents in the backward pass of the label map."""
NORM_PROGRAMS = 64
"""Programs that share the rows in batch norm."""
NORM_ROWS = 32
SMALLEST_NORM = 1e-12
"""As in `F.normalize`."""

# The label map


@triton.jit
def _map_forward(
    features, slope, offset, weight, bias, seed, out, labels, nodes, width, dropout,
    span: tl.constexpr, block: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    document = tl.program_id(0)
    node = tl.program_id(1) * block + tl.arange(0, block)
    cols = tl.program_id(2) * block + tl.arange(0, block)
    value = tl.load(features + document * width + cols, mask=cols < width, other=0.0)
    total = tl.zeros([block, block], tl.float32)
    for first in range(0, labels, span):
        label = first + tl.arange(0, span)
        known = label < labels
        slopes = tl.load(slope + label, mask=known, other=0.0)
        offsets = tl.load(offset + label, mask=known, other=0.0)
        hidden = tl.maximum(slopes[:, None] * value[None, :] + offsets[:, None], 0.0)
        both = (node < nodes)[:, None] & known[None, :]
        total += tl.dot(tl.load(weight + node[:, None] * labels + label[None, :], mask=both, other=0.0), hidden)
    total += tl.load(bias + node, mask=node < nodes, other=0.0)[:, None]
    row = document * nodes + node
    if drop:
        kept = keep(hash_rows(tl.load(seed), row)[:, None], cols[None, :], dropout)
        total = tl.where(kept, total * (1.0 / (1.0 - dropout)), 0.0)
    tl.store(out + row[:, None] * width + cols[None, :], total, mask=(node < nodes)[:, None] & (cols < width)[None, :])


@triton.jit
def _map_backward(
    grad, features, slope, offset, weight, seed, back, grad_weight, grad_units, grad_bias,
    documents, labels, nodes, width, dropout, block: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    label = tl.program_id(1) * block + tl.arange(0, block)
    node = tl.program_id(2) * block + tl.arange(0, block)
    known, real = label < labels, node < nodes
    slopes = tl.load(slope + label, mask=known, other=0.0)[:, None]
    offsets = tl.load(offset + label, mask=known, other=0.0)[:, None]
    both = real[:, None] & known[None, :]
    weights = tl.load(weight + node[:, None] * labels + label[None, :], mask=both, other=0.0)
    sum_weight = tl.zeros([block, block], tl.float32)
    sum_slope = tl.zeros([block, block], tl.float32)
    sum_offset = tl.zeros([block, block], tl.float32)
    sum_bias = tl.zeros([block, block], tl.float32)
    across = tl.cdiv(width, block)
    part = tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)
    for tile in range(tl.program_id(0), documents * across, tl.num_programs(0)):
        document = tile // across
        cols = (tile % across) * block + tl.arange(0, block)
        value = tl.load(features + document * width + cols, mask=cols < width, other=0.0)[None, :]
        row = document * nodes + node
        inside = real[:, None] & (cols < width)[None, :]
        given = tl.load(grad + row[:, None] * width + cols[None, :], mask=inside, other=0.0)
        if drop:
            kept = keep(hash_rows(tl.load(seed), row)[:, None], cols[None, :], dropout)
            given = tl.where(kept, given * (1.0 / (1.0 - dropout)), 0.0)
        before = slopes * value + offsets
        sum_weight += tl.dot(given, tl.trans(tl.maximum(before, 0.0)))
        through = tl.where(before > 0, tl.dot(tl.trans(weights), given), 0.0)  # (labels, columns)
        place = back + (part * documents + document) * width + cols
        tl.store(place, tl.sum(through * slopes, axis=0), mask=cols < width)
        sum_slope += through * value
        sum_offset += through
        sum_bias += given
    number = tl.program_id(0)
    tl.store(grad_weight + (number * nodes + node[:, None]) * labels + label[None, :], sum_weight, mask=both)
    place = grad_units + (number * tl.num_programs(2) + tl.program_id(2)) * labels + label
    tl.store(place, tl.sum(sum_slope, axis=1), mask=known)
    place += tl.num_programs(0) * tl.num_programs(2) * labels
    tl.store(place, tl.sum(sum_offset, axis=1), mask=known)
    if tl.program_id(1) == 0:
        tl.store(grad_bias + number * nodes + node, tl.sum(sum_bias, axis=1), mask=real)


class FoldedMap(torch.autograd.Function):
    """dropout(Σ_k weight[v, k] ReLU(slope_k z_j + offset_k) + bias_v) for features z (B, D): (B, N, D).

    Unlike the tables of `LabelMap`, this computes every hidden unit, but nothing is sorted or looked up.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, slope: Tensor, offset: Tensor, weight: Tensor, bias: Tensor,
        seed: Tensor, dropout: float,
    ) -> Tensor:  # fmt: skip
        """The input of the nodes; the seed decides which values are dropped."""
        (documents, width), (nodes, labels) = features.shape, weight.shape
        features, weight = features.contiguous(), weight.contiguous()
        out = torch.empty(documents, nodes, width, device=features.device)
        grid = (documents, triton.cdiv(nodes, BLOCK), triton.cdiv(width, BLOCK))
        _map_forward[grid](
            features, slope, offset, weight, bias, seed, out, labels, nodes, width, dropout, 32, BLOCK, dropout > 0,
            num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(features, slope, offset, weight, seed)
        ctx.dropout = dropout
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of features, slope, offset, weight and bias, in one pass."""
        features, slope, offset, weight, seed = ctx.saved_tensors
        (documents, width), (nodes, labels) = features.shape, weight.shape
        chunks, blocks = triton.cdiv(labels, BLOCK), triton.cdiv(nodes, BLOCK)
        back = torch.empty(chunks * blocks, documents, width, device=grad.device)
        grad_weight = torch.empty(1, MAP_PROGRAMS, nodes * labels, device=grad.device)
        grad_units = torch.empty(2, MAP_PROGRAMS * blocks, labels, device=grad.device)
        grad_bias = torch.empty(1, MAP_PROGRAMS, nodes, device=grad.device)
        _map_backward[(MAP_PROGRAMS, chunks, blocks)](
            grad.contiguous(), features, slope, offset, weight, seed, back, grad_weight, grad_units, grad_bias,
            documents, labels, nodes, width, ctx.dropout, BLOCK, ctx.dropout > 0, num_warps=8,
        )  # fmt: skip
        units = sum_parts(grad_units, slope.dtype)
        summed = sum_parts(grad_weight, weight.dtype).view(nodes, labels)
        return back.sum(dim=0), units[0], units[1], summed, sum_parts(grad_bias, slope.dtype)[0], None, None


# Linear layer, batch norm and ReLU


@triton.jit
def _statistics(x, sums, count, width, rows: tl.constexpr, block: tl.constexpr):
    """Partial sums of x and x², both from the first row on: large means cost no precision."""
    cols = tl.program_id(1) * block + tl.arange(0, block)
    inner = cols < width
    origin = tl.load(x + cols, mask=inner, other=0.0)[None, :]
    total = tl.zeros([rows, block], tl.float32)
    squares = tl.zeros([rows, block], tl.float32)
    for first in range(tl.program_id(0) * rows, count, tl.num_programs(0) * rows):
        row = first + tl.arange(0, rows)
        inside = (row < count)[:, None] & inner[None, :]
        apart = tl.load(x + row[:, None] * width + cols[None, :], mask=inside, other=0.0) - origin
        apart = tl.where(inside, apart, 0.0)
        total += apart
        squares += apart * apart
    place = sums + tl.program_id(0) * width + cols
    tl.store(place, tl.sum(total, axis=0), mask=inner)
    tl.store(place + tl.num_programs(0) * width, tl.sum(squares, axis=0), mask=inner)


@triton.jit
def _load_sums(sums, cols, inner, width, programs: tl.constexpr):
    """The two sums over all rows, from those of the programs."""
    place = sums + tl.arange(0, programs)[:, None] * width + cols[None, :]
    one = tl.sum(tl.load(place, mask=inner[None, :], other=0.0), axis=0)
    return one, tl.sum(tl.load(place + programs * width, mask=inner[None, :], other=0.0), axis=0)


@triton.jit
def _norm_forward(
    x, sums, bias, gamma, beta, running_mean, running_var, steps, means, scales, out, count, width, momentum, epsilon,
    programs: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    cols = tl.program_id(1) * block + tl.arange(0, block)
    inner = cols < width
    total, squares = _load_sums(sums, cols, inner, width, programs)
    shift = total / count
    variance = squares / count - shift * shift
    mean = tl.load(x + cols, mask=inner, other=0.0) + shift
    scale = tl.rsqrt(variance + epsilon)
    if tl.program_id(0) == 0:
        tl.store(means + cols, mean, mask=inner)
        tl.store(scales + cols, scale, mask=inner)
        moved = mean + tl.load(bias + cols, mask=inner, other=0.0) - tl.load(running_mean + cols, mask=inner, other=0.0)
        tl.store(running_mean + cols, tl.load(running_mean + cols, mask=inner) + momentum * moved, mask=inner)
        old = tl.load(running_var + cols, mask=inner, other=0.0)
        tl.store(running_var + cols, old + momentum * (variance * count / (count - 1) - old), mask=inner)
        if tl.program_id(1) == 0:
            tl.store(steps, tl.load(steps) + 1)
    slope = (scale * tl.load(gamma + cols, mask=inner, other=0.0))[None, :]
    offset = tl.load(beta + cols, mask=inner, other=0.0)[None, :]
    for first in range(tl.program_id(0) * rows, count, tl.num_programs(0) * rows):
        row = first + tl.arange(0, rows)
        inside = (row < count)[:, None] & inner[None, :]
        place = row[:, None] * width + cols[None, :]
        value = (tl.load(x + place, mask=inside, other=0.0) - mean[None, :]) * slope + offset
        tl.store(out + place, tl.maximum(value, 0.0), mask=inside)


@triton.jit
def _norm_sums(grad, x, means, scales, gamma, beta, sums, count, width, rows: tl.constexpr, block: tl.constexpr):
    """Partial sums of the gradients before ReLU, and of their products with the normalised values."""
    cols = tl.program_id(1) * block + tl.arange(0, block)
    inner = cols < width
    mean, scale = tl.load(means + cols, mask=inner, other=0.0), tl.load(scales + cols, mask=inner, other=0.0)
    slope = (scale * tl.load(gamma + cols, mask=inner, other=0.0))[None, :]
    offset = tl.load(beta + cols, mask=inner, other=0.0)[None, :]
    total = tl.zeros([rows, block], tl.float32)
    along = tl.zeros([rows, block], tl.float32)
    for first in range(tl.program_id(0) * rows, count, tl.num_programs(0) * rows):
        row = first + tl.arange(0, rows)
        inside = (row < count)[:, None] & inner[None, :]
        place = row[:, None] * width + cols[None, :]
        apart = tl.load(x + place, mask=inside, other=0.0) - mean[None, :]
        given = tl.load(grad + place, mask=inside, other=0.0)
        given = tl.where(apart * slope + offset > 0, given, 0.0)
        total += given
        along += given * apart * scale[None, :]
    place = sums + tl.program_id(0) * width + cols
    tl.store(place, tl.sum(total, axis=0), mask=inner)
    tl.store(place + tl.num_programs(0) * width, tl.sum(along, axis=0), mask=inner)


@triton.jit
def _norm_backward(
    grad, x, means, scales, gamma, beta, sums, back, grads, count, width,
    programs: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    cols = tl.program_id(1) * block + tl.arange(0, block)
    inner = cols < width
    total, along = _load_sums(sums, cols, inner, width, programs)
    if tl.program_id(0) == 0:
        tl.store(grads + cols, along, mask=inner)
        tl.store(grads + width + cols, total, mask=inner)
    mean, scale = tl.load(means + cols, mask=inner, other=0.0), tl.load(scales + cols, mask=inner, other=0.0)
    slope = (scale * tl.load(gamma + cols, mask=inner, other=0.0))[None, :]
    offset = tl.load(beta + cols, mask=inner, other=0.0)[None, :]
    total, along = (total / count)[None, :], (along * scale / count)[None, :]
    for first in range(tl.program_id(0) * rows, count, tl.num_programs(0) * rows):
        row = first + tl.arange(0, rows)
        inside = (row < count)[:, None] & inner[None, :]
        place = row[:, None] * width + cols[None, :]
        apart = tl.load(x + place, mask=inside, other=0.0) - mean[None, :]
        given = tl.load(grad + place, mask=inside, other=0.0)
        given = tl.where(apart * slope + offset > 0, given, 0.0)
        tl.store(back + place, (given - total - apart * along) * slope, mask=inside)


class LinearNormRelu(torch.autograd.Function):
    """ReLU(batch norm(x Wᵀ + bias)) for x (R, D), with the statistics of the batch; updates the running ones in place.

    The bias shifts only the running mean, and its gradient is 0.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor,
        running_mean: Tensor, running_var: Tensor, steps: Tensor, momentum: float, epsilon: float,
    ) -> Tensor:  # fmt: skip
        """The activations."""
        product = x @ weight.T
        count, width = product.shape
        grid = (NORM_PROGRAMS, triton.cdiv(width, BLOCK))
        sums = torch.empty(2, NORM_PROGRAMS, width, device=x.device)
        means, scales = torch.empty(2, width, device=x.device)
        out = torch.empty_like(product)
        _statistics[grid](product, sums, count, width, NORM_ROWS, BLOCK, num_warps=4)
        _norm_forward[grid](
            product, sums, bias, gamma, beta, running_mean, running_var, steps, means, scales, out,
            count, width, momentum, epsilon, NORM_PROGRAMS, NORM_ROWS, BLOCK, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, product, means, scales, gamma, beta)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight, bias, gamma and beta."""
        x, weight, product, means, scales, gamma, beta = ctx.saved_tensors
        count, width = product.shape
        grad, grid = grad.contiguous(), (NORM_PROGRAMS, triton.cdiv(width, BLOCK))
        sums, grads = torch.empty(2, NORM_PROGRAMS, width, device=x.device), torch.empty(2, width, device=x.device)
        back = torch.empty_like(product)
        given = (grad, product, means, scales, gamma, beta, sums)
        _norm_sums[grid](*given, count, width, NORM_ROWS, BLOCK, num_warps=4)
        _norm_backward[grid](*given, back, grads, count, width, NORM_PROGRAMS, NORM_ROWS, BLOCK, num_warps=4)
        return back @ weight, back.T @ x, torch.zeros_like(gamma), grads[0], grads[1], *[None] * 5


# NT-Xent


@triton.jit
def _normalise(one, other, out, lengths, count, width, smallest, block: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, block)
    inside = cols < width
    value = tl.load(one + row * width + cols, mask=inside & (row < count), other=0.0)
    value += tl.load(other + (row - count) * width + cols, mask=inside & (row >= count), other=0.0)
    length = tl.maximum(tl.sqrt(tl.sum(value * value, axis=0)), smallest)
    tl.store(lengths + row, length)
    tl.store(out + row * width + cols, value / length, mask=inside)


@triton.jit
def _cross_entropy(similarity, losses, count, temperature, block: tl.constexpr):
    """The loss of a row; its similarities are replaced by their gradients."""
    row, cols = tl.program_id(0), tl.arange(0, block)
    inside = cols < 2 * count
    place = similarity + row * 2 * count + cols
    score = tl.load(place, mask=inside, other=0.0) / temperature
    score = tl.where(inside & (cols != row), score, float("-inf"))
    partner = cols == (row + count) % (2 * count)
    highest = tl.max(score, axis=0)
    weight = tl.exp(score - highest)
    total = tl.sum(weight, axis=0)
    tl.store(losses + row, highest + tl.log(total) - tl.sum(tl.where(partner, score, 0.0), axis=0))
    tl.store(place, (weight / total - partner.to(tl.float32)) / (2 * count * temperature), mask=inside)


@triton.jit
def _normalise_backward(grad, scale, views, lengths, one, other, count, width, smallest, block: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, block)
    inside = cols < width
    view = tl.load(views + row * width + cols, mask=inside, other=0.0)
    given = tl.load(grad + row * width + cols, mask=inside, other=0.0) * tl.load(scale)
    length = tl.load(lengths + row)
    along = tl.where(length > smallest, tl.sum(view * given, axis=0), 0.0)
    back = (given - view * along) / length
    tl.store(one + row * width + cols, back, mask=inside & (row < count))
    tl.store(other + (row - count) * width + cols, back, mask=inside & (row >= count))


class NTXent(torch.autograd.Function):
    """`nt_xent` of `hill.models.layers` for two views (B, D) in fp32, with all other rows as negatives."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor, temperature: float) -> Tensor:
        """The mean of 2B cross entropies."""
        count, width = one.shape
        views, lengths = torch.empty(2 * count, width, device=one.device), torch.empty(2 * count, device=one.device)
        block = triton.next_power_of_2(width)
        _normalise[(2 * count,)](
            one.contiguous(), other.contiguous(), views, lengths, count, width, SMALLEST_NORM, block, num_warps=4
        )
        similarity, losses = views @ views.T, torch.empty_like(lengths)
        _cross_entropy[(2 * count,)](
            similarity, losses, count, temperature, triton.next_power_of_2(2 * count), num_warps=4
        )
        ctx.save_for_backward(similarity, views, lengths)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of both views."""
        similarity, views, lengths = ctx.saved_tensors
        count, width = len(views) // 2, views.shape[1]
        back = (similarity @ views).addmm_(similarity.T, views)
        one, other = torch.empty(2, count, width, device=views.device)
        _normalise_backward[(2 * count,)](
            back, grad, views, lengths, one, other, count, width, SMALLEST_NORM, triton.next_power_of_2(width),
            num_warps=4,
        )  # fmt: skip
        return one, other, None
