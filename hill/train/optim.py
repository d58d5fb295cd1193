"""The optimiser: Adam in groups, the pretrained text encoder that warms up, everything else, perhaps the classifier."""

from typing import Any

import torch
from torch import Tensor, nn

from hill.errors import ConfigError
from hill.models import HTCModel
from hill.nn import TextEncoder
from hill.train.config import TrainConfig
from hill.train.shards import is_sharded
from hill.types import MANY_LABELS

EPSILON = 1e-8
SMALL_EPSILON = 1e-12
"""With many labels: the loss is a mean over them, so that gradients of a label's own weights come near 1e-8."""


def make_optimiser(model: HTCModel, config: TrainConfig, graphs: bool = False) -> torch.optim.Optimizer:
    """Adam over the weights that are trained, a pretrained encoder first; any other is like the rest."""
    parts = _parts(model, bool(config.classifier_lr))
    device = next(model.parameters()).device
    rates = [torch.tensor(rate, device=device) if graphs else rate for rate in _rates(config, 1.0)]
    groups = [{"params": part, "lr": rate} for part, rate in zip(parts, rates, strict=True)]
    alike = len({is_sharded(weight) for weight in parts[0]}) < 2  # a fused step is of shards alone, or of others
    fused = device.type == "cuda" and not config.plain and alike
    epsilon = EPSILON if sum(map(len, model.levels)) <= MANY_LABELS else SMALL_EPSILON
    return torch.optim.AdamW(groups, eps=epsilon, weight_decay=config.weight_decay, fused=fused, capturable=graphs)


def _parts(model: HTCModel, apart: bool) -> list[list[nn.Parameter]]:
    """The weights of a pretrained encoder, of the rest and, where it has a rate of its own, of the classifier."""
    first, last = "text." if model.text.pretrained else "-", "head" if apart else "-"
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    encoder = [weight for name, weight in trained if name.startswith(first)]
    rest = [weight for name, weight in trained if not name.startswith((first, last))]
    return [encoder, rest, *([[weight for name, weight in trained if name.startswith(last)]] if apart else [])]


def _rates(config: TrainConfig, rising: float) -> list[float]:
    """The rates of the parts, of which the encoder's is rising."""
    rates = [config.encoder_lr * rising, config.lr]
    return [*rates, config.classifier_lr] if config.classifier_lr else rates


def set_rates(optimiser: torch.optim.Optimizer, config: TrainConfig, step: int, steps: int) -> float:
    """Set the rates of a step, the first being 1; returns the encoder's."""
    warmup = config.warmup * steps if config.warmup < 1 else config.warmup
    left = 1.0 if config.schedule == "constant" else max(0.0, 1 - (step - 1) / steps)
    rising = min(1.0, step / warmup) if warmup else 1.0
    rates = [rate * left for rate in _rates(config, rising)]
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # graphs read the rate where it lies
        else:
            group["lr"] = rate
    return rates[0]


def freeze_layers(text: TextEncoder, count: int) -> None:
    """Keep the embeddings and this many layers from the bottom as they are."""
    if not count:
        return
    if not text.pretrained:
        raise ConfigError(f"train.freeze is {count}, but the text encoder is not a pretrained one; set it to 0")
    parts: Any = text.encoder
    frozen = [parts.embeddings, *parts.encoder.layer[:count]]
    for part in frozen:
        for weight in part.parameters():
            weight.requires_grad_(False)
