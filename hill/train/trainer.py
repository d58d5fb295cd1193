"""A training from start to end: fitting before the first step, the loop, its log and its checkpoints.

`train` is the loop: a generator of `Step` and `Epoch`. `run` adds checkpoints, the log, signals and the head start; a
training that is killed at any moment can be resumed.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from hill.errors import CheckpointError, ConfigError, HillError, need
from hill.io import CHECKSUMS, cannot_write, check_space, is_locked, is_training, mark_training, other_names
from hill.metrics import Scorer
from hill.models import HTCModel, VectorModel
from hill.models.inference import BATCH_SIZE
from hill.sparse import Matrix
from hill.taxonomy import Taxonomy
from hill.train.checkpoint import FOLDER, Checkpoints, has_checkpoint
from hill.train.cuda_graphs import GraphedSteps
from hill.train.distributed import Stopped, current_context
from hill.train.head_start import head_start
from hill.train.optim import set_rates
from hill.train.session import PackedSteps, Session, Split, StepRunner

LOG_STEPS = 10
"""Steps between two lines of the log."""
DEFAULT_HANDLERS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

# Events


@dataclass(frozen=True)
class StageProgress:
    """How much is done of a stage before the first step, such as tokenising or the head start."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class Resumed:
    """A training continues after this step; `damaged` says why the latest checkpoint was not used, if so."""

    step: int
    damaged: str


@dataclass(frozen=True)
class Step:
    """A step was taken. Reading the loss waits for the device: do not read it in every step."""

    step: int
    steps: int
    epoch: int
    documents: int
    rate: float
    loss: Tensor
    parts: dict[str, Tensor]
    skipped: int = 0
    """Known steps so far that were skipped because they were not finite."""


@dataclass(frozen=True)
class Epoch:
    """An epoch was completed and dev, if there is one, was scored."""

    epoch: int
    metrics: dict[str, Any]
    improved: bool


TrainingEvent = StageProgress | Resumed | Step | Epoch

# The loop


def train(session: Session, data: Split, dev: Split | None, taxonomy: Taxonomy) -> Iterator[Step | Epoch]:
    """Train from the current progress to the last epoch, or until dev has not improved for `patience` epochs."""
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
        stage = model.stages[progress.epoch >= config.first_epochs] if config.first_epochs else ""
        steps.set_stage(stage)
        model.train()
        order = steps.order(progress.epoch)
        for start in range(progress.position, len(order), config.accumulate):
            group = order[start : start + config.accumulate]
            progress.step += 1
            rate = set_rates(session.optimiser, config, progress.step, total)
            session.context.seed_step(config.seed, progress.step)
            result = steps.step(group)
            progress.position += len(group)
            documents = np.concatenate(group)
            session.guard.record(progress, data, documents, result)
            yield Step(
                progress.step,
                total,
                progress.epoch,
                len(documents),
                rate,
                result.loss,
                result.parts,
                progress.skipped,
            )
        session.guard.check(progress, data)
        progress.epoch, progress.position = progress.epoch + 1, 0
        yield _finish_epoch(session, dev, taxonomy)


def make_steps(session: Session, data: Split) -> StepRunner:
    """The fastest kind of steps for this device and model."""
    if not session.inference.packed:
        return StepRunner(session, data)
    config = session.config
    one_batch = config.accumulate == 1 and session.context.world_size == 1
    graphed = one_batch and not config.recompute and session.device.type == "cuda"
    return (GraphedSteps if graphed else PackedSteps)(session, data)


def _finish_epoch(session: Session, dev: Split | None, taxonomy: Taxonomy) -> Epoch:
    config, progress = session.config, session.progress
    metrics = score_split(session, dev, taxonomy) if dev else {}
    if config.skip_nonfinite:
        metrics["skipped"] = progress.skipped
    value = metrics.get(config.metric, float(progress.epoch))
    if not math.isfinite(value):
        raise HillError(f"dev {config.metric} is {value} after epoch {progress.epoch}; lower the learning rates")
    improved = value > progress.best and progress.epoch > config.first_epochs
    if improved:
        progress.best, progress.best_epoch = value, progress.epoch
    progress.history.append({"epoch": progress.epoch, **{k: v for k, v in metrics.items() if k != "levels"}})
    return Epoch(progress.epoch, metrics, improved)


