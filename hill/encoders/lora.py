"""LoRA: train low-rank adapters on the linear layers of an encoder instead of its weights.

The weight of a layer becomes W + 2 B A, with a frozen W (out, in) and trained B (out, rank) and A (rank, in). B starts
at 0: training starts from the pretrained encoder. peft creates the adapters and runs them in the encoder's own forward.
After training they are merged into the weights, and the model does not need peft.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from hill.encoders.base import TextEncoder
from hill.errors import ConfigError, need

ADAPTER = "default"
SCALE = 2
"""The factor of B A, which is alpha / rank."""


def add_adapters(text: TextEncoder, rank: int) -> None:
    """Freeze the weights of an encoder and add an adapter of this rank to each linear layer; 0 changes nothing."""
    if not rank:
        return
    if not text.pretrained:
        raise ConfigError(f"train.lora is {rank}, but the text encoder is not pretrained; set it to 0")
    peft, encoder = need("peft", "lora", "train.lora"), cast(nn.Module, text.encoder)
    linear = [name for name, module in encoder.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ConfigError(f"train.lora is {rank}, but the encoder has no linear layers; set it to 0")
    config = peft.LoraConfig(r=rank, lora_alpha=SCALE * rank, target_modules=linear)
    peft.inject_adapter_in_model(config, encoder, ADAPTER)


def is_adapted(module: nn.Module) -> bool:
    """Whether this is a linear layer with an adapter."""
    return hasattr(module, "lora_A")


def adapted_weight(layer: Any) -> Tensor:
    """The weight of a linear layer with its adapter added (out, in)."""
    a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    return torch.addmm(layer.base_layer.weight, b, a, alpha=layer.scaling[ADAPTER])


@torch.no_grad()
def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state dict that a model has once its adapters are merged; the model itself does not change."""
    weights = model.state_dict()
    for name, layer in _adapted_layers(model):
        own = {key: weights.pop(key) for key in list(weights) if key.startswith(f"{name}.")}
        weights[f"{name}.weight"] = adapted_weight(layer)
        if f"{name}.base_layer.bias" in own:
            weights[f"{name}.bias"] = own[f"{name}.base_layer.bias"]
    return weights


@torch.no_grad()
def merge_adapters(text: TextEncoder) -> None:
    """Add the adapters of an encoder, if it has any, to its weights and remove them."""
    layers = list(_adapted_layers(text))
    for name, layer in layers:
        layer.base_layer.weight.copy_(adapted_weight(layer))
        text.set_submodule(name, layer.base_layer)
    if layers:
        del cast(Any, text.encoder).peft_config


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The linear layers that have an adapter, by name."""
    return ((name, module) for name, module in model.named_modules() if is_adapted(module))
