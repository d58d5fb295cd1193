"""`hill train`, `evaluate`, `predict` and `data prepare` as a user runs them."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hill.io import mark_training
from hill.taxonomy import write_taxonomy
from tests.command import hill
from tests.conftest import ROOT, animals_taxonomy, toy_documents

RUN = """
[model]
name = "hill"
height = 2
[train]
epochs = 4
batch_size = 8
encoder_lr = 5e-3
lr = 5e-3
head_start = "on"
head_epochs = 3
[data]
max_length = 16
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path) -> Path:
    """A data set, a taxonomy, a config, and the model that `hill train` makes of them."""
    folder = tmp_path_factory.mktemp("cli")
    for name, count, seed in (("train", 60, 1), ("dev", 20, 2), ("test", 20, 3)):
        pairs = zip(*toy_documents(count, seed), strict=True)
        records = [json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in pairs]
        (folder / f"{name}.jsonl").write_text("".join(records))
    write_taxonomy(animals_taxonomy(), folder / "taxonomy.json")
    (folder / "run.toml").write_text(RUN)
    command = [sys.executable, "-m", "hill", *map(str, train_arguments(folder, tiny_encoder, folder / "model"))]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr
    assert "19 documents of test; all values are from 0 to 1\nlabels     micro F1 " in result.stdout
    assert f"all metrics are in {folder / 'model' / 'metrics.json'}\n" in result.stdout
    assert f"hill predict {folder / 'model'}" in result.stdout
    assert "\n20 dev documents: " in result.stdout
    assert "hill: test: 1 of 20 documents were in the training data" in result.stderr
    assert "epoch 4: dev micro_f1" in result.stderr and "expect slightly lower scores" not in result.stdout
    return folder


def train_arguments(folder: Path, encoder: Path, out: Path, *more: str) -> list[str | Path]:
    options = ["--taxonomy", folder / "taxonomy.json", "--out", out, "--config", folder / "run.toml"]
    return ["train", folder, *options, "--encoder", encoder, *more]


def test_train_leaves_metrics_of_test_and_a_log(folder: Path) -> None:
    metrics = json.loads((folder / "model" / "metrics.json").read_text())
    assert metrics["split"] == "test" and metrics["documents"] == 19 and 0 <= metrics["micro_f1"] <= 1
    config = json.loads((folder / "model" / "config.json").read_text())
    assert config["settings"]["train"]["epochs"] == 4 and config["model"] == "hill"
    assert (folder / "model" / "log.jsonl").exists() and not (folder / "model" / "checkpoints").exists()
    note = json.loads((folder / "model" / "training.json").read_text())["decoding"]
    assert note.startswith("20 dev documents: ")
    assert f"Tuning on {note}." in hill("card", str(folder / "model")).stdout


def test_train_warns_that_dev_scores_are_optimistic(folder: Path, tmp_path: Path) -> None:
    data = folder / "train.jsonl"
    options = ["--taxonomy", folder / "taxonomy.json", "--out", tmp_path / "model", "--model", "linear"]
    result = hill("train", data, *options)
    assert result.returncode == 0 and "expect slightly lower scores on new data" in result.stdout


