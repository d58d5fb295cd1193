"""Files of the user: no command removes or changes them, wherever it writes."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from hill.classifier import HillClassifier
from hill.errors import HillError
from hill.io import TRAINING, mark_training
from tests.command import hill
from tests.conftest import animals_taxonomy, toy_documents
from tests.faults import record, times
from tests.faults.helpers import learn, tiny, write_data

NAMES = (
    *("notes.txt", "train.jsonl", "config.json", "files.json", "model.safetensors", "README.md", "log.jsonl", ".lock"),
    *("checkpoints/state-00000003-0001/weights.safetensors", "checkpoints/best.txt", "checkpoints/.old.draft"),
    *("deep/er/file.bin", "_manifest.json.draft", ".x.parquet.12-0123abcd.draft", "tensorboard/events", "_lock"),
    *("new.jsonl.bak", "new.html~", "data/train.jsonl", "runs/a.txt", "taxonomy.json", "metrics.json", "encoder/x"),
)
"""Common names of user files, and names that look like those of hill."""


def scatter(folder: Path, draw: np.random.Generator) -> dict[Path, bytes]:
    """Write some files to a folder; returns all files in it."""
    for name in draw.choice(NAMES, size=draw.integers(1, 9), replace=False):
        file = folder / str(name)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(draw.bytes(20))
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != TRAINING}


def lost_bytes(before: dict[Path, bytes]) -> int:
    return sum(len(content) for file, content in before.items() if not file.is_file() or file.read_bytes() != content)


Command = Callable[[Path, Path], list[object]]
"""Returns the arguments of a command, from a trained model and the folder to write to."""
COMMANDS: dict[str, Command] = {
    "export": lambda model, out: ["export", model, "--onnx", out],
    "predict to a file": lambda model, out: [
        "predict",
        model,
        "--input",
        model.parent / "in.jsonl",
        "--output",
        out / "new.jsonl",
    ],
    "predict to a folder": lambda model, out: ["predict", model, "--input", model.parent / "in.jsonl", "--output", out],
    "report": lambda model, out: ["evaluate", model, model.parent / "dev.jsonl", "--report", out / "new.html"],
    "explain": lambda model, out: ["explain", model, "fur milk", "--html", out / "new.html"],
    "tree": lambda model, out: ["tree", model / "taxonomy.json", "--plot", out / "new.svg"],
    "card": lambda model, out: ["card", model],
    "demo": lambda model, out: ["demo", "--out", out],
}


@pytest.fixture(scope="module")
def model(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model, with data in the same folder."""
    home = tmp_path_factory.mktemp("foreign")
    write_data(home)
    (home / "in.jsonl").write_text('{"text": "fur milk"}\n' * 3)
    learn(tiny_encoder, home / "model", checkpoint_seconds=3600.0)
    return home / "model"


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_leave_the_files_of_others_alone(
    model: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hill.demo.icd_data", lambda *_: (_ for _ in ()).throw(HillError("far enough")))
    draw, trials = np.random.default_rng(sum(map(ord, name))), times(2, 20)
    if name in ("export", "demo"):
        trials = times(1, 5)
    for trial in range(trials):
        out = tmp_path / str(trial)
        before = scatter(out, draw)
        hill(*COMMANDS[name](model, out))
        record(f"files of others around hill {name}", lost_bytes(before))


@pytest.mark.parametrize("marked", [False, True])
def test_a_training_leaves_the_files_of_others_alone(tiny_encoder: Path, tmp_path: Path, marked: bool) -> None:
    """In a folder with other files, in a training folder, with the data in it, with and without --resume."""
    draw = np.random.default_rng(marked)
    for trial in range(times(2, 12)):
        out = tmp_path / f"out{trial}"
        out.mkdir()
        words = write_data(out if trial % 3 == 2 else tmp_path)
        if marked:
            mark_training(out)
        before = scatter(out, draw)
        short = ["--encoder", tiny_encoder, "--set", "train.checkpoint_seconds=0", "--set", "train.epochs=1"]
        for resume in ([], ["--resume"]):
            hill(*words, *short, "--out", out, *resume)
        record("files of others around hill train", lost_bytes(before))


def test_saving_leaves_the_files_of_others_alone(tiny_encoder: Path, tmp_path: Path) -> None:
    texts, labels = toy_documents(24, 0)
    classifier = HillClassifier(animals_taxonomy(), "hill", tiny(tiny_encoder).settings(), preset=None)
    classifier.fit(texts, labels, out=tmp_path / "first")
    draw = np.random.default_rng(5)
    for trial in range(times(4, 40)):
        out = tmp_path / str(trial)
        if trial % 2:
            shutil.copytree(tmp_path / "first", out)  # a folder that `fit` has used
        before = scatter(out, draw)
        ours = [out / file.relative_to(tmp_path / "first") for file in (tmp_path / "first").rglob("*")]
        foreign = {file: content for file, content in before.items() if file not in ours}
        for save in (classifier.save, classifier.save_pretrained):
            with suppress(HillError):
                save(out)
        record("files of others around save", lost_bytes(foreign))


def test_fit_refuses_a_folder_of_others(tiny_encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    model = tiny(tiny_encoder)
    with pytest.raises(HillError, match="is not empty and has no training of hill"):
        model.fit(*toy_documents(24, 0), out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
