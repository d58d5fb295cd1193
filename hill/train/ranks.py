"""Ranks: the processes that train one model together, each on its part of every batch; mostly there is one alone."""

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
from torch.nn.parallel import DistributedDataParallel

from hill.disk import claimed
from hill.errors import ConfigError, HillError
from hill.extras import need
from hill.models import HTCModel
from hill.nn.across import Shares, sharing, whole
from hill.train.launcher import FSDP, Sharding, read_sharding
from hill.train.shards import is_sharded
from hill.train.stop import Stopped
from hill.types import IntArray, Output

Value = TypeVar("Value")
LOST = ("gloo", "nccl", "connection", "peer", "timed out")
"""Words in the messages of a backend that lost another process."""
REMEDY = "start the same command with --resume, on any number of ranks, to go on from the last checkpoint"


@dataclass(frozen=True)
class Ranks:
    """This process among those that train one model; alone, every method gives back what it was given."""

    rank: int = 0
    count: int = 1
    device: torch.device | None = None
    """The device of this rank, where there are others."""
    accelerator: Any = None
    sharding: Sharding | None = None
    """How the ranks share the weights of a text encoder while they train it, where they do."""

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes and prints."""
        return self.rank == 0

    def part(self, documents: IntArray) -> IntArray:
        """This rank's documents of a batch; of a batch with fewer documents than ranks, all."""
        return documents if self._shares(documents) is None else np.array_split(documents, self.count)[self.rank]

    def sharing(self, documents: IntArray) -> AbstractContextManager[None]:
        """While this lasts, losses and BatchNorm are those of the whole batch of these documents."""
        return sharing(self._shares(documents))

    def whole(self, part: Tensor, documents: IntArray) -> Tensor:
        """The rows of all these documents, of which this rank has its part."""
        with self.sharing(documents):
            return whole(part)

    def _shares(self, documents: IntArray) -> Shares | None:
        """None where every rank has the whole batch: gradients that are all the same have themselves as mean."""
        if self.count == 1 or len(documents) < self.count:
            return None
        return Shares([len(part) for part in np.array_split(documents, self.count)], self.rank)

    def wrap(self, model: HTCModel, uneven: Callable[[], bool]) -> Any:
        """The model as steps call it: its gradients are averaged over ranks.

        `uneven` tells whether some weights may have no gradient, which then has to be looked for in every step; of a
        sharded model there can be no copy to find that out with. Shards average their gradients by themselves.
        """
        if self.count == 1:
            return model
        self.spread(model)
        learner = _Learner(model)
        apart = [name for name, weight in learner.named_parameters() if is_sharded(weight)]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(learner, apart)  # type: ignore[no-untyped-call]
        self.accelerator.ddp_handler.find_unused_parameters = bool(apart) or uneven()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch renames broadcast_buffers
            return self.accelerator.prepare_model(learner)

    def adding_up(self, wrapped: Any, last: bool) -> AbstractContextManager[Any]:
        """Gradients are averaged over ranks with the last batch of a step; those before it only add up.

        Those of shards are averaged with every batch: to add up, they would have to be whole on every rank.
        """
        return nullcontext() if last or self.count == 1 else wrapped.no_sync()

    def seed_step(self, seed: int, step: int) -> None:
        """Let each rank draw its own dropout, the same whether or not the training was resumed before this step."""
        if self.count > 1:
            state = np.random.SeedSequence([seed, step, self.rank]).generate_state(1, np.uint64)
            torch.manual_seed(int(state[0]))

    def from_main(self, value: Value) -> Value:
        """What the main rank has; it may be large."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, device=self.device)
        return values[0]

    def each_from_main(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The tensors that the main rank has, one after the other: no other rank needs room for all of them."""
        if self.count == 1:
            yield from tensors.items()
            return
        for name, shape, dtype in self.from_main([(name, each.shape, each.dtype) for name, each in tensors.items()]):
            sent = (tensors[name] if self.is_main else torch.empty(shape, dtype=dtype)).to(self.device)
            dist.broadcast(sent, 0)
            yield name, sent.cpu()

    def spread(self, model: nn.Module) -> None:
        """Give every rank the weights of the main one; of what is sharded, it has no more than others."""
        for weight in (*model.parameters(), *model.buffers()) if self.count > 1 else ():
            if not is_sharded(weight):
                dist.broadcast(weight.detach(), 0)

    def check_same(self, facts: dict[str, Any]) -> None:
        """Raise unless this rank has the settings and data of the main one."""
        for key, value in self.from_main(facts).items():
            if facts[key] != value:
                raise ConfigError(
                    f"rank {self.rank} has {key} = {facts[key]!r:.200}, but rank 0 has {value!r:.200}; "
                    "give every rank the same files, settings and versions"
                )

    def claiming(self, folder: Path) -> AbstractContextManager[None]:
        """While this lasts no other training may write there; the main rank claims it for all."""
        return claimed(folder) if self.is_main else nullcontext()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this lasts, that another rank ended is an error that says how to go on."""
        try:
            yield
        except RuntimeError as error:
            if self.count == 1 or not any(word in str(error).lower() for word in LOST):
                raise
            reason = re.sub(r"^\[\S*\] ", "", str(error)).split("\n")[0].split(". ")[0][:200]  # not where in its source
            raise HillError(f"rank {self.rank} of {self.count} lost another rank ({reason}); {REMEDY}") from None

    def leave(self) -> None:
        """Wait for the others and go on alone."""
        global _joined
        if self.count > 1:
            self.accelerator.wait_for_everyone()
            self.accelerator.end_training()
            _joined = Ranks()
            _on_stop(signal.SIG_DFL)


_joined = Ranks()


def joined() -> Ranks:
    """The ranks that this process has joined; alone if none."""
    return _joined


def join(device: str = "auto") -> Ranks:
    """Join the ranks that `torchrun` or `accelerate launch` started, on this kind of device; alone if they did not.

    From here on every rank must train, predict and evaluate the same things in the same order.
    """
    global _joined
    if _joined.count == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        accelerate = need("accelerate", "distributed", "training on several ranks")
        sharding = read_sharding()
        os.environ[FSDP] = "false"  # else Accelerate would shard whole models, on GPUs alone
        options = accelerate.DistributedDataParallelKwargs(broadcast_buffers=False)
        cpu = device == "cpu" or not torch.cuda.is_available()
        accelerator = accelerate.Accelerator(cpu=cpu, mixed_precision="no", kwargs_handlers=[options])
        _joined = Ranks(accelerator.process_index, accelerator.num_processes, accelerator.device, accelerator, sharding)
        _on_stop(_stop)
    return _joined


def _on_stop(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # no other may
        signal.signal(signal.SIGTERM, handler)


def _stop(number: int, frame: Any) -> None:
    who = f"rank {_joined.rank} of {_joined.count}"
    raise Stopped(number, f"{who} was told to stop: another rank ended, or the job was cancelled; {REMEDY}")


class _Learner(nn.Module):
    """A model that gives its losses alone: weights of which only the logits know would be waited for in vain."""

    def __init__(self, model: HTCModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Output:
        output: Output = self.model(batch)
        return replace(output, logits=output.logits.detach())
