"""BERT over packed documents: each sees itself alone, no padding is computed, and activations stay in one precision.

It reads the weights of a Transformers encoder where they lie. In bf16 they are copied once a pass, all together; the
residual stream is bf16 too, which halves the memory traffic of autocast, whose normalisations return fp32.
"""

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hill.types import Packed


def first_position(encoder: nn.Module) -> int:
    """The position of the first token: some encoders keep the lowest ones for padding."""
    config: Any = encoder.config
    return 2 if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer") else 0


PACKABLE = ("bert", "roberta", "xlm-roberta", "camembert")
"""Encoders that are BERT but for their vocabulary and the number of their first position."""


TOKENS = 1024
"""Tokens that a CPU takes together: more leave its cache."""


TILE = 64
"""Tokens that the attention kernels take together."""


ACTIVATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
"""How each is approximated."""


class Layer(NamedTuple):
    """The weights of one layer, query, key and value in one matrix."""

    attend: Tensor
    attend_bias: Tensor
    mix: Tensor
    mix_bias: Tensor
    widen: Tensor
    widen_bias: Tensor
    narrow: Tensor
    narrow_bias: Tensor
    norm1: Tensor
    norm1_bias: Tensor
    norm2: Tensor
    norm2_bias: Tensor


class Shape(NamedTuple):
    """What is not a tensor."""

    heads: int
    longest: int
    number: int
    dropout: float
    attention_dropout: float
    epsilon: float
    gelu: str


class Where(NamedTuple):
    """Where documents begin and end, the tiles of their tokens, and seeds for what is dropped."""

    bounds: Tensor
    tiles: Tensor
    seeds: Tensor


LayerFunction = Callable[[Tensor, Layer, Where, Shape], Tensor]


def can_pack(encoder: nn.Module) -> bool:
    """Whether packed documents can be read by this encoder."""
    config: Any = encoder.config
    known = config.model_type in PACKABLE and getattr(config, "position_embedding_type", None) in (None, "absolute")
    return known and not config.is_decoder and config.hidden_act in ACTIVATIONS


def pack(ids: Tensor, mask: Tensor) -> Iterator[Packed]:
    """The documents of a padded batch (B, T) one after the other, in parts of about as many tokens as a CPU likes."""
    lengths = mask.sum(dim=1)
    belongs = (lengths.cumsum(0) - 1) // TOKENS
    for part in dict.fromkeys(belongs.tolist()):
        rows = belongs == part
        own, seen = lengths[rows], mask[rows].bool()
        documents = torch.arange(len(own)).repeat_interleave(own)
        bounds = F.pad(own.cumsum(0), (1, 0)).int()
        places = (seen.cumsum(dim=1) - 1)[seen]
        yield Packed(ids[rows][seen], places, documents, bounds, len(own), int(own.max()))


def packed_states(encoder: nn.Module, batch: Packed, dtype: torch.dtype, layer: LayerFunction) -> Tensor:
    """The last layer's state of every token: (P, D). `layer` is `packed_layer`, perhaps compiled."""
    config: Any = encoder.config
    training = encoder.training
    shape = Shape(
        config.num_attention_heads,
        batch.longest,
        0,
        config.hidden_dropout_prob if training else 0.0,
        config.attention_probs_dropout_prob if training else 0.0,
        config.layer_norm_eps,
        ACTIVATIONS[config.hidden_act],
    )
    states = _embed(encoder, batch, shape, dtype)
    seeds = torch.randint(2**31 - 1, (3 * config.num_hidden_layers,), device=states.device)
    where = Where(batch.bounds, list_tiles(batch.bounds, len(batch.ids)), seeds)
    for number, weights in enumerate(_layers(encoder, dtype)):
        states = layer(states, weights, where, shape._replace(number=number))
    return states


