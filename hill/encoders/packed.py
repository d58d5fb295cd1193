"""Encoders over packed documents: no padding is computed, and each document attends only to itself.

One forward pass serves every architecture in `ARCHITECTURES`; an entry says where a Hugging Face encoder of that
architecture keeps its weights and how its layers differ from BERT's. Weights are read in place. In bf16 all of them are
cast once per pass, and the residual stream of post-norm encoders is bf16 too, which halves the memory traffic of
autocast, whose normalisations return fp32. In int8 the weights are quantised once, by the caller (`int8_weights`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, compress
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hill.encoders.int8 import Int8Matrix, int8_linear, quantise
from hill.encoders.lora import adapted_weight
from hill.types import Packed


@dataclass(frozen=True)
class Architecture:
    """Where an encoder keeps its modules and dropout rates; the defaults are BERT's. Module names are per layer."""

    layers: str = "encoder.layer"
    query_key_value: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    """Three linear layers, or one that computes all three."""
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    output_norm: str = "output.LayerNorm"
    words: str = "embeddings.word_embeddings"
    embedding_norm: str = "embeddings.LayerNorm"
    activation: str = "hidden_act"
    """The setting that names the activation."""
    dropouts: tuple[str, str, str, str, str] = (
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "hidden_dropout_prob",
        "",
        "hidden_dropout_prob",
    )
    """The settings with the dropout rates, in the order of `Dropouts`; empty for no dropout."""
    pre_norm: bool = False
    """Normalise before attention and feed-forward net, and once after the last layer, instead of after each."""
    gated: bool = False
    """The feed-forward net is act(a) · b for the two halves a, b of its inner layer (GeGLU)."""


BERT = Architecture()
ARCHITECTURES = {
    **dict.fromkeys(("bert", "electra", "roberta", "xlm-roberta", "camembert"), BERT),
    "mpnet": Architecture(
        query_key_value=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        attention_output="attention.attn.o",
        attention_norm="attention.LayerNorm",
    ),
    "distilbert": Architecture(
        layers="transformer.layer",
        query_key_value=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        attention_output="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        output_norm="output_layer_norm",
        activation="activation",
        dropouts=("dropout", "attention_dropout", "", "", "dropout"),
    ),
    "modernbert": Architecture(
        layers="layers",
        query_key_value=("attn.Wqkv",),
        attention_output="attn.Wo",
        attention_norm="attn_norm",
        up="mlp.Wi",
        down="mlp.Wo",
        output_norm="mlp_norm",
        words="embeddings.tok_embeddings",
        embedding_norm="embeddings.norm",
        activation="hidden_activation",
        dropouts=("embedding_dropout", "attention_dropout", "attention_dropout", "mlp_dropout", ""),
        pre_norm=True,
        gated=True,
    ),
}
"""Architectures that read packed documents, by Hugging Face's model type. Others use their own padded forward."""
CPU_TOKENS = 1024
"""Tokens per part of a batch on a CPU; more do not fit its cache."""
TILE = 64
"""Tokens per tile of the attention kernels."""
MAX_DISTANCE = 128
"""Relative position biases are constant from this distance on."""
GELUS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
"""Supported activations, and the approximation of each."""
GELU_MINIMUM = -0.1701
"""Both forms of GELU are greater than this."""


class Dropouts(NamedTuple):
    """Dropout rates; 0 outside training."""

    embedding: float
    attention: float
    attention_output: float
    inner: float
    output: float


class LayerSettings(NamedTuple):
    """The settings of one layer."""

    heads: int
    longest: int
    layer: int
    dropouts: Dropouts
    epsilon: float
    gelu: str
    pre_norm: bool
    gated: bool
    window: int
    """Tokens attend to tokens at most this far away; 0 for all tokens."""


Matrix = TypeVar("Matrix", Tensor, Int8Matrix)


class LayerWeights(NamedTuple, Generic[Matrix]):
    """The weights of one layer; query, key and value are one matrix. None: the encoder has no such weight."""

    qkv: Matrix
    qkv_bias: Tensor | None
    out: Matrix
    out_bias: Tensor | None
    up: Matrix
    up_bias: Tensor | None
    down: Matrix
    down_bias: Tensor | None
    norm1: Tensor | None
    norm1_bias: Tensor | None
    norm2: Tensor
    norm2_bias: Tensor | None


