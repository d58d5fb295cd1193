"""The fast path of BERT, RoBERTa, XLM-R and CamemBERT: documents one after the other, without padding.

It uses the weights of the Hugging Face encoder in place, in training and prediction, on CPU and GPU. In bf16 the
weights are cast once per pass and the residual stream is bf16 too; this halves the memory traffic of autocast, whose
layer norms return fp32.
"""

from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hill.types import Packed

PACKABLE = ("bert", "roberta", "xlm-roberta", "camembert")
"""Architectures that differ from BERT only in their vocabulary and in the position of the first token."""
CPU_TOKENS = 1024
"""Tokens that a CPU processes at once: the activations of more do not fit its cache."""
TILE = 64
"""Tokens per tile of the attention kernels."""
GELU_APPROXIMATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
"""Supported activations, and the `approximate` argument of `F.gelu` that computes each."""


class LayerWeights(NamedTuple):
    """The weights of one layer; query, key and value are one matrix."""

    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    norm1: Tensor
    norm1_bias: Tensor
    norm2: Tensor
    norm2_bias: Tensor


class LayerSettings(NamedTuple):
    """The settings of one layer."""

    heads: int
    longest: int
    layer: int
    dropout: float
    attention_dropout: float
    epsilon: float
    gelu: str


class Layout(NamedTuple):
    """Bounds of the documents, tiles of their tokens (see `list_tiles`), and seeds of the dropouts."""

    bounds: Tensor
    tiles: Tensor
    seeds: Tensor


def first_position(encoder: nn.Module) -> int:
    """The position of the first token; some encoders reserve the positions up to the id of the padding token."""
    config: Any = encoder.config
    kind = getattr(config, "model_type", "")
    if kind in ("roberta", "xlm-roberta", "camembert", "longformer"):
        return int(config.pad_token_id) + 1
    return 2 if kind == "mpnet" else 0


def can_pack(encoder: nn.Module) -> bool:
    """Whether this encoder can read packed batches."""
    config: Any = encoder.config
    if getattr(config, "model_type", "") not in PACKABLE:
        return False
    absolute = getattr(config, "position_embedding_type", None) in (None, "absolute")
    return absolute and config.hidden_act in GELU_APPROXIMATIONS and not config.is_decoder


