"""The fused kernels compute what PyTorch computes. They need a GPU and Triton; elsewhere these tests are skipped."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from hill.data.batches import DeviceDocuments, collate, to_device
from hill.encoders import kernels
from hill.encoders.packed import list_tiles
from tests.encoders.test_packed import random_tokens, transformer

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


def reference(
    qkv: Tensor, bounds: list[int], kept: Any, dropout: float, bias: Tensor | None = None, window: int = 0
) -> Tensor:
    """Attention document by document; `bias` is per head and distance from -128 to 128."""
    found = []
    for document, (a, b) in enumerate(pairwise(bounds)):
        query, key, value = (qkv[a:b, part].transpose(0, 1) for part in range(3))
        score = query @ key.transpose(1, 2) * WIDTH**-0.5
        index = torch.arange(b - a, device="cuda")
        distance = index - index[:, None]
        if bias is not None:
            score = score + bias[:, distance.clamp(-128, 128) + 128]
        if window:
            score = score.masked_fill(distance.abs() > window, float("-inf"))
        weight = score.softmax(-1)
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
    found = kernels.PackedAttention.apply(qkv, ends, tiles, seeds, 2, dropout)
    expected = reference(qkv, bounds, drawn(bounds, 33, dropout), dropout)
    same(found, expected, [qkv], 1e-2)


@pytest.mark.parametrize(("biased", "window"), [(True, 0), (False, 20), (False, 3), (False, 150)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_with_bias_and_window(dropout: float, biased: bool, window: int) -> None:
    torch.manual_seed(0)
    ends = torch.tensor([0, *LENGTHS, 300], device="cuda").cumsum(0).int()
    bounds = ends.tolist()
    qkv, bias = leaf(bounds[-1], 3, HEADS, WIDTH), leaf(HEADS, 32)
    buckets = MPNetEncoder.relative_position_bucket(torch.arange(-128, 129, device="cuda"))
    seeds = torch.tensor([11, 22, 33], device="cuda")
    given = (None, None, None)
    if biased:
        given = (bias, kernels.bias_blocks(bias, buckets, 384), kernels.bucket_members(buckets, 32, 384))
    tiles = list_tiles(ends, bounds[-1])
    found = kernels.PackedAttention.apply(qkv, ends, tiles, seeds, 2, dropout, *given, window)
    table = bias[:, buckets] if biased else None
    expected = reference(qkv, bounds, drawn(bounds, 33, dropout), dropout, table, window)
    same(found, expected, [qkv, bias] if biased else [qkv], 2e-2)


@pytest.mark.parametrize("kind", ["bert", "mpnet", "distilbert", "modernbert", "electra"])
def test_fused_layers_compute_what_plain_layers_compute(kind: str) -> None:
    """bf16 vectors of packed documents against the encoder's own padded forward in fp32, with and without gradients."""
    text = transformer(kind, width=64).cuda().eval()
    tokens, documents = random_tokens(1, count=12, longest=60), list(range(12))
    resident = DeviceDocuments(tokens, None, 1, torch.device("cuda"))
    batch = resident.packed(torch.tensor(documents, device="cuda"), resident.size(np.array(documents)))
    padded = text.read(to_device(collate(tokens, None, np.array(documents), 1), torch.device("cuda")))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        packed = text.read(batch)
        with torch.no_grad():
            inferred = text.read(batch)
    for found in (packed, inferred):
        assert F.cosine_similarity(found.float(), padded.float()).min() > 0.999
    one = torch.autograd.grad(packed.square().sum(), list(text.parameters()), allow_unused=True)
    other = torch.autograd.grad(padded.square().sum(), list(text.parameters()), allow_unused=True)
    for (name, _), a, b in zip(text.named_parameters(), one, other, strict=True):
        if a is not None and b is not None and b.norm() > 1e-3:
            assert F.cosine_similarity(a.flatten().float(), b.flatten(), dim=0) > 0.98, name
