"""The optimiser: Adam with two groups, the text encoder that warms up and everything else."""

from typing import Any

import torch
from torch import nn

from hill.models import HTCModel
from hill.train.config import TrainConfig


def make_optimiser(model: HTCModel, config: TrainConfig) -> torch.optim.Optimizer:
    """Adam over the weights that are trained, encoder first."""
    encoder = [weight for name, weight in model.named_parameters() if name.startswith("text.") and weight.requires_grad]
    rest = [weight for name, weight in model.named_parameters() if not name.startswith("text.")]
    groups = [{"params": encoder, "lr": config.encoder_lr}, {"params": rest, "lr": config.lr}]
    return torch.optim.AdamW(groups, weight_decay=config.weight_decay)


def set_rates(optimiser: torch.optim.Optimizer, config: TrainConfig, step: int, steps: int) -> float:
    """Set the rates of a step, the first being 1; returns the encoder's."""
    warmup = config.warmup * steps if config.warmup < 1 else config.warmup
    left = 1.0 if config.schedule == "constant" else max(0.0, 1 - (step - 1) / steps)
    rising = min(1.0, step / warmup) if warmup else 1.0
    encoder, rest = optimiser.param_groups
    encoder["lr"], rest["lr"] = config.encoder_lr * rising * left, config.lr * left
    return float(encoder["lr"])


def freeze_layers(encoder: nn.Module, count: int) -> None:
    """Keep the embeddings and this many layers from the bottom as they are."""
    if not count:
        return
    parts: Any = encoder
    frozen = [parts.embeddings, *parts.encoder.layer[:count]]
    for part in frozen:
        for weight in part.parameters():
            weight.requires_grad_(False)
