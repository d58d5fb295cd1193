"""The folder of an exported model: whole or not there, checked by its sums, read without torch."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hill.disk import sum_of, sync
from hill.errors import CheckpointError, ConfigError
from hill.guard import check_model, read_object

FORMAT = "hill-onnx"
VERSION = 1
GRAPH = "model.onnx"
CONFIG = "config.json"
SUMS = "files.json"


def is_export(folder: Path) -> bool:
    """Whether a folder says that it holds an exported model; one made to harm is an error, whatever it says."""
    check_model(folder)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def check_place(folder: Path) -> None:
    """Raise if an export may not be written here: it replaces an earlier export, but nothing else."""
    if folder.is_dir() and (is_export(folder) or not any(folder.iterdir())):
        return
    if folder.exists():
        raise ConfigError(f"'{folder}' exists and is no exported model; choose another folder for the export")


def write_export(folder: Path, graph: Path, documents: Mapping[str, Any]) -> None:
    """A graph and JSON documents as a folder that appears under its name when all of it is on disk."""
    draft, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{end}") for end in ("draft", "old"))
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        shutil.copyfile(graph, draft / GRAPH)
        for name, document in documents.items():
            _write(draft / name, document)
        _write(draft / SUMS, {file.name: sum_of(file) for file in sorted(draft.iterdir())})
        for path in (*draft.iterdir(), draft):
            sync(path)
        if folder.exists():
            folder.rename(old)
        draft.rename(folder)
        sync(folder.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write '{folder}': {error.strerror}") from None
    finally:
        for left in (draft, old):
            shutil.rmtree(left, ignore_errors=True)


def read_export(folder: Path) -> dict[str, Any]:
    """The documents of an exported model by name, once every file is seen to be whole and unchanged."""
    if not is_export(folder):
        raise CheckpointError(f"'{folder}' is no exported model; make one with: hill export MODEL --onnx {folder}")
    version = read_object(folder / CONFIG).get("version")
    if version != VERSION:
        raise CheckpointError(f"'{folder}' is of version {version!r}; this program reads {FORMAT!r}, version {VERSION}")
    sums = read_object(folder / SUMS)
    for name, wanted in sums.items():
        if not (folder / name).is_file():
            raise CheckpointError(f"'{folder}' lacks '{name}'; copy it again or export anew")
        if sum_of(folder / name) != wanted:
            raise CheckpointError(f"'{folder / name}' is damaged: its SHA-256 is not the one written with it")
    return {name: read_object(folder / name) for name in sums if name.endswith(".json")}


def _write(file: Path, document: Any) -> None:
    file.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
