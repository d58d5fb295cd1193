"""Trackers: what TensorBoard, MLflow and Weights & Biases read back is what the training logged itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hill.classifier import HillClassifier
from hill.data.documents import label_documents
from hill.errors import ConfigError
from hill.taxonomy import write_taxonomy
from hill.train import Epoch
from hill.train.tracking import open_tracker
from tests.command import hill
from tests.conftest import ROOT, animals_taxonomy, toy_documents

SETTINGS = {"epochs": 3, "batch_size": 8, "lr": 4e-3, "checkpoint_seconds": 0}
STEPS = [5, 10, 15]
"""Steps after each of the three epochs: 40 documents in batches of 8."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracked")
    for name, count, seed in (("train", 40, 1), ("dev", 12, 2), ("test", 12, 3)):
        pairs = zip(*toy_documents(count, seed), strict=True)
        records = [json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in pairs]
        (folder / f"{name}.jsonl").write_text("".join(records))
    write_taxonomy(animals_taxonomy(), folder / "taxonomy.json")
    return folder


def arguments(data: Path, encoder: Path, out: Path, tracker: str) -> list[str | Path]:
    words = [
        "train",
        data,
        "--taxonomy",
        data / "taxonomy.json",
        "--out",
        out,
        "--encoder",
        encoder,
        "--track",
        tracker,
    ]
    sets = [f"--set=train.{key}={value}" for key, value in SETTINGS.items()]
    return [*words, "--preset", "none", "--no-ensemble", *sets]


def logged(out: Path) -> tuple[list[float], float, float]:
    """The Brier score of dev after each epoch, the loss of step 10, and micro F1 of test, as the folder has them."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    dev = [line["dev"]["brier"] for line in lines if "dev" in line]
    (loss,) = (line["loss"] for line in lines if line.get("step") == 10)
    return dev, loss, json.loads((out / "metrics.json").read_text())["micro_f1"]


def test_tensorboard(data: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "cats"
    result = hill(*arguments(data, tiny_encoder, out, "tensorboard"))
    assert result.returncode == 0 and f"logged to '{out / 'tensorboard'}'\n" in result.stdout, result.stderr
    board = EventAccumulator(str(out / "tensorboard"))
    board.Reload()
    dev, loss, test = logged(out)
    assert [event.step for event in board.Scalars("dev/brier")] == STEPS
    assert [event.value for event in board.Scalars("dev/brier")] == pytest.approx(dev)
    assert [(event.step, event.value) for event in board.Scalars("train/loss")] == [(10, pytest.approx(loss))]
    assert [(event.step, event.value) for event in board.Scalars("test/micro_f1")] == [(15, pytest.approx(test))]
    (text,) = board.Tensors("settings/text_summary")
    assert b"    train.lr = 0.004\n" in text.tensor_proto.string_val[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow and SQLAlchemy
def test_mlflow_and_a_run_that_is_resumed(
    data: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'runs.db'}")
    out = tmp_path / "cats"
    result = hill(*arguments(data, tiny_encoder, out, "mlflow"))
    assert result.returncode == 0 and not (tmp_path / "mlruns").exists(), result.stderr
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("hill").experiment_id
    (run,) = client.search_runs([experiment])
    assert f"logged to run {run.info.run_id} of 'hill' at sqlite:///" in result.stdout
    assert run.info.run_name == "cats" and run.info.status == "FINISHED"
    assert run.data.params["train.lr"] == "0.004" and run.data.params["model.encoder"] == str(tiny_encoder)
    dev, loss, test = logged(out)
    history = client.get_metric_history(run.info.run_id, "dev/brier")
    assert [(metric.step, metric.value) for metric in history] == list(zip(STEPS, map(pytest.approx, dev), strict=True))
    assert run.data.metrics["train/loss"] == pytest.approx(loss)
    assert run.data.metrics["test/micro_f1"] == pytest.approx(test)

    taxonomy = animals_taxonomy()
    splits = {name: label_documents(*toy_documents(n, n), taxonomy) for name, n in (("train", 40), ("dev", 12))}
    settings: dict[str, Any] = {"model": {"encoder": str(tiny_encoder)}, "train": SETTINGS}
    for resume in (False, True):
        classifier = HillClassifier(taxonomy, "hill", settings, preset=None)
        with open_tracker("mlflow", tmp_path / "dogs", resume) as tracker:
            for event in classifier.training(splits, tmp_path / "dogs", resume):
                tracker.log(event)
                if isinstance(event, Epoch) and event.epoch == 1 and not resume:
                    break
            else:
                tracker.log_metrics(classifier.metrics)
    (dogs,) = client.search_runs([experiment], "attributes.run_name = 'dogs'")
    assert [metric.step for metric in client.get_metric_history(dogs.info.run_id, "dev/epoch")] == STEPS
    assert dogs.data.metrics["final_dev/micro_f1"] == pytest.approx(classifier.metrics["micro_f1"])


def test_a_tracker_that_fails_does_not_end_the_training(
    data: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorboard.compat.tensorflow_stub.io.gfile.makedirs", None)
    out = tmp_path / "cats"
    result = hill(*arguments(data, tiny_encoder, out, "tensorboard"))
    assert result.returncode == 0 and (out / "config.json").exists()
    assert "hill: --track tensorboard: nothing is logged after step 0: " in result.stderr

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://x")
    with pytest.raises(ConfigError, match=r"--track mlflow cannot start: .+; check MLFLOW_TRACKING_URI"):
        open_tracker("mlflow", out).__enter__()
    result = hill(*arguments(data, tiny_encoder, tmp_path / "other", "mlfow"))
    assert result.returncode == 2 and "unknown tracker 'mlfow'; did you mean 'mlflow'?" in result.stderr


def test_wandb_offline(data: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hill", *map(str, arguments(data, tiny_encoder, tmp_path / "cats", "wandb"))]
    unset = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment = unset | {"WANDB_MODE": "offline", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert f"logged to '{folder}'; to upload it, use wandb sync\n" in result.stdout
    inspect = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
    output = subprocess.run(inspect, capture_output=True, text=True, env=environment, check=True).stdout
    records = [json.loads(line) for line in output.splitlines()]
    (run,) = (record["run"] for record in records if record["type"] == "run")
    assert run["display_name"] == "cats" and run["project"] == "hill"
    (config,) = (record["config"]["update"] for record in records if record["type"] == "config")
    assert config["train.lr"] == 0.004 and config["model.encoder"] == str(tiny_encoder)
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    dev, loss, test = logged(tmp_path / "cats")
    assert [item["_step"] for item in history] == STEPS
    assert [item["dev/brier"] for item in history] == pytest.approx(dev)
    assert [item.get("train/loss") for item in history] == [None, pytest.approx(loss), None]
    assert history[-1]["test/micro_f1"] == pytest.approx(test)
    assert [record["exit"]["exit_code"] for record in records if record["type"] == "exit"] == [0]
