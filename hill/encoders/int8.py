"""Matrix products in 8-bit integers, for prediction on a CPU.

A weight matrix has one scale per row. Inputs are quantised when they are used, with one scale per token, so the result
of a token does not depend on the other tokens of a batch. Sums are exact: only weights and inputs are rounded.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

LIMIT = 127
"""The largest absolute value of a quantised weight or input."""
TINY = torch.finfo(torch.float32).tiny


class PackedMatrix(NamedTuple):
    """A weight matrix (out, in) in 8 bits, as oneDNN reads it."""

    integers: Tensor
    """The integers, in the memory layout of oneDNN."""
    scales: Tensor
    """The scale of each row (out)."""
    offsets: Tensor
    """The offset of each row: 0 (out)."""


class Int8Matrix(NamedTuple):
    """A weight matrix (out, in) in 8 bits, and how its inputs are quantised."""

    whole: PackedMatrix
    refined: PackedMatrix | None
    """The last rows, if the rounding error of their inputs is quantised and multiplied too."""
    least: float | None
    """The minimum of all inputs, if they use the integers from 0 on; None: inputs are symmetric around 0."""
    shift: Tensor | None
    """What `least` adds to the product (out)."""


@cache
def cpu_has_int8() -> bool:
    """Whether the CPU has instructions for products of 8-bit integers: an x86 CPU with VNNI.

    Other x86 CPUs add two products in 16 bits, which overflows; a product of the largest values shows it. Inputs of 7
    bits do not overflow, but changed F1 too much. On CPUs without AVX2, such as ARM, int8 was not measured.
    """
    if not getattr(torch.cpu, "_is_avx2_supported", bool)():
        return False
    try:
        found = int8_product(torch.full((64, 64), 255, dtype=torch.uint8), pack(torch.ones(64, 64)), LIMIT + 1)
    except Exception:  # an operator of PyTorch that is not public: it may be missing, or have other arguments
        return False
    return torch.allclose(found, torch.full((64, 64), 64.0 * LIMIT))


@torch.no_grad()
def quantise(weight: Tensor, refined: int = 0, least: float | None = None) -> Int8Matrix:
    """Round a matrix (out, in) to 8 bits; the last `refined` rows get inputs with a smaller rounding error."""
    whole = pack(weight)
    last = whole if refined == len(weight) else pack(weight[-refined:])
    shift = None if least is None else least * rounded(weight, whole.scales).sum(dim=1) * whole.scales
    return Int8Matrix(whole, last if refined else None, least, shift)


def pack(weight: Tensor) -> PackedMatrix:
    """Round a matrix (out, in) to 8 bits, with one scale per row, in the memory layout of oneDNN."""
    scales = (weight.abs().amax(dim=1) / LIMIT).clamp(min=TINY)
    integers = torch.ops.onednn.qlinear_prepack(rounded(weight, scales).to(torch.int8), None)
    return PackedMatrix(integers, scales, torch.zeros(len(scales), dtype=torch.int64))


def rounded(weight: Tensor, scales: Tensor) -> Tensor:
    """The integers of a matrix (out, in)."""
    return (weight / scales[:, None]).round()


def int8_linear(inputs: Tensor, weight: Int8Matrix, bias: Tensor | None) -> Tensor:
    """`F.linear` of fp32 inputs (P, in) and a quantised matrix: (P, out)."""
    zero = LIMIT + 1
    if weight.least is None:
        scales = (inputs.abs().amax(dim=1, keepdim=True) / LIMIT).clamp(min=TINY)
        exact = inputs * scales.reciprocal()
    else:
        inputs = inputs - weight.least
        scales = (inputs.amax(dim=1, keepdim=True) / (LIMIT + zero)).clamp(min=TINY)
        exact = (inputs * scales.reciprocal()).sub_(zero)
        bias, zero = weight.shift if bias is None or weight.shift is None else bias + weight.shift, 0
    integers = exact.round()
    product = int8_product(_unsigned(integers), weight.whole, zero)
    if weight.refined is not None:
        error = exact.sub_(integers).mul_(2 * LIMIT).round_()  # at most 1/2 before it is multiplied
        rows = product[:, -len(weight.refined.scales) :]
        rows.add_(int8_product(_unsigned(error), weight.refined, LIMIT + 1), alpha=1 / (2 * LIMIT))
    return product.mul_(scales) if bias is None else torch.addcmul(bias, product, scales, out=product)


def int8_product(inputs: Tensor, weight: PackedMatrix, zero: int) -> Tensor:
    """The product of unsigned integers (P, in), minus `zero`, and a quantised matrix: (P, out)."""
    found: Tensor = torch.ops.onednn.qlinear_pointwise(
        inputs, 1.0, zero, *weight, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found


def _unsigned(values: Tensor) -> Tensor:
    """Integers from -128 to 127 plus 128, as bytes; the cast to int8 is faster than to uint8."""
    return values.to(torch.int8).view(torch.uint8).add_(LIMIT + 1)
