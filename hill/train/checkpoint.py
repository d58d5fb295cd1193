"""Trainings on disk: `run` trains with checkpoints and a log, and resumes exactly as if the training never stopped.

The output folder has a file that marks a training, its log and its checkpoints. A training that is killed at any moment
can be resumed.
"""

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hill.data import Documents
from hill.encoders.lora import merge_adapters
from hill.errors import CheckpointError, HillError
from hill.io import (
    CHECKSUMS,
    COMMIT,
    TRAINING,
    cannot_write,
    check_folder,
    check_space,
    finish_save,
    is_locked,
    is_training,
    mark_training,
    other_names,
    read_json,
    remove_saved,
    save_folder,
    write_json,
)
from hill.models.inference import load_weights, read_tensors, upgrade_settings, write_tensors
from hill.settings import Groups, by_group
from hill.taxonomy import Taxonomy
from hill.train.distributed import Stopped, current_context
from hill.train.head_start import fit_before_steps
from hill.train.trainer import Epoch, Finished, Progress, Resumed, Session, Split, Step, TrainingEvent, train

FOLDER = "checkpoints"
STATE = re.compile(r"state-\d{8}-\d{4}")
PARTS = ("weights", "optimiser", "random", "best")
FREE = (("train", "checkpoint_seconds"), ("train", "skip_nonfinite"))
"""Settings that may differ when a training is resumed: they do not change its steps."""
HASHED = ("taxonomy", *(f"{part} of {split}" for split in ("train", "dev") for part in ("ids", "texts", "labels")))
MAX_DIFFERENCES = 5
"""Differences that an error message names."""
LOG_STEPS = 10
"""Steps between two lines of the log."""
DEFAULT_HANDLERS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def run(
    session: Session,
    data: Split,
    dev: Split | None,
    taxonomy: Taxonomy,
    out: Path,
    facts: dict[str, Any],
    resume: bool = False,
) -> Iterator[TrainingEvent]:
    """Train, and finally restore the weights of the best epoch; `facts` must not change when a training is resumed."""
    context = session.context
    context.check_same(facts)
    checkpoints = Checkpoints(out / FOLDER, facts)
    with context.lock(out), context.report_lost_rank():
        if context.is_main:  # a state has the weights, the weights of the best epoch, and Adam's two moments
            size = sum((4 if weight.requires_grad else 2) * weight.nbytes for weight in session.model.parameters())
            check_space(out, size, "a checkpoint")
        log = Log(out / "log.jsonl") if context.is_main else None
        if resume and checkpoints.resume(session):
            if log:
                log.write({"resumed": session.progress.step, "ranks": context.world_size})
            yield Resumed(session.progress.step, checkpoints.damaged)
        else:
            yield from fit_before_steps(session, data)
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
                    message = f"stopped after step {session.progress.step:,}; to continue, add --resume"
                    raise Stopped(stop.received, f"{message} (in Python, call `training` with resume=True)")
        checkpoints.load_best(session)
        merge_adapters(session.model.text)


