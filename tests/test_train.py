"""Training: the same seed gives the same weights, and so does a training that was killed and resumed."""

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hill.classifier import HillClassifier
from hill.data.batches import padded_length, reading_order, training_order
from hill.data.documents import label_documents
from hill.errors import CheckpointError, DataError
from hill.taxonomy import Taxonomy
from hill.train import Epoch, Step, TrainConfig
from hill.train.files import check_folder, read_tensors, write_folder
from hill.train.optim import make_optimiser, set_rates
from hill.train.run import check_out
from tests.conftest import animals_taxonomy, toy_documents
from tests.forks import start
from tests.made import make_model

ALWAYS = {"checkpoint_seconds": 0.0}


def classifier(taxonomy: Taxonomy, encoder: str | Path, **train: Any) -> HillClassifier:
    settings: dict[str, dict[str, Any]] = {
        "model": {"encoder": str(encoder), "height": 2},
        "train": {
            "epochs": 3,
            "batch_size": 8,
            "encoder_lr": 3e-3,
            "lr": 3e-3,
            "head_epochs": 2,
            "checkpoint_seconds": 0.0,
            **train,
        },
        "data": {"max_length": 16},
    }
    return HillClassifier(taxonomy, "hill", settings)


def toy_data(taxonomy: Taxonomy) -> dict[str, Any]:
    return {
        name: label_documents(*toy_documents(n, seed), taxonomy) for name, n, seed in (("train", 48, 1), ("dev", 24, 2))
    }


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def learn(encoder: Path, out: Path, resume: bool = False, last: int = 0) -> None:
    """The training, killed at the last report where there is to be one."""
    torch.set_num_threads(1)
    model = classifier(animals_taxonomy(), encoder)
    for number, _ in enumerate(model.training(toy_data(model.taxonomy), out, resume), 1):
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)
    model.save(out)


def ended(*arguments: Any) -> int:
    """How a process that learns ends."""
    process = start(learn, *arguments)
    process.join(200)
    code: int = process.exitcode
    return code


