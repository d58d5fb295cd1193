"""A training from start to end: head start, loop, log and checkpoints; it can be killed at any moment and resumed."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hill.disk import LOCK, cannot_write, is_claimed
from hill.errors import CheckpointError, ConfigError
from hill.extras import need
from hill.models import VectorModel
from hill.taxonomy import Taxonomy
from hill.train.checkpoint import Checkpoints
from hill.train.files import tidy
from hill.train.head import give_head_start
from hill.train.loop import Epoch, Step, train
from hill.train.session import Session, Split
from hill.train.stop import Stop, Stopped

LOG_STEPS = 10
GO_ON = "to go on, add --resume (in Python, resume=True)"


@dataclass(frozen=True)
class Fitted:
    """How much is done of what comes before the steps, or instead of them."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class Resumed:
    """A training goes on after this step; `damaged` says why not after the last one that was saved."""

    step: int
    damaged: str


Report = Fitted | Resumed | Step | Epoch


def seed_everything(seed: int) -> None:
    """Fix weights, order and dropout of what follows."""
    torch.manual_seed(seed)


def check_out(out: Path, resume: bool) -> None:
    """Raise if the folder holds a finished model, or an unfinished training that is not to be resumed, or runs."""
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"'{out}' is a file; choose another --out")
    if is_claimed(out):
        raise CheckpointError(f"another process trains in '{out}'; wait until it ends, or choose another --out")
    tidy(out)
    if (out / "config.json").exists():
        raise CheckpointError(f"'{out}' holds a trained model; choose another --out")
    if not resume and out.exists() and any(path.name != LOCK for path in out.iterdir()):
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
    ranks = session.ranks
    ranks.check_same(facts)
    checkpoints = Checkpoints(out / "checkpoints", facts)
    board = need("torch.utils.tensorboard", "track", "--tensorboard") if tensorboard else None
    with ranks.claiming(out), ranks.watching():
        log = Log(out / "log.jsonl", board) if ranks.is_main else None
        session.shard()
        if resume and checkpoints.resume(session):
            if log:
                log.write({"resumed": session.progress.step, "ranks": ranks.count})
            yield Resumed(session.progress.step, checkpoints.damaged)
        else:
            yield from _fit_before(session, data)
            if checkpoints.due(session):
                checkpoints.save(session)
        with Stop(ranks.count == 1) as stop:
            for report in train(session, data, dev, taxonomy):
                if isinstance(report, Epoch) and report.improved:
                    checkpoints.keep_best(session)
                if checkpoints.due(session):
                    session.watch.read(session.progress, data)
                    checkpoints.save(session)
                if log:
                    log.report(report)
                yield report
                if stop.asked:
                    session.watch.read(session.progress, data)
                    checkpoints.save(session)
                    raise Stopped(stop.asked, f"stopped after step {session.progress.step:,}; {GO_ON}")
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
        self._start = time.monotonic()
        self._board = tensorboard.SummaryWriter(str(file.parent / "tensorboard")) if tensorboard else None
        if file.exists():
            _cut_torn_line(file)

    def report(self, report: Step | Epoch) -> None:
        """Log every tenth step and every epoch."""
        if isinstance(report, Epoch):
            values = {key: value for key, value in report.metrics.items() if key != "levels"}
            self.write({"epoch": report.epoch, "improved": report.improved, "dev": values})
            self._show({f"dev/{key}": value for key, value in values.items()}, report.epoch)
        elif report.step % LOG_STEPS == 0:
            losses = {"loss": report.loss.item()} | {name: part.item() for name, part in report.parts.items()}
            skipped = {"skipped": report.skipped} if report.skipped else {}
            self.write({"step": report.step, "epoch": report.epoch, "rate": report.rate, **losses, **skipped})
            self._show({f"train/{key}": value for key, value in losses.items()}, report.step)

    def write(self, values: dict[str, Any]) -> None:
        """Append one line."""
        line = json.dumps({"seconds": round(time.monotonic() - self._start, 3), **values}) + "\n"
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise CheckpointError(cannot_write(self._file, error)) from None

    def _show(self, values: dict[str, float], step: int) -> None:
        if self._board:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)


def _cut_torn_line(file: Path) -> None:
    """Remove the end of a log that a full disk cut off in the middle of a line."""
    content = file.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(file, content.rfind(b"\n") + 1)