class StopSignal:
    """Records SIGINT and SIGTERM; the training then stops after the current step. A second signal stops it at once.

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


# Checkpoints


def training_facts(
    model: str, preset: str, settings: Groups, taxonomy: Taxonomy, splits: Mapping[str, Documents]
) -> dict[str, Any]:
    """What must not change when a training is resumed: model, preset, settings, hashes of taxonomy and documents."""
    facts: dict[str, Any] = {"model": model, "preset": preset, "settings": settings, "taxonomy": taxonomy.sha256()}
    for split, documents in splits.items():
        facts |= {f"number of documents of {split}": len(documents)}
        facts |= {f"{part} of {split}": value for part, value in documents.hashes().items()}
    return facts


class Checkpoints:
    """The latest two states of a training in a folder, and the weights of the best epoch in memory.

    Only the main rank reads and writes. A state does not depend on the number of ranks.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self._folder = folder
        self._facts = facts
        self._best: dict[str, Tensor] = {}
        self._latest = ""
        self._last = time.monotonic()
        self.damaged = ""
        """Why the latest state cannot be used, if an earlier one was used instead."""

    def is_due(self, session: Session) -> bool:
        """Whether it is time to save the next state."""
        return session.context.is_main and time.monotonic() - self._last >= session.config.checkpoint_seconds

    def save(self, session: Session) -> None:
        """Save the state and keep the previous one too; older ones are removed first."""
        name = f"state-{session.progress.step:08d}-{session.progress.epoch:04d}"
        if name == self._latest or not session.context.is_main:
            return
        device, moments = session.device, session.optimiser.state_dict()["state"]
        random = {"cpu": torch.get_rng_state()}
        if device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(device)
        tensors = {
            "weights": _finite(session.model.state_dict()),
            "optimiser": {f"{i}.{key}": value for i, each in moments.items() for key, value in each.items()},
            "random": random,
            "best": self._best,
        }
        if self._latest:
            self._remove_all_but(self._latest)
        try:
            with save_folder(self._folder / name) as draft:
                for part, content in tensors.items():
                    write_tensors(draft / f"{part}.safetensors", content)
                write_json(draft / "state.json", {"facts": self._facts, "progress": asdict(session.progress)})
        except HillError as error:
            continued = "; the checkpoint before it is complete: continue with --resume" if self._latest else ""
            raise CheckpointError(f"{error}{continued}") from None
        self._remove_all_but(self._latest, name)
        self._latest, self._last = name, time.monotonic()

    def _remove_all_but(self, *names: str) -> None:
        """Remove other states, including incomplete ones of processes that died."""
        for state in _states(self._folder):
            if state.name not in names:
                remove_saved(state, changed=True)

    def keep_best(self, session: Session) -> None:
        """Copy the current weights as those of the best epoch."""
        if session.context.is_main:
            weights = _finite(session.model.state_dict())
            self._best = {name: value.detach().cpu().clone() for name, value in weights.items()}

    def load_best(self, session: Session) -> None:
        """Restore the weights of the best epoch on every rank."""
        if session.context.is_main:
            load_weights(session.model, self._best, self._folder)
        session.context.broadcast_weights(session.model)

    def resume(self, session: Session) -> bool:
        """Restore the latest state; returns False if there is none and raises if it cannot be used."""
        try:
            return self._resume(session)
        except HillError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
            raise CheckpointError(
                f"'{self._folder}' has no usable checkpoint: {reason}; remove it to start over"
            ) from error

    def _resume(self, session: Session) -> bool:
        context, device = session.context, session.device
        state = self._read() if context.is_main else None
        progress = context.broadcast_object(state and state[0])
        if progress is None:
            return False
        tensors = state[1] if state else {name: {} for name in PARTS}
        weights, optimiser, random = (dict(context.broadcast_tensors(tensors[name])) for name in PARTS[:3])
        load_weights(session.model, weights, self._folder)
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in optimiser.items():
            number, name = key.split(".", 1)
            moments.setdefault(int(number), {})[name] = value
        groups = session.optimiser.state_dict()["param_groups"]
        session.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        torch.set_rng_state(random["cpu"])
        if device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], device)
        session.progress = Progress(**progress)
        return True

    def _read(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]] | None:
        """Progress, and the tensors of weights, optimiser and random state, of the latest intact state, if any."""
        for folder in _states(self._folder):
            if not has_state(folder):
                continue
            try:
                finish_save(folder)
                check_folder(folder)
            except CheckpointError as error:
                self.damaged = self.damaged or str(error)
                continue
            state = read_json(folder / "state.json")
            _check_same(folder, state["facts"], self._facts)
            tensors = {name: read_tensors(folder / f"{name}.safetensors") for name in PARTS}
            self._best, self._latest = tensors.pop("best"), folder.name
            return state["progress"], tensors
        if self.damaged:
            raise CheckpointError(f"{self.damaged}; no checkpoint is intact: remove '{self._folder}' to start over")
        return None


def _check_same(state: Path, saved: dict[str, Any], facts: dict[str, Any]) -> None:
    """Raise if a state belongs to another training, and name the differences."""
    if isinstance(saved.get("settings"), dict) and "settings" in facts:
        saved = saved | {"settings": upgrade_settings(facts["model"], saved["settings"], state, resume=True)}
    if differences := list(_differences(saved, facts)):
        shown = "; ".join(differences[:MAX_DIFFERENCES]) + ("; …" if len(differences) > MAX_DIFFERENCES else "")
        raise CheckpointError(
            f"this training cannot resume '{state.parent.parent}': {shown}. Use the same settings and data, or choose "
            "another --out"
        )


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Describe each difference between the facts of two trainings."""
    for key, value in now.items():
        old = before.get(key, value if key == "preset" else None)  # older checkpoints do not name their preset
        if key == "settings":
            old_groups = old if isinstance(old, dict) else {}
            for group, settings in value.items():
                old_settings = old_groups.get(group, {})
                for name in sorted(settings.keys() | old_settings.keys()):
                    if (group, name) not in FREE and settings.get(name) != old_settings.get(name):
                        yield f"{group}.{name} is {settings.get(name)!r} and was {old_settings.get(name)!r}"
        elif old != value:
            yield f"the {key} changed" if key in HASHED else f"the {key} is {value!r:.100} and was {old!r:.100}"


def _finite(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights; raise if one of them is infinite or NaN."""
    for name, value in weights.items():
        if not value.isfinite().all():
            raise HillError(
                f"the weight '{name}' is not finite and not saved; lower train.lr and train.encoder_lr, or set "
                "train.clip=1 or train.precision=fp32, and start again"
            )
    return weights


