"""Matrix products in 8-bit integers, for prediction on a CPU.

A weight matrix has one scale per row. Inputs are quantised when they are used, with one scale per token, so the result
of a token does not depend on the other tokens of a batch. Sums are exact: only weights and inputs are rounded.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

LIMIT = 127
"""The largest absolute value of a quantised weight, and of a quantised input on a CPU with VNNI."""
REDUCED_LIMIT = 63
"""The largest absolute value of a quantised input on a CPU without VNNI."""


class Int8Matrix(NamedTuple):
    """A weight matrix (out, in) in 8 bits."""

    packed: Tensor
    """The integers, in the memory layout of oneDNN."""
    scales: Tensor
    """The scale of each row (out)."""
    offsets: Tensor
    """The offset of each row, as oneDNN expects it: 0 (out)."""


@cache
def input_limit() -> int:
    """The largest absolute value of a quantised input, or 0 if the CPU does not multiply 8-bit integers faster.

    Without VNNI, an x86 CPU adds two products in 16 bits, which overflows with inputs of 8 bits but not of 7; a product
    of the largest values shows it. On CPUs without AVX2, such as ARM, this was not measured.
    """
    if not getattr(torch.cpu, "_is_avx2_supported", bool)():
        return 0
    try:
        ones = torch.ones(64, 64)
        found = int8_product(torch.full((64, 64), 255, dtype=torch.uint8), quantise(ones), LIMIT + 1)
    except Exception:  # an operator of PyTorch that is not public: it may be missing, or have other arguments
        return 0
    return LIMIT if torch.allclose(found, LIMIT * ones.sum(dim=1)) else REDUCED_LIMIT


@torch.no_grad()
def quantise(weight: Tensor) -> Int8Matrix:
    """Round a matrix (out, in) to 8 bits, with one scale per row."""
    scales = (weight.abs().amax(dim=1) / LIMIT).clamp(min=torch.finfo(torch.float32).tiny)
    integers = (weight / scales[:, None]).round().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(integers, None)
    return Int8Matrix(packed, scales, torch.zeros(len(scales), dtype=torch.int64))


def int8_linear(inputs: Tensor, weight: Int8Matrix, bias: Tensor | None) -> Tensor:
    """`F.linear` of fp32 inputs (P, in) and a quantised matrix: (P, out)."""
    limit = input_limit()
    scales = (inputs.abs().amax(dim=1, keepdim=True) / limit).clamp(min=torch.finfo(torch.float32).tiny)
    integers = (inputs * scales.reciprocal()).round_().to(torch.int8)
    product = int8_product(integers.view(torch.uint8).add_(limit + 1), weight, limit + 1)
    return product.mul_(scales) if bias is None else torch.addcmul(bias, product, scales, out=product)


def int8_product(inputs: Tensor, weight: Int8Matrix, zero: int) -> Tensor:
    """The product of integers (P, in), minus `zero`, and a quantised matrix: (P, out)."""
    found: Tensor = torch.ops.onednn.qlinear_pointwise(
        inputs, 1.0, zero, weight.packed, weight.scales, weight.offsets, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found
