"""What Accelerate's launcher was configured for: it tells that to the processes it starts by their environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from hill.errors import ConfigError

Value = TypeVar("Value")
FSDP = "ACCELERATE_USE_FSDP"
UNKNOWN = ("DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")
"""Ways to spread a model over ranks that Accelerate knows and training does not."""
STRATEGIES: Mapping[str, tuple[str, Mapping[str, bool]]] = {
    "1": ("fsdp_sharding_strategy", {"full_shard": False, "shard_grad_op": True}),
    "2": ("fsdp_reshard_after_forward", {"true": False, "false": True}),
}
"""By version of the configuration, the option that decides how long gathered weights are kept, and what it may say."""
KNOWN = {
    "fsdp_offload_params": ("false",),
    "fsdp_auto_wrap_policy": ("transformer_based_wrap", "no_wrap"),
    "fsdp_backward_prefetch": ("backward_pre",),
    "fsdp_forward_prefetch": ("false",),
    "fsdp_state_dict_type": ("full_state_dict",),
    "fsdp_activation_checkpointing": ("false",),
    "fsdp_ignored_modules": (),
}
"""Other options that would change what is done, and what they may say."""
RECOMPUTE = "fsdp_activation_checkpointing"


@dataclass(frozen=True)
class Sharding:
    """How ranks share the weights of a text encoder."""

    keeps: bool = False
    """Whether weights that were gathered for a forward pass stay until the backward pass."""
    layers: tuple[str, ...] | None = None
    """Classes of what is gathered at a time; none of them for the whole encoder at once, None for its own layers."""


def read_sharding() -> Sharding | None:
    """How the launcher wants the text encoder to be sharded, if it does; an error if it wants what there is not."""
    for name in UNKNOWN:
        if _is_on(f"ACCELERATE_USE_{name}"):
            raise ConfigError(
                f"accelerate is configured to use {name}, which training does not support; configure it without, or "
                "with FSDP where the text encoder is large"
            )
    if not _is_on(FSDP):
        return None
    for option, values in KNOWN.items():
        _meaning(option, dict.fromkeys(values, True))
    option, keeps = STRATEGIES[_meaning("fsdp_version", {"1": "1", "2": "2"}) or "1"]
    return Sharding(bool(_meaning(option, keeps)), _layers())


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("true", "1")


def _meaning(option: str, known: Mapping[str, Value]) -> Value | None:
    """What the value of an option stands for; None where it has none."""
    value = os.environ.get(option.upper(), "").lower()
    if not value or value in known:
        return known.get(value)
    expected = f"expected {' or '.join(known)}" if known else "leave it out"
    remedy = "set train.recompute=true instead" if option == RECOMPUTE else expected
    raise ConfigError(f"accelerate is configured with {option} = {value}, which training does not support; {remedy}")


def _layers() -> tuple[str, ...] | None:
    policy, names = (os.environ.get(name, "") for name in ("FSDP_AUTO_WRAP_POLICY", "FSDP_TRANSFORMER_CLS_TO_WRAP"))
    if policy.lower() == "no_wrap":
        return ()
    return tuple(name.strip() for name in names.split(",")) if names else None
