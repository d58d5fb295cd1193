"""Checkpoints of a training: all it needs to go on as if it had never stopped."""

import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hill.errors import CheckpointError
from hill.train.files import check_folder, load_weights, read_json, read_tensors, write_folder
from hill.train.session import Progress, Session

BEST = "best.safetensors"


class Checkpoints:
    """The latest state of one training, in a folder; the weights of the best epoch are kept in memory beside it.

    The main rank alone reads and writes. Nothing in a state depends on how many ranks there are.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self._folder = folder
        self._facts = facts
        self._best: dict[str, Tensor] = {}
        self._last = time.monotonic()

    def save_if_due(self, session: Session) -> None:
        """Write the state if the last one is old enough."""
        if session.ranks.is_main and time.monotonic() - self._last >= session.config.checkpoint_seconds:
            self.save(session)

    def save(self, session: Session) -> None:
        """Write the state; older states go once it is on disk."""
        name = f"state-{session.progress.step:08d}-{session.progress.epoch:04d}"
        state = {"facts": self._facts, "progress": asdict(session.progress)}
        tensors = {
            "weights.safetensors": session.model.state_dict(),
            "optimiser.safetensors": _optimiser_tensors(session.optimiser),
            "random.safetensors": _random_states(session.device),
            BEST: self._best,
        }
        write_folder(self._folder / name, tensors, {"state.json": state})
        for folder in self._folder.glob("state-*"):
            if folder.name != name:
                shutil.rmtree(folder, ignore_errors=True)
        self._last = time.monotonic()

    def keep_best(self, session: Session) -> None:
        """Keep the weights of the epoch just finished."""
        if session.ranks.is_main:
            self._best = {name: value.detach().cpu().clone() for name, value in session.model.state_dict().items()}

    def load_best(self, session: Session) -> None:
        """Set the weights of the best epoch."""
        if session.ranks.is_main:
            load_weights(session.model, self._best, self._folder)
        session.ranks.spread(session.model)

    def resume(self, session: Session) -> bool:
        """Set the session to the latest state; false if there is none."""
        found = session.ranks.from_main(self._read() if session.ranks.is_main else None)
        if found is None:
            return False
        progress, tensors = found
        load_weights(session.model, tensors["weights"], self._folder)
        _set_optimiser(session.optimiser, tensors["optimiser"])
        _set_random(tensors["random"], session.device)
        session.progress = Progress(**progress)
        return True

    def _read(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]] | None:
        """Progress, and the tensors of weights, optimiser and random state, of the latest state if there is one."""
        states = sorted(self._folder.glob("state-*"))
        if not states:
            return None
        folder = states[-1]
        check_folder(folder)
        state = read_json(folder / "state.json")
        self._check_facts(state["facts"], folder)
        self._best = read_tensors(folder / BEST)
        names = ("weights", "optimiser", "random")
        return state["progress"], {name: read_tensors(folder / f"{name}.safetensors") for name in names}

    def _check_facts(self, found: dict[str, Any], folder: Path) -> None:
        for key, value in self._facts.items():
            if found.get(key) != value:
                raise CheckpointError(
                    f"'{folder.parent.parent}' was trained with {key} = {found.get(key)!r}, not {value!r}; "
                    "resume with the same settings and data, or choose another --out"
                )


def _optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimiser.state_dict()["state"]
    return {f"{number}.{name}": value for number, values in state.items() for name, value in values.items()}


def _set_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
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