def split(batch: Packed) -> Iterator[Packed]:
    """Split a packed batch into parts of about `CPU_TOKENS` tokens, without padding documents."""
    ends = batch.bounds[1 : batch.count + 1]
    first = 0
    for count in torch.unique_consecutive((ends - 1) // CPU_TOKENS, return_counts=True)[1].tolist():
        bounds = batch.bounds[first : first + count + 1]
        tokens = slice(int(bounds[0]), int(bounds[-1]))
        ids, places, document = batch.ids[tokens], batch.places[tokens], batch.document[tokens] - first
        yield Packed(ids, places, document, bounds - bounds[0], count, batch.longest)
        first += count


def packed_states(encoder: nn.Module, batch: Packed, dtype: torch.dtype, recompute: bool = False) -> Tensor:
    """The state of every token after the last layer: (P, D).

    With `recompute`, the activations of each layer are computed again in the backward pass, to save memory.
    """
    config: Any = encoder.config
    training = encoder.training
    dropout = config.hidden_dropout_prob if training else 0.0
    attention_dropout = config.attention_probs_dropout_prob if training else 0.0
    heads, epsilon, gelu = config.num_attention_heads, config.layer_norm_eps, GELU_APPROXIMATIONS[config.hidden_act]
    settings = LayerSettings(heads, batch.longest, 0, dropout, attention_dropout, epsilon, gelu)
    layer: Any = fused_layer if batch.ids.is_cuda and kernels_work() else packed_layer
    states = _embed(encoder, batch, settings, dtype, layer is fused_layer)
    seeds = torch.zeros(3 * config.num_hidden_layers, dtype=torch.int64, device=states.device)
    if training:  # prediction drops nothing and does not change the random state
        seeds.random_(2**31 - 1)
    layout = Layout(batch.bounds, list_tiles(batch.bounds, len(batch.ids)), seeds)
    layer = partial(checkpoint, layer, use_reentrant=False) if recompute else layer
    for number, weights in enumerate(_layer_weights(encoder, dtype)):
        states = layer(states, weights, layout, settings._replace(layer=number))
    return states


def packed_layer(states: Tensor, weights: LayerWeights, layout: Layout, settings: LayerSettings) -> Tensor:
    """Attention and feed-forward net, each with dropout, residual and layer norm: (P, D) to (P, D)."""
    tokens, width = states.shape
    qkv = F.linear(states, weights.qkv, weights.qkv_bias).view(tokens, 3, settings.heads, width // settings.heads)
    attended = _attention(qkv, layout.bounds, settings).reshape(tokens, width)
    attended = states + F.dropout(F.linear(attended, weights.out, weights.out_bias), settings.dropout)
    states = F.layer_norm(attended, (width,), weights.norm1, weights.norm1_bias, settings.epsilon)
    inner = F.gelu(F.linear(states, weights.up, weights.up_bias), approximate=settings.gelu)
    fed = states + F.dropout(F.linear(inner, weights.down, weights.down_bias), settings.dropout)
    return F.layer_norm(fed, (width,), weights.norm2, weights.norm2_bias, settings.epsilon)


def fused_layer(states: Tensor, weights: LayerWeights, layout: Layout, settings: LayerSettings) -> Tensor:
    """`packed_layer` with the fused kernels of `hill.encoders.kernels`: (P, D) to (P, D)."""
    kernels, (tokens, width) = _kernels(), states.shape
    qkv, states = kernels.LinearPass.apply(states, weights.qkv, weights.qkv_bias)
    qkv = qkv.view(tokens, 3, settings.heads, width // settings.heads)
    seed = 3 * settings.layer
    attended = kernels.PackedAttention.apply(qkv, *layout, seed, settings.attention_dropout).view(tokens, width)
    norm = (weights.norm1, weights.norm1_bias, layout.seeds, seed + 1, settings.dropout, settings.epsilon)
    states = kernels.AddNorm.apply(states, attended @ weights.out.T, weights.out_bias, *norm)
    wide, states = kernels.LinearPass.apply(states, weights.up, None)
    inner = kernels.BiasGelu.apply(wide, weights.up_bias, settings.gelu)
    norm = (weights.norm2, weights.norm2_bias, layout.seeds, seed + 2, settings.dropout, settings.epsilon)
    fed: Tensor = kernels.AddNorm.apply(states, inner @ weights.down.T, weights.down_bias, *norm)
    return fed


def list_tiles(bounds: Tensor, tokens: int) -> Tensor:
    """The document and the first token of every tile (2, tiles), -1 for unused tiles; never waits for the device."""
    tiles = (bounds.diff() + TILE - 1) // TILE  # per document
    ends = tiles.cumsum(0)
    index = torch.arange(tokens // TILE + len(tiles), device=bounds.device)
    document = torch.searchsorted(ends, index, right=True)
    used = document < len(tiles)
    document = document.clamp(max=len(tiles) - 1)
    first = bounds[document] + (index - (ends - tiles)[document]) * TILE
    return torch.where(used, torch.stack([document, first]), -1).int()


@cache
def kernels_work() -> bool:
    """Whether the fused kernels compile and run here: Triton also needs a C compiler and the headers of Python."""
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return False
    try:
        with torch.inference_mode(False), torch.enable_grad():
            _kernels().try_kernels()
    except Exception:  # compilers raise many types, and `packed_layer` computes the same
        return False
    return True


@cache
def _kernels() -> Any:
    return import_module("hill.encoders.kernels")  # needs Triton, so it cannot be imported above


def _embed(encoder: Any, batch: Packed, settings: LayerSettings, dtype: torch.dtype, fused: bool) -> Tensor:
    part = encoder.embeddings
    words, types = part.word_embeddings(batch.ids), part.token_type_embeddings.weight[0]
    positions, norm = part.position_embeddings(batch.places + first_position(encoder)), part.LayerNorm
    if fused and dtype != torch.float32:
        rest = (batch.bounds, 0, 0.0, settings.epsilon)  # without dropout the seeds, here bounds, are not read
        states = _kernels().AddNorm.apply(positions.to(dtype), words.to(dtype), types, norm.weight, norm.bias, *rest)
    else:
        states = norm(words + types + positions)
    return F.dropout(states, settings.dropout).to(dtype)


def _layer_weights(encoder: Any, dtype: torch.dtype) -> list[LayerWeights]:
    """The weights of all layers in this precision."""
    weights: list[Tensor] = []
    for layer in encoder.encoder.layer:
        attention = layer.attention.self
        qkv = (attention.query, attention.key, attention.value)
        weights += [part.weight for part in qkv] + [part.bias for part in qkv]
        linear = (layer.attention.output.dense, layer.intermediate.dense, layer.output.dense)
        for part in (*linear, layer.attention.output.LayerNorm, layer.output.LayerNorm):
            weights += [part.weight, part.bias]
    cast = weights if dtype == torch.float32 else _Cast.apply(dtype, *weights)  # type: ignore[no-untyped-call]
    layers = [cast[i : i + 16] for i in range(0, len(cast), 16)]
    return [LayerWeights(torch.cat(layer[:3]), torch.cat(layer[3:6]), *layer[6:]) for layer in layers]


class _Cast(torch.autograd.Function):
    """Casts many tensors to another precision in one call, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        cast = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
        torch._foreach_copy_(cast, list(tensors))
        return tuple(cast)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cast = [torch.empty_like(gradient, dtype=torch.float32) for gradient in gradients]
        torch._foreach_copy_(cast, list(gradients))
        return None, *cast


def _attention(qkv: Tensor, bounds: Tensor, settings: LayerSettings) -> Tensor:
    """Softmax attention inside each document: (P, 3, H, W) to (P, H, W)."""
    query, key, value = qkv.unbind(1)
    if qkv.is_cuda:
        # the kernel of torch.nn.attention.varlen, which does not offer dropout
        attended: Tensor = torch.ops.aten._flash_attention_forward(
            *(query, key, value, bounds, bounds, settings.longest, settings.longest),
            *(settings.attention_dropout, False, False),
        )[0]
        return attended
    query, key, value = (part.transpose(0, 1) for part in (query, key, value))  # (H, P, W)
    documents = [
        F.scaled_dot_product_attention(query[:, a:b], key[:, a:b], value[:, a:b], dropout_p=settings.attention_dropout)
        for a, b in pairwise(bounds.tolist())
    ]
    return torch.cat(documents, dim=1).transpose(0, 1)
