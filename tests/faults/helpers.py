"""A small training, a small bulk prediction, and processes that can be killed."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from hill.bulk import Bulk
from hill.classifier import HillClassifier
from hill.cli.common import main
from hill.io import check_folder, finish_save
from hill.predictor import ScoredBatch
from hill.taxonomy import write_taxonomy
from hill.train import Session, Step
from hill.train.checkpoint import Checkpoints, has_state
from tests.bulk.predictors import SlowPredictor
from tests.conftest import animals_taxonomy, toy_documents
from tests.forks import start
from tests.train.test_trainer import classifier, toy_data

EPOCHS, STEPS = 2, 12


def tiny(encoder: Path, **train: Any) -> HillClassifier:
    """A classifier that trains 12 steps in 2 epochs and, by default, writes a checkpoint after each step."""
    return classifier(animals_taxonomy(), encoder, epochs=EPOCHS, **train)


def learn(encoder: Path, out: Path, resume: bool = False, **train: Any) -> None:
    """Train, and save the model."""
    torch.set_num_threads(1)
    model = tiny(encoder, **train)
    for _ in model.training(toy_data(model.taxonomy), out, resume):
        pass
    model.save(out)


def learn_slowly(encoder: Path, out: Path) -> None:
    """Train, with a long pause after each step except for the first."""
    torch.set_num_threads(1)
    model = tiny(encoder)
    for report in model.training(toy_data(model.taxonomy), out):
        time.sleep(60 * (isinstance(report, Step) and report.step > 1))


def write_data(folder: Path) -> list[str]:
    """Write the data of the same training; returns the arguments of its command without `--out`."""
    for name, count, seed in (("train", 48, 1), ("dev", 24, 2)):
        pairs = zip(*toy_documents(count, seed), strict=True)
        lines = [json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in pairs]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    write_taxonomy(animals_taxonomy(), folder / "taxonomy.json")
    sets = {"height": 2, "max_length": 16, "epochs": EPOCHS, "batch_size": 8, "encoder_lr": 3e-3, "lr": 3e-3}
    groups = {"height": "model", "max_length": "data"}
    words = [f"{groups.get(key, 'train')}.{key}={value}" for key, value in (sets | {"head_epochs": 2}).items()]
    options = [word for each in words for word in ("--set", each)]
    return ["train", str(folder), "--taxonomy", str(folder / "taxonomy.json"), *options]


def command(arguments: Sequence[str], errors: Path) -> None:
    """Run the command line with these arguments; standard error goes to a file."""
    torch.set_num_threads(1)
    with errors.open("w") as file:
        os.dup2(file.fileno(), 2)
    sys.argv = ["hill", *arguments]
    main()


def command_with_pause(arguments: Sequence[str], errors: Path, go: Path) -> None:
    """The same, but after the checkpoint of a step wait until the file `go` exists."""
    save = Checkpoints.save

    def save_and_wait(checkpoints: Checkpoints, session: Session) -> None:
        save(checkpoints, session)
        while session.progress.step and not go.exists():
            time.sleep(0.005)

    Checkpoints.save = save_and_wait  # type: ignore[method-assign]
    command(arguments, errors)


class BriefPredictor(SlowPredictor):
    """Takes 0.03 s per call."""

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        time.sleep(0.03)
        return super(SlowPredictor, self).scores(texts)


def write_source(folder: Path, files: int) -> tuple[Path, Path]:
    """Write a model folder with only its checksums, and a folder of files to predict."""
    source, model = folder / "in", folder / "model"
    for path in (source, model):
        path.mkdir()
    (model / "files.json").write_text("{}")
    for number in range(files):
        texts = [f"{number} {row}" for row in range(30)]
        pq.write_table(pa.table({"text": texts}), source / f"{number:02}.parquet")
    return model, source


def predict(model: Path, source: Path, out: Path, workers: int) -> None:
    """Run the bulk prediction."""
    for _ in Bulk(BriefPredictor, model, str(source), out, workers=workers).run():
        pass


def measure_seconds(program: Callable[..., None], *arguments: Any) -> float:
    """How many seconds a process takes to run this; the fork server is started before."""
    start(time.sleep, 0).join(60)
    begin = time.monotonic()
    process = start(program, *arguments)
    process.join(60)
    assert process.exitcode == 0
    return time.monotonic() - begin


def end(process: Any, number: int = signal.SIGKILL, after: float = 0.0) -> int:
    """Send a signal to a process after some seconds, if it still runs, and return its exit code."""
    process.join(after)
    if process.is_alive():
        os.kill(process.pid, number)
    process.join(60)
    code: int = process.exitcode
    return code


def states(out: Path) -> list[Path]:
    """The checkpoints of a training, the oldest first."""
    return sorted(state for state in (out / "checkpoints").glob("state-*") if has_state(state))


def wait_for_state(out: Path) -> None:
    """Wait until the checkpoint of a step exists."""
    deadline = time.monotonic() + 60
    while not states(out) or states(out)[-1].name < "state-00000001":
        assert time.monotonic() < deadline
        time.sleep(0.005)


def check_complete(out: Path) -> None:
    """Fail if a saved folder is not complete, or a line of the log is not JSON."""
    finish_save(out)
    for folder in [*states(out), *([out] if (out / "config.json").exists() else [])]:
        finish_save(folder)
        check_folder(folder)
    log = out / "log.jsonl"
    for line in log.read_text().splitlines() if log.exists() else ():
        json.loads(line)


def lost(expected: Path, actual: Path) -> int:
    """Bytes of files that are missing or different, except for the log and the settings, which may differ."""
    files = [file.relative_to(expected) for file in sorted(expected.rglob("*")) if file.is_file()]
    compared = [file for file in files if file.name not in ("log.jsonl", "config.json", "files.json")]
    return sum((expected / file).stat().st_size for file in compared if not _same(expected / file, actual / file))


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()
