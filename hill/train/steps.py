"""Steps of a training: padded batches as everywhere, packed ones on a GPU."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hill.data.batches import collate, move, to_device, training_order
from hill.data.resident import Resident
from hill.train.session import Session, Split
from hill.train.shards import clip_grads, norm_of
from hill.types import Batch, IntArray, Output, Packed


@dataclass(frozen=True)
class Taken:
    """The loss of a step and the parts it is the sum of, still on the device; `bad` is 1 where it was not taken."""

    loss: Tensor
    parts: dict[str, Tensor]
    bad: Tensor


class Steps:
    """Batches padded to a few lengths."""

    def __init__(self, session: Session, data: Split) -> None:
        self.session = session
        self.data = data
        self.model = session.ranks.wrap(session.model, self.is_uneven)

    def begin(self, stage: str) -> None:
        """Take the steps of this stage of the model from here on."""
        self.session.model.stage = stage

    def order(self, epoch: int) -> list[IntArray]:
        """The documents of each batch of an epoch."""
        config = self.session.config
        return training_order(len(self.data), config.batch_size, config.seed, epoch)

    def take(self, group: list[IntArray]) -> Taken:
        """One step on these batches, whose gradients are added up."""
        before = self.moving()
        outputs = [self.learn(documents, len(group), documents is group[-1]) for documents in group]
        loss = torch.stack([loss_of(output).detach() for output in outputs]).mean()
        parts = {name: part.detach() for name, part in outputs[-1].parts.items()}
        return Taken(loss, parts, self.update(loss, before))

    def learn(self, documents: IntArray, share: int, last: bool) -> Output:
        """The gradients of a batch, one of so many, of which each rank reads its part."""
        ranks = self.session.ranks
        with ranks.sharing(documents), ranks.adding_up(self.model, last):
            return self.backward(self.batch(ranks.part(documents)), share)

    def is_uneven(self) -> bool:
        """Whether some weights get no gradient, at least in a stage; found by a trial with a copy of the model."""
        if self.session.config.first_epochs:
            return True
        model = deepcopy(self.session.model).train()
        device = self.session.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []), self.session.autocast():
            loss = loss_of(model(self.batch(np.arange(1))))
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        return any(grad is None for grad in torch.autograd.grad(loss, weights, allow_unused=True))

    def batch(self, documents: IntArray) -> Batch | Packed:
        """These documents on the device."""
        data, session = self.data, self.session
        listed = session.model.listed
        return to_device(collate(data.tokens, data.labels, documents, session.pad, listed), session.device)

    def backward(self, batch: Batch | Packed, share: int) -> Output:
        """The gradients of a batch, one of so many."""
        with self.session.tf32():
            with self.session.autocast():
                output: Output = self.model(batch)
            (loss_of(output) / share).backward()  # type: ignore[no-untyped-call]
        return output

    def moving(self) -> list[tuple[Tensor, Tensor]]:
        """What a forward pass itself changes, with a copy, where a step may be left out."""
        if not self.session.config.skip_nonfinite:
            return []
        kept = self.session.model.state_dict()
        return [(now, now.clone()) for name, now in self.session.model.named_buffers() if name in kept]

    def update(self, loss: Tensor, before: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Let the optimiser use the gradients; where they or the loss are not finite, change nothing and return 1.

        A fused optimiser decides that on the device, and nothing waits for it.
        """
        model, clip = self.session.model, self.session.config.clip
        optimiser: Any = self.session.optimiser
        norm = norm_of([weight.grad for weight in model.parameters() if weight.grad is not None])
        bad = 1 - (norm.isfinite() & loss.isfinite()).float()
        if self.session.ranks.count > 1:
            dist.all_reduce(bad, dist.ReduceOp.MAX)
        if clip:
            clip_grads(model.parameters(), clip, norm)
        if optimiser.param_groups[0]["fused"]:
            optimiser.found_inf = bad
            optimiser.step()
        elif not bad:
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        for now, then in before:
            now.copy_(torch.where(bad > 0, then, now))
        return bad


class PackedSteps(Steps):
    """Packed batches, gathered on the device where all documents live."""

    def __init__(self, session: Session, data: Split) -> None:
        self.resident = Resident(data.tokens, data.labels, session.pad, session.device, session.model.listed)
        super().__init__(session, data)

    def batch(self, documents: IntArray) -> Packed:
        """These documents, one after the other."""
        return self.resident.packed(self.move(documents), self.resident.size(documents))

    def move(self, documents: IntArray) -> Tensor:
        """The numbers of documents on the device."""
        return move(torch.from_numpy(documents), self.session.device)


def loss_of(output: Output) -> Tensor:
    """The loss that an output has."""
    assert output.loss is not None
    return output.loss