@pytest.fixture(scope="module")
def unbroken(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("train") / "unbroken"
    assert ended(tiny_encoder, out) == 0
    return out


def test_two_runs_are_the_same_to_the_bit(
    tiny_encoder: Path, animals: Taxonomy, unbroken: Path, tmp_path: Path
) -> None:
    model = classifier(animals, tiny_encoder)
    reports = list(model.training(toy_data(animals), tmp_path / "run"))
    model.save(tmp_path / "model")
    assert same(weights(tmp_path / "model"), weights(unbroken))
    assert [r.epoch for r in reports if isinstance(r, Epoch)] == [1, 2, 3]
    assert [r.step for r in reports if isinstance(r, Step)] == list(range(1, 19))
    other = classifier(animals, tiny_encoder, seed=7)
    list(other.training(toy_data(animals), tmp_path / "other"))
    other.save(tmp_path / "other-model")
    assert not same(weights(tmp_path / "other-model"), weights(unbroken))


@pytest.mark.parametrize("reports", [1, 4, 12, 26])
def test_a_killed_training_resumes_to_the_same_weights(
    tiny_encoder: Path, unbroken: Path, tmp_path: Path, reports: int
) -> None:
    out = tmp_path / "out"
    assert ended(tiny_encoder, out, False, reports) == -signal.SIGKILL and not (out / "config.json").exists()
    assert ended(tiny_encoder, out, True) == 0
    assert same(weights(out), weights(unbroken))
    assert not (out / "checkpoints").exists() and (out / "log.jsonl").exists()


def test_resuming_with_other_settings_or_data_is_refused(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for report in classifier(animals, tiny_encoder).training(toy_data(animals), out):
        if isinstance(report, Epoch):
            break
    with pytest.raises(CheckpointError, match="was trained with settings = "):
        list(classifier(animals, tiny_encoder, lr=1e-4).training(toy_data(animals), out, resume=True))
    less = toy_data(animals) | {"train": toy_data(animals)["dev"]}
    with pytest.raises(CheckpointError, match=r"was trained with documents = \[48, 24\], not \[24, 24\]"):
        list(classifier(animals, tiny_encoder).training(less, out, resume=True))
    for damaged in (out / "checkpoints").glob("state-*/weights.safetensors"):
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"weights.safetensors' is damaged"):
        list(classifier(animals, tiny_encoder).training(toy_data(animals), out, resume=True))


def test_the_log_tells_steps_and_epochs(unbroken: Path) -> None:
    lines = [json.loads(line) for line in (unbroken / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == [10]
    step = next(line for line in lines if "step" in line)
    assert {"loss", "labels", "contrast", "rate", "seconds"} <= set(step)
    epochs = [line for line in lines if "dev" in line]
    assert [line["epoch"] for line in epochs] == [1, 2, 3] and 0 <= epochs[0]["dev"]["micro_f1"] <= 1


def test_training_stops_when_dev_stops_improving(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path) -> None:
    model = classifier(animals, tiny_encoder, epochs=30, patience=2, encoder_lr=0.0, lr=0.0)
    epochs = [r for r in model.training(toy_data(animals), tmp_path) if isinstance(r, Epoch)]
    assert [r.improved for r in epochs] == [True, False, False]


def test_the_head_start_gives_a_head_start(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path) -> None:
    scores = []
    for epochs in (0, 20):
        model = classifier(
            animals, tiny_encoder, epochs=1, encoder_lr=0.0, lr=0.0, head_start="on", head_epochs=epochs, head_lr=3e-2
        )
        reports = list(model.training(toy_data(animals), tmp_path / str(epochs)))
        scores += [report.metrics["ndcg_at_3"] for report in reports if isinstance(report, Epoch)]
    assert scores[1] > scores[0] + 0.05


def test_accumulation_takes_the_steps_of_a_larger_batch(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path) -> None:
    found = []
    for name, size, parts in (("one", 8, 1), ("two", 4, 2)):
        model = classifier(animals, tiny_encoder, batch_size=size, accumulate=parts, epochs=1)
        reports = list(model.training(toy_data(animals), tmp_path / name))
        found.append([report.documents for report in reports if isinstance(report, Step)])
    assert found[0] == found[1] == [8] * 6


def test_frozen_layers_stay(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path) -> None:
    before = read_tensors(tiny_encoder / "model.safetensors")
    model = classifier(animals, tiny_encoder, freeze=1)
    list(model.training(toy_data(animals), tmp_path / "run"))
    model.save(tmp_path / "model")
    after = {k.removeprefix("text.encoder."): v for k, v in weights(tmp_path / "model").items()}
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed and all(name.startswith("encoder.layer.1") for name in changed)


def test_rates_rise_and_fall() -> None:
    optimiser = torch.optim.Adam([{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)]}], lr=1.0)
    paper = TrainConfig(encoder_lr=1.0, lr=2.0, warmup=10, schedule="constant")
    assert [set_rates(optimiser, paper, step, 100) for step in (1, 5, 10, 50)] == [0.1, 0.5, 1.0, 1.0]
    assert optimiser.param_groups[1]["lr"] == 2.0
    falling = TrainConfig(encoder_lr=1.0, lr=2.0, warmup=0.1, schedule="linear")
    rates = [set_rates(optimiser, falling, step, 100) for step in (1, 10, 11, 51, 100)]
    assert rates == pytest.approx([0.1, 0.91, 0.9, 0.5, 0.01])


def test_the_classifier_may_have_a_rate_of_its_own(tiny_encoder: Path) -> None:
    model: Any = make_model("hill", {"leaf_units": 2, "name_weight": 5.0}, tiny_encoder).model
    config = TrainConfig(encoder_lr=1.0, lr=2.0, classifier_lr=8.0, schedule="linear", warmup=0)
    optimiser = make_optimiser(model, config)
    assert set_rates(optimiser, config, 51, 100) == 0.5
    rates = {id(weight): group["lr"] for group in optimiser.param_groups for weight in group["params"]}
    assert rates.keys() == {id(weight) for weight in model.parameters()}
    slow = (model.structure, model.text_view, model.names)
    for part, rate in (model.text, 0.5), *((part, 1.0) for part in slow), (model.head, 4.0), (model.head_leaves, 4.0):
        assert {rates[id(weight)] for weight in part.parameters()} == {rate}
    shared = make_optimiser(model, TrainConfig(encoder_lr=1.0, lr=2.0))
    assert [group["lr"] for group in shared.param_groups] == [1.0, 2.0]


def test_an_epoch_has_every_document_once_and_its_seed_fixes_it() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 1_000)
    order = training_order(1_000, 16, seed=1, epoch=2)
    assert sorted(np.concatenate(order).tolist()) == list(range(1_000)) and max(map(len, order)) == 16
    again = training_order(1_000, 16, seed=1, epoch=2)
    assert all(np.array_equal(a, b) for a, b in zip(order, again, strict=True))
    other = training_order(1_000, 16, seed=1, epoch=3)
    assert not all(np.array_equal(a, b) for a, b in zip(order, other, strict=True))
    assert np.concatenate(reading_order(lengths, 7)).tolist() == np.argsort(-lengths, kind="stable").tolist()
    assert [padded_length(n) for n in (1, 8, 9, 512, 600)] == [8, 8, 16, 512, 600]


