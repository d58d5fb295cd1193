"""What makes files on disk trustworthy: their sums, that they are there after a crash, and that one process writes."""

import ctypes
import errno
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hill.errors import CheckpointError

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"
"""File of a claimed folder; its lock, not the file, makes the claim."""
HELP = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there, or choose another place"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose a place that you may write to"),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "choose a folder"),
    errno.EFBIG: "allow larger files, or choose another place",
}
_held: set[Path] = set()


def sum_of(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder, with those above it, that is there after a crash too."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in missing:
            sync(place.parent)
    except OSError as error:
        raise CheckpointError(cannot_write(folder, error)) from None


def swap(one: Path, other: Path) -> bool:
    """Let two folders change places at once; false where the system or the disk cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def why(error: BaseException) -> str:
    """The reason of an error of the disk."""
    return os.strerror(number) if (number := _number(error)) else str(error).split("\n")[0][:200]


def cannot_write(path: Path, error: BaseException) -> str:
    """That something cannot be written, with the reason and what helps."""
    return f"cannot write '{path}': {why(error)}; {HELP.get(_number(error), 'choose another place')}"


def _number(error: BaseException) -> int:
    """The number of an error of the disk, also where a library has put it into words; 0 where there is none."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else 0


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """While this lasts no other process may claim this folder, which is made; one that dies leaves it free."""
    place = folder.resolve()
    if place in _held:
        yield
        return
    with _open_lock(folder) as file:
        if not _lock(file, alone=True):
            raise CheckpointError(f"another process writes to '{folder}'; wait until it ends, or choose another folder")
        _held.add(place)
        try:
            yield
        finally:
            _held.discard(place)


def is_claimed(folder: Path) -> bool:
    """Whether another process has claimed this folder."""
    if folder.resolve() in _held or not (folder / LOCK).exists():
        return False
    with (folder / LOCK).open() as file:
        return not _lock(file, alone=False)


def _open_lock(folder: Path) -> IO[str]:
    make_folder(folder)
    try:
        return (folder / LOCK).open("a")
    except OSError as error:
        raise CheckpointError(cannot_write(folder, error)) from None


def _lock(file: IO[str], alone: bool) -> bool:
    """Whether a file could be locked; where the disk knows no locks, it counts as locked."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
