"""Files and folders: atomic writes, checksums, locks, and no loss of files that hill did not write."""

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hill.io
from hill.errors import CheckpointError, DataError
from hill.io import (
    CHECKSUMS,
    COMMIT,
    LOCK,
    atomic_file,
    check_folder,
    finish_save,
    is_locked,
    lock_folder,
    mark_training,
    remove_saved,
    save_folder,
    sync,
    write_json,
    write_text,
)
from hill.models.inference import write_tensors
from tests.conftest import ROOT
from tests.faults.helpers import write_data
from tests.forks import start

NAMES = ("a.json", "b.json", "c/d.json", "e/f.json", CHECKSUMS)
"""Names of saved files, which files of the user may have as well."""


def save(folder: Path, **contents: str) -> None:
    """Save files with these contents; a _ in a name is a slash."""
    with save_folder(folder) as draft:
        for name, content in contents.items():
            file = draft / f"{name.replace('_', '/')}.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text(content)


def contents(folder: Path) -> dict[str, str]:
    return {f.relative_to(folder).as_posix(): f.read_text() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_a_save_replaces_the_files_of_the_last_one_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "model"
    save(target, a="1", c_d="1")
    (tmp_path / "usual").touch()
    assert {file.stat().st_mode for file in target.rglob("*.*")} == {(tmp_path / "usual").stat().st_mode}
    (target / "mine.txt").write_text("mine")
    (target / "c" / "mine.txt").write_text("mine")
    save(target, a="2", b="2")
    found = contents(target)
    assert found.pop(CHECKSUMS)
    assert found == {"a.json": "2", "b.json": "2", "c/mine.txt": "mine", "mine.txt": "mine"}
    check_folder(target)
    (target / "a.json").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 'a.json'"):
        check_folder(target)


def test_a_file_that_hill_did_not_write_stops_a_save(tmp_path: Path) -> None:
    save(tmp_path, a="1")
    (tmp_path / "b.json").write_text("mine")
    with pytest.raises(CheckpointError, match=r"b.json' is in the way: hill did not write it; move it"):
        save(tmp_path, a="2", b="2")
    (tmp_path / "b.json").unlink()
    (tmp_path / "a.json").write_text("edited")
    with pytest.raises(CheckpointError, match=r"a.json' was changed after hill wrote it and is not replaced"):
        save(tmp_path, a="2")
    assert (tmp_path / "a.json").read_text() == "edited"
    save(tmp_path, b="2")
    assert (tmp_path / "a.json").read_text() == "edited", "a file that was changed is not removed either"


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(
        CheckpointError, match=r"has files that hill did not write, such as 'mine.txt'; choose an empty"
    ):
        save(tmp_path, a="1")
    (tmp_path / CHECKSUMS).write_text('{"mine.txt": "no checksum"}')
    with pytest.raises(CheckpointError, match="has files that hill did not write"):
        save(tmp_path, a="1")
    assert contents(tmp_path) == {"mine.txt": "mine", CHECKSUMS: '{"mine.txt": "no checksum"}'}


@given(
    st.dictionaries(st.sampled_from(NAMES), st.text("xyz", max_size=3), max_size=4),
    st.lists(st.tuples(st.sampled_from(["save", "remove"]), st.sets(st.sampled_from("ab"), min_size=1)), max_size=4),
    st.booleans(),
)
def test_files_of_the_user_are_never_lost(
    tmp_path_factory: pytest.TempPathFactory,
    foreign: dict[str, str],
    actions: list[tuple[str, set[str]]],
    training: bool,
) -> None:
    """Before each save or removal, files of the user are written to the folder."""
    folder = tmp_path_factory.mktemp("any")
    if training:
        mark_training(folder)
    mine: dict[str, str] = {}
    for action, names in actions:
        for name, content in foreign.items():
            if not (folder / name).exists():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(content)
                mine[name] = content
        with suppress(CheckpointError):
            save(folder, **dict.fromkeys(names, "ours")) if action == "save" else remove_saved(folder)
        assert {name: (folder / name).read_text() for name in mine} == mine


def test_a_save_that_fails_leaves_the_old_files(tmp_path: Path) -> None:
    target = tmp_path / "model"
    save(target, a="1")
    with pytest.raises(CheckpointError, match="cannot write"):
        save(target, a="2", **{"x" * 300: "2"})
    assert (target / "a.json").read_text() == "1" and not list(target.glob(".*"))
    with pytest.raises(KeyError), save_folder(target) as draft:
        (draft / "a.json").write_text("2")
        raise KeyError
    assert (target / "a.json").read_text() == "1" and not list(target.glob(".*"))
    check_folder(target)


def overflow(target: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    with pytest.raises(CheckpointError, match=f"^cannot write '{target}': "), save_folder(target) as draft:
        write_tensors(draft / "w.safetensors", {"a": torch.ones(1_000_000)})


def test_a_full_disk_leaves_the_earlier_model(tmp_path: Path) -> None:
    """A limit on the file size simulates a full disk: writing fails in the middle of a file."""
    target = tmp_path / "model"
    save(target, a="1")
    process = start(overflow, target)
    process.join(200)
    assert process.exitcode == 0
    check_folder(target)
    assert (target / "a.json").read_text() == "1" and [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_interrupted_save_is_finished(tmp_path: Path) -> None:
    save(tmp_path, a="1", b="1")
    save(tmp_path / "new", a="2", c_d="2")
    (tmp_path / "new").rename(tmp_path / COMMIT)
    (tmp_path / COMMIT / "a.json").replace(tmp_path / "a.json")  # the save was interrupted here
    finish_save(tmp_path)
    check_folder(tmp_path)
    assert contents(tmp_path / "c") == {"d.json": "2"} and not (tmp_path / COMMIT).exists()


def test_remove_saved_leaves_other_files(tmp_path: Path) -> None:
    for name in ("empty", "used"):
        save(tmp_path / name, a="1", c_d="1")
    (tmp_path / "used" / "c" / "mine").write_text("mine")
    remove_saved(tmp_path / "empty")
    remove_saved(tmp_path / "used")
    assert contents(tmp_path) == {"used/c/mine": "mine"}
    assert not (tmp_path / "empty").exists()


def test_files_are_written_completely_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "one\n")
    file.chmod(0o640)
    with pytest.raises(KeyError), atomic_file(file) as draft:
        draft.write_text("tw")
        raise KeyError
    assert contents(tmp_path) == {"a.txt": "one\n"}
    (tmp_path / "link").symlink_to(file)
    write_text(tmp_path / "link", "two \ud800\n")
    assert file.read_text() == "two ?\n" and (tmp_path / "link").is_symlink() and file.stat().st_mode & 0o777 == 0o640
    with pytest.raises(DataError, match="it is a folder; give a file name"):
        write_json(tmp_path, {})
    with pytest.raises(DataError, match=r"cannot write '.*none/a': No such file or directory; choose another place"):
        write_text(tmp_path / "none" / "a", "")
    with pytest.raises(DataError, match="No space left on device; free some space"):
        write_text(Path("/dev/full"), "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "link"]


def test_a_lock_keeps_other_processes_out_and_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    with lock_folder(folder), lock_folder(folder):
        assert not is_locked(folder) and (folder / LOCK).exists()
        process = start(refused, folder)
        process.join(60)
        assert process.exitcode == 0
    assert not folder.exists(), "a folder that the lock created and nobody used"
    assert not is_locked(folder)


def refused(folder: Path) -> None:
    assert is_locked(folder)
    with pytest.raises(CheckpointError, match="another process writes to"), lock_folder(folder):
        pass


WINDOWS = """
import os, sys
from importlib import import_module
from pathlib import Path

for name in ("torch", "transformers", "pyarrow.parquet", "fsspec.implementations.local", "numba", "scipy.sparse", "ray",
             "multiprocessing.synchronize", "rich.progress", "typer", "uvicorn", "fastapi", "sklearn", "onnxruntime",
             "torch.distributed.fsdp", "torch._dynamo"):
    import_module(name)  # packages that use on this platform what Windows lacks
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("fork", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "kill", "getuid", "geteuid"):
    delattr(os, name)
open_file, sync_file = os.open, os.fsync

def open_windows(path, flags, *more, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return open_file(path, flags, *more, **options)

def sync_windows(handle):
    flags = next(int(line.split()[1], 8) for line in open(f"/proc/self/fdinfo/{handle}") if line.startswith("flags"))
    if flags & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(9, "Bad file descriptor")
    return sync_file(handle)

import shutil
shutil._use_fd_functions = False  # as on Windows
os.open, os.fsync = open_windows, sync_windows
"""
"""Removes what Windows lacks: modules, functions, opening folders, and syncing files that are open for reading."""


def run_like_windows(program: str, *arguments: Any) -> str:
    words = [sys.executable, "-c", WINDOWS + program, *map(str, arguments)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_can_be_imported_on_windows() -> None:
    found = run_like_windows(
        "import importlib, pkgutil, hill\n"
        "skipped = ('hill.__main__', 'hill.encoders.kernels', 'hill.models.kernels')\n"
        "names = [m.name for m in pkgutil.walk_packages(hill.__path__, 'hill.') if m.name not in skipped]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names))"
    )
    assert int(found) > 50


def test_training_saving_and_predicting_work_on_windows(tiny_encoder: Path, tmp_path: Path) -> None:
    program = """
from hill.classifier import HillClassifier
from hill.cli import app

def run(words):
    app(list(words), standalone_mode=False)

folder, train = Path(sys.argv[1]), sys.argv[2:]
steps = HillClassifier.training

def stop(self, *given, **options):
    for number, report in enumerate(steps(self, *given, **options)):
        if number == 8:
            raise KeyboardInterrupt
        yield report

HillClassifier.training = stop
run(train)
print(len(list((folder / "model" / "checkpoints").iterdir())), "checkpoints")
HillClassifier.training = steps
run([*train, "--resume"])
model = HillClassifier.load(folder / "model")
model.save(folder / "model")
(folder / "in.jsonl").write_text('{"text": "fur milk"}\\n')
for target in ("out.jsonl", "parts"):
    run(["predict", str(folder / "model"), "--input", str(folder / "in.jsonl"), "--output", str(folder / target)])
"""
    words = [*write_data(tmp_path), "--encoder", tiny_encoder, "--out", tmp_path / "model"]
    fixed = ["--set", "train.checkpoint_seconds=0", "--set", "train.epochs=20", "--no-ensemble"]
    output = run_like_windows(program, tmp_path, *words, *fixed)
    assert output.startswith("2 checkpoints")
    sums = json.loads((tmp_path / "model" / CHECKSUMS).read_text())
    assert "encoder/config.json" in sums and not any("\\" in name for name in sums)
    check_folder(tmp_path / "model")
    assert (tmp_path / "out.jsonl").exists() and list((tmp_path / "parts").glob("*.parquet"))


def test_the_lock_of_windows_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Locks:
        LK_NBLCK = 2

        @staticmethod
        def locking(handle: int, mode: int, count: int) -> None:
            calls.append((mode, count))
            if len(calls) > 1:
                raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(hill.io, "fcntl", None)
    monkeypatch.setattr(hill.io, "msvcrt", Locks)
    with lock_folder(tmp_path):
        hill.io._locked.clear()
        assert is_locked(tmp_path)
    assert calls == [(2, 1), (2, 1)]


def test_names_with_backslashes_are_refused(tmp_path: Path) -> None:
    save(tmp_path, a="1")
    (tmp_path / CHECKSUMS).write_text(json.dumps({"a\\b.json": "0" * 64}))
    with pytest.raises(CheckpointError, match="expected files of its own folder"):
        hill.io.check_model(tmp_path)


def test_a_file_system_that_cannot_sync_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fail)
    sync(tmp_path)
    with pytest.raises(OSError, match="Invalid argument"):
        (tmp_path / "a").touch()
        sync(tmp_path / "a")
