"""Files that are whole or not there: written under another name, named at the end, checked by their sums."""

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hill.disk import LOCK, cannot_write, make_folder, sum_of, swap, sync, why
from hill.errors import CheckpointError

SUMS = "files.json"
KEPT = ("log.jsonl", "tensorboard")
"""What a training wrote beside its model and is kept when the model takes its place."""
OURS = (SUMS, "checkpoints", LOCK, *KEPT)
"""A folder that has one of these was written here, and a model may take its place."""


def write_folder(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], documents: Mapping[str, Any]) -> None:
    """A folder of safetensors and JSON files; it appears under its name when all of it is on disk.

    What stood there before is removed after that. `files.json` holds the SHA-256 of every file.
    """
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
    try:
        tidy(folder)
        _check_place(folder)
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(folder.parent)
        draft.mkdir()
        _fill(draft, tensors, documents)
        _put_in_place(draft, folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(cannot_write(folder, error)) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _check_place(folder: Path) -> None:
    """Raise unless nothing would be lost if this folder were another."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError(f"'{folder}' is a file; choose a folder")
    if any(folder.iterdir()) and not any((folder / name).exists() for name in OURS):
        raise CheckpointError(f"'{folder}' holds something else than a model; choose an empty or a new folder")


def _fill(draft: Path, tensors: Mapping[str, Mapping[str, Tensor]], documents: Mapping[str, Any]) -> None:
    for name, content in tensors.items():
        save_file({key: value.contiguous() for key, value in content.items()}, draft / name)
    for name, document in documents.items():
        (draft / name).parent.mkdir(exist_ok=True)
        (draft / name).write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    sums = {str(file.relative_to(draft)): sum_of(file) for file in sorted(draft.rglob("*")) if file.is_file()}
    (draft / SUMS).write_text(json.dumps(sums, indent=1) + "\n")
    for name in tensors:
        (draft / name).chmod((draft / SUMS).stat().st_mode)  # else they are for their owner alone


def _put_in_place(draft: Path, folder: Path) -> None:
    for name in KEPT:
        if (folder / name).is_dir():
            shutil.copytree(folder / name, draft / name)
        elif (folder / name).exists():
            shutil.copy2(folder / name, draft / name)
    for path in (*draft.rglob("*"), draft):
        sync(path)
    if not folder.exists():
        draft.rename(folder)
    elif not swap(draft, folder):
        folder.rename(draft.with_suffix(".old"))
        draft.rename(folder)
    sync(folder.parent)
    shutil.rmtree(draft.with_suffix(".old"), ignore_errors=True)


def tidy(folder: Path) -> None:
    """Remove what processes that died left of writing this folder; if it was about to be replaced, name it again."""
    for left in _left_by_the_dead(folder):
        if left.suffix == ".old" and not folder.exists():
            with suppress(FileNotFoundError):  # another rank was faster
                left.rename(folder)
        else:
            shutil.rmtree(left, ignore_errors=True)


def _left_by_the_dead(folder: Path) -> list[Path]:
    """What processes that are gone left of their writing to this folder."""
    found = [path for path in folder.parent.glob(".*.*") if path.suffix in (".draft", ".old")]
    owners = {path: path.stem.removeprefix(f".{folder.name}.") for path in found}
    return [path for path, owner in owners.items() if owner.isdigit() and not _lives(int(owner))]


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def check_folder(folder: Path) -> None:
    """Raise unless every file that was written is there, whole and unchanged."""
    sums = read_json(folder / SUMS)
    for name, wanted in sums.items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"'{folder}' lacks '{name}', which its {SUMS} names; copy it again or train anew")
        if sum_of(file) != wanted:
            raise CheckpointError(
                f"'{file}' is damaged: its SHA-256 is not the one in '{folder / SUMS}'; copy both again or train anew"
            )


def read_json(file: Path) -> Any:
    """A JSON document of a saved model or checkpoint."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"'{file.parent}' is no saved model: it has no {file.name}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {why(error)}") from None


def read_tensors(file: Path, device: str = "cpu") -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return load_file(file, device=device)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {why(error)}") from None


def load_weights(module: torch.nn.Module, weights: Mapping[str, Tensor], place: Path) -> None:
    """Set a module's weights, if they are exactly the ones it has."""
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:300]
        raise CheckpointError(f"the weights in '{place}' do not fit the model: {detail}") from None
