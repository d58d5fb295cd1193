"""A cache of arrays on disk. Keys are hashes of everything that an entry was computed from."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hill.io import cache_folder

MAX_CACHE_BYTES = 4 << 30
"""If the entries of one kind are larger, the least recently used ones are removed."""
Arrays = Mapping[str, npt.NDArray[Any]]


def read_arrays(kind: str, key: str) -> dict[str, npt.NDArray[Any]] | None:
    """The arrays of an entry, or None if it is missing or damaged."""
    try:
        content = load_file(file := _entry(kind, key))
        if not np.array_equal(content.pop("sum"), _checksum(content)):
            return None
        os.utime(file)
        return content
    except (OSError, SafetensorError, KeyError):
        return None


def write_arrays(kind: str, key: str, arrays: Arrays) -> None:
    """Write an entry, then remove the least recently used ones if there are too many; errors are ignored."""
    file = _entry(kind, key)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(OSError, SafetensorError):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file({**arrays, "sum": _checksum(arrays)}, draft)
            draft.rename(file)
        finally:
            draft.unlink(missing_ok=True)
        total = 0
        for entry in sorted(file.parent.glob("*.safetensors"), key=lambda entry: entry.stat().st_mtime, reverse=True):
            total += entry.stat().st_size
            if total > MAX_CACHE_BYTES:
                entry.unlink(missing_ok=True)


def _entry(kind: str, key: str) -> Path:
    return cache_folder() / kind / f"{key}.safetensors"


def _checksum(arrays: Arrays) -> npt.NDArray[np.uint8]:
    """SHA-256 of the arrays of an entry, to detect damage on disk."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    return np.frombuffer(digest.digest(), dtype=np.uint8)
