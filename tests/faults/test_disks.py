"""Full and read-only disks, and paths that are not folders: the error names path and remedy, and nothing is lost."""

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

import hill.io
import hill.models.inference
from hill.cli.common import app
from hill.errors import CheckpointError, ConfigError, DataError, HillError
from hill.io import check_folder, make_folder, save_folder, sync
from hill.train import Step
from hill.train.checkpoint import Log
from tests.conftest import ROOT
from tests.faults import record
from tests.faults.helpers import check_complete, learn, lost, predict, states, tiny, write_data, write_source
from tests.train.test_trainer import toy_data


def can_mount() -> bool:
    """Whether this user may mount a small disk."""
    trial = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(trial, capture_output=True, check=False).returncode == 0


def on_small_disk(program: str, *arguments: Any) -> None:
    """Run a function of this file in a process with a disk of 12 MB mounted at its first argument."""
    call = f"import tests.faults.test_disks as t; import sys; t.{program}(*map(t.Path, sys.argv[1:]))"
    mount = 'mount -t tmpfs -o size=12m none "$1" && exec "$0" -c "$2" "$1" "${@:3}"'
    given = ["unshare", "-rm", "bash", "-c", mount, sys.executable, str(arguments[0]), call, *map(str, arguments[1:])]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    done = subprocess.run(given, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


needs_mount = pytest.mark.skipif(not can_mount(), reason="this user may not mount a disk")


def fill(disk: Path) -> Path:
    """Write a file that fills the disk."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return disk / "ballast"


def train_on(disk: Path, encoder: Path, reference: Path) -> None:
    """The disk is full after some steps, then read-only, then full when the model is saved."""
    torch.set_num_threads(1)
    out, model = disk / "out", tiny(encoder)
    steps = model.training(toy_data(model.taxonomy), out)
    last = [next(step for step in steps if isinstance(step, Step)) for _ in range(2)][1]
    ballast = fill(disk)
    with pytest.raises(CheckpointError, match=f"cannot write '{out}.*No space left on device; free some space"):
        list(steps)
    check_complete(out)
    assert states(out)[-1].name >= f"state-{last.step:08d}-0000"
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(CheckpointError, match=f"cannot write '{out}': Read-only file system; choose a place that you"):
        learn(encoder, out, resume=True)
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    for _ in model.training(toy_data(model.taxonomy), out, resume=True):
        pass
    ballast = fill(disk)
    with pytest.raises(CheckpointError, match=rf"cannot write '{out}': No space left on device; free some space"):
        model.save(out)
    ballast.unlink()
    check_complete(out)
    learn(encoder, out, resume=True)
    assert sorted(path.name for path in disk.iterdir()) == ["out"], "no incomplete file is left"
    assert lost(reference, out) == 0


def predict_on(disk: Path, model: Path, source: Path, reference: Path) -> None:
    out = disk / "out"
    out.mkdir()
    ballast = fill(disk)
    with pytest.raises((ConfigError, DataError), match=f"cannot write '{out}.*: No space left on device; free some"):
        predict(model, source, out, 1)
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - 24_576)
    with pytest.raises(
        (ConfigError, DataError), match=r"No space left on device; free some .*run it again to continue"
    ):
        predict(model, source, out, 1)
    assert 1 <= len(list(out.glob("*.parquet"))) < 6 and not (out / "_done.json").exists()
    ballast.unlink()
    predict(model, source, out, 1)
    assert lost(reference, out) == 0


@needs_mount
def test_a_disk_that_is_full_or_read_only_loses_nothing(tiny_encoder: Path, reference: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    on_small_disk("train_on", tmp_path / "disk", tiny_encoder, reference)
    for fault in ("disk full at a checkpoint", "disk read-only", "disk full when the model is saved"):
        record(fault, 0)


@needs_mount
def test_a_full_disk_loses_no_predictions(tmp_path: Path) -> None:
    model, source = write_source(tmp_path, 6)
    (tmp_path / "disk").mkdir()
    predict(model, source, tmp_path / "reference", 1)
    on_small_disk("predict_on", tmp_path / "disk", model, source, tmp_path / "reference")
    record("disk full while predictions are written", 0)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (
            errno.EDQUOT,
            "; free some space, or choose another place; the checkpoint before it is complete: continue with --resume",
        ),
        (errno.EACCES, "; choose a place that you may write to; the checkpoint before it is complete"),
        (errno.EIO, "; choose another place; the checkpoint before it is complete"),
    ],
)
def test_disk_errors_name_a_remedy(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    model, out = tiny(tiny_encoder), tmp_path / "out"
    steps = model.training(toy_data(model.taxonomy), out)
    next(step for step in steps if isinstance(step, Step))

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched, pytest.raises(CheckpointError) as raised:
        patched.setattr(hill.models.inference, "save_file", fail)
        list(steps)
    name = "state-00000002-0000"
    assert str(raised.value).startswith(f"cannot write '{out}/checkpoints/{name}': {os.strerror(number)}{remedy}")
    check_complete(out)
    record("other errors of a disk", 0)


def test_a_full_disk_while_the_log_is_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log._file = Path("/dev/full")
    with pytest.raises(CheckpointError, match="cannot write '/dev/full': No space left on device; free some space"):
        log.write({"step": 1})


def test_a_file_as_output_folder_is_refused(tiny_encoder: Path, tmp_path: Path) -> None:
    given = [*write_data(tmp_path), "--encoder", str(tiny_encoder), "--out"]
    (tmp_path / "file").write_text("mine")
    for out, message in {
        tmp_path / "file": f"'{tmp_path / 'file'}' is a file; choose another --out",
        tmp_path / "file" / "out": f"cannot write '{tmp_path / 'file' / 'out'}': Not a directory; choose a folder",
    }.items():
        result = CliRunner().invoke(app, [*given, str(out)])
        assert isinstance(result.exception, HillError) and str(result.exception) == message
    for path in (tmp_path / "file", tmp_path):
        with (
            pytest.raises(CheckpointError, match=r"File exists; choose a folder|has files that hill did not write"),
            save_folder(path),
        ):
            pass
    assert (tmp_path / "file").read_text() == "mine"
    record("--out that is a file", 0)


def test_files_are_synced_before_they_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are synced before the draft is renamed, and every folder after files were moved into it."""
    steps: list[str] = []

    def note(path: Path) -> None:
        steps.append(path.relative_to(tmp_path).as_posix())
        sync(path)

    def rename(path: Path, target: Path) -> Path:
        steps.append(f"rename {target.relative_to(tmp_path).as_posix()}")
        return original(path, target)

    original = Path.rename
    monkeypatch.setattr(hill.io, "sync", note)
    monkeypatch.setattr(Path, "rename", rename)
    with save_folder(tmp_path / "a" / "model") as draft:
        (draft / "b").mkdir()
        (draft / "b" / "c.json").write_text("1")
    moved = steps.index("rename a/model/.hill-commit")
    drafted = {f"a/model/.hill-draft{name}" for name in ("", "/b", "/b/c.json", "/files.json")}
    assert set(steps[:moved]) == {".", "a", *drafted} and steps[moved + 1] == "a/model"
    assert set(steps[moved + 2 :]) == {"a/model", "a/model/b"}
    check_folder(tmp_path / "a" / "model")


def test_new_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(hill.io, "sync", synced.append)
    make_folder(tmp_path / "a" / "b")
    assert sorted(synced) == [tmp_path, tmp_path / "a"]


def test_the_error_for_the_first_checkpoint_does_not_mention_an_earlier_one(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(hill.models.inference, "save_file", fail)
    model = tiny(tiny_encoder)
    with pytest.raises(CheckpointError, match=r"Input/output error; choose another place$"):
        list(model.training(toy_data(model.taxonomy), tmp_path / "out"))