# The output folder


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
        has_checkpoint = any(has_state(state) for state in _states(out / FOLDER))
        if has_checkpoint and not resume:  # before the first checkpoint there is nothing to lose
            raise CheckpointError(
                f"'{out}' has an unfinished training; add --resume to continue it, or choose another --out"
            )
    elif CHECKSUMS in names:
        raise CheckpointError(f"'{out}' has a trained model; choose another --out")
    elif names:
        raise CheckpointError(
            f"'{out}' is not empty and has no training of hill (it has '{names[0]}'); choose a new or empty folder for "
            "--out"
        )
    elif resume:
        raise CheckpointError(f"'{out}' has no training to resume; leave out --resume, or correct --out")


def start_training(out: Path, resume: bool) -> None:
    """Check the folder of a training and mark it; from here on the training can be resumed."""
    context = current_context()
    if context.is_main:
        with context.lock(out):
            check_output_folder(out, resume)
            mark_training(out)


def remove_training(out: Path) -> None:
    """Remove the checkpoints of a completed training and the file that marks its folder."""
    for state in _states(out / FOLDER):
        remove_saved(state, changed=True)
    with suppress(OSError):
        (out / FOLDER).rmdir()
    if is_training(out):
        (out / TRAINING).unlink()


def saved_settings(out: Path, model: str, preset: str) -> Groups | None:
    """The settings of the latest checkpoint in this folder, if any; raises if its model or preset is another one."""
    if (latest := _latest_facts(out)) is None:
        return None
    state, facts = latest
    _check_same(state, facts, {"model": model, "preset": preset})
    return by_group(facts["settings"])


def check_resume(out: Path, facts: dict[str, Any]) -> None:
    """Raise if the latest checkpoint in this folder belongs to another training, before anything slow is done."""
    if latest := _latest_facts(out):
        _check_same(*latest, facts)


def _latest_facts(out: Path) -> tuple[Path, dict[str, Any]] | None:
    """The latest readable state in this folder and its facts, if there is one."""
    for state in _states(out / FOLDER):
        if has_state(state):
            with suppress(CheckpointError, LookupError, TypeError):
                finish_save(state)
                facts = read_json(state / "state.json")["facts"]
                by_group(facts["settings"])
                return state, facts | {"model": facts["model"]}
    return None


def _states(folder: Path) -> list[Path]:
    """The folders of states, the latest first; other files and folders are ignored."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in paths if STATE.fullmatch(path.name) and path.is_dir()), reverse=True)


def has_state(folder: Path) -> bool:
    """Whether this is the folder of a completely written state."""
    return any((folder / name / CHECKSUMS).is_file() for name in (".", COMMIT))


# The log


class Log:
    """The log of a training: one JSON object per line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start = time.monotonic()
        if file.exists():
            content = file.read_bytes()
            if content and not content.startswith(b'{"seconds": '):
                raise CheckpointError(f"'{file}' exists, but hill did not write it; move it, or choose another --out")
            if not content.endswith(b"\n"):  # the last line is incomplete
                os.truncate(file, content.rfind(b"\n") + 1)

    def write_event(self, event: Step | Epoch | Finished) -> None:
        """Log every tenth step, every epoch and why training stopped."""
        if isinstance(event, Epoch):
            values = {key: value for key, value in event.metrics.items() if key != "levels"}
            self.write({"epoch": event.epoch, "improved": event.improved, "dev": values})
        elif isinstance(event, Finished):
            self.write({"stopped": event.epoch, "best_epoch": event.best_epoch, "reason": event.reason})
        elif event.step % LOG_STEPS == 0:
            losses = {"loss": event.loss.item()} | {name: part.item() for name, part in event.parts.items()}
            skipped = {"skipped": event.skipped} if event.skipped else {}
            self.write({"step": event.step, "epoch": event.epoch, "rate": event.rate, **losses, **skipped})

    def write(self, values: dict[str, Any]) -> None:
        """Append one line."""
        line = json.dumps({"seconds": round(time.monotonic() - self._start, 3), **values}) + "\n"
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise CheckpointError(cannot_write(self._file, error)) from None
