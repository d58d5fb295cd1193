"""Processes that are killed at any moment and started again give the same result as without a kill."""

import os
import signal
import sys
from itertools import count
from pathlib import Path

import numpy as np

from hill.io import DRAFT, check_folder, finish_save, save_folder
from tests.faults import record, times
from tests.faults.helpers import check_complete, end, learn, lost, measure_seconds, predict, write_source
from tests.forks import start


def test_trainings_killed_at_any_moment(tiny_encoder: Path, reference: Path, tmp_path: Path) -> None:
    """Checkpoints are written after every step and take most of the time, so most kills happen during a write."""
    seconds = measure_seconds(learn, tiny_encoder, tmp_path / "first")
    draw, kills, drafts = np.random.default_rng(0), 0, 0
    assert lost(reference, tmp_path / "first") == 0
    for number in count():
        if kills >= times(4, 50):
            break
        out, deaths = tmp_path / f"training{number}", 0
        while not (out / "config.json").exists():
            process = start(learn, tiny_encoder, out, resume=out.exists())
            killed = end(process, after=draw.uniform(0, seconds)) == -signal.SIGKILL
            assert killed or process.exitcode == 0
            deaths += killed
            drafts += len(list((out / "checkpoints").glob(f"*/{DRAFT}")))
            check_complete(out)
        for _ in range(deaths):
            record("training killed", lost(reference, out))
        kills += deaths
    assert drafts or kills < 10, "no kill happened while a checkpoint was written"


def test_predictions_killed_at_any_moment(tmp_path: Path) -> None:
    model, source = write_source(tmp_path, 12)
    seconds, draw = measure_seconds(predict, model, source, tmp_path / "reference", 1), np.random.default_rng(1)
    for trial in range(times(2, 25)):
        out, workers = tmp_path / f"out{trial}", 2 if trial % 5 == 4 else 1
        process = start(predict, model, source, out, workers)
        killed = end(process, after=draw.uniform(0, seconds * workers)) == -signal.SIGKILL
        for part in out.glob("*.parquet"):
            assert part.read_bytes() == (tmp_path / "reference" / part.name).read_bytes()
        predict(model, source, out, 1)
        record(
            "predictions killed" if killed else "predictions that ended before the kill",
            lost(tmp_path / "reference", out),
        )


def test_a_save_killed_at_any_moment(tmp_path: Path) -> None:
    """The process ends before each change of the file system in turn: the folder has the old save or the new one."""
    for last in count():
        folder = tmp_path / f"save{last}"
        save(folder, 1)
        (folder / "mine").write_text("mine")
        process = start(save_until, folder, last)
        process.join(60)
        finish_save(folder)
        check_folder(folder)
        found = {file.name: file.read_text() for file in folder.glob("*.txt")}
        assert found in (
            {"a.txt": "1", "b.txt": "1"},
            {"a.txt": "2", "c.txt": "2"},
            {"a.txt": "2", "b.txt": "1", "c.txt": "2"},
        )
        assert (folder / "mine").read_text() == "mine"
        save(folder, 2)
        check_folder(folder)
        record("save killed", 0)
        if process.exitcode == 0:
            break
    assert last > 10


def save(folder: Path, content: int) -> None:
    with save_folder(folder) as draft:
        for name in ("a", "b" if content == 1 else "c"):
            (draft / f"{name}.txt").write_text(str(content))


def save_until(folder: Path, last: int) -> None:
    """Save, but end the process after this many changes of the file system."""
    left = iter(range(last))

    def stop(event: str, _: object) -> None:
        if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree") and next(left, None) is None:
            os._exit(9)

    sys.addaudithook(stop)
    save(folder, 2)
