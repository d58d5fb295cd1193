"""Files that are whole or not there: written under another name, named at the end, checked by their sums."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hill.disk import sum_of, sync
from hill.errors import CheckpointError

KEPT = ("log.jsonl", "tensorboard")
"""What a training wrote beside its model and is kept when the model takes its place."""


def write_folder(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], documents: Mapping[str, Any]) -> None:
    """A folder of safetensors and JSON files; it appears under its name when all of it is on disk.

    What stood there before is removed after that. `files.json` holds the SHA-256 of every file.
    """
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for name, content in tensors.items():
            save_file({key: value.contiguous() for key, value in content.items()}, draft / name)
        for name, document in documents.items():
            (draft / name).parent.mkdir(exist_ok=True)
            (draft / name).write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        sums = {str(file.relative_to(draft)): sum_of(file) for file in sorted(draft.rglob("*")) if file.is_file()}
        (draft / "files.json").write_text(json.dumps(sums, indent=1) + "\n")
        for file in draft.rglob("*"):
            sync(file)
        _put_in_place(draft, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise CheckpointError(f"cannot write '{folder}': {_reason(error)}") from None


def _put_in_place(draft: Path, folder: Path) -> None:
    if folder.exists():
        old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        folder.rename(old)
        draft.rename(folder)
        for name in KEPT:
            if (old / name).exists():
                (old / name).rename(folder / name)
        shutil.rmtree(old)
    else:
        draft.rename(folder)
    sync(folder.parent)


def check_folder(folder: Path) -> None:
    """Raise unless every file that was written is there, whole and unchanged."""
    sums = read_json(folder / "files.json")
    for name, wanted in sums.items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"'{folder}' lacks '{name}'; copy it again or train anew")
        if sum_of(file) != wanted:
            raise CheckpointError(f"'{file}' is damaged: its SHA-256 is not the one written with it; copy it again")


def read_json(file: Path) -> Any:
    """A JSON document of a saved model or checkpoint."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"'{file.parent}' is no saved model: it has no {file.name}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {_reason(error)}") from None


def read_tensors(file: Path, device: str = "cpu") -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return load_file(file, device=device)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {_reason(error)}") from None


def load_weights(module: torch.nn.Module, weights: Mapping[str, Tensor], place: Path) -> None:
    """Set a module's weights, if they are exactly the ones it has."""
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:300]
        raise CheckpointError(f"the weights in '{place}' do not fit the model: {detail}") from None


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error).split("\n")[0][:200]
