"""Files and folders: atomic writes, locks, checksums, and checks of folders from untrusted sources."""

import errno
import hashlib
import json
import os
import re
import reprlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO, Any

from safetensors import SafetensorError

from hill.errors import CheckpointError, ConfigError, DataError

# File locks: fcntl on Linux and macOS, msvcrt on Windows
fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None
msvcrt: Any = import_module("msvcrt") if find_spec("msvcrt") else None

CHECKSUMS = "files.json"
"""Lists every saved file of a folder with its SHA-256. Files that are not listed were not written by hill."""
MAX_PARTS = 3
"""Parts of the longest name of a saved file, such as member-1/encoder/config.json."""
CARD = "README.md"
"""The model card. Users edit it, so its checksum is not verified when a model is loaded."""
PREFIX = ".hill-"
"""Prefix of lock, draft and marker files. Only hill creates files with this prefix."""
LOCK = f"{PREFIX}lock"
DRAFT = f"{PREFIX}draft"
COMMIT = f"{PREFIX}commit"
TEXT_SUFFIXES = (".json", ".txt", ".model")
MAX_TEXT_BYTES = 256 << 20
"""Maximum size of a text file; the largest tokenizers have 40 MB."""
REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space, or choose another place"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose a place that you may write to"),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "choose a folder"),
    errno.EFBIG: "allow larger files, or choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
}
_locked: set[Path] = set()


# Errors of the file system


def error_number(error: BaseException) -> int:
    """The errno of an error, also if a library only mentions it in its message; 0 if there is none."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    match = re.search(r"os error (\d+)", str(error))
    return int(match[1]) if match else 0


def error_reason(error: BaseException) -> str:
    """Why a file operation failed, in a few words."""
    return os.strerror(number) if (number := error_number(error)) else str(error).split("\n")[0][:200]


def cannot_write(path: Path, error: BaseException) -> str:
    """The message for a path that cannot be written: the reason and a remedy."""
    return f"cannot write '{path}': {error_reason(error)}; {REMEDIES.get(error_number(error), 'choose another place')}"


def as_path(given: Any, name: str, expected: str = "the path of a file or folder") -> Path:
    """The value of the argument `name` as a path; raises `ConfigError` if it is not a valid path."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"{name} is {reprlib.repr(given)}; expected {expected}")
    return Path(text)


