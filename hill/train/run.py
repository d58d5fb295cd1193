"""A training from start to end: head start, loop, log and checkpoints; it can be killed at any moment and resumed."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hill.errors import CheckpointError, ConfigError
from hill.extras import need
from hill.models import VectorModel
from hill.taxonomy import Taxonomy
from hill.train.checkpoint import Checkpoints
from hill.train.head import give_head_start
from hill.train.loop import Epoch, Step, train
from hill.train.session import Session, Split

LOG_STEPS = 10


@dataclass(frozen=True)
class Fitted:
    """How much is done of what comes before the steps, or instead of them."""

    stage: str
    done: int
    total: int


Report = Fitted | Step | Epoch


def seed_everything(seed: int) -> None:
    """Fix weights, order and dropout of what follows."""
    torch.manual_seed(seed)


def check_out(out: Path, resume: bool) -> None:
    """Raise if the folder holds a finished model, or an unfinished training that is not to be resumed."""
    if (out / "config.json").exists():
        raise CheckpointError(f"'{out}' holds a trained model; choose another --out")
    if not resume and out.exists() and any(out.iterdir()):
        raise CheckpointError(f"'{out}' is not empty; add --resume to go on, or choose another --out")


def run(
    session: Session,
    data: Split,
    dev: Split | None,
    taxonomy: Taxonomy,
    out: Path,
    facts: dict[str, Any],
    resume: bool = False,
    tensorboard: bool = False,
) -> Iterator[Report]:
    """Train and end with the weights of the best epoch; `facts` must be the same when a training is resumed."""
    session.ranks.check_same(facts)
    checkpoints = Checkpoints(out / "checkpoints", facts)
    board = need("torch.utils.tensorboard", "track", "--tensorboard") if tensorboard else None
    log = Log(out / "log.jsonl", board) if session.ranks.is_main else None
    with session.ranks.watching():
        if resume and checkpoints.resume(session):
            if log:
                log.write({"resumed": session.progress.step, "ranks": session.ranks.count})
        else:
            yield from _fit_before(session, data)
            checkpoints.save_if_due(session)
        for report in train(session, data, dev, taxonomy):
            if isinstance(report, Epoch) and report.improved:
                checkpoints.keep_best(session)
            checkpoints.save_if_due(session)
            if log:
                log.report(report)
            yield report
        checkpoints.load_best(session)


def _fit_before(session: Session, data: Split) -> Iterator[Fitted]:
    """What is fitted before the first step: a closed model as a whole, or the head start."""
    model, config = session.model, session.config
    if model.closed:
        for done, total in model.fit(data.tokens, data.labels, config.seed):
            yield Fitted("fitting", done, total)
    elif isinstance(model, VectorModel) and model.by_vector and model.text.pretrained:
        for done, total in give_head_start(session, model, data) if config.starts_head else ():
            yield Fitted("head start", done, total)
    elif config.head_start == "on":
        raise ConfigError("train.head_start is 'on', but this model cannot be started from vectors; use auto or off")


class Log:
    """One JSON object a line, always; TensorBoard too where it is wanted."""

    def __init__(self, file: Path, tensorboard: Any = None) -> None:
        self._file = file
        self._start = time.time()
        self._board = tensorboard.SummaryWriter(str(file.parent / "tensorboard")) if tensorboard else None

    def report(self, report: Step | Epoch) -> None:
        """Log every tenth step and every epoch."""
        if isinstance(report, Epoch):
            values = {key: value for key, value in report.metrics.items() if key != "levels"}
            self.write({"epoch": report.epoch, "improved": report.improved, "dev": values})
            self._show({f"dev/{key}": value for key, value in values.items()}, report.epoch)
        elif report.step % LOG_STEPS == 0:
            losses = {"loss": report.loss.item()} | {name: part.item() for name, part in report.parts.items()}
            self.write({"step": report.step, "epoch": report.epoch, "rate": report.rate, **losses})
            self._show({f"train/{key}": value for key, value in losses.items()}, report.step)

    def write(self, values: dict[str, Any]) -> None:
        """Append one line."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"seconds": round(time.time() - self._start, 3), **values}) + "\n")

    def _show(self, values: dict[str, float], step: int) -> None:
        if self._board:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
