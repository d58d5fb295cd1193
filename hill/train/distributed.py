"""Distributed training: several processes ("ranks") train one model, each on its shard of every batch."""

import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from hill.errors import ConfigError, HillError, need
from hill.io import lock_folder
from hill.models import HTCModel
from hill.models.inference import Inference
from hill.models.layers import BatchShards, all_gather, sharded_batch
from hill.types import IntArray, Output

Value = TypeVar("Value")

LOST_RANK_WORDS = ("gloo", "nccl", "connection", "peer", "timed out")
"""Words in the error messages of a backend that lost another process."""
UNSUPPORTED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "PARALLELISM_CONFIG")
"""Features of Accelerate that training does not support."""
REMEDY = "start the same command with --resume, on any number of ranks, to continue from the last checkpoint"


class Stopped(KeyboardInterrupt):
    """A signal stopped a training that can be resumed; a KeyboardInterrupt, so that `except Exception` ignores it."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + signal_number


@dataclass(frozen=True)
class DistributedContext:
    """This process among those that train one model; in a single process every method is the identity."""

    rank: int = 0
    world_size: int = 1
    device: torch.device | None = None
    """The device of this rank, if there are several ranks."""
    accelerator: Any = None

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes and prints."""
        return self.rank == 0

    def _splits(self, documents: IntArray) -> bool:
        """Whether ranks split a batch; a small one is read by every rank, and all gradients are equal."""
        return 1 < self.world_size <= len(documents)

    def shard(self, documents: IntArray) -> IntArray:
        """The documents of a batch that this rank reads; all of them if there are fewer documents than ranks."""
        return np.array_split(documents, self.world_size)[self.rank] if self._splits(documents) else documents

    def global_batch(self, documents: IntArray) -> AbstractContextManager[None]:
        """A context in which losses and BatchNorm are computed over the batch of all ranks."""
        if not self._splits(documents):
            return sharded_batch(None)
        sizes = [len(shard) for shard in np.array_split(documents, self.world_size)]
        return sharded_batch(BatchShards(sizes, self.rank))

    def wrap_model(self, model: HTCModel, has_unused_weights: Callable[[], bool]) -> Any:
        """The model with gradients that are averaged over ranks.

        `has_unused_weights` tells whether some weights may get no gradient; DDP then looks for them in every step.
        """
        if self.world_size == 1:
            return model
        self.broadcast_weights(model)
        self.accelerator.ddp_handler.find_unused_parameters = has_unused_weights()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch renames broadcast_buffers
            return self.accelerator.prepare_model(_LossModule(model))

    def seed_step(self, seed: int, step: int) -> None:
        """Seed the dropout of a step: different per rank, the same in a resumed training."""
        if self.world_size > 1:
            state = np.random.SeedSequence([seed, step, self.rank]).generate_state(1, np.uint64)
            torch.manual_seed(int(state[0]))

    def broadcast_object(self, value: Value) -> Value:
        """The value of the main rank."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, device=self.device)
        return values[0]

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The tensors of the main rank, one by one: no rank holds all of them in device memory."""
        if self.world_size == 1:
            yield from tensors.items()
            return
        described = [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]
        for name, shape, dtype in self.broadcast_object(described):
            tensor = (tensors[name] if self.is_main else torch.empty(shape, dtype=dtype)).to(self.device)
            dist.broadcast(tensor, 0)
            yield name, tensor.cpu()

    def broadcast_weights(self, model: nn.Module) -> None:
        """Set the weights and buffers of every rank to those of the main rank."""
        for weight in (*model.parameters(), *model.buffers()) if self.world_size > 1 else ():
            dist.broadcast(weight.detach(), 0)

    def check_same(self, facts: dict[str, Any]) -> None:
        """Raise if this rank has other settings or data than the main rank."""
        for key, value in self.broadcast_object(facts).items():
            if facts[key] != value:
                raise ConfigError(
                    f"rank {self.rank} has {key} = {facts[key]!r:.200}, but rank 0 has {value!r:.200}; "
                    "give every rank the same files, settings and versions"
                )

    def lock(self, folder: Path) -> AbstractContextManager[None]:
        """A context in which no other training may write to the folder; the main rank locks it for all."""
        return lock_folder(folder) if self.is_main else nullcontext()

    @contextmanager
    def report_lost_rank(self) -> Iterator[None]:
        """A context in which the loss of another rank becomes an error that says how to continue."""
        try:
            yield
        except RuntimeError as error:
            if self.world_size == 1 or not any(word in str(error).lower() for word in LOST_RANK_WORDS):
                raise
            reason = re.sub(r"^\[\S*\] ", "", str(error)).split("\n")[0].split(". ")[0][:200]
            raise HillError(f"rank {self.rank} of {self.world_size} lost another rank ({reason}); {REMEDY}") from None

    def close(self) -> None:
        """Wait for the other ranks and continue as a single process."""
        global _context
        if self.world_size > 1:
            self.accelerator.wait_for_everyone()
            self.accelerator.end_training()
            _context = DistributedContext()
            _handle_sigterm(signal.SIG_DFL)


_context = DistributedContext()


def current_context() -> DistributedContext:
    """The context of this process; a single process unless `init_distributed` was called."""
    return _context


def init_distributed(device: str = "auto") -> DistributedContext:
    """Connect the processes that `torchrun` or `accelerate launch` started; do nothing in a single process.

    From here on every rank must train, predict and evaluate the same things in the same order.
    """
    global _context
    if _context.world_size > 1 or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return _context
    accelerate = need("accelerate", "distributed", "training on several ranks")
    for name in UNSUPPORTED:
        if os.environ.get(f"ACCELERATE_USE_{name}", "").lower() in ("true", "1"):
            raise ConfigError(f"accelerate is configured to use {name}, which training does not support; turn it off")
    options = accelerate.DistributedDataParallelKwargs(broadcast_buffers=False)
    cpu = device == "cpu" or not torch.cuda.is_available()
    accelerator = accelerate.Accelerator(cpu=cpu, mixed_precision="no", kwargs_handlers=[options])
    _context = DistributedContext(accelerator.process_index, accelerator.num_processes, accelerator.device, accelerator)
    _handle_sigterm(_stop)
    return _context


def _handle_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # only the main thread may set handlers
        signal.signal(signal.SIGTERM, handler)


def _stop(signal_number: int, frame: Any) -> None:
    rank = f"rank {_context.rank} of {_context.world_size}"
    raise Stopped(signal_number, f"{rank} was stopped: another rank ended, or the job was cancelled; {REMEDY}")


class DistributedInference(Inference):
    """Inference that all ranks share: each reads its shard of a batch and gets the scores of the whole batch.

    After `DistributedContext.close` it is the same as `Inference`.
    """

    @property
    def n_shards(self) -> int:
        """The number of ranks."""
        return current_context().world_size

    def shard(self, documents: IntArray) -> IntArray:
        """The documents of a batch that this rank reads."""
        return current_context().shard(documents)

    def gather(self, rows: Tensor, documents: IntArray) -> Tensor:
        """The rows of all documents of a batch, given the rows of this rank's shard."""
        with current_context().global_batch(documents):
            return all_gather(rows)


class _LossModule(nn.Module):
    """A model with detached logits: DDP would wait for gradients of weights that only the logits depend on."""

    def __init__(self, model: HTCModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Output:
        output: Output = self.model(batch)
        return replace(output, logits=output.logits.detach())
