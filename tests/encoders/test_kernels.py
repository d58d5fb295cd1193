"""The fused kernels compute what PyTorch computes. They need a GPU and Triton; elsewhere these tests are skipped."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from hill.encoders import kernels
from hill.encoders import kernels as attention
from hill.encoders.packed import list_tiles

P, D, HEADS, WIDTH = 137, 48, 2, 16
LENGTHS = [5, 130, 64, 0, 1, 56]


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=True)


def same(found: Tensor, expected: Tensor, leaves: list[Tensor], atol: float) -> None:
    weight = torch.randn_like(found)
    one = torch.autograd.grad((found * weight).sum(), leaves)
    other = torch.autograd.grad((expected * weight).sum(), leaves)
    for a, b in zip((found, *one), (expected, *other), strict=True):
        assert torch.allclose(a, b, atol=atol, rtol=1e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_add_norm(dropout: float) -> None:
    torch.manual_seed(0)
    x, a, bias, gamma, beta = leaf(P, D), leaf(P, D), leaf(D), leaf(D), leaf(D)
    seeds = torch.tensor([3, 5], device="cuda")
    kept = torch.ones(P, D, device="cuda")
    if dropout:
        plain = torch.zeros(P, D, device="cuda"), torch.ones(P, D, device="cuda"), kept[0] * 0, kept[0], kept[0] * 0
        kept = (kernels.AddNorm.apply(*plain, seeds, 1, dropout, 1e-12) > 0).float()
        assert abs(kept.mean().item() - 0.75) < 0.03
    found = kernels.AddNorm.apply(x, a, bias, gamma, beta, seeds, 1, dropout, 1e-12)
    expected = F.layer_norm(x + (a + bias) * kept / (1 - dropout), (D,), gamma, beta, 1e-12)
    same(found, expected, [x, a, bias, gamma, beta], 1e-4)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_bias_gelu(approximate: str) -> None:
    torch.manual_seed(0)
    x, bias = leaf(P, D), leaf(D)
    same(kernels.BiasGelu.apply(x, bias, approximate), F.gelu(x + bias, approximate=approximate), [x, bias], 1e-4)


@pytest.mark.parametrize("biased", [True, False])
def test_linear_pass(biased: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = leaf(P, D), leaf(D, D), leaf(D)
    leaves = [x, weight, bias] if biased else [x, weight]
    found, passed = kernels.LinearPass.apply(x * 1, weight, bias if biased else None)
    expected = F.linear(x, weight, bias if biased else None)
    same(found.tanh() + passed.sin(), expected.tanh() + x.sin(), leaves, 1e-3)


def reference(qkv: Tensor, bounds: list[int], kept: Any, dropout: float) -> Tensor:
    found = []
    for document, (a, b) in enumerate(pairwise(bounds)):
        query, key, value = (qkv[a:b, part].transpose(0, 1) for part in range(3))
        weight = (query @ key.transpose(1, 2) * WIDTH**-0.5).softmax(-1)
        found.append((weight * kept[document] / (1 - dropout) @ value).transpose(0, 1))
    return torch.cat(found)


def drawn(bounds: list[int], seed: int, dropout: float) -> list[Tensor]:
    """The hash of the kernels, written again."""
    masks = []
    for a, b in pairwise(bounds):
        heads = []
        for head in range(HEADS):
            mixed = (torch.arange(a, b) * 0x9E3779B1 % 2**32) ^ (seed + head * 7919)
            mixed = (mixed ^ (mixed >> 16)) * 0x7FEB352D % 2**32
            mixed = (mixed ^ (mixed >> 15)) * 0x846CA68B % 2**32
            mixed = (mixed ^ (mixed >> 16))[:, None] ^ (torch.arange(a, b) * 0x85EBCA77 % 2**32)
            heads.append((mixed ^ (mixed >> 16)) * 0x846CA68B % 2**32 >= dropout * 2**32)
        masks.append(torch.stack(heads).float().cuda())
    return masks


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention(dropout: float) -> None:
    torch.manual_seed(0)
    ends = torch.tensor([0, *LENGTHS], device="cuda").cumsum(0).int()
    bounds = ends.tolist()
    tiles = list_tiles(ends, bounds[-1])
    qkv = leaf(bounds[-1], 3, HEADS, WIDTH)
    seeds = torch.tensor([11, 22, 33], device="cuda")
    found = attention.PackedAttention.apply(qkv, ends, tiles, seeds, 2, dropout)
    expected = reference(qkv, bounds, drawn(bounds, 33, dropout), dropout)
    same(found, expected, [qkv], 1e-2)