def test_a_file_without_splits_is_tested_on_documents_that_were_held_out(folder: Path, tmp_path: Path) -> None:
    texts = [*(f"{text} x{i}" for i, text in enumerate(toy_documents(80, 5)[0])), "Fin fin", "fin  FIN"]
    labels = [*toy_documents(80, 5)[1], ["p"], ["p"]]
    data = tmp_path / "mine.jsonl"
    records = [{"text": text, "labels": given} for text, given in zip(texts, labels, strict=True)]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    options = ["--taxonomy", folder / "taxonomy.json", "--model", "linear"]
    result = hill("train", data, *options, "--out", tmp_path / "model")
    assert result.returncode == 0 and "8 documents held out as test: hill evaluate" in result.stdout
    record = json.loads((tmp_path / "model" / "training.json").read_text())
    assert {name: split["documents"] for name, split in record["splits"].items()} == {"train": 67, "dev": 7, "test": 8}
    trained = json.loads((tmp_path / "model" / "metrics.json").read_text())
    assert trained.pop("split") == "test" and trained["documents"] == 8
    evaluated = hill("evaluate", tmp_path / "model", data, "--json")
    seen = "74 of 82 documents were in the training data; their scores say little about new documents"
    warning = f"{seen}, so only the other 8 are scored"
    assert json.loads(evaluated.stdout) == trained | {"warning": warning}
    assert evaluated.stderr == f"hill: {warning}\n"
    everything = hill("evaluate", tmp_path / "model", data, "--json", "--include-seen")
    found = json.loads(everything.stdout)
    assert found["documents"] == 82 and found["warning"] == seen and everything.stderr == f"hill: {seen}\n"
    report = hill("evaluate", tmp_path / "model", data, "--json", "--report", tmp_path / "report.html")
    assert json.loads(report.stdout)["metrics"]["documents"] == 8 and "so only the other 8" in report.stderr
    assert json.loads(report.stdout)["warning"] == warning and warning in (tmp_path / "report.html").read_text()

    result = hill("train", data, *options, "--out", tmp_path / "all", "--test-share", "0")
    assert result.returncode == 0 and "held out as test" not in result.stdout
    evaluated = hill("evaluate", tmp_path / "all", data, "--json")
    assert json.loads(evaluated.stdout)["documents"] == 82
    assert "82 of 82 documents were in the training data; their scores say little" in evaluated.stderr

    (tmp_path / "splits").mkdir()
    for split in ("train", "dev"):
        shutil.copy(data, tmp_path / "splits" / f"{split}.jsonl")
    result = hill("train", tmp_path / "splits", *options, "--out", tmp_path / "third", "--test-share", "0.5")
    assert "--test-share is not used: the data has splits of its own (train, dev)" in result.stderr


def test_the_printed_command_evaluates_a_table_with_other_columns(folder: Path, tmp_path: Path) -> None:
    rows = [f"{text} x{i},{labels[0]}" for i, (text, labels) in enumerate(zip(*toy_documents(40, 5), strict=True))]
    data = tmp_path / "my notes.csv"
    data.write_text("\n".join(["Note,kind", *rows]))
    options = ["--taxonomy", folder / "taxonomy.json", "--model", "linear", "--out", tmp_path / "model"]
    result = hill("train", data, *options, "--text-column", "Note", "--labels-column", "kind", "--separator", ";")
    (line,) = (line for line in result.stdout.splitlines() if "4 documents held out as test: " in line)
    name, *words = shlex.split(line.partition("test: ")[2])
    assert name == "hill" and str(data) in words
    evaluated = hill(*words, "--json")
    assert evaluated.returncode == 0 and json.loads(evaluated.stdout)["documents"] == 4, evaluated.stderr


def test_evaluate(folder: Path) -> None:
    result = hill("evaluate", folder / "model", folder, "--json")
    found = json.loads(result.stdout)
    trained = json.loads((folder / "model" / "metrics.json").read_text())
    warning = found.pop("warning")  # the few words of the toy documents repeat
    assert warning.startswith("1 of 20 documents were in the training data")
    assert found == {key: value for key, value in trained.items() if key != "split"}
    everything = hill("evaluate", folder / "model", folder / "dev.jsonl", "--all").stdout
    assert "level 1 (2 labels)" in everything and everything.count("\n") > 40
    lines = hill("evaluate", folder / "model", folder).stdout.splitlines()
    assert lines[0] == "19 documents; all values are from 0 to 1" and len(lines) == 7
    names = {"micro F1": "micro_f1", "macro F1": "macro_f1", "hierarchical F1": "hierarchical_f1"}
    names |= {"whole paths": "path_micro_f1", "calibration error": "ece"}
    for line, (name, key) in zip(lines[1:], names.items(), strict=False):
        assert f" {name} " in line and f" {found[key]:.4f}  " in line
    assert [line.split(" ")[0] for line in lines[1:6]] == ["labels", "", "hierarchy", "", "scores"]
    assert lines[6] == "--all prints all metrics, --report writes a page with the errors"


