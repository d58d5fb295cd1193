"""Checkpoints of a training: all it needs to go on as if it had never stopped."""

import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hill.errors import CheckpointError, HillError
from hill.train.files import check_folder, load_weights, read_json, read_tensors, write_folder
from hill.train.session import Progress, Session
from hill.train.shards import gathered, part_of

BEST = "best.safetensors"
PARTS = ("weights", "optimiser", "random")
FREE = ("checkpoint_seconds", "skip_nonfinite")
"""Settings of training that may be others when it is resumed: they change no step that could be taken before."""


class Checkpoints:
    """The latest two states of one training, in a folder; the weights of the best epoch are kept in memory beside it.

    The main rank alone reads and writes. Nothing in a state depends on how many ranks there are.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self._folder = folder
        self._facts = facts
        self._best: dict[str, Tensor] = {}
        self._latest = ""
        self._last = time.monotonic()
        self.damaged = ""
        """What is wrong with the latest state, where an earlier one was taken instead."""

    def due(self, session: Session) -> bool:
        """Whether the last state is old enough for another, as the main rank sees it; shards need all ranks to save."""
        due = time.monotonic() - self._last >= session.config.checkpoint_seconds
        if not session.sharded:
            return session.ranks.is_main and due
        return session.progress.step % session.watch.every == 0 and session.ranks.from_main(due)

    def save(self, session: Session) -> None:
        """Write the state; the one before it is kept too, and only that while it is written."""
        main = session.ranks.is_main
        weights = gathered(session.model.state_dict(), main)
        optimiser = gathered(_optimiser_tensors(session.optimiser), main)
        name = f"state-{session.progress.step:08d}-{session.progress.epoch:04d}"
        if name == self._latest or not main:
            return
        state = {"facts": self._facts, "progress": asdict(session.progress)}
        tensors = {
            "weights.safetensors": _finite(weights),
            "optimiser.safetensors": optimiser,
            "random.safetensors": _random_states(session.device),
            BEST: self._best,
        }
        if self._latest:
            self._remove_all_but(self._latest)
        try:
            write_folder(self._folder / name, tensors, {"state.json": state})
        except CheckpointError as error:
            raise CheckpointError(f"{error}; what was saved before is whole: go on with --resume") from None
        self._remove_all_but(self._latest, name)
        self._latest, self._last = name, time.monotonic()

    def _remove_all_but(self, *names: str) -> None:
        """Remove other states, and what is left of processes that died; a state has its name as long as it is whole."""
        for path in self._folder.iterdir():
            if path.name not in names:
                gone = path if path.name.startswith(".") else path.rename(path.with_name(f".{path.name}.gone"))
                shutil.rmtree(gone, ignore_errors=True)

    def keep_best(self, session: Session) -> None:
        """Keep the weights of the epoch just finished."""
        weights = gathered(session.model.state_dict(), session.ranks.is_main)
        self._best = {name: value.detach().cpu().clone() for name, value in _finite(weights).items()}

    def load_best(self, session: Session) -> None:
        """Set the weights of the best epoch; every rank has all of them."""
        session.unshard()
        if session.ranks.is_main:
            load_weights(session.model, self._best, self._folder)
        session.ranks.spread(session.model)

    def resume(self, session: Session) -> bool:
        """Set the session to the latest state; false if there is none, an error if it is none that was saved."""
        try:
            return self._resume(session)
        except HillError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
            raise CheckpointError(
                f"'{self._folder}' holds no usable state: {reason}; remove it to start over"
            ) from error

    def _resume(self, session: Session) -> bool:
        ranks, own = session.ranks, session.model.state_dict()
        found = self._read() if ranks.is_main else None
        progress = ranks.from_main(found and found[0])
        if progress is None:
            return False
        tensors = found[1] if found else {name: {} for name in PARTS}
        weights, optimiser, random = (ranks.each_from_main(tensors[name]) for name in PARTS)
        load_weights(session.model, {name: part_of(value, own.get(name)) for name, value in weights}, self._folder)
        _set_optimiser(session.optimiser, optimiser)
        _set_random(dict(random), session.device)
        session.progress = Progress(**progress)
        return True

    def _read(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]] | None:
        """Progress, and the tensors of weights, optimiser and random state, of the latest whole state, if any."""
        states = sorted(self._folder.glob("state-*"), reverse=True)
        if not states:
            return None
        folder = self._first_whole(states)
        state = read_json(folder / "state.json")
        self._check_facts(state["facts"], folder)
        self._best, self._latest = read_tensors(folder / BEST), folder.name
        return state["progress"], {name: read_tensors(folder / f"{name}.safetensors") for name in PARTS}

    def _first_whole(self, states: list[Path]) -> Path:
        for folder in states:
            try:
                check_folder(folder)
                return folder
            except CheckpointError as error:
                self.damaged = self.damaged or str(error)
        raise CheckpointError(f"{self.damaged}; no checkpoint is whole: remove '{self._folder}' to start over")

    def _check_facts(self, found: dict[str, Any], folder: Path) -> None:
        for key, value in _binding(self._facts).items():
            if _binding(found).get(key) != value:
                raise CheckpointError(
                    f"'{folder.parent.parent}' was trained with {key} = {found.get(key)!r}, not {value!r}; "
                    "resume with the same settings and data, or choose another --out"
                )


def _binding(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts without the settings that may change when a training is resumed."""
    settings: dict[str, dict[str, Any]] = facts.get("settings", {})
    train = {key: value for key, value in settings.get("train", {}).items() if key not in FREE}
    return facts | {"settings": settings | {"train": train}}


def _finite(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """These weights, or an error if one is infinite or not a number."""
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
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors:
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = part_of(value, weights[int(number)])
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _set_random(states: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
