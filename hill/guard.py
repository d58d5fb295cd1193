"""What others made is not trusted: links out of a folder, names of other files, texts that steer a terminal."""

import json
import os
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from hill.errors import CheckpointError, escaped

TEXTS = (".json", ".txt", ".model")
"""Ends of the names of files that are read as a whole."""
MOST_TEXT = 256 << 20
"""Most bytes of such a file; the largest tokenizers have 40 million."""


def check_model(folder: Path) -> None:
    """Raise if a model folder has something that `check_files` refuses, or names files that are not its own."""
    if not folder.is_dir():
        return
    check_files(folder)
    if (folder / "config.json").is_file():
        _check_names(read_object(folder / "config.json").get("assets", []), folder / "config.json")
    if (folder / "files.json").is_file():
        _check_names(list(read_object(folder / "files.json")), folder / "files.json")


def check_files(folder: Path) -> None:
    """Raise if a folder that others made has a link out of it, what is no file, or a text too large to be one.

    The files of a snapshot in the hub's cache are links to the blobs beside it: these are let through.
    """
    root = Path(os.path.realpath(folder))
    rooms = (root, root.parents[1] / "blobs") if root.parent.name == "snapshots" else (root,)
    for path in chain(root.iterdir(), root.glob("*/*")):
        target = Path(os.path.realpath(path))
        if not any(target.is_relative_to(room) for room in rooms):
            raise CheckpointError(f"'{path}' is a link that leads out of its folder; put the file itself there")
        if not target.is_file() and not target.is_dir():
            raise CheckpointError(f"'{path}' is neither a file nor a folder; remove it")
        if path.suffix in TEXTS and target.stat().st_size > MOST_TEXT:
            raise CheckpointError(
                f"'{path}' has {target.stat().st_size:,} bytes; expected at most {MOST_TEXT:,}: it is damaged or made "
                "to use up memory"
            )


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object of a folder that others made."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"'{file.parent}' is no saved model: it has no {file.name}") from None
    except RecursionError:
        raise CheckpointError(f"'{file}' is nested too deep for JSON; copy it again") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {str(error)[:200]}; copy it again") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"'{file}' holds no JSON object; copy it again")
    return found


def unusable(folder: object, error: Exception) -> CheckpointError:
    """What is said of a folder whose files made a library fail, in whichever way."""
    reason = f"{type(error).__name__}: {error}".strip().split("\n")[0][:200]
    return CheckpointError(f"'{folder}' is no usable model: {reason}; copy it again or train anew")


def shown(text: str) -> str:
    """Text for a terminal: characters that would steer it, in labels or texts of others, become visible escapes.

    >>> shown("red \\x1b[31m and a bell \\x07, but\\ttabs and\\nlines stay")
    'red \\\\x1b[31m and a bell \\\\x07, but\\ttabs and\\nlines stay'
    """
    return escaped(text, but="\t\n")


def _check_names(names: Any, file: Path) -> None:
    """Raise unless these are names of files in the folder, or in a folder in it."""
    for name in names if isinstance(names, list) else [names]:
        path = PurePosixPath(str(name))
        if not isinstance(name, str) or path.is_absolute() or {"..", "\\", "\0"} & {*path.parts, *name}:
            raise CheckpointError(f"'{file}' names {str(name)[:80]!r}; expected files of its own folder")
        if not 1 <= len(path.parts) <= 2:
            raise CheckpointError(f"'{file}' names '{name[:80]}'; expected files of its folder or of one in it")