def test_predict_texts_lines_and_files(folder: Path) -> None:
    texts = ["leaf root bark", "wing beak nest"]
    found = json.loads(hill("predict", folder / "model", *texts, "--json").stdout)
    keys = {"text", "labels", "names", "scores", "paths"}
    assert [item["text"] for item in found] == texts and set(found[0]) == keys
    shown = hill("predict", folder / "model", stdin="leaf root bark\n\nwing beak nest\n").stdout
    assert shown.startswith("leaf root bark\n") and "wing beak nest" in shown
    out = folder / "predicted.jsonl"
    result = hill("predict", folder / "model", "--input", folder / "test.jsonl", "--output", out)
    assert "20 predictions" in result.stdout and len(out.read_text().splitlines()) == 20


def test_messages_about_texts_count_as_people_do(folder: Path) -> None:
    cases = {("",): "the text is empty; expected at least one word", ("leaf", " "): "text 2 of 2 is empty; expected at"}
    for texts, message in cases.items():
        result = hill("predict", folder / "model", *texts)
        assert result.returncode == 2 and result.stderr.startswith(f"hill: {message}"), result.stderr


def test_almost_no_documents_are_noticed(folder: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"text": text, "labels": ["p"]}) for text in ("leaf", "root")]
    (tmp_path / "two.jsonl").write_text("\n".join(lines))
    options = ("--taxonomy", folder / "taxonomy.json", "--model", "linear", "--out")
    result = hill("train", tmp_path / "two.jsonl", *options, tmp_path / "model")
    assert result.returncode == 0
    assert "only 1 training document: the model will hardly be of use; give hundreds, or at least ten" in result.stderr
    assert "training linear on cpu: 1 training document, 1 dev document, 7 labels\n" in result.stderr
    enough = hill("train", folder, *options, tmp_path / "other")
    assert "hardly be of use" not in enough.stderr


def test_an_unfinished_training_says_how_to_continue(folder: Path, tmp_path: Path) -> None:
    mark_training(tmp_path)
    result = hill("predict", tmp_path, "leaf")
    expected = "has no config.json; its training did not finish: continue it with --resume"
    assert result.returncode == 2 and expected in result.stderr


def test_wrong_requests(folder: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    cases = {
        "give texts, or --input and --output together": ["predict", folder / "model", "--input", "x"],
        "has a trained model; choose another --out": train_arguments(folder, tiny_encoder, folder / "model"),
        "unknown setting of model 'hieght'; did you mean 'height'?": train_arguments(
            folder, tiny_encoder, tmp_path / "m", "--set", "model.hieght=3"
        ),
        "unknown model 'hil'; did you mean 'hill'?": ["settings", "--model", "hil"],
        "does not exist; give the folder of a saved model": ["evaluate", tmp_path / "none", folder],
    }
    for message, arguments in cases.items():
        result = hill(*arguments)
        assert result.returncode == 2 and result.stderr.startswith("hill: ") and message in result.stderr, message
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_settings_lists_every_setting() -> None:
    shown = hill("settings").stdout
    for key in ("model.height", "train.epochs", "data.max_length", "decode.strategy"):
        assert key in shown


def test_data_prepare_names_what_is_missing(tmp_path: Path) -> None:
    result = hill("research", "prepare", "wos", "--source", tmp_path, "--out", tmp_path / "out")
    assert result.returncode == 2 and "Data" in result.stderr and not (tmp_path / "out").exists()
    assert "wos" in hill("research", "prepare", "imdb", "--source", tmp_path, "--out", tmp_path / "out").stderr
