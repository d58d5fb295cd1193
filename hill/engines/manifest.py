"""The manifest of a folder of predictions: what it was made of, so that a run goes on only where it left off."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hill.disk import cannot_write, sum_of, sync
from hill.engines.parts import Cut, Part
from hill.engines.write import DRAFT, Written
from hill.errors import CheckpointError, ConfigError
from hill.settings import document

MANIFEST = "_manifest.json"
DONE = "_done.json"
LOCK = "_lock"
FORMAT = "hill-predictions"
VERSION = 1
REMEDY = "give another --output, or remove this folder to start over"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """The folder for one run at a time; what a killed run left half written is removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / MANIFEST).exists() and any(not path.name.startswith((LOCK, ".")) for path in folder.iterdir()):
            raise ConfigError(f"'{folder}' holds something else than predictions; give an empty or a new folder")
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise ConfigError(cannot_write(folder, error)) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another run writes to '{folder}'; wait for it, or give another --output") from None
        try:
            _remove_drafts(folder)
            yield
        finally:
            _remove_drafts(folder)


def settle(folder: Path, model: Path, cut: Cut, parts: Sequence[Part]) -> None:
    """Write the manifest; where there is one of another model, settings or input, raise what differs."""
    wanted = _manifest(model, cut, parts)
    if (folder / MANIFEST).exists():
        _compare(folder, _read(folder / MANIFEST), wanted)
    (folder / DONE).unlink(missing_ok=True)
    _write(folder / MANIFEST, wanted)


def finish(folder: Path, written: Sequence[Written]) -> None:
    """Note that all parts are there, and how many rows they have."""
    totals = {"parts": len(written), "rows": sum(w.rows for w in written), "errors": sum(w.bad for w in written)}
    _write(folder / DONE, totals)


def _remove_drafts(folder: Path) -> None:
    for draft in folder.rglob(f".*{DRAFT}"):
        draft.unlink(missing_ok=True)


def _manifest(model: Path, cut: Cut, parts: Sequence[Part]) -> dict[str, Any]:
    try:
        model_sum = sum_of(model / "files.json")
    except OSError:
        raise CheckpointError(f"'{model}' is no saved model: it has no files.json") from None
    head = {"format": FORMAT, "version": VERSION, "model": model_sum, "settings": document(cut)}
    return head | {"parts": {part.name: part.document() for part in parts}}


def _compare(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Files that came since are welcome; what was predicted before must be the same."""
    if (old.get("format"), old.get("version")) != (FORMAT, VERSION):
        raise ConfigError(f"'{folder}' was written by another version of this program; {REMEDY}")
    if old["model"] != new["model"]:
        raise ConfigError(f"'{folder}' holds predictions of another model; {REMEDY}")
    if old["settings"] != new["settings"]:
        raise ConfigError(f"'{folder}' was begun with {old['settings']}, now they are {new['settings']}; {REMEDY}")
    for name, part in old["parts"].items():
        if name not in new["parts"]:
            raise ConfigError(f"'{folder}' was begun with '{part['source']}', which the input lacks now; {REMEDY}")
        if part != new["parts"][name]:
            raise ConfigError(f"'{part['source']}' has changed since '{folder}' was begun; {REMEDY}")


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{file}' cannot be read: {error}; {REMEDY}") from None


def _write(file: Path, content: dict[str, Any]) -> None:
    draft = file.with_name(f".{file.name}.{os.getpid()}{DRAFT}")
    try:
        draft.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        sync(draft)
        draft.replace(file)
        sync(file.parent)
    except OSError as error:
        raise ConfigError(f"{cannot_write(file, error)}; what is written stays: run it again to go on") from None
