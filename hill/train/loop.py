"""The training loop: a generator that yields after every step and every epoch; the caller logs, saves and stops."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from hill.errors import HillError
from hill.taxonomy import Taxonomy
from hill.train.graphs import GraphedSteps
from hill.train.optim import set_rates
from hill.train.scoring import score_split
from hill.train.session import Session, Split
from hill.train.steps import PackedSteps, Steps


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
    skipped: int = 0
    """Steps left out so far, as far as they are known, because they were not finite."""


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
            documents = np.concatenate(group)
            session.watch.add(progress, data, documents, taken.loss, taken.bad)
            step = progress.step, total, progress.epoch, len(documents), rate
            yield Step(*step, taken.loss, taken.parts, progress.skipped)
        session.watch.read(progress, data)
        progress.epoch, progress.position = progress.epoch + 1, 0
        yield _finish_epoch(session, dev, taxonomy)


def _stage(session: Session) -> str:
    """The stage of the epoch that begins; it follows from the number of the epoch, also when resumed."""
    config = session.config
    return session.model.stages[session.progress.epoch >= config.first_epochs] if config.first_epochs else ""


def _finish_epoch(session: Session, dev: Split | None, taxonomy: Taxonomy) -> Epoch:
    progress = session.progress
    metrics = score_split(session, dev, taxonomy) if dev else {}
    if session.config.skip_nonfinite:
        metrics["skipped"] = progress.skipped
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
