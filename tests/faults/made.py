"""What the faults are done to: a small training, a small job of predictions, and processes that can be killed."""

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

from hill.classifier import HillClassifier
from hill.cli import main
from hill.engines import Bulk
from hill.predictor import Scored
from hill.taxonomy import write_taxonomy
from hill.train import Step
from hill.train.checkpoint import Checkpoints
from hill.train.files import check_folder
from hill.train.session import Session
from tests.conftest import animals_taxonomy, toy_documents
from tests.forks import start
from tests.test_engines_made import Slow
from tests.test_train import classifier, toy_data

EPOCHS, STEPS = 2, 12


def tiny(encoder: Path, **train: Any) -> HillClassifier:
    """A classifier that takes 12 steps in 2 epochs and, unless told otherwise, writes a checkpoint after each."""
    return classifier(animals_taxonomy(), encoder, epochs=EPOCHS, **train)


def learn(encoder: Path, out: Path, resume: bool = False, **train: Any) -> None:
    """The training, and its model in its place."""
    torch.set_num_threads(1)
    model = tiny(encoder, **train)
    for _ in model.training(toy_data(model.taxonomy), out, resume):
        pass
    model.save(out)


def learn_slowly(encoder: Path, out: Path) -> None:
    """The training, with a long rest after each step but the first."""
    torch.set_num_threads(1)
    model = tiny(encoder)
    for report in model.training(toy_data(model.taxonomy), out):
        time.sleep(60 * (isinstance(report, Step) and report.step > 1))


def write_data(folder: Path) -> list[str]:
    """The same training as a command, without where it goes to."""
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
    """The program with these arguments; what it says goes to a file."""
    torch.set_num_threads(1)
    with errors.open("w") as file:
        os.dup2(file.fileno(), 2)
    sys.argv = ["hill", *arguments]
    main()


def held(arguments: Sequence[str], errors: Path, go: Path) -> None:
    """The same, but after the checkpoint of a step it waits until there is this file."""
    save = Checkpoints.save

    def hold(checkpoints: Checkpoints, session: Session) -> None:
        save(checkpoints, session)
        while session.progress.step and not go.exists():
            time.sleep(0.005)

    Checkpoints.save = hold  # type: ignore[method-assign]
    command(arguments, errors)


class Dawdling(Slow):
    """A predictor that takes a little while."""

    def scores(self, texts: Sequence[str]) -> Iterator[Scored]:
        time.sleep(0.03)
        return super(Slow, self).scores(texts)


def write_source(folder: Path, files: int) -> tuple[Path, Path]:
    """The folders of a model, of which only the sum is asked, and of files to predict."""
    source, model = folder / "in", folder / "model"
    for place in (source, model):
        place.mkdir()
    (model / "files.json").write_text("{}")
    for number in range(files):
        texts = [f"{number} {row}" for row in range(30)]
        pq.write_table(pa.table({"text": texts}), source / f"{number:02}.parquet")
    return model, source


def predict(model: Path, source: Path, out: Path, workers: int) -> None:
    """The job of predictions."""
    for _ in Bulk(Dawdling, model, str(source), out, workers=workers).run():
        pass


def lasting(program: Callable[..., None], *arguments: Any) -> float:
    """How many seconds a process that runs this takes to its end, once there is a server to start it from."""
    start(time.sleep, 0).join(60)
    begin = time.monotonic()
    process = start(program, *arguments)
    process.join(60)
    assert process.exitcode == 0
    return time.monotonic() - begin


def end(process: Any, number: int = signal.SIGKILL, after: float = 0.0) -> int:
    """Send a process a signal, unless it has ended by then, and return its exit code."""
    process.join(after)
    if process.is_alive():
        os.kill(process.pid, number)
    process.join(60)
    code: int = process.exitcode
    return code


def states(out: Path) -> list[Path]:
    """The checkpoints of a training, the oldest first."""
    return sorted((out / "checkpoints").glob("state-*"))


def wait_for_state(out: Path) -> None:
    """Return when there is the checkpoint of a step."""
    patience = time.monotonic() + 60
    while not states(out) or states(out)[-1].name < "state-00000001":
        assert time.monotonic() < patience
        time.sleep(0.005)


def check_whole(out: Path) -> None:
    """Fail if anything that has its name is not whole."""
    for folder in [*states(out), *([out] if (out / "config.json").exists() else [])]:
        check_folder(folder)
    log = out / "log.jsonl"
    for line in log.read_text().splitlines() if log.exists() else ():
        json.loads(line)


def lost(wanted: Path, found: Path) -> int:
    """Bytes of files that are missing or not the same; the log tells seconds, and the settings how it was done."""
    files = [file.relative_to(wanted) for file in sorted(wanted.rglob("*")) if file.is_file()]
    compared = [file for file in files if file.name not in ("log.jsonl", "config.json", "files.json", "_lock")]
    return sum((wanted / file).stat().st_size for file in compared if not _same(wanted / file, found / file))


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()
