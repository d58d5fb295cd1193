"""Checkpoints of a training: all it needs to go on as if it had never stopped."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hill.errors import CheckpointError
from hill.train.files import check_folder, load_weights, read_json, read_tensors, write_folder
from hill.train.loop import Progress, Session


class Checkpoints:
    """The checkpoints of one training, in a folder: the latest state, and the weights of the best epoch."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self._folder = folder
        self._facts = facts

    def save(self, session: Session) -> None:
        """Write the state; older states go once it is on disk."""
        name = f"state-{session.progress.step:08d}-{session.progress.epoch:04d}"
        state = {"facts": self._facts, "progress": asdict(session.progress)}
        tensors = {
            "weights.safetensors": session.model.state_dict(),
            "optimiser.safetensors": _optimiser_tensors(session.optimiser),
            "random.safetensors": _random_states(session.device),
        }
        write_folder(self._folder / name, tensors, {"state.json": state})
        self._remove("state-*", keep=name)

    def save_best(self, session: Session) -> None:
        """Keep the weights of the epoch just finished."""
        name = f"best-{session.progress.epoch:04d}"
        write_folder(self._folder / name, {"weights.safetensors": session.model.state_dict()}, {})

    def load_best(self, session: Session) -> None:
        """Set the weights of the best epoch."""
        folder = self._folder / f"best-{session.progress.best_epoch:04d}"
        check_folder(folder)
        load_weights(session.model, read_tensors(folder / "weights.safetensors", str(session.device)), folder)

    def resume(self, session: Session) -> bool:
        """Set the session to the latest state; false if there is none."""
        states = sorted(self._folder.glob("state-*"))
        if not states:
            return False
        folder = states[-1]
        check_folder(folder)
        state = read_json(folder / "state.json")
        self._check_facts(state["facts"], folder)
        load_weights(session.model, read_tensors(folder / "weights.safetensors", str(session.device)), folder)
        _set_optimiser(session.optimiser, read_tensors(folder / "optimiser.safetensors"))
        _set_random(read_tensors(folder / "random.safetensors"), session.device)
        session.progress = Progress(**state["progress"])
        self._remove("best-*", keep=f"best-{session.progress.best_epoch:04d}")
        return True

    def clear(self) -> None:
        """Remove all checkpoints: the training is done and its model saved."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def drop_older_best(self, session: Session) -> None:
        """Remove the weights of earlier best epochs, once a state that names the new one is on disk."""
        self._remove("best-*", keep=f"best-{session.progress.best_epoch:04d}")

    def _check_facts(self, found: dict[str, Any], folder: Path) -> None:
        for key, value in self._facts.items():
            if found.get(key) != value:
                raise CheckpointError(
                    f"'{folder.parent.parent}' was trained with {key} = {found.get(key)!r}, not {value!r}; "
                    "resume with the same settings and data, or choose another --out"
                )

    def _remove(self, pattern: str, keep: str) -> None:
        for folder in self._folder.glob(pattern):
            if folder.name != keep:
                shutil.rmtree(folder, ignore_errors=True)


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
