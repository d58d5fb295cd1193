"""Steps of a training: padded batches as everywhere, packed ones on a GPU."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hill.data.batches import collate, move, to_device, training_order
from hill.data.resident import Resident
from hill.train.session import Session, Split
from hill.types import Batch, IntArray, Output, Packed


@dataclass(frozen=True)
class Taken:
    """The loss of a step and the parts it is the sum of, still on the device."""

    loss: Tensor
    parts: dict[str, Tensor]


class Steps:
    """Batches of similar length, padded to a few lengths."""

    by_length = True

    def __init__(self, session: Session, data: Split) -> None:
        self.session = session
        self.data = data

    def begin(self, stage: str) -> None:
        """Take the steps of this stage of the model from here on."""
        self.session.model.stage = stage

    def order(self, epoch: int) -> list[IntArray]:
        """The documents of each batch of an epoch."""
        config = self.session.config
        return training_order(self.data.tokens.lengths, config.batch_size, config.seed, epoch, self.by_length)

    def take(self, group: list[IntArray]) -> Taken:
        """One step on these batches, whose gradients are added up."""
        outputs = [self.backward(self.batch(documents), len(group)) for documents in group]
        self.update()
        parts = {name: part.detach() for name, part in outputs[-1].parts.items()}
        return Taken(torch.stack([loss_of(output).detach() for output in outputs]).mean(), parts)

    def batch(self, documents: IntArray) -> Batch | Packed:
        """These documents on the device."""
        data, session = self.data, self.session
        return to_device(collate(data.tokens, data.labels, documents, session.pad), session.device)

    def backward(self, batch: Batch | Packed, share: int) -> Output:
        """The gradients of a batch, one of so many."""
        with self.session.tf32():
            with self.session.autocast():
                output: Output = self.session.model(batch)
            (loss_of(output) / share).backward()  # type: ignore[no-untyped-call]
        return output

    def update(self) -> None:
        """Let the optimiser use the gradients."""
        session = self.session
        if session.config.clip:
            torch.nn.utils.clip_grad_norm_(session.model.parameters(), session.config.clip)
        session.optimiser.step()
        session.optimiser.zero_grad(set_to_none=True)


class PackedSteps(Steps):
    """Packed batches, gathered on the device where all documents live; any order costs the same, so it is random."""

    by_length = False

    def __init__(self, session: Session, data: Split) -> None:
        super().__init__(session, data)
        self.resident = Resident(data.tokens, data.labels, session.pad, session.device)

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