Weights = Sequence[LayerWeights[Tensor]] | Sequence[LayerWeights[Int8Matrix]]
"""The weights of all layers."""


class Layout(NamedTuple):
    """Where documents are in a packed batch, and what attention adds by position."""

    bounds: Tensor
    """Where documents begin and end."""
    tiles: Tensor
    """The tiles of the attention kernels (see `list_tiles`)."""
    seeds: Tensor
    """Random seeds of the dropouts."""
    bias: Tensor | None
    """Relative position bias per head and bucket (H, buckets)."""
    buckets: Tensor | None
    """The bucket of each distance from -MAX_DISTANCE to MAX_DISTANCE."""
    blocks: tuple[Tensor | None, Tensor | None]
    """The bias as the attention kernels read it, and what they need for its gradient."""
    rotary: tuple[Tensor, Tensor] | None
    """Cosine and sine of the rotary embedding (P, W)."""


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
    architecture = ARCHITECTURES.get(getattr(config, "model_type", ""))
    if architecture is None or getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        return False
    if config.model_type in ("mpnet", "modernbert") and torch.cuda.is_available() and not kernels_work():
        return False  # PyTorch's packed attention has no position bias and no windows
    return not getattr(config, "is_decoder", False) and getattr(config, architecture.activation) in GELUS


