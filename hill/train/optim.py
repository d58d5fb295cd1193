"""The optimiser and its learning rates: AdamW with groups for encoder, classifier and everything else."""

from typing import Any

import torch
from torch import Tensor

from hill.encoders import TextEncoder
from hill.errors import ConfigError
from hill.models import HTCModel
from hill.train.config import TrainConfig
from hill.types import MANY_LABELS

EPSILON = 1e-8
MANY_LABELS_EPSILON = 1e-12
"""With many labels the loss is a mean over them, so that gradients of the weights of one label come near 1e-8."""


def make_optimiser(model: HTCModel, config: TrainConfig, graphs: bool = False) -> torch.optim.Optimizer:
    """AdamW over the trainable weights: a pretrained encoder, everything else, and perhaps the classifier.

    With `graphs`, learning rates are tensors that CUDA graphs read.
    """
    encoder = "text." if model.text.pretrained else "-"
    classifier = "head" if config.classifier_lr else "-"
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    parts = [
        [weight for name, weight in trained if name.startswith(encoder)],
        [weight for name, weight in trained if not name.startswith((encoder, classifier))],
    ]
    if config.classifier_lr:
        parts.append([weight for name, weight in trained if name.startswith(classifier)])
    device = next(model.parameters()).device
    rates = [torch.tensor(rate, device=device) if graphs else rate for rate in _base_rates(config)]
    groups = [{"params": part, "lr": rate} for part, rate in zip(parts, rates, strict=True)]
    fused = device.type == "cuda" and not config.plain
    epsilon = EPSILON if sum(map(len, model.levels)) <= MANY_LABELS else MANY_LABELS_EPSILON
    return torch.optim.AdamW(groups, eps=epsilon, weight_decay=config.weight_decay, fused=fused, capturable=graphs)


def set_rates(optimiser: torch.optim.Optimizer, config: TrainConfig, step: int, steps: int) -> float:
    """Set the learning rates of a step (the first is 1) and return that of the encoder."""
    warmup = config.warmup * steps if config.warmup < 1 else config.warmup
    decay = 1.0 if config.schedule == "constant" else max(0.0, 1 - (step - 1) / steps)
    encoder_rate, *other_rates = _base_rates(config)
    encoder_rate *= min(1.0, step / warmup) if warmup else 1.0
    rates = [rate * decay for rate in (encoder_rate, *other_rates)]
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # in place: CUDA graphs read this tensor
        else:
            group["lr"] = rate
    return rates[0]


def _base_rates(config: TrainConfig) -> list[float]:
    """The learning rates of the parameter groups before warm-up and decay."""
    return [config.encoder_lr, config.lr, *([config.classifier_lr] if config.classifier_lr else [])]


def freeze_layers(text: TextEncoder, count: int) -> None:
    """Freeze the embeddings and the first layers of the encoder."""
    if not count:
        return
    if not text.pretrained:
        raise ConfigError(f"train.freeze is {count}, but the text encoder is not pretrained; set it to 0")
    encoder: Any = text.encoder
    for part in (encoder.embeddings, *encoder.encoder.layer[:count]):
        for weight in part.parameters():
            weight.requires_grad_(False)
