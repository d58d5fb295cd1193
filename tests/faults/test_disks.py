"""Disks that are full, read-only or no folders: an error that says where and what helps, and nothing is lost."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import hill.train.files
from hill.cli import app
from hill.disk import make_folder, sync
from hill.errors import CheckpointError, ConfigError, DataError, HillError
from hill.train import Step
from hill.train.files import check_folder, write_folder
from hill.train.run import Log
from tests.conftest import ROOT
from tests.faults import tell
from tests.faults.made import check_whole, learn, lost, predict, states, tiny, write_data, write_source
from tests.test_train import toy_data


def can_mount() -> bool:
    """Whether this user may have a small disk of its own."""
    trial = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(trial, capture_output=True, check=False).returncode == 0


def on_small_disk(program: str, *arguments: Any) -> None:
    """Run a function of this file, in a process that sees a disk of 12 MB at the folder that is its first argument."""
    call = f"import tests.faults.test_disks as t; import sys; t.{program}(*map(t.Path, sys.argv[1:]))"
    mount = 'mount -t tmpfs -o size=12m none "$1" && exec "$0" -c "$2" "$1" "${@:3}"'
    given = ["unshare", "-rm", "bash", "-c", mount, sys.executable, str(arguments[0]), call, *map(str, arguments[1:])]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    done = subprocess.run(given, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


needs_mount = pytest.mark.skipif(not can_mount(), reason="this user may not mount a disk")


def fill(disk: Path) -> Path:
    """A file that takes all the room there is."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return disk / "ballast"


def train_on(disk: Path, encoder: Path, unbroken: Path) -> None:
    """The disk is full after some steps, then read-only, then full when the model is to be saved."""
    torch.set_num_threads(1)
    out, model = disk / "out", tiny(encoder)
    steps = model.training(toy_data(model.taxonomy), out)
    last = [next(step for step in steps if isinstance(step, Step)) for _ in range(2)][1]
    ballast = fill(disk)
    with pytest.raises(CheckpointError, match=f"cannot write '{out}.*No space left on device; make room there"):
        list(steps)
    check_whole(out)
    assert states(out)[-1].name >= f"state-{last.step:08d}-0000"
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(CheckpointError, match=f"cannot write '{out}': Read-only file system; choose a place that you"):
        learn(encoder, out, resume=True)
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    for _ in model.training(toy_data(model.taxonomy), out, resume=True):
        pass
    ballast = fill(disk)
    with pytest.raises(CheckpointError, match=rf"cannot write '{out}': No space left on device; make room there"):
        model.save(out)
    ballast.unlink()
    check_whole(out)
    learn(encoder, out, resume=True)
    assert sorted(path.name for path in disk.iterdir()) == ["out"], "nothing half written is left"
    assert lost(unbroken, out) == 0


def predict_on(disk: Path, model: Path, source: Path, unbroken: Path) -> None:
    out = disk / "out"
    out.mkdir()
    ballast = fill(disk)
    with pytest.raises((ConfigError, DataError), match=f"cannot write '{out}.*: No space left on device; make room"):
        predict(model, source, out, 1)
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - 24_576)
    with pytest.raises((ConfigError, DataError), match=r"No space left on device; make room .*run it again to go on"):
        predict(model, source, out, 1)
    assert 1 <= len(list(out.glob("*.parquet"))) < 6 and not (out / "_done.json").exists()
    ballast.unlink()
    predict(model, source, out, 1)
    assert lost(unbroken, out) == 0


@needs_mount
def test_a_disk_that_is_full_or_read_only_loses_nothing(tiny_encoder: Path, unbroken: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    on_small_disk("train_on", tmp_path / "disk", tiny_encoder, unbroken)
    for fault in ("disk full at a checkpoint", "disk read-only", "disk full when the model is saved"):
        tell(fault, 0)


@needs_mount
def test_a_full_disk_loses_no_predictions(tmp_path: Path) -> None:
    model, source = write_source(tmp_path, 6)
    (tmp_path / "disk").mkdir()
    predict(model, source, tmp_path / "unbroken", 1)
    on_small_disk("predict_on", tmp_path / "disk", model, source, tmp_path / "unbroken")
    tell("disk full while predictions are written", 0)


@pytest.mark.parametrize(
    ("number", "help"),
    [
        (
            errno.EDQUOT,
            "; make room there, or choose another place; what was saved before is whole: go on with --resume",
        ),
        (errno.EACCES, "; choose a place that you may write to; what"),
        (errno.EIO, "; choose another place; what"),
    ],
)
def test_errors_of_a_disk_say_what_helps(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, help: str
) -> None:
    model, out = tiny(tiny_encoder), tmp_path / "out"
    steps = model.training(toy_data(model.taxonomy), out)
    next(step for step in steps if isinstance(step, Step))

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched, pytest.raises(CheckpointError) as raised:
        patched.setattr(hill.train.files, "save_file", fail)
        list(steps)
    name = "state-00000002-0000"
    assert str(raised.value).startswith(f"cannot write '{out}/checkpoints/{name}': {os.strerror(number)}{help}")
    check_whole(out)
    tell("other errors of a disk", 0)


def test_a_full_disk_under_the_log(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log._file = Path("/dev/full")
    with pytest.raises(CheckpointError, match="cannot write '/dev/full': No space left on device; make room there"):
        log.write({"step": 1})


def test_a_file_is_no_folder_for_a_model(tiny_encoder: Path, tmp_path: Path) -> None:
    given = [*write_data(tmp_path), "--encoder", str(tiny_encoder), "--out"]
    (tmp_path / "file").write_text("mine")
    for out, message in {
        tmp_path / "file": f"'{tmp_path / 'file'}' is a file; choose another --out",
        tmp_path / "file" / "out": f"cannot write '{tmp_path / 'file' / 'out'}': Not a directory; choose a folder",
    }.items():
        result = CliRunner().invoke(app, [*given, str(out)])
        assert isinstance(result.exception, HillError) and str(result.exception) == message
    for place in (tmp_path / "file", tmp_path):
        with pytest.raises(CheckpointError, match=r"is a file; choose a folder|holds something else than a model"):
            write_folder(place, {}, {"a.json": 1})
    assert (tmp_path / "file").read_text() == "mine"
    tell("--out that is a file", 0)


def test_all_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file and folder is synced, the names last."""
    synced: list[str] = []

    def note(path: Path) -> None:
        synced.append(str(path.relative_to(tmp_path)))
        sync(path)

    monkeypatch.setattr(hill.train.files, "sync", note)
    monkeypatch.setattr(hill.disk, "sync", note)
    target = tmp_path / "a" / "model"
    for again in (False, True):
        synced.clear()
        write_folder(target, {"w.safetensors": {"a": torch.ones(2)}}, {"b/c.json": 1})
        draft = f"a/.model.{os.getpid()}.draft"
        inside = [f"{draft}/{name}" for name in ("b", "b/c.json", "files.json", "w.safetensors")]
        begun = [name for name in synced if not name.startswith(draft)][:-1]
        assert synced[-1] == "a" and sorted(synced[len(begun) : -1]) == sorted([draft, *inside])
        assert begun == ([] if again else ["."]), "folders that are made are on disk too"
        check_folder(target)


def test_folders_are_made_to_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(hill.disk, "sync", synced.append)
    make_folder(tmp_path / "a" / "b")
    assert sorted(synced) == [tmp_path, tmp_path / "a"]
