"""The state of a training and its steps: padded batches by default, packed batches on a GPU.

A `Session` holds model, optimiser and progress. A `StepRunner` takes optimiser steps on a split; `PackedSteps` and
`hill.train.cuda_graphs.GraphedSteps` are faster versions of it for GPUs. The `NonFiniteGuard` detects steps whose loss
or gradient is infinite or NaN.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hill.data.batches import DeviceDocuments, collate, move, to_device, training_order
from hill.data.tokens import Tokens
from hill.encoders import Transformer
from hill.errors import ConfigError, HillError
from hill.models import HTCModel
from hill.models.inference import Inference
from hill.train.config import TrainConfig
from hill.train.distributed import DistributedContext, DistributedInference, current_context
from hill.train.optim import make_optimiser
from hill.types import Batch, IntArray, Output, Packed

CHECK_INTERVAL = 10
"""Steps between two checks of a GPU for non-finite steps: each check waits for the GPU."""
MAX_SKIPPED = 20
"""Consecutive non-finite steps after which training stops even if such steps may be skipped."""


@dataclass(frozen=True)
class Split:
    """Tokens and labels (documents, L) of some documents, and their ids if they have any."""

    tokens: Tokens
    labels: csr_array[Any]
    ids: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass
class Progress:
    """How far a training has come."""

    epoch: int = 0
    """Completed epochs."""
    position: int = 0
    """Completed batches of the current epoch."""
    step: int = 0
    best: float = -math.inf
    best_epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0
    """Steps skipped because they were not finite."""


class NonFiniteGuard:
    """Stops a training, or counts skipped steps, when losses or gradients are infinite or NaN.

    Args:
        skip: whether such steps are skipped and counted instead of raising.
        interval: check after this many steps; each check waits for the device.
    """

    def __init__(self, skip: bool, interval: int = CHECK_INTERVAL) -> None:
        self._skip = skip
        self._interval = interval
        self._consecutive = 0
        self._unchecked: list[tuple[int, IntArray, Tensor, Tensor]] = []

    def record(self, progress: Progress, data: Split, documents: IntArray, result: "StepResult") -> None:
        """Record the latest step and the documents of its batch."""
        self._unchecked.append((progress.step, documents, result.loss, result.nonfinite))
        if len(self._unchecked) >= self._interval:
            self.check(progress, data)

    def check(self, progress: Progress, data: Split) -> None:
        """Count the recorded steps that were skipped, or raise if steps must not be skipped."""
        steps, self._unchecked = self._unchecked, []
        flags = torch.stack([nonfinite for *_, nonfinite in steps]).tolist() if steps else []
        for (step, documents, loss, _), flag in zip(steps, flags, strict=True):
            self._consecutive = self._consecutive + 1 if flag else 0
            progress.skipped += bool(flag)
            if flag and not self._skip:
                raise HillError(
                    f"step {step} is not finite (loss {loss.item():g}) on the documents {_ids(data, documents)}; "
                    "lower train.lr and train.encoder_lr, set train.clip=1 or train.precision=fp32, or use --plain; or "
                    "continue without such steps with --resume --set train.skip_nonfinite=true"
                )
            if self._consecutive == MAX_SKIPPED:
                raise HillError(
                    f"{MAX_SKIPPED} steps in a row are not finite, the last on the documents {_ids(data, documents)}; "
                    "lower train.lr and train.encoder_lr, or set train.precision=fp32"
                )


def _ids(data: Split, documents: IntArray) -> str:
    return ", ".join(str(data.ids[index] if data.ids else index) for index in documents.tolist())


@dataclass
class Session:
    """A model on its device with its optimiser and progress."""

    model: HTCModel
    config: TrainConfig
    device: torch.device
    progress: Progress = field(default_factory=Progress)
    context: DistributedContext = field(default_factory=current_context)

    def __post_init__(self) -> None:
        if self.config.stages == "two" and not self.model.stages:
            raise ConfigError(
                "train.stages is 'two', but this model has no contrastive loss that could be trained first; "
                "set train.stages=one, or use model hill with model.contrast above 0"
            )
        self.device = self.context.device or self.device
        kind = Inference if self.context.world_size == 1 else DistributedInference
        self.inference = kind(self.model, self.device, self.config.inference_precision)
        on_cpu, text = self.device.type == "cpu", self.model.text
        if self.config.plain:
            text.packs = False
        packed = self.inference.packed
        if isinstance(text, Transformer) and self.config.recompute:
            text.recompute = packed
            if not packed:
                text.encoder.gradient_checkpointing_enable()  # type: ignore[operator]
        self.guard = NonFiniteGuard(self.config.skip_nonfinite, 1 if on_cpu else CHECK_INTERVAL)
        self.optimiser = make_optimiser(self.model, self.config, packed and not on_cpu)


@dataclass(frozen=True)
class StepResult:
    """The loss of a step and its parts, on the device; `nonfinite` is 1 if the step was not taken."""

    loss: Tensor
    parts: dict[str, Tensor]
    nonfinite: Tensor


class StepRunner:
    """Takes optimiser steps on padded batches."""

    def __init__(self, session: Session, data: Split) -> None:
        self.session = session
        self.data = data
        self.model = session.context.wrap_model(session.model, self.has_unused_weights)

    def set_stage(self, stage: str) -> None:
        """Train this stage of the model from here on."""
        self.session.model.stage = stage

    def order(self, epoch: int) -> list[IntArray]:
        """The documents of each batch of an epoch."""
        config = self.session.config
        return training_order(len(self.data), config.batch_size, config.seed, epoch)

    def step(self, group: list[IntArray]) -> StepResult:
        """Take one step on the accumulated gradients of these batches."""
        context, buffers, outputs = self.session.context, self.copy_buffers(), []
        for documents in group:
            is_last = documents is group[-1]
            with context.global_batch(documents), context.gradient_sync(self.model, is_last):
                outputs.append(self.backward(self.batch(context.shard(documents)), len(group)))
        loss = torch.stack([loss_of(output).detach() for output in outputs]).mean()
        parts = {name: part.detach() for name, part in outputs[-1].parts.items()}
        return StepResult(loss, parts, self.update(loss, buffers))

    def has_unused_weights(self) -> bool:
        """Whether some weights get no gradient in some stage, found by a trial with a copy of the model."""
        if self.session.config.first_epochs:
            return True
        model = deepcopy(self.session.model).train()
        device = self.session.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []), self.session.inference.autocast():
            loss = loss_of(model(self.batch(np.arange(1))))
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        return any(grad is None for grad in torch.autograd.grad(loss, weights, allow_unused=True))

    def batch(self, documents: IntArray) -> Batch | Packed:
        """These documents on the device."""
        model, data = self.session.model, self.data
        return to_device(
            collate(data.tokens, data.labels, documents, model.text.pad, model.listed), self.session.device
        )

    def backward(self, batch: Batch | Packed, n_batches: int) -> Output:
        """Add the gradients of a batch, divided by the number of batches of the step."""
        with self.session.inference.tf32():
            with self.session.inference.autocast():
                output: Output = self.model(batch)
            (loss_of(output) / n_batches).backward()  # type: ignore[no-untyped-call]
        return output

    def copy_buffers(self) -> list[tuple[Tensor, Tensor]]:
        """The saved buffers, which forward passes change, with a copy of each; empty if steps are never skipped."""
        if not self.session.config.skip_nonfinite:
            return []
        saved = self.session.model.state_dict()
        return [(buffer, buffer.clone()) for name, buffer in self.session.model.named_buffers() if name in saved]

    def update(self, loss: Tensor, buffers: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Step the optimiser; if loss or gradients are not finite, change nothing and return 1.

        A fused optimiser decides this on the device, so that nothing waits for it.
        """
        model, clip = self.session.model, self.session.config.clip
        optimiser: Any = self.session.optimiser
        norm = get_total_norm([weight.grad for weight in model.parameters() if weight.grad is not None])
        nonfinite = 1 - (norm.isfinite() & loss.isfinite()).float()
        if self.session.context.world_size > 1:
            dist.all_reduce(nonfinite, dist.ReduceOp.MAX)
        if clip:
            clip_grads_with_norm_(model.parameters(), clip, norm)
        if optimiser.param_groups[0]["fused"]:
            optimiser.found_inf = nonfinite
            optimiser.step()
        elif not nonfinite:
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        for buffer, copy in buffers:
            buffer.copy_(torch.where(nonfinite > 0, copy, buffer))
        return nonfinite


class PackedSteps(StepRunner):
    """Takes optimiser steps on packed batches; all documents stay in the memory of the device."""

    def __init__(self, session: Session, data: Split) -> None:
        model = session.model
        self.resident = DeviceDocuments(data.tokens, data.labels, model.text.pad, session.device, model.listed)
        super().__init__(session, data)

    def batch(self, documents: IntArray) -> Packed:
        """These documents, one after the other."""
        return self.resident.packed(self.to_device(documents), self.resident.size(documents))

    def to_device(self, documents: IntArray) -> Tensor:
        """The indices of documents on the device."""
        return move(torch.from_numpy(documents), self.session.device)


def loss_of(output: Output) -> Tensor:
    """The loss of an output that was computed with labels."""
    assert output.loss is not None
    return output.loss
