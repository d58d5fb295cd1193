"""Shards: weights of a text encoder of which each rank holds its part, with its gradients and its optimiser.

What is sharded is known by `full_tensor`, as importing its type takes seconds that a training without has no use for.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hill.errors import ConfigError
from hill.train.launcher import Sharding


def is_sharded(tensor: Tensor) -> bool:
    """Whether other ranks hold the other parts of a tensor."""
    return hasattr(tensor, "full_tensor")


def shard(encoder: nn.Module, wanted: Sharding, device: torch.device, whole: Collection[nn.Module] = ()) -> None:
    """Let each rank hold its part of an encoder's weights, which all ranks have; not of these modules in it.

    A layer is whole while it computes: it is gathered before and given back after, in forward and backward pass alike.
    """
    fsdp = import_module("torch.distributed.fsdp")
    mesh = import_module("torch.distributed.device_mesh").init_device_mesh(device.type, (dist.get_world_size(),))
    ignored = {weight for module in whole for weight in module.parameters()}
    options = {"mesh": mesh, "reshard_after_forward": not wanted.keeps, "ignored_params": ignored}
    for layer in _layers(encoder, wanted.layers):
        fsdp.fully_shard(layer, **options)
    fsdp.fully_shard(encoder, **options)


def _layers(encoder: nn.Module, names: tuple[str, ...] | None) -> list[nn.Module]:
    """The modules of these classes, those within others first, or the elements of the outermost lists of modules."""
    if names is None:
        return list(_listed(encoder))
    modules = [module for module in encoder.modules() if module is not encoder]
    kinds = {type(module).__name__ for module in modules}
    if unknown := sorted({*names} - kinds):
        raise ConfigError(
            f"accelerate is configured with fsdp_transformer_layer_cls_to_wrap = {','.join(names)}, but the encoder "
            f"has no {unknown[0]}; expected some of {', '.join(sorted(kinds))}, or leave it out"
        )
    return [module for module in reversed(modules) if type(module).__name__ in names]


def _listed(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _listed(child)


@contextmanager
def reading_shards(module: nn.Module) -> Iterator[None]:
    """No gradients, and what was gathered is given back; not in inference mode, as passes with gradients reuse it."""
    with torch.no_grad():
        yield
    parts: list[Any] = [part for part in module.modules() if hasattr(part, "reshard")]
    for part in parts:
        part.reshard()


def without_weights(module: nn.Module) -> nn.Module:
    """A module like this one that has shapes in place of weights."""
    shapes = {id(weight): _shape_of(weight) for weight in module.parameters()}
    return deepcopy(module, dict(shapes))


def _shape_of(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)


def with_room(module: nn.Module, device: torch.device) -> nn.Module:
    """A module without weights, with room for them on a device."""
    room = {id(weight): torch.empty_like(weight, device=device) for weight in module.parameters()}
    named = module.named_parameters(remove_duplicate=False)
    module.load_state_dict({name: room[id(weight)] for name, weight in named}, strict=False, assign=True)
    return module.to(device)


def gathered(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """These tensors, whole, for a rank that keeps them; every rank must gather the same ones together."""
    found: dict[str, Any] = {}
    for name, value in tensors.items():
        whole = value.full_tensor().cpu() if is_sharded(value) else value  # type: ignore[attr-defined]
        if keep:
            found[name] = whole
    return found


def part_of(value: Tensor, like: Tensor | None) -> Tensor:
    """This rank's part of a tensor that goes with a sharded one of its shape; any other as it is."""
    if like is None or not is_sharded(like) or value.shape != like.shape:
        return value
    where: Any = like
    tensor = import_module("torch.distributed.tensor")
    part: Tensor = tensor.distribute_tensor(
        value.to(like.device), where.device_mesh, where.placements, src_data_rank=None
    )
    return part


def norm_of(grads: Iterable[Tensor]) -> Tensor:
    """The norm of all gradients together, of which those of shards are spread over ranks."""
    parts: list[Any] = list(grads)
    norm = get_total_norm([grad for grad in parts if not is_sharded(grad)])
    shards = [grad.to_local() for grad in parts if is_sharded(grad)]
    if not shards:
        return norm
    square = get_total_norm(shards).square()
    dist.all_reduce(square)
    return (norm.square() + square).sqrt()


def clip_grads(weights: Iterable[Tensor], most: float, norm: Tensor) -> None:
    """Scale gradients that have this norm together down to at most another; shards and others, each at once."""
    parts = list(weights)
    for sharded in (False, True):
        clip_grads_with_norm_([weight for weight in parts if is_sharded(weight) == sharded], most, norm)
