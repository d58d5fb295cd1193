"""Checkpoints: everything that a training needs to continue exactly as if it had never stopped."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hill.data import Documents
from hill.errors import CheckpointError, HillError
from hill.io import (
    CHECKSUMS,
    COMMIT,
    TRAINING,
    check_folder,
    finish_save,
    is_training,
    read_json,
    remove_saved,
    save_folder,
    write_json,
)
from hill.models.inference import load_weights, read_tensors, upgrade_settings, write_tensors
from hill.settings import Groups
from hill.taxonomy import Taxonomy
from hill.train.session import Progress, Session

FOLDER = "checkpoints"
STATE = re.compile(r"state-\d{8}-\d{4}")
BEST = "best.safetensors"
PARTS = ("weights", "optimiser", "random")
FREE = (("train", "checkpoint_seconds"), ("train", "skip_nonfinite"))
"""Settings that may differ when a training is resumed: they do not change its steps."""
HASHED = ("taxonomy", *(f"{part} of {split}" for split in ("train", "dev") for part in ("ids", "texts", "labels")))
MAX_DIFFERENCES = 5
"""Differences that an error message names."""


def training_facts(model: str, settings: Groups, taxonomy: Taxonomy, splits: Mapping[str, Documents]) -> dict[str, Any]:
    """What must not change when a training is resumed: model, settings, and hashes of taxonomy and documents."""
    facts: dict[str, Any] = {"model": model, "settings": settings, "taxonomy": taxonomy.sha256()}
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

    def size(self, session: Session) -> int:
        """The approximate size of a state in bytes: weights, weights of the best epoch, and Adam's two moments."""
        return sum(4 * weight.numel() * weight.element_size() for weight in session.model.parameters())

    def is_due(self, session: Session) -> bool:
        """Whether it is time to save the next state."""
        return session.context.is_main and time.monotonic() - self._last >= session.config.checkpoint_seconds

    def save(self, session: Session) -> None:
        """Save the state and keep the previous one too; older ones are removed first."""
        name = f"state-{session.progress.step:08d}-{session.progress.epoch:04d}"
        if name == self._latest or not session.context.is_main:
            return
        state = {"facts": self._facts, "progress": asdict(session.progress)}
        tensors = {
            "weights.safetensors": _finite(session.model.state_dict()),
            "optimiser.safetensors": _optimiser_tensors(session.optimiser),
            "random.safetensors": _random_states(session.device),
            BEST: self._best,
        }
        if self._latest:
            self._remove_all_but(self._latest)
        try:
            with save_folder(self._folder / name) as draft:
                for file, content in tensors.items():
                    write_tensors(draft / file, content)
                write_json(draft / "state.json", state)
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
        context = session.context
        state = self._read() if context.is_main else None
        progress = context.broadcast_object(state and state[0])
        if progress is None:
            return False
        tensors = state[1] if state else {name: {} for name in PARTS}
        weights, optimiser, random = (context.broadcast_tensors(tensors[name]) for name in PARTS)
        load_weights(session.model, dict(weights), self._folder)
        _set_optimiser(session.optimiser, optimiser)
        _set_random(dict(random), session.device)
        session.progress = Progress(**progress)
        return True

    def _read(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]] | None:
        """Progress, and the tensors of weights, optimiser and random state, of the latest intact state, if any."""
        states = [state for state in _states(self._folder) if has_state(state)]
        if not states:
            return None
        folder = self._latest_intact(states)
        state = read_json(folder / "state.json")
        self._check_facts(state["facts"], folder)
        self._best, self._latest = read_tensors(folder / BEST), folder.name
        return state["progress"], {name: read_tensors(folder / f"{name}.safetensors") for name in PARTS}

    def _latest_intact(self, states: list[Path]) -> Path:
        for folder in states:
            try:
                finish_save(folder)
                check_folder(folder)
                return folder
            except CheckpointError as error:
                self.damaged = self.damaged or str(error)
        raise CheckpointError(f"{self.damaged}; no checkpoint is intact: remove '{self._folder}' to start over")

    def _check_facts(self, saved: dict[str, Any], folder: Path) -> None:
        """Raise if a state belongs to another training, and name the differences."""
        if isinstance(saved.get("settings"), dict):
            saved = saved | {"settings": upgrade_settings(self._facts["model"], saved["settings"], folder, resume=True)}
        if differences := list(_differences(saved, self._facts)):
            shown = "; ".join(differences[:MAX_DIFFERENCES]) + ("; …" if len(differences) > MAX_DIFFERENCES else "")
            raise CheckpointError(
                f"this training cannot resume '{folder.parent.parent}': {shown}. Use the same settings and data, or "
                "choose another --out"
            )


def _states(folder: Path) -> list[Path]:
    """The folders of states, the latest first; other files and folders are ignored."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in paths if STATE.fullmatch(path.name) and path.is_dir()), reverse=True)


def has_state(folder: Path) -> bool:
    """Whether this is the folder of a completely written state."""
    return any((folder / name / CHECKSUMS).is_file() for name in (".", COMMIT))


def has_checkpoint(out: Path) -> bool:
    """Whether a training saved a checkpoint in this folder."""
    return any(has_state(state) for state in _states(out / FOLDER))


def remove_training(out: Path) -> None:
    """Remove the checkpoints of a completed training and the file that marks its folder."""
    for state in _states(out / FOLDER):
        remove_saved(state, changed=True)
    with suppress(OSError):
        (out / FOLDER).rmdir()
    if is_training(out):
        (out / TRAINING).unlink()


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Describe each difference between the facts of two trainings."""
    for key, value in now.items():
        old = before.get(key)
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


def _optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimiser.state_dict()["state"]
    return {f"{number}.{name}": value for number, values in state.items() for name, value in values.items()}


def _set_optimiser(optimiser: torch.optim.Optimizer, tensors: Iterable[tuple[str, Tensor]]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors:
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _set_random(states: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