def split(batch: Packed) -> Iterator[Packed]:
    """Split a packed batch into parts of about `CPU_TOKENS` tokens, without padding documents."""
    ends = batch.bounds[1 : batch.count + 1]
    first = 0
    for count in torch.unique_consecutive((ends - 1) // CPU_TOKENS, return_counts=True)[1].tolist():
        bounds = batch.bounds[first : first + count + 1]
        tokens = slice(int(bounds[0]), int(bounds[-1]))
        ids, positions, document = batch.ids[tokens], batch.positions[tokens], batch.document[tokens] - first
        yield Packed(ids, positions, document, bounds - bounds[0], count, batch.longest)
        first += count


def packed_states(encoder: Any, batch: Packed, words: Tensor, weights: Weights, recompute: bool = False) -> Tensor:
    """The state of every token after the last layer: (P, D).

    `words` are the word embeddings of the tokens (P, D), `weights` those of `layer_weights` or `int8_weights`. With
    `recompute`, the activations of each layer are computed again in the backward pass, to save memory.
    """
    config, architecture = encoder.config, ARCHITECTURES[encoder.config.model_type]
    layers, dtype = encoder.get_submodule(architecture.layers), weights[0].norm2.dtype
    rates = [getattr(config, name) if name and encoder.training else 0.0 for name in architecture.dropouts]
    settings = LayerSettings(
        config.num_attention_heads, batch.longest, 0, Dropouts(*rates),
        layers[0].get_submodule(architecture.output_norm).eps, GELUS[getattr(config, architecture.activation)],
        architecture.pre_norm, architecture.gated, 0,
    )  # fmt: skip
    fused = batch.ids.is_cuda and dtype != torch.float32 and kernels_work()
    states = _embed(encoder, architecture, batch, words, settings, dtype, fused)
    bounds, positions, tokens = batch.bounds, batch.positions, len(states)
    if not states.is_cuda and (rows := -tokens % (32 if tokens > CPU_TOKENS // 4 else 8)):
        # oneDNN compiles its products for each number of rows; padding rows are one more document
        states, positions = F.pad(states, (0, 0, 0, rows)), F.pad(positions, (0, rows))
        bounds = torch.cat([bounds, bounds.new_tensor([tokens + rows])])
    seeds = torch.zeros(3 * len(layers), dtype=torch.int64, device=states.device)
    if encoder.training:  # prediction drops nothing and does not change the random state
        seeds.random_(2**31 - 1)
    bias, buckets = _relative_bias(encoder, states.device)
    blocks = None, None
    if fused and bias is not None and buckets is not None:
        kernels, length = _kernels(), batch.longest
        blocks = kernels.bias_blocks(bias, buckets, length), kernels.bucket_members(buckets, bias.shape[1], length)
    layout = Layout(bounds, list_tiles(bounds, len(states)), seeds, bias, buckets, blocks, None)
    types = getattr(config, "layer_types", None) or ["full_attention"] * len(layers)
    rotary: dict[str, Any] = {}
    if hasattr(encoder, "rotary_emb"):
        rotary = {name: [e[0] for e in encoder.rotary_emb(states, positions[None], name)] for name in set(types)}
    layer: Any = fused_layer if fused and not architecture.pre_norm else packed_layer
    layer = partial(checkpoint, layer, use_reentrant=False) if recompute else layer
    for number, own_weights in enumerate(weights):
        window = config.sliding_window if types[number] == "sliding_attention" else 0
        own = settings._replace(layer=number, window=window)
        states = layer(states, own_weights, layout._replace(rotary=rotary.get(types[number])), own)
    states = states[:tokens]
    return encoder.final_norm(states.float()) if architecture.pre_norm else states


def packed_layer(states: Tensor, weights: LayerWeights[Any], layout: Layout, settings: LayerSettings) -> Tensor:
    """Attention and feed-forward net, each with dropout, residual and normalisation: (P, D) to (P, D)."""
    (tokens, width), dtype = states.shape, weights.norm2.dtype

    def normalise(values: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return values if weight is None else F.layer_norm(values, (width,), weight, bias, settings.epsilon)

    before = settings.pre_norm
    inputs = normalise(states.to(dtype), weights.norm1, weights.norm1_bias) if before else states
    qkv = _linear(inputs, weights.qkv, weights.qkv_bias).view(tokens, 3, settings.heads, width // settings.heads)
    attended = _linear(_attention(qkv, layout, settings).reshape(tokens, width), weights.out, weights.out_bias)
    states = states + _dropout(attended, settings.dropouts.attention_output, layout.seeds[3 * settings.layer + 1])
    if not before:
        states = normalise(states, weights.norm1, weights.norm1_bias)
    inputs = normalise(states.to(dtype), weights.norm2, weights.norm2_bias) if before else states
    inner = _linear(inputs, weights.up, weights.up_bias)
    if settings.gated:
        inner, gate = inner.chunk(2, dim=1)
        inner = _gelu(inner, settings.gelu) * gate
    else:
        inner = _gelu(inner, settings.gelu)
    output = _linear(F.dropout(inner, settings.dropouts.inner), weights.down, weights.down_bias)
    states = states + _dropout(output, settings.dropouts.output, layout.seeds[3 * settings.layer + 2])
    return states if before else normalise(states, weights.norm2, weights.norm2_bias)


def _gelu(values: Tensor, approximate: str) -> Tensor:
    """GELU of values (P, D), without oneDNN.

    On a CPU, PyTorch passes contiguous tensors to oneDNN, which keeps a compiled primitive for every number of tokens
    that it has seen: memory grows with every batch. A transposed view is computed by PyTorch itself, and faster.
    """
    return F.gelu(values.T, approximate=approximate).T


def _dropout(values: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Dropout; on a CPU, what is dropped follows from the seed."""
    if not rate or values.is_cuda:
        return F.dropout(values, rate)
    kept, factor = _draw_kept(values, rate, np.random.SFC64(int(seed)))
    return torch.where(kept, values * factor, 0.0)


def _draw_kept(like: Tensor, rate: float, random: np.random.SFC64) -> tuple[Tensor, float]:
    """Which values dropout keeps, and the factor of these; the rate is rounded to a multiple of 2⁻¹⁶.

    PyTorch draws one number after the other on a CPU, which took 30 % of the time of a training step.
    """
    dropped = round(rate * 2**16)
    drawn = random.random_raw(-(-like.numel() // 4)).view(np.uint16)[: like.numel()]
    return torch.from_numpy(drawn >= dropped).view(like.shape), 2**16 / max(2**16 - dropped, 1)


def _linear(inputs: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None) -> Tensor:
    return F.linear(inputs, weight, bias) if isinstance(weight, Tensor) else int8_linear(inputs, weight, bias)


def fused_layer(states: Tensor, weights: LayerWeights[Tensor], layout: Layout, settings: LayerSettings) -> Tensor:
    """`packed_layer` with fused kernels, for a GPU and a Triton that compiles them: (P, D) to (P, D)."""
    kernels, (tokens, width), first = _kernels(), states.shape, 3 * settings.layer
    qkv, states = kernels.LinearPass.apply(states, weights.qkv, weights.qkv_bias)
    qkv = qkv.view(tokens, 3, settings.heads, width // settings.heads)
    attended = _attention(qkv, layout, settings).view(tokens, width)
    norm = (weights.norm1, weights.norm1_bias, layout.seeds, first + 1)
    rest = (settings.dropouts.attention_output, settings.epsilon, torch.is_grad_enabled())
    states = kernels.AddNorm.apply(states, attended @ weights.out.T, weights.out_bias, *norm, *rest)
    if torch.is_grad_enabled():
        inner, states = kernels.LinearPass.apply(states, weights.up, None)
        inner = kernels.BiasGelu.apply(inner, weights.up_bias, settings.gelu)
    else:  # cuBLAS adds the bias and applies GELU's tanh form, which differs by less than bf16 rounds
        inner = torch._addmm_activation(weights.up_bias, states, weights.up.T, use_gelu=True)  # type: ignore[arg-type]
    norm = (weights.norm2, weights.norm2_bias, layout.seeds, first + 2)
    rest = (settings.dropouts.output, settings.epsilon, torch.is_grad_enabled())
    output: Tensor = kernels.AddNorm.apply(states, inner @ weights.down.T, weights.down_bias, *norm, *rest)
    return output


def list_tiles(bounds: Tensor, tokens: int) -> Tensor:
    """Document and first token of every tile (2, tiles), -1 for unused tiles; computed without synchronization."""
    count = (bounds.diff() + TILE - 1) // TILE
    last = count.cumsum(0)
    index = torch.arange(tokens // TILE + len(count), device=bounds.device)
    document = torch.searchsorted(last, index, right=True)
    used = document < len(count)
    document = document.clamp(max=len(count) - 1)
    first = bounds[document] + (index - (last - count)[document]) * TILE
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


def embed_words(encoder: Any, batch: Packed, dtype: torch.dtype) -> Tensor:
    """The word embedding of every token (P, D), in the precision that `_embed` reads."""
    table: Any = encoder.get_submodule(ARCHITECTURES[encoder.config.model_type].words)
    fused = batch.ids.is_cuda and dtype != torch.float32 and hasattr(encoder.embeddings, "position_embeddings")
    fused = fused and kernels_work()
    words: Tensor = _look_up(table, batch.ids, dtype) if fused else table(batch.ids)
    return words


def _embed(
    encoder: Any,
    architecture: Architecture,
    batch: Packed,
    words: Tensor,
    settings: LayerSettings,
    dtype: torch.dtype,
    fused: bool,
) -> Tensor:
    """The input of the first layer (P, D): words, positions and types, normalised."""
    states: Tensor
    part, norm, types = encoder.embeddings, encoder.get_submodule(architecture.embedding_norm), None
    if hasattr(part, "token_type_embeddings"):
        types = part.token_type_embeddings.weight[0]
    if not hasattr(part, "position_embeddings"):
        states = norm(words)
    elif fused:
        positions = _look_up(part.position_embeddings, batch.positions + first_position(encoder), dtype)
        types = torch.zeros_like(norm.bias) if types is None else types
        no_dropout = (batch.bounds, 0, 0.0, norm.eps)  # the seeds, here bounds, are not read
        states = _kernels().AddNorm.apply(positions, words.to(dtype), types, norm.weight, norm.bias, *no_dropout)
    else:
        positions = part.position_embeddings(batch.positions + first_position(encoder))
        states = norm(words + positions if types is None else words + types + positions)
    states = F.dropout(states, settings.dropouts.embedding)
    if hasattr(encoder, "embeddings_project"):
        states = encoder.embeddings_project(states.float())
    states = states.float() if architecture.pre_norm else states.to(dtype)
    return states


def _look_up(table: nn.Embedding, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows of an embedding table, in the precision of the matrix products: (P, D)."""
    padding = -1 if table.padding_idx is None else table.padding_idx
    rows: Tensor = _kernels().Embed.apply(table.weight, ids, padding, dtype)
    return rows


def _relative_bias(encoder: Any, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """MPNet's bias per head and bucket, which all layers share, and the bucket of each distance."""
    body: Any = getattr(encoder, "encoder", None)
    if not hasattr(body, "relative_attention_bias"):
        return None, None
    distances = torch.arange(-MAX_DISTANCE, MAX_DISTANCE + 1, device=device)
    return body.relative_attention_bias.weight.T, body.relative_position_bucket(distances)


def layer_weights(encoder: Any, dtype: torch.dtype) -> list[LayerWeights[Tensor]]:
    """The weights of all layers, cast together to the precision of the matrix products."""
    architecture = ARCHITECTURES[encoder.config.model_type]
    layers = encoder.get_submodule(architecture.layers)
    names = (
        *architecture.query_key_value, architecture.attention_output, architecture.up, architecture.down,
        architecture.attention_norm, architecture.output_norm,
    )  # fmt: skip
    modules = [layer.get_submodule(name) for layer in layers for name in names]
    weights: list[Any] = []
    for module in modules:
        # adapted weights are cast one by one: there is never an fp32 copy, or an fp32 gradient, of all of them
        weight = adapted_weight(module).to(dtype) if hasattr(module, "lora_A") else getattr(module, "weight", None)
        weights += [weight, getattr(module, "bias", None)]
    size, split = 2 * len(names), 2 * len(architecture.query_key_value)
    groups: list[list[Any]] = []  # query, key and value are one group
    for start in range(0, len(weights), size):
        own = weights[start : start + size]
        groups += [own[0:split:2], own[1:split:2], *([weight] for weight in own[split:])]
    needs_cast = [all(weight is not None and weight.dtype != dtype for weight in group) for group in groups]
    given = list(compress(groups, needs_cast))
    lengths = [[len(weight) for weight in group] for group in given]
    cast = iter(_Cast.apply(dtype, lengths, *chain(*given)) if given else ())  # type: ignore[no-untyped-call]
    joined = [next(cast) if needed else _join(group, dtype) for group, needed in zip(groups, needs_cast, strict=True)]
    count = len(LayerWeights._fields)
    return [LayerWeights(*joined[start : start + count]) for start in range(0, len(joined), count)]


def _join(group: list[Any], dtype: torch.dtype) -> Any:
    """The weights of a group below each other."""
    return group[0] if len(group) == 1 else torch.cat([weight.to(dtype) for weight in group])


@torch.no_grad()
def int8_weights(encoder: Any) -> list[LayerWeights[Int8Matrix]]:
    """The weights of all layers, with matrices in 8 bits and everything else in fp32; for prediction.

    Rounding the inputs of the values of attention caused most of the error of the vectors, so these are refined.
    """
    gated, found = ARCHITECTURES[encoder.config.model_type].gated, []
    for weights in layer_weights(encoder, torch.float32):
        qkv = quantise(weights.qkv, refined=len(weights.qkv) // 3)
        down = quantise(weights.down, least=None if gated else GELU_MINIMUM)
        rest = {"out": quantise(weights.out), "up": quantise(weights.up)}
        found.append(LayerWeights[Int8Matrix](**weights._asdict() | rest | {"qkv": qkv, "down": down}))
    return found


_prepared: ContextVar[Weights | None] = ContextVar("prepared weights", default=None)


@contextmanager
def use_weights(weights: Weights | None) -> Iterator[None]:
    """Use these weights, prepared for many passes, instead of those of the encoder; in this thread."""
    token = _prepared.set(weights)
    try:
        yield
    finally:
        _prepared.reset(token)


def prepared_weights() -> Weights | None:
    """The weights of `use_weights`."""
    return _prepared.get()


class _Cast(torch.autograd.Function):
    """Cast many tensors to another precision at once, and their gradients back; those of a group become one tensor."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, lengths: list[list[int]], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.lengths = lengths
        cast: list[Tensor] = []
        parts: list[Tensor] = []
        first = 0
        for own in lengths:
            shape = sum(own), *tensors[first].shape[1:]
            cast.append(torch.empty(shape, dtype=dtype, device=tensors[first].device))
            parts += torch.split(cast[-1], own)
            first += len(own)
        torch._foreach_copy_(parts, list(tensors))
        return tuple(cast)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        given = [
            part for gradient, own in zip(gradients, ctx.lengths, strict=True) for part in torch.split(gradient, own)
        ]
        back = [torch.empty_like(part, dtype=torch.float32) for part in given]
        torch._foreach_copy_(back, given)
        return None, None, *back


def _attention(qkv: Tensor, layout: Layout, settings: LayerSettings) -> Tensor:
    """Softmax attention inside each document: (P, 3, H, W) to (P, H, W)."""
    if layout.rotary is not None:
        qkv = _rotate(qkv, *layout.rotary)
    rate = settings.dropouts.attention
    if qkv.is_cuda and qkv.dtype != torch.float32 and kernels_work():
        places = (layout.bounds, layout.tiles, layout.seeds, 3 * settings.layer, rate)
        bias = (layout.bias, *layout.blocks, settings.window)
        found: Tensor = _kernels().PackedAttention.apply(qkv, *places, *bias)
        return found
    query, key, value = qkv.unbind(1)
    if qkv.is_cuda and layout.bias is None and qkv.dtype != torch.float32:
        # the operator behind torch.nn.attention.varlen_attn, which has no dropout
        bounds, longest, window = layout.bounds, settings.longest, settings.window or None
        found = torch.ops.aten._flash_attention_forward(
            query, key, value, bounds, bounds, longest, longest, rate, False, False,
            window_size_left=window, window_size_right=window,
        )[0]  # fmt: skip
        return found
    lengths = layout.bounds.diff().tolist()
    mask = _attention_mask(layout, settings, max(lengths), qkv)
    random = np.random.SFC64(int(layout.seeds[3 * settings.layer])) if rate and not qkv.is_cuda else None
    attended = []
    for length, document in zip(lengths, torch.split(qkv, lengths), strict=True):
        query, key, value = document.permute(1, 2, 0, 3)[:, None]  # (1, H, T, W)
        own = None if mask is None else mask[..., :length, :length]
        if random is None:
            attended.append(F.scaled_dot_product_attention(query, key, value, own, rate))
        else:
            attended.append(_DroppedAttention.apply(query, key, value, own, rate, random))  # type: ignore[no-untyped-call]
    return torch.cat(attended, dim=2)[0].transpose(0, 1)


class _DroppedAttention(torch.autograd.Function):
    """`scaled_dot_product_attention` with dropout, for a CPU.

    For the gradients it keeps the attention weights and what was dropped: half of what PyTorch's own operations keep.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        rate: float,
        random: np.random.SFC64,
    ) -> Tensor:
        ctx.scale = query.shape[-1] ** -0.5
        scores = (query * ctx.scale) @ key.transpose(-2, -1)
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        weights = scores.softmax(dim=-1)
        kept, ctx.factor = _draw_kept(weights, rate, random)
        ctx.save_for_backward(query, key, value, weights, kept, attn_mask)
        found: Tensor = (weights * kept) @ (value * ctx.factor)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, kept, attn_mask = ctx.saved_tensors
        grad = grad * ctx.factor
        grad_value = (weights * kept).transpose(-2, -1) @ grad
        grad_weights = (grad @ value.transpose(-2, -1)) * kept
        scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_mask = scores.sum_to_size(attn_mask.shape) if ctx.needs_input_grad[3] else None
        scaled = scores * ctx.scale
        return scaled @ key, scaled.transpose(-2, -1) @ query, grad_value, grad_mask, None, None


def _attention_mask(layout: Layout, settings: LayerSettings, longest: int, like: Tensor) -> Tensor | None:
    """What is added to attention scores in a document of `longest` tokens: (H, T, T), or which are allowed (T, T)."""
    if layout.bias is None and not settings.window:
        return None
    index = torch.arange(longest, device=like.device)
    distance = index - index[:, None]  # key position - query position
    if layout.bias is None or layout.buckets is None:
        return distance.abs() <= settings.window
    buckets = layout.buckets[distance.clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE]
    return layout.bias[:, buckets].to(like.dtype)


def _rotate(qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding of queries and keys: (P, 3, H, W) to (P, 3, H, W)."""
    both = qkv[:, :2].float()
    one, other = both.chunk(2, dim=3)
    turned = both * cosine[:, None, None] + torch.cat([-other, one], dim=3) * sine[:, None, None]
    return torch.cat([turned.to(qkv.dtype), qkv[:, 2:]], dim=1)
