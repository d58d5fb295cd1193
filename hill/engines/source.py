"""The input of a job in bulk: files by name, folder, glob or URI, and how they are opened."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hill.data.files import EXPECTED, FORMATS, format_of
from hill.errors import ConfigError, DataError
from hill.extras import need

WILD = re.compile(r"[*?\[]")
VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated")
"""What file systems call the thing that changes with a file."""


@dataclass(frozen=True)
class Source:
    """A file: its address, its path below the folder or pattern it was found by, its size and its version."""

    address: str
    path: str
    size: int
    version: str


def find_sources(given: str) -> list[Source]:
    """The data files that a path, folder, glob or URI names, sorted.

    Hidden ones, and those of a folder that are no data, are left out.
    """
    system, place = _system(given)
    try:
        root, names = _list(system, place)
        found = [_source(system, root, name) for name in sorted(names) if _shown(_below(name, root))]
    except OSError as error:
        raise DataError(f"cannot read '{given}': {error.strerror or error}") from None
    if not found:
        raise DataError(f"'{given}' names no data file; expected {EXPECTED}, a folder of them, or a glob in quotes")
    return found


@contextmanager
def open_source(address: str) -> Iterator[Any]:
    """The bytes of a file, unpacked where it is gzipped; they can be sought in."""
    system, place = _system(address)
    with system.open(place, "rb") as raw:
        if address.lower().endswith(".gz"):
            with gzip.GzipFile(fileobj=raw) as file:
                yield file
        else:
            yield raw


def version_of(address: str) -> tuple[int, str]:
    """The size of a file, and what changes when it does."""
    system, place = _system(address)
    try:
        info = system.info(place)
    except OSError as error:
        raise DataError(f"cannot read '{address}': {error.strerror or error}") from None
    return int(info["size"]), next((str(info[key]) for key in VERSIONS if info.get(key) is not None), "")


def _system(address: str) -> tuple[Any, str]:
    """The file system of an address and the place on it: fsspec's, else pyarrow's."""
    core = need("fsspec.core", "data", "reading files in bulk")
    try:
        system, place = core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        return _arrow_system(address, error)
    return system, str(place)


def _arrow_system(address: str, reason: Exception) -> tuple[Any, str]:
    arrow = need("pyarrow", "data", "reading files in bulk")
    systems = need("pyarrow.fs", "data", "reading files in bulk")
    wrapper = need("fsspec.implementations.arrow", "data", "reading files in bulk")
    try:
        system, place = systems.FileSystem.from_uri(address)
    except (arrow.ArrowException, OSError, ValueError):
        raise ConfigError(f"cannot open '{address}': {reason}; give a path, or install what reads it") from None
    return wrapper.ArrowFSWrapper(system), str(place)


def _list(system: Any, place: str) -> tuple[str, list[str]]:
    """A folder and the files below it that are meant."""
    if system.isfile(place):
        format_of(Path(place))
        return place.rpartition("/")[0], [place]
    if system.isdir(place):
        return place, [name for name in system.find(place) if _is_data(name)]
    if WILD.search(place):
        names = [name for name in system.glob(place) if system.isfile(name)]
        for name in names:
            format_of(Path(name))
        return place[: WILD.search(place).start()].rpartition("/")[0], names  # type: ignore[union-attr]
    raise DataError(f"'{place}' does not exist; give a data file, a folder, or a glob in quotes")


def _source(system: Any, root: str, name: str) -> Source:
    address = system.unstrip_protocol(name)
    address = address.removeprefix("file://").removeprefix("local://")
    return Source(address, _below(name, root), *version_of(address))


def _is_data(name: str) -> bool:
    return Path(name.lower().removesuffix(".gz")).suffix in FORMATS


def _below(name: str, root: str) -> str:
    return name.removeprefix(root).lstrip("/")


def _shown(path: str) -> bool:
    """Whether no part of a path begins with a dot or an underscore, which mark what is no data."""
    return not any(step.startswith((".", "_")) for step in PurePosixPath(path).parts)