def test_folders_appear_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    write_folder(target, {"w.safetensors": {"a": torch.ones(2)}}, {"a/b.json": {"x": 1}})
    (target.parent / "usual").touch()
    assert {file.stat().st_mode for file in target.rglob("*.*")} == {(target.parent / "usual").stat().st_mode}
    check_folder(target)
    assert not list(tmp_path.glob(".*"))
    (target / "log.jsonl").write_text("kept")
    write_folder(target, {"w.safetensors": {"a": torch.zeros(2)}}, {})
    assert (target / "log.jsonl").read_text() == "kept" and not (target / "a").exists()
    (target / "w.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 'w.safetensors'"):
        check_folder(target)


def test_a_folder_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "model"
    write_folder(target, {}, {"a.json": 1})
    with pytest.raises(CheckpointError, match="cannot write"):
        write_folder(target, {}, {"a.json/b.json": 1, "a.json": 2} | {"x" * 300: 1})
    assert json.loads((target / "a.json").read_text()) == 1 and not list(tmp_path.glob(".*"))


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    check_out(tmp_path / "new", resume=False)
    (tmp_path / "log.jsonl").touch()
    with pytest.raises(CheckpointError, match="is not empty; add --resume"):
        check_out(tmp_path, resume=False)
    check_out(tmp_path, resume=True)
    (tmp_path / "config.json").touch()
    with pytest.raises(CheckpointError, match="holds a trained model"):
        check_out(tmp_path, resume=True)


def test_data_that_cannot_be_trained_on(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path) -> None:
    model = classifier(animals, tiny_encoder)
    with pytest.raises(DataError, match="nothing to train on"):
        list(model.training({"test": toy_data(animals)["dev"]}, tmp_path))
    with pytest.raises(DataError, match="1 document cannot be split"):
        list(model.training({"train": label_documents(["x"], [["p"]], animals)}, tmp_path))


def overflow(target: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    with pytest.raises(CheckpointError, match=f"^cannot write '{target}': "):
        write_folder(target, {"w.safetensors": {"a": torch.ones(1_000_000)}}, {"a.json": 2})


def test_a_full_disk_leaves_the_earlier_model(tmp_path: Path) -> None:
    """A limit on file size stands for the full disk: writing fails in the middle of a file."""
    target = tmp_path / "model"
    write_folder(target, {"w.safetensors": {"a": torch.ones(10)}}, {"a.json": 1})
    process = start(overflow, target)
    process.join(200)
    assert process.exitcode == 0
    check_folder(target)
    assert json.loads((target / "a.json").read_text()) == 1 and [p.name for p in tmp_path.iterdir()] == ["model"]