def cache_folder() -> Path:
    """The folder of the cache: $HILL_CACHE, or the user's cache folder."""
    if folder := os.environ.get("HILL_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hill"


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded as UTF-8; JSON can contain lone surrogates, which cannot."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


# Durable writes


def sha256(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file or folder to disk. Windows can sync neither folders nor files that are open for reading."""
    if not path.is_dir():
        with path.open("r+b") as file:
            os.fsync(file.fileno())
        return
    with suppress(PermissionError, NotImplementedError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EBADF):  # this file system cannot sync folders
                raise
        finally:
            os.close(handle)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and flush them to disk."""
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            sync(path.parent)
    except OSError as error:
        raise CheckpointError(cannot_write(folder, error)) from None


def check_space(folder: Path, required: int, purpose: str) -> None:
    """Raise if the disk of a folder has fewer free bytes than this."""
    free = shutil.disk_usage(folder).free
    if free < required:
        raise CheckpointError(
            f"the disk of '{folder}' has {free / 1e6:,.1f} MB free, but {purpose} needs about {required / 1e6:,.1f} "
            "MB; free some space, or choose another place"
        )


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Write a file completely or not at all: write to the draft that this yields; it is renamed at the end.

    An existing file is replaced. A link stays a link. A device or pipe is written directly.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            yield target
            return
        if target.is_dir():
            raise DataError(f"cannot write '{path}': it is a folder; give a file name")
        draft = target.with_name(f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}{target.suffix}")
        try:
            yield draft
            if target.exists():
                shutil.copymode(target, draft)
            sync(draft)
            draft.replace(target)
            sync(target.parent)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(cannot_write(path, error)) from None


def write_text(path: Path, text: str) -> None:
    """Write a text file completely or not at all. Lone surrogates, which UTF-8 cannot encode, become "?"."""
    with atomic_file(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="replace", newline="\n")


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file completely or not at all."""
    write_text(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")


# Saved folders: files with checksums that are replaced at once


@contextmanager
def save_folder(folder: Path) -> Iterator[Path]:
    """Save all files to a folder or none: write to the draft folder that this yields; its files are moved at the end.

    Files of an earlier save are replaced, or removed if the new save does not have them. Other files are not touched:
    if one is in the way, or if an earlier file was changed since, nothing is saved. If the process dies while files are
    moved, `finish_save` moves the rest from the complete copy in the folder.
    """
    with lock_folder(folder):
        finish_save(folder)
        draft = folder / DRAFT
        try:
            others = other_names(folder)
            if others and not listed_files(folder) and not is_training(folder):
                raise CheckpointError(
                    f"'{folder}' has files that hill did not write, such as '{others[0]}'; choose an empty or a new "
                    "folder"
                )
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            yield draft
            saved = sorted(file.relative_to(draft).as_posix() for file in draft.rglob("*") if file.is_file())
            earlier = listed_files(folder)
            _check_replaceable(folder, saved, earlier)
            sums = {name: sha256(draft / name) for name in saved}
            (draft / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
            for path in (*draft.rglob("*"), draft):
                if path.is_file():  # safetensors creates files that only their owner can read
                    path.chmod((draft / CHECKSUMS).stat().st_mode)
                sync(path)
            draft.rename(folder / COMMIT)
            sync(folder)
            finish_save(folder)
            _remove_files(folder, {name: earlier[name] for name in earlier.keys() - set(saved)})
        except (OSError, SafetensorError) as error:
            raise CheckpointError(cannot_write(folder, error)) from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def finish_save(folder: Path) -> None:
    """Finish a save that was interrupted while its files were moved."""
    commit = folder / COMMIT
    if not commit.is_dir():
        return
    with lock_folder(folder):
        try:
            files = sorted(commit.rglob("*"), key=lambda path: (path == commit / CHECKSUMS, path))
            targets = {file: folder / file.relative_to(commit) for file in files if file.is_file()}
            for file, target in targets.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)
            for path in {folder, *(target.parent for target in targets.values())}:
                sync(path)
            shutil.rmtree(commit)
            sync(folder)
        except OSError as error:
            raise CheckpointError(f"{cannot_write(folder, error)}; an interrupted save could not be finished") from None


def remove_saved(folder: Path, changed: bool = False) -> None:
    """Remove the saved files, with `changed` also changed ones, and the folder if it becomes empty.

    The list of files is removed first, so that files that remain after a crash do not look like a complete save.
    """
    finish_save(folder)
    removed = folder / f"{DRAFT}-removed.json"
    if listed_files(folder):
        (folder / CHECKSUMS).replace(removed)
    shutil.rmtree(folder / DRAFT, ignore_errors=True)
    _remove_files(folder, listed_files(folder, removed.name), changed)
    removed.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def other_names(folder: Path) -> list[str]:
    """Sorted names in a folder, without locks and drafts of hill; empty if the folder does not exist."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in paths if not path.name.startswith(PREFIX))


def listed_files(folder: Path, name: str = CHECKSUMS) -> dict[str, str]:
    """The files of the last save in a folder with their checksums; empty if there is no valid list of this name."""
    try:
        sums = json.loads((folder / name).read_text(encoding="utf-8"))
        _check_names(list(sums), folder / name)
    except (OSError, ValueError, TypeError):
        return {}
    is_sum = re.compile("[0-9a-f]{64}").fullmatch
    return sums if isinstance(sums, dict) and all(isinstance(s, str) and is_sum(s) for s in sums.values()) else {}


def check_folder(folder: Path) -> None:
    """Raise unless every saved file exists and is unchanged."""
    for name, checksum in read_json(folder / CHECKSUMS).items():
        file = folder / name
        if name == CARD:
            continue
        if not file.is_file():
            raise CheckpointError(f"'{folder}' lacks '{name}', which its {CHECKSUMS} lists; copy it again or retrain")
        if sha256(file) != checksum:
            raise CheckpointError(
                f"'{file}' is damaged: its SHA-256 is not the one in '{folder / CHECKSUMS}'; copy both again or retrain"
            )


def _check_replaceable(folder: Path, names: list[str], earlier: dict[str, str]) -> None:
    """Raise if saving would replace a file that hill did not write, or that was changed since."""
    for name in (*names, CHECKSUMS):
        file = folder / name
        if not os.path.lexists(file) or (name == CHECKSUMS and earlier):
            continue
        if name not in earlier:
            raise CheckpointError(f"'{file}' is in the way: hill did not write it; move it, or choose another folder")
        if file.is_symlink() or not file.is_file() or sha256(file) != earlier[name]:
            raise CheckpointError(
                f"'{file}' was changed after hill wrote it and is not replaced; move it, or choose another folder"
            )


def _remove_files(folder: Path, sums: dict[str, str], changed: bool = False) -> None:
    """Remove the files with these checksums, with `changed` also changed ones, and subfolders that become empty."""
    for name, checksum in sums.items():
        file = folder / name
        if file.is_file() and not file.is_symlink() and (changed or sha256(file) == checksum):
            file.unlink()
            with suppress(OSError, ValueError):
                for parent in (folder / part for part in PurePosixPath(name).parents if part.name):
                    parent.rmdir()


# Training folders

TRAINING = f"{PREFIX}training.json"
"""Marks a folder in which a training runs or ran."""
_TRAINING_CONTENT = {"format": "hill-training", "version": 1}


def mark_training(folder: Path) -> None:
    """Mark a folder as a training folder."""
    write_json(folder / TRAINING, _TRAINING_CONTENT)


def is_training(folder: Path) -> bool:
    """Whether a folder has the marker file of `mark_training`."""
    try:
        content = json.loads((folder / TRAINING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(content == _TRAINING_CONTENT)


# Locks


@contextmanager
def lock_folder(folder: Path, reentrant: bool = True) -> Iterator[None]:
    """Lock a folder for this process, and create it if needed. The lock is released if the process dies.

    If it is `reentrant`, the process that holds the lock may take it again.
    """
    path = Path(os.path.realpath(folder))
    if path in _locked and reentrant:
        yield
        return
    created = not os.path.exists(path)  # not an error if the name is too long, which `make_folder` says
    make_folder(folder)
    file = None if path in _locked else _acquire(folder)
    if file is None:
        raise CheckpointError(f"another process writes to '{folder}'; wait until it ends, or choose another folder")
    _locked.add(path)
    try:
        yield
    finally:
        _locked.discard(path)
        with suppress(OSError):  # on Windows an open file cannot be removed
            (path / LOCK).unlink()
        file.close()
        if created:
            with suppress(OSError):
                path.rmdir()


def is_locked(folder: Path) -> bool:
    """Whether another process holds the lock of this folder."""
    if Path(os.path.realpath(folder)) in _locked or not (folder / LOCK).is_file():
        return False
    with (folder / LOCK).open("r+") as file:
        return not _try_lock(file)


def _acquire(folder: Path) -> IO[str] | None:
    """Open and lock the lock file of a folder; None if another process holds the lock.

    Try again if the process that held the lock has removed the file.
    """
    while True:
        try:
            file = (folder / LOCK).open("a")
        except OSError as error:
            raise CheckpointError(cannot_write(folder, error)) from None
        if not _try_lock(file):
            file.close()
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), (folder / LOCK).stat()):
                return file
        file.close()


def _try_lock(file: IO[str]) -> bool:
    """Lock a file without waiting; false if another process has locked it. True if locks are not supported."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)
    return True


# Untrusted folders


def check_model(folder: Path) -> None:
    """Raise if a model folder fails `check_files`, or names files outside of the folder."""
    if not folder.is_dir():
        return
    check_files(folder)
    if (folder / "config.json").is_file():
        _check_names(read_object(folder / "config.json").get("assets", []), folder / "config.json")
    if (folder / CHECKSUMS).is_file():
        _check_names(list(read_object(folder / CHECKSUMS)), folder / CHECKSUMS)


def check_files(folder: Path) -> None:
    """Raise if a folder has a link to a path outside of it, a special file, or a text file that is far too large.

    Files of a snapshot in the Hugging Face cache are links to the folder `blobs`; these are accepted.
    """
    root = Path(os.path.realpath(folder))
    allowed = (root, root.parents[1] / "blobs") if root.parent.name == "snapshots" else (root,)
    for path in root.rglob("*"):
        target = Path(os.path.realpath(path))
        if not any(target.is_relative_to(parent) for parent in allowed):
            raise CheckpointError(f"'{path}' is a link that leads out of its folder; put the file itself there")
        if not target.is_file() and not target.is_dir():
            raise CheckpointError(f"'{path}' is neither a file nor a folder; remove it")
        if path.suffix in TEXT_SUFFIXES and target.stat().st_size > MAX_TEXT_BYTES:
            raise CheckpointError(
                f"'{path}' has {target.stat().st_size:,} bytes; expected at most {MAX_TEXT_BYTES:,}: it is damaged or "
                "malicious"
            )


def read_json(file: Path) -> Any:
    """Read a JSON file of a saved folder."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if not file.parent.is_dir():
            raise CheckpointError(f"'{file.parent}' is not a folder; give the folder of a saved model") from None
        hint = "; its training did not finish: continue it with --resume" if is_training(file.parent) else ""
        raise CheckpointError(f"'{file.parent}' is not a saved model: it has no {file.name}{hint}") from None
    except RecursionError:
        raise CheckpointError(f"'{file}' is nested too deeply; copy it again") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error_reason(error)}; copy it again") from None


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object of a saved folder."""
    content = read_json(file)
    if not isinstance(content, dict):
        raise CheckpointError(f"'{file}' does not contain a JSON object; copy it again")
    return content


def unusable(folder: object, error: Exception) -> CheckpointError:
    """The error for a folder that a library failed to read."""
    reason = f"{type(error).__name__}: {error}".strip().split("\n")[0][:200]
    return CheckpointError(f"'{folder}' is not a usable model: {reason}; copy it again or retrain")


def _check_names(names: Any, file: Path) -> None:
    """Raise unless these are names of files in the folder, or at most two folders down."""
    for name in names if isinstance(names, list) else [names]:
        path = PurePosixPath(str(name))
        if not isinstance(name, str) or path.is_absolute() or {"..", "\\", "\0"} & {*path.parts, *name}:
            raise CheckpointError(f"'{file}' names {str(name)[:80]!r}; expected files of its own folder")
        if not 1 <= len(path.parts) <= MAX_PARTS:
            raise CheckpointError(
                f"'{file}' names '{name[:80]}'; expected files of its folder, at most {MAX_PARTS - 1} folders down"
            )
