"""The training loop: a generator that yields after every step and every epoch; the caller logs, saves and stops."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hill.data.batches import collate, move, reading_order, to_device
from hill.data.resident import Resident
from hill.data.tokens import Tokens
from hill.errors import HillError
from hill.metrics import Scorer
from hill.models import HTCModel
from hill.taxonomy import Taxonomy
from hill.train.graphs import GraphedSteps
from hill.train.optim import set_rates
from hill.train.session import Session, Split
from hill.train.steps import PackedSteps, Steps
from hill.types import Batch, IntArray, Packed

READ_BATCH = 64
READ_TOKENS = 65_536
"""Tokens of a packed batch that is only read."""


def make_steps(session: Session, data: Split) -> Steps:
    """The fastest way to take steps on this device with this model."""
    if not session.packed:
        return Steps(session, data)
    recorded = session.config.accumulate == 1 and not session.config.recompute and session.ranks.count == 1
    return (GraphedSteps if recorded else PackedSteps)(session, data)


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
    steps = make_steps(session, data)
    total = config.epochs * math.ceil(math.ceil(len(data) / config.batch_size) / config.accumulate)
    while (
        progress.epoch < config.epochs
        and progress.epoch - max(progress.best_epoch, config.first_epochs) < config.patience
    ):
        steps.begin(_stage(session))
        model.train()
        order = steps.order(progress.epoch)
        for start in range(progress.position, len(order), config.accumulate):
            group = order[start : start + config.accumulate]
            progress.step += 1
            rate = set_rates(session.optimiser, config, progress.step, total)
            session.ranks.seed_step(config.seed, progress.step)
            taken = steps.take(group)
            progress.position += len(group)
            documents = sum(map(len, group))
            yield Step(progress.step, total, progress.epoch, documents, rate, taken.loss, taken.parts)
        progress.epoch, progress.position = progress.epoch + 1, 0
        yield _finish_epoch(session, dev, taxonomy)


def _stage(session: Session) -> str:
    """The stage of the epoch that begins; it follows from the number of the epoch, also when resumed."""
    config = session.config
    return session.model.stages[session.progress.epoch >= config.first_epochs] if config.first_epochs else ""


def _finish_epoch(session: Session, dev: Split | None, taxonomy: Taxonomy) -> Epoch:
    progress = session.progress
    metrics = score_split(session, dev, taxonomy) if dev else {}
    value = metrics.get(session.config.metric, float(progress.epoch))
    if not math.isfinite(value):
        raise HillError(
            f"dev {session.config.metric} is {value} after epoch {progress.epoch}; lower the learning rates"
        )
    improved = value > progress.best and progress.epoch > session.config.first_epochs
    if improved:
        progress.best, progress.best_epoch = value, progress.epoch
    progress.history.append({"epoch": progress.epoch, **{k: v for k, v in metrics.items() if k != "levels"}})
    return Epoch(progress.epoch, metrics, improved)


def score_split(session: Session, split: Split, taxonomy: Taxonomy) -> dict[str, Any]:
    """Every metric of a split, labels chosen as the paper does: scores above 0.5, or the best of each level."""
    scorer = Scorer(taxonomy)
    for documents, scores in score_documents(session, split.tokens):
        if session.ranks.is_main:
            scorer.update(split.labels[documents].toarray(), choose(session.model, scores), scores)
    return session.ranks.from_main(scorer.result() if session.ranks.is_main else {})


def choose(model: HTCModel, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Labels with a score above 0.5; with one softmax a level, the best of each level.

    With a conditional softmax, the path that is best from the roots down, and all labels with a score above 0.25, since
    the labels of a document with several paths share the probability. Decoding is tuned when the training is over.
    """
    if model.siblings is not None:
        device = model.siblings.child.device
        return model.siblings.choose(torch.from_numpy(scores).to(device)).cpu().numpy()
    if model.config.loss != "softmax":
        return scores > 0.5
    chosen = np.zeros(scores.shape, dtype=bool)
    for rows in (level.cpu().numpy() for level in model.levels):
        np.put_along_axis(chosen, rows[scores[:, rows].argmax(axis=1)][:, None], True, axis=1)
    return chosen


def score_documents(session: Session, tokens: Tokens) -> Iterator[tuple[IntArray, npt.NDArray[np.float32]]]:
    """Scores (documents of the batch, L) of all documents, batch by batch, with which documents they are.

    The device computes the next batch while the scores of the last are looked at. Every rank reads its part of each
    batch and gets the scores of all.
    """
    session.model.eval()
    waiting: tuple[IntArray, Tensor] | None = None
    for documents, batch in reading(session, tokens):
        with torch.inference_mode(), session.tf32(), session.autocast():
            scores = session.ranks.whole(session.model.scores(session.model(batch).logits), documents)
        if waiting:
            yield waiting[0], waiting[1].cpu().numpy()
        waiting = documents, scores
    if waiting:
        yield waiting[0], waiting[1].cpu().numpy()


def reading(session: Session, tokens: Tokens) -> Iterator[tuple[IntArray, Batch | Packed]]:
    """All documents in batches, longest first, with which documents they are; on the device, this rank's part."""
    ranks = session.ranks
    if not session.packed:
        for documents in reading_order(tokens.lengths, READ_BATCH * ranks.count):
            yield documents, to_device(collate(tokens, None, ranks.part(documents), session.pad), session.device)
        return
    resident = Resident(tokens, None, session.pad, session.device)
    for documents in reading_order(tokens.lengths, 0, READ_TOKENS * ranks.count):
        mine = ranks.part(documents)
        yield documents, resident.packed(move(torch.from_numpy(mine), session.device), resident.size(mine))
