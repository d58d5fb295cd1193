"""The training loop: a generator that yields after every step and every epoch; the caller logs, saves and stops."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from torch import Tensor

from hill.data.batches import batches, reading_order, training_order
from hill.data.tokens import Tokens
from hill.errors import HillError
from hill.metrics import Scorer
from hill.models import HTCModel
from hill.taxonomy import Taxonomy
from hill.train.config import TrainConfig
from hill.train.optim import make_optimiser, set_rates

READ_BATCH = 64


@dataclass(frozen=True)
class Split:
    """Documents as a model reads them: tokens and labels (documents, L)."""

    tokens: Tokens
    labels: csr_array[Any]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass
class Progress:
    """How far a training has come."""

    epoch: int = 0
    """Epochs finished."""
    position: int = 0
    """Batches done of the epoch under way."""
    step: int = 0
    best: float = -math.inf
    best_epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Session:
    """All that a training changes: weights, optimiser, progress."""

    model: HTCModel
    config: TrainConfig
    device: torch.device
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.model.to(self.device)
        self.optimiser = make_optimiser(self.model, self.config)

    @property
    def pad(self) -> int:
        """The token id that fills up a batch."""
        return self.model.text.pad

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision where the settings and the device want it."""
        wanted = self.config.precision == "bf16" or (
            self.config.precision == "auto" and self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        )
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=wanted)


@dataclass(frozen=True)
class Step:
    """A step was taken. Reading the loss waits for the device: do it now and then."""

    step: int
    steps: int
    epoch: int
    documents: int
    rate: float
    loss: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Epoch:
    """An epoch was finished, and dev was scored where there is one."""

    epoch: int
    metrics: dict[str, Any]
    improved: bool


def train(session: Session, data: Split, dev: Split | None, taxonomy: Taxonomy) -> Iterator[Step | Epoch]:
    """Train from where the session stands until the last epoch, or until dev has not improved for a while."""
    config, progress, model = session.config, session.progress, session.model
    if model.closed:
        progress.epoch = 1
        yield _finish_epoch(session, dev, taxonomy)
        return
    per_epoch = math.ceil(math.ceil(len(data) / config.batch_size) / config.accumulate)
    while progress.epoch < config.epochs and progress.epoch - progress.best_epoch < config.patience:
        model.train()
        order = training_order(data.tokens.lengths, config.batch_size, config.seed, progress.epoch)
        stream = batches(data.tokens, data.labels, order[progress.position :], session.pad, session.device)
        losses: list[Tensor] = []
        for batch in stream:
            with session.autocast():
                output = model(batch)
            assert output.loss is not None
            (output.loss / config.accumulate).backward()
            losses.append(output.loss.detach())
            progress.position += 1
            if progress.position % config.accumulate and progress.position < len(order):
                continue
            yield _take_step(session, config.epochs * per_epoch, losses, output.parts, config.batch_size * len(losses))
            losses = []
        progress.epoch, progress.position = progress.epoch + 1, 0
        yield _finish_epoch(session, dev, taxonomy)


def _take_step(session: Session, steps: int, losses: list[Tensor], parts: dict[str, Tensor], documents: int) -> Step:
    session.progress.step += 1
    rate = set_rates(session.optimiser, session.config, session.progress.step, steps)
    if session.config.clip:
        torch.nn.utils.clip_grad_norm_(session.model.parameters(), session.config.clip)
    session.optimiser.step()
    session.optimiser.zero_grad(set_to_none=True)
    kept = {name: part.detach() for name, part in parts.items()}
    loss = torch.stack(losses).mean()
    return Step(session.progress.step, steps, session.progress.epoch, documents, rate, loss, kept)


def _finish_epoch(session: Session, dev: Split | None, taxonomy: Taxonomy) -> Epoch:
    progress = session.progress
    metrics = score_split(session, dev, taxonomy) if dev else {}
    value = metrics.get(session.config.metric, float(progress.epoch))
    if not math.isfinite(value):
        raise HillError(
            f"dev {session.config.metric} is {value} after epoch {progress.epoch}; lower the learning rates"
        )
    improved = value > progress.best
    if improved:
        progress.best, progress.best_epoch = value, progress.epoch
    progress.history.append({"epoch": progress.epoch, **{k: v for k, v in metrics.items() if k != "levels"}})
    return Epoch(progress.epoch, metrics, improved)


def score_split(session: Session, split: Split, taxonomy: Taxonomy) -> dict[str, Any]:
    """Every metric of a split, labels chosen as the paper does: scores above 0.5, or the best of each level."""
    scorer = Scorer(taxonomy)
    for documents, scores in score_documents(session, split.tokens):
        scorer.update(split.labels[documents].toarray(), choose(session.model, scores), scores)
    return scorer.result()


def choose(model: HTCModel, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Labels with a score above 0.5; with one softmax a level, the best of each level."""
    if model.config.loss != "softmax":
        return scores > 0.5
    chosen = np.zeros(scores.shape, dtype=bool)
    for rows in (level.cpu().numpy() for level in model.levels):
        np.put_along_axis(chosen, rows[scores[:, rows].argmax(axis=1)][:, None], True, axis=1)
    return chosen


@torch.inference_mode()
def score_documents(
    session: Session, tokens: Tokens, size: int = READ_BATCH
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Scores (documents of the batch, L) of all documents, batch by batch, with which documents they are."""
    session.model.eval()
    order = reading_order(tokens.lengths, size)
    for documents, batch in zip(order, batches(tokens, None, order, session.pad, session.device), strict=True):
        with session.autocast():
            logits = session.model(batch).logits
        yield documents, session.model.scores(logits).cpu().numpy()