def score_split(session: Session, split: Split, taxonomy: Taxonomy) -> dict[str, Any]:
    """All metrics of a split, with labels chosen by `choose_labels`; computed on the main rank."""
    scorer, context = Scorer(taxonomy), session.context
    for documents, scores in session.inference.scores(split.tokens):
        if context.is_main:
            scorer.update(split.labels[documents], choose_labels(session.model, scores), scores)
    return context.broadcast_object(scorer.result() if context.is_main else {})


def choose_labels(model: HTCModel, scores: Matrix) -> Matrix:
    """Labels with a score above 0.5; with one softmax per level, the best label of each level.

    With a conditional softmax, the best path from the root down and all labels with a score above 0.25: the labels of a
    document with several paths share the probability. Decoding is tuned after training.
    """
    if model.siblings is None and model.config.loss != "softmax":
        return scores > 0.5
    if not isinstance(scores, csr_array):
        return _choose_labels(model, scores)
    parts = (scores[start : start + BATCH_SIZE].toarray() for start in range(0, scores.shape[0], BATCH_SIZE))
    return csr_array(vstack([csr_array(_choose_labels(model, part)) for part in parts]))


def _choose_labels(model: HTCModel, scores: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if model.siblings is not None:
        device = model.siblings.child.device
        return model.siblings.choose(torch.from_numpy(scores).to(device)).cpu().numpy()
    chosen = np.zeros(scores.shape, dtype=bool)
    for rows in (level.cpu().numpy() for level in model.levels):
        np.put_along_axis(chosen, rows[scores[:, rows].argmax(axis=1)][:, None], True, axis=1)
    return chosen


# A whole training


def run(
    session: Session,
    data: Split,
    dev: Split | None,
    taxonomy: Taxonomy,
    out: Path,
    facts: dict[str, Any],
    resume: bool = False,
    tensorboard: bool = False,
) -> Iterator[TrainingEvent]:
    """Train, and finally restore the weights of the best epoch; `facts` must not change when a training is resumed."""
    context = session.context
    context.check_same(facts)
    checkpoints = Checkpoints(out / FOLDER, facts)
    board = need("torch.utils.tensorboard", "track", "--tensorboard") if tensorboard else None
    with context.lock(out), context.report_lost_rank():
        if context.is_main:
            check_space(out, checkpoints.size(session), "a checkpoint")
        log = Log(out / "log.jsonl", board) if context.is_main else None
        if resume and checkpoints.resume(session):
            if log:
                log.write({"resumed": session.progress.step, "ranks": context.world_size})
            yield Resumed(session.progress.step, checkpoints.damaged)
        else:
            yield from _fit_before_steps(session, data)
            if checkpoints.is_due(session):
                checkpoints.save(session)
        with StopSignal(context.world_size == 1) as stop:
            for event in train(session, data, dev, taxonomy):
                if isinstance(event, Epoch) and event.improved:
                    checkpoints.keep_best(session)
                if checkpoints.is_due(session):
                    session.guard.check(session.progress, data)
                    checkpoints.save(session)
                if log:
                    log.write_event(event)
                yield event
                if stop.received:
                    session.guard.check(session.progress, data)
                    checkpoints.save(session)
                    raise Stopped(
                        stop.received,
                        f"stopped after step {session.progress.step:,}; to continue, add --resume (in Python, "
                        "resume=True)",
                    )
        checkpoints.load_best(session)


def _fit_before_steps(session: Session, data: Split) -> Iterator[StageProgress]:
    """Fit a model that has no steps, or give the model a head start."""
    model, config = session.model, session.config
    if model.closed:
        for done, total in model.fit(data.tokens, data.labels, config.seed):
            yield StageProgress("fitting", done, total)
    elif isinstance(model, VectorModel) and model.by_vector and model.text.pretrained:
        for done, total in head_start(session, model, data) if config.has_head_start else ():
            yield StageProgress("head start", done, total)
    elif config.head_start == "on":
        raise ConfigError("train.head_start is 'on', but this model does not support a head start; use auto or off")


class StopSignal:
    """Records SIGINT and SIGTERM, so that a training can stop after the current step; a second signal stops at once.

    It changes nothing outside of the main thread, or if the program handles these signals itself.
    """

    def __init__(self, enabled: bool) -> None:
        self.received = 0
        self._enabled = enabled and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "StopSignal":
        self._handled = [number for number, default in DEFAULT_HANDLERS.items() if signal.getsignal(number) == default]
        for number in self._handled if self._enabled else ():
            signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        if self._enabled and threading.current_thread() is threading.main_thread():
            for number in self._handled:
                signal.signal(number, DEFAULT_HANDLERS[number])

    def _receive(self, number: int, frame: Any) -> None:
        self.received = number
        self.__exit__()
        sys.stderr.write("stopping after this step; repeat to stop at once\n")


# The folder of a training


def check_output_folder(out: Path, resume: bool, data: Path | None = None) -> None:
    """Raise if a training must not write to this folder.

    A training starts in a new or empty folder, and resumes in a folder that a training has marked.
    """
    try:
        exists, is_folder = out.exists(), out.is_dir()
        names = other_names(out)
    except OSError as error:
        raise CheckpointError(cannot_write(out, error)) from None
    if exists and not is_folder:
        raise CheckpointError(f"'{out}' is a file; choose another --out")
    if data and os.path.realpath(data) == os.path.realpath(out):
        raise CheckpointError(f"--out is the data folder '{data}'; choose another --out")
    if is_locked(out):
        raise CheckpointError(f"another process trains in '{out}'; wait until it ends, or choose another --out")
    if is_training(out):
        if resume or not has_checkpoint(out):  # before the first checkpoint there is nothing to lose
            return
        raise CheckpointError(
            f"'{out}' has an unfinished training; add --resume to continue it, or choose another --out"
        )
    if CHECKSUMS in names:
        raise CheckpointError(f"'{out}' has a trained model; choose another --out")
    if names:
        raise CheckpointError(
            f"'{out}' is not empty and has no training of hill (it has '{names[0]}'); choose a new or empty folder for "
            "--out"
        )
    if resume:
        raise CheckpointError(f"'{out}' has no training to resume; leave out --resume, or correct --out")


def start_training(out: Path, resume: bool) -> None:
    """Check the folder of a training and mark it; from here on the training can be resumed."""
    context = current_context()
    if context.is_main:
        with context.lock(out):
            check_output_folder(out, resume)
            mark_training(out)


class Log:
    """The log of a training: one JSON object per line, and TensorBoard if requested."""

    def __init__(self, file: Path, tensorboard: Any = None) -> None:
        self._file = file
        self._start = time.monotonic()
        self._board = tensorboard.SummaryWriter(str(file.parent / "tensorboard")) if tensorboard else None
        if file.exists():
            _check_log(file)

    def write_event(self, event: Step | Epoch) -> None:
        """Log every tenth step and every epoch."""
        if isinstance(event, Epoch):
            values = {key: value for key, value in event.metrics.items() if key != "levels"}
            self.write({"epoch": event.epoch, "improved": event.improved, "dev": values})
            self._add_scalars({f"dev/{key}": value for key, value in values.items()}, event.epoch)
        elif event.step % LOG_STEPS == 0:
            losses = {"loss": event.loss.item()} | {name: part.item() for name, part in event.parts.items()}
            skipped = {"skipped": event.skipped} if event.skipped else {}
            self.write({"step": event.step, "epoch": event.epoch, "rate": event.rate, **losses, **skipped})
            self._add_scalars({f"train/{key}": value for key, value in losses.items()}, event.step)

    def write(self, values: dict[str, Any]) -> None:
        """Append one line."""
        line = json.dumps({"seconds": round(time.monotonic() - self._start, 3), **values}) + "\n"
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise CheckpointError(cannot_write(self._file, error)) from None

    def _add_scalars(self, values: dict[str, float], step: int) -> None:
        if self._board:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)


def _check_log(file: Path) -> None:
    """Raise if hill did not write this file; remove an incomplete last line."""
    content = file.read_bytes()
    if content and not content.startswith(b'{"seconds": '):
        raise CheckpointError(f"'{file}' exists, but hill did not write it; move it, or choose another --out")
    if not content.endswith(b"\n"):
        os.truncate(file, content.rfind(b"\n") + 1)