def packed_layer(states: Tensor, weights: Layer, where: Where, shape: Shape) -> Tensor:
    """Attention and feed-forward net, each with dropout, residual and normalisation: (P, D) to (P, D)."""
    tokens, width = states.shape
    qkv = F.linear(states, weights.attend, weights.attend_bias).view(tokens, 3, shape.heads, width // shape.heads)
    attended = F.linear(_attention(qkv, where.bounds, shape).reshape(tokens, width), weights.mix, weights.mix_bias)
    attended = states + F.dropout(attended, shape.dropout)
    states = F.layer_norm(attended, (width,), weights.norm1, weights.norm1_bias, shape.epsilon)
    inner = F.gelu(F.linear(states, weights.widen, weights.widen_bias), approximate=shape.gelu)
    fed = states + F.dropout(F.linear(inner, weights.narrow, weights.narrow_bias), shape.dropout)
    return F.layer_norm(fed, (width,), weights.norm2, weights.norm2_bias, shape.epsilon)


def fused_layer(states: Tensor, weights: Layer, where: Where, shape: Shape) -> Tensor:
    """`packed_layer` with fused kernels, for a GPU and a Triton that compiles them: (P, D) to (P, D)."""
    kernels, (tokens, width) = _kernels(), states.shape
    qkv, states = kernels.LinearPass.apply(states, weights.attend, weights.attend_bias)
    qkv = qkv.view(tokens, 3, shape.heads, width // shape.heads)
    first = 3 * shape.number
    attended = kernels.PackedAttention.apply(qkv, *where, first, shape.attention_dropout).view(tokens, width)
    norm = (weights.norm1, weights.norm1_bias, where.seeds, first + 1, shape.dropout, shape.epsilon)
    states = kernels.AddNorm.apply(states, attended @ weights.mix.T, weights.mix_bias, *norm)
    wide, states = kernels.LinearPass.apply(states, weights.widen, None)
    inner = kernels.BiasGelu.apply(wide, weights.widen_bias, shape.gelu)
    norm = (weights.norm2, weights.norm2_bias, where.seeds, first + 2, shape.dropout, shape.epsilon)
    fed: Tensor = kernels.AddNorm.apply(states, inner @ weights.narrow.T, weights.narrow_bias, *norm)
    return fed


def list_tiles(bounds: Tensor, tokens: int) -> Tensor:
    """Document and first token of every tile (2, tiles), -1 where there is none; nothing here waits for the device."""
    blocks = (bounds.diff() + TILE - 1) // TILE
    last = blocks.cumsum(0)
    number = torch.arange(tokens // TILE + len(blocks), device=bounds.device)
    document = torch.searchsorted(last, number, right=True)
    known = document < len(blocks)
    document = document.clamp(max=len(blocks) - 1)
    first = bounds[document] + (number - (last - blocks)[document]) * TILE
    return torch.where(known, torch.stack([document, first]), -1).int()


@cache
def best_layer() -> LayerFunction:
    """The fastest layer that this machine can compute: Triton also needs a C compiler and Python's headers."""
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return packed_layer
    try:
        _kernels().try_kernels()
        _kernels().try_attention()
    except Exception:  # whatever the compiler says, the other layer computes the same
        return packed_layer
    return fused_layer


@cache
def _kernels() -> Any:
    return import_module("hill.encoders.kernels")


def _embed(encoder: Any, batch: Packed, shape: Shape, dtype: torch.dtype) -> Tensor:
    part = encoder.embeddings
    words, kinds = part.word_embeddings(batch.ids), part.token_type_embeddings.weight[0]
    places, norm = part.position_embeddings(batch.positions + first_position(encoder)), part.LayerNorm
    if dtype != torch.float32 and best_layer() is fused_layer:
        rest = (batch.bounds, 0, 0.0, shape.epsilon)  # nothing is dropped, so no seed is read
        states = _kernels().AddNorm.apply(places.to(dtype), words.to(dtype), kinds, norm.weight, norm.bias, *rest)
    else:
        states = norm(words + kinds + places)
    return F.dropout(states, shape.dropout).to(dtype)


def _layers(encoder: Any, dtype: torch.dtype) -> list[Layer]:
    """The weights of all layers, in the precision that they are multiplied in."""
    found: list[Tensor] = []
    for layer in encoder.encoder.layer:
        attention = layer.attention.self
        together = (attention.query, attention.key, attention.value)
        found += [part.weight for part in together] + [part.bias for part in together]
        for part in (layer.attention.output.dense, layer.intermediate.dense, layer.output.dense):
            found += [part.weight, part.bias]
        for part in (layer.attention.output.LayerNorm, layer.output.LayerNorm):
            found += [part.weight, part.bias]
    cast = found if dtype == torch.float32 else _Cast.apply(dtype, *found)  # type: ignore[no-untyped-call]
    each = [cast[i : i + 16] for i in range(0, len(cast), 16)]
    return [Layer(torch.cat(of[:3]), torch.cat(of[3:6]), *of[6:]) for of in each]


class _Cast(torch.autograd.Function):
    """Many tensors to another precision at once, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        cast = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
        torch._foreach_copy_(cast, list(tensors))
        return tuple(cast)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back = [torch.empty_like(gradient, dtype=torch.float32) for gradient in gradients]
        torch._foreach_copy_(back, list(gradients))
        return None, *back


def _attention(qkv: Tensor, bounds: Tensor, shape: Shape) -> Tensor:
    """Softmax attention inside each document: (P, 3, H, W) to (P, H, W)."""
    query, key, value = qkv.unbind(1)
    if qkv.is_cuda:
        # the kernel behind torch.nn.attention.varlen, which has no dropout of its own
        found: Tensor = torch.ops.aten._flash_attention_forward(
            query, key, value, bounds, bounds, shape.longest, shape.longest, shape.attention_dropout, False, False
        )[0]
        return found
    query, key, value = (part.transpose(0, 1) for part in (query, key, value))  # (H, P, W)
    each = [
        F.scaled_dot_product_attention(query[:, a:b], key[:, a:b], value[:, a:b], dropout_p=shape.attention_dropout)
        for a, b in pairwise(bounds.tolist())
    ]
    return torch.cat(each, dim=1).transpose(0, 1)
