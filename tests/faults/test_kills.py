"""Processes killed at any moment, then started again: what they leave in the end is what they would have left."""

import os
import signal
from itertools import count
from pathlib import Path

import numpy as np

import hill.train.files
from hill.train.files import check_folder
from hill.train.run import check_out
from tests.faults import tell, times
from tests.faults.made import check_whole, end, lasting, learn, lost, predict, states, write_source
from tests.forks import start


def test_trainings_killed_at_any_moment(tiny_encoder: Path, unbroken: Path, tmp_path: Path) -> None:
    """A checkpoint is written after every step, which takes most of the time: most kills come while one is written."""
    lasts, draw, kills, drafts = lasting(learn, tiny_encoder, tmp_path / "first"), np.random.default_rng(0), 0, 0
    assert lost(unbroken, tmp_path / "first") == 0
    for number in count():
        if kills >= times(4, 50):
            break
        out, deaths = tmp_path / f"training{number}", 0
        while not (out / "config.json").exists():
            process = start(learn, tiny_encoder, out, resume=out.exists())
            killed = end(process, after=draw.uniform(0, lasts)) == -signal.SIGKILL
            assert killed or process.exitcode == 0
            deaths += killed
            drafts += len(list((out / "checkpoints").glob(".*.draft")))
            check_whole(out)
        for _ in range(deaths):
            tell("training killed", lost(unbroken, out))
        kills += deaths
    assert drafts or kills < 10, "no kill came while a checkpoint was written"


def test_predictions_killed_at_any_moment(tmp_path: Path) -> None:
    model, source = write_source(tmp_path, 12)
    lasts, draw = lasting(predict, model, source, tmp_path / "unbroken", 1), np.random.default_rng(1)
    for trial in range(times(2, 25)):
        out, workers = tmp_path / f"out{trial}", 2 if trial % 5 == 4 else 1
        process = start(predict, model, source, out, workers)
        killed = end(process, after=draw.uniform(0, lasts * workers)) == -signal.SIGKILL
        for part in out.glob("*.parquet"):
            assert part.read_bytes() == (tmp_path / "unbroken" / part.name).read_bytes(), "a part is whole or not there"
        predict(model, source, out, 1)
        tell("predictions killed" if killed else "predictions that were faster", lost(tmp_path / "unbroken", out))


def test_a_save_killed_between_its_two_renames(tiny_encoder: Path, unbroken: Path, tmp_path: Path) -> None:
    """Where a disk cannot swap folders there is a moment without the folder; the next start names the old one again."""
    out = tmp_path / "out"
    process = start(learn_without_swap, tiny_encoder, out)
    process.join(60)
    assert process.exitcode == 9 and not out.exists()
    (old,) = [path for path in tmp_path.iterdir() if path.suffix == ".old"]
    assert states(old)
    check_out(out, resume=True)
    assert states(out) and [path.name for path in tmp_path.iterdir()] == ["out"]
    learn(tiny_encoder, out, resume=True)
    check_folder(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    tell("save killed between renames", lost(unbroken, out))


def learn_without_swap(encoder: Path, out: Path) -> None:
    """The training on a disk that cannot swap folders, killed when the model is about to have its name."""
    rename = Path.rename

    def die(path: Path, target: Path) -> Path:
        if target == out:
            os._exit(9)
        return rename(path, target)

    hill.train.files.swap = lambda one, other: False
    Path.rename = die  # type: ignore[method-assign, assignment]
    learn(encoder, out)
