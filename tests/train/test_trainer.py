"""Training: the same seed gives the same weights, and so does a training that was killed and resumed."""

import io
import json
import os
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from hill.classifier import HillClassifier
from hill.data import Documents
from hill.data.batches import padded_length, reading_order, training_order
from hill.data.documents import label_documents
from hill.errors import CheckpointError, DataError
from hill.io import TRAINING, mark_training, save_folder, sha256, write_json
from hill.models.inference import read_tensors
from hill.taxonomy import Taxonomy
from hill.train import Epoch, Step, TrainConfig, head_start
from hill.train.checkpoint import check_output_folder
from hill.train.progress import TrainingProgress
from hill.train.trainer import Finished, Notice, Resumed, Started, TimeLimit, make_optimiser, set_rates
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
    return HillClassifier(taxonomy, "hill", settings, preset=None)


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


@pytest.mark.parametrize("reports", [1, 4, 12, 26, 27])
def test_a_killed_training_resumes_to_the_same_weights(
    tiny_encoder: Path, unbroken: Path, tmp_path: Path, reports: int
) -> None:
    out = tmp_path / "out"
    assert ended(tiny_encoder, out, False, reports) == -signal.SIGKILL and not (out / "config.json").exists()
    assert ended(tiny_encoder, out, True) == 0
    assert same(weights(out), weights(unbroken))
    assert not (out / "checkpoints").exists() and (out / "log.jsonl").exists()
    assert not list(out.glob(".*"))


def test_resuming_with_other_settings_or_data_is_refused(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for report in classifier(animals, tiny_encoder).training(toy_data(animals), out):
        if isinstance(report, Epoch):
            break

    def refused(message: str, data: dict[str, Documents], taxonomy: Taxonomy = animals, **train: Any) -> None:
        with pytest.raises(CheckpointError, match=f"cannot resume '{out}': {message}"):
            list(classifier(taxonomy, tiny_encoder, **train).training(data, out, resume=True))

    data = toy_data(animals)
    train, order = data["train"], np.arange(48)
    refused(r"train.lr is 0.0001 and was 0.003\. Use the same settings", data, lr=1e-4)
    refused(r"train.lr is 0.0001 and was 0.003; train.seed is 3 and was 42\.", data, lr=1e-4, seed=3)
    other = HillClassifier(animals, "flat", {"model": {"encoder": str(tiny_encoder)}}, preset=None)
    with pytest.raises(CheckpointError, match=r"cannot resume '.*': the model is 'flat' and was 'hill'\. Use the same"):
        list(other.training(data, out, resume=True))
    for preset in ("auto", "paper"):  # its settings are not chosen again, but it is not ignored either
        other = HillClassifier(animals, "hill", classifier(animals, tiny_encoder).settings(), preset)
        message = rf"cannot resume '.*': the preset is '{preset}' and was 'none'\. Use the same settings"
        with pytest.raises(CheckpointError, match=message):
            next(other.training(data, out, resume=True))
    with pytest.raises(
        CheckpointError, match=r"train.ensemble is True and was False\. Use"
    ):  # before anything is fitted
        next(classifier(animals, tiny_encoder, ensemble=True).training(data, out, resume=True))
    refused("the number of documents of train is 24 and was 48; ", data | {"train": data["dev"]})
    refused("the ids of train changed; the texts of train changed; ", data | {"train": train.take(order[::-1])})
    refused(r"the labels of train changed\.", data | {"train": replace(train, labels=train.labels[order[::-1]])})
    refused(r"the texts of dev changed\.", data | {"dev": replace(data["dev"], texts=["fur", *data["dev"].texts[1:]])})
    moved = Taxonomy([replace(label, parents=("p",)) if label.id == "mo" else label for label in animals])
    refused("the taxonomy changed", data, moved)
    for damaged in (out / "checkpoints").glob("state-*/weights.safetensors"):
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"weights.safetensors' is damaged"):
        list(classifier(animals, tiny_encoder).training(toy_data(animals), out, resume=True))


def test_a_checkpoint_that_does_not_name_its_preset_is_resumed(
    tiny_encoder: Path, animals: Taxonomy, tmp_path: Path
) -> None:
    for event in classifier(animals, tiny_encoder).training(toy_data(animals), tmp_path):
        if isinstance(event, Epoch):
            break
    for state in (tmp_path / "checkpoints").glob("state-*"):
        document = json.loads((state / "state.json").read_text())
        assert document["facts"].pop("preset") == "none"
        write_json(state / "state.json", document)
        sums = json.loads((state / "files.json").read_text())
        write_json(state / "files.json", sums | {"state.json": sha256(state / "state.json")})
    events = list(classifier(animals, tiny_encoder).training(toy_data(animals), tmp_path, resume=True))
    assert any(isinstance(event, Resumed) for event in events)


def test_a_training_stopped_before_its_last_score_has_no_steps_left(
    tiny_encoder: Path, animals: Taxonomy, tmp_path: Path
) -> None:
    for event in classifier(animals, tiny_encoder, steps=8).training(toy_data(animals), tmp_path):
        if isinstance(event, Step) and event.step == 8:  # the second epoch has two of its six steps
            break
    events = list(classifier(animals, tiny_encoder, steps=8).training(toy_data(animals), tmp_path, resume=True))
    assert not [event for event in events if isinstance(event, Step)]
    assert [event.epoch for event in events if isinstance(event, Epoch)] == [2]
    assert isinstance(events[-1], Finished) and (events[-1].reason, events[-1].step) == ("steps", 8)


def test_the_log_tells_steps_and_epochs(unbroken: Path) -> None:
    lines = [json.loads(line) for line in (unbroken / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == [10]
    step = next(line for line in lines if "step" in line)
    assert {"loss", "labels", "contrast", "rate", "seconds"} <= set(step)
    epochs = [line for line in lines if "dev" in line]
    assert [line["epoch"] for line in epochs] == [1, 2, 3] and 0 <= epochs[0]["dev"]["micro_f1"] <= 1


def test_training_stops_when_dev_stops_improving(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path) -> None:
    model = classifier(animals, tiny_encoder, epochs=30, patience=2, encoder_lr=0.0, lr=0.0)
    events = list(model.training(toy_data(animals), tmp_path))
    assert [r.improved for r in events if isinstance(r, Epoch)] == [True, False, False]
    best = max(event.metrics["micro_f1"] for event in events if isinstance(event, Epoch))
    steps = [event for event in events if isinstance(event, Step)]
    assert events[-1] == Finished("patience", len(steps), 10 * len(steps), epoch=3, best_epoch=1, best=best)
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert (last["stopped"], last["best_epoch"], last["reason"]) == (3, 1, "patience")
    message = "stopped after epoch 3: dev micro_f1 has not improved for 2 epochs; best epoch 1 of 3, with dev micro_f1 "
    assert f"{message}{best:.4f}" in shown(events[-1:])


@pytest.mark.parametrize(("evaluations", "scored"), [(1, [6]), (2, [3, 6])])
def test_epochs_without_a_score_of_dev_are_not_held_against_a_training(
    tiny_encoder: Path, animals: Taxonomy, tmp_path: Path, evaluations: int, scored: list[int]
) -> None:
    model = classifier(animals, tiny_encoder, epochs=6, patience=2, evaluations=evaluations)
    events = list(model.training(toy_data(animals), tmp_path))
    assert [event.epoch for event in events if isinstance(event, Epoch)] == scored
    assert isinstance(events[-1], Finished) and events[-1].reason == "steps"


def shown(events: Iterable[Any], metric: str = "micro_f1") -> str:
    """What a person sees of these events."""
    out = io.StringIO()
    with Progress(console=Console(file=out, width=200)) as bar:
        progress = TrainingProgress(bar, metric)
        for event in events:
            progress.show(event)
    return out.getvalue()


def test_a_training_that_ends_with_its_last_epoch_was_not_stopped(
    tiny_encoder: Path, animals: Taxonomy, tmp_path: Path
) -> None:
    model = classifier(animals, tiny_encoder, epochs=3, patience=2, encoder_lr=0.0, lr=0.0)
    events = list(model.training(toy_data(animals), tmp_path))
    assert isinstance(events[-2], Epoch) and events[-2].epoch == 3
    assert isinstance(events[-1], Finished) and events[-1].reason == "steps"
    n_steps = sum(isinstance(event, Step) for event in events)
    text = shown(events)
    assert f"trained {n_steps} of {n_steps} steps; best epoch 1 of 3, with dev micro_f1 " in text
    opening = (
        f"training hill with the encoder {tiny_encoder} on cpu: 48 training documents, 24 dev documents, 7 labels, "
        f"{n_steps} steps"
    )
    (notice,) = (event.text for event in events if isinstance(event, Notice))
    assert notice == opening


def test_what_the_bar_shows_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("hill.train.progress.time.perf_counter", lambda: now)
    bar = Progress(console=Console(file=io.StringIO()))
    progress, told = TrainingProgress(bar, "micro_f1"), list[str]()
    monkeypatch.setattr(progress, "_print", told.append)
    for number in range(11, 16):
        now += 30.0 if number == 11 else 2.0
        progress.show(Step(number, 1_000, 0, 32, 2e-5, torch.tensor(number / 10), {}))
    (task,) = bar.tasks
    assert task.fields["detail"] == "loss 1.5000  learning rate 2.0e-05", "steps are slow, so each loss is read"
    assert task.completed == 15, "each step counts, so that the time left is known after two"
    expected = "about 33 minutes for 986 more steps, at 16 documents per second; scoring dev is extra"
    assert told == [expected], "2 s per step, once, without the first"


def test_an_estimate_beyond_the_time_limit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("hill.train.progress.time.perf_counter", lambda: now)
    progress, told = TrainingProgress(Progress(console=Console(file=io.StringIO())), "micro_f1"), list[str]()
    monkeypatch.setattr(progress, "_print", told.append)
    progress.show(Started("opening", {"train": {"minutes": 2.0}}))
    for number in range(1, 5):
        now += 4.0
        progress.show(Step(number, 1_000, 0, 32, 2e-5, torch.tensor(0.1), {}))
    estimate = "about 66 minutes for 996 more steps, at 8 documents per second"
    assert told == ["opening", f"{estimate}; but the time limit ends training in 2 minutes or less"]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (Finished("time", 7, 90, 1, 1, None), "stopped after step 7 of 90: the time limit is reached\n"),
        (Finished("steps", 1_000, 1_000, 5, 5, None), "trained 1,000 of 1,000 steps\n"),
        (
            Finished("patience", 9, 90, 3, 2, 0.5),
            "not improved for 1 epoch; best epoch 2 of 3, with dev micro_f1 0.5000\n",
        ),
    ],
)
def test_why_a_training_ended(event: Finished, message: str) -> None:
    assert message in shown([event])


def test_the_head_start_gives_a_head_start(
    tiny_encoder: Path, animals: Taxonomy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = []
    monkeypatch.setattr(head_start, "HEAD_LR", 3e-2)
    for setting in ("off", "on"):
        model = classifier(animals, tiny_encoder, epochs=1, encoder_lr=0.0, lr=0.0, head_start=setting, head_epochs=20)
        reports = list(model.training(toy_data(animals), tmp_path / setting))
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


def test_learning_rates_warm_up_and_decay() -> None:
    optimiser = torch.optim.Adam([{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)]}], lr=1.0)
    paper = TrainConfig(encoder_lr=1.0, lr=2.0, warmup=10, schedule="constant")
    assert [set_rates(optimiser, paper, step, 100) for step in (1, 5, 10, 50)] == [0.1, 0.5, 1.0, 1.0]
    assert optimiser.param_groups[1]["lr"] == 2.0
    falling = TrainConfig(encoder_lr=1.0, lr=2.0, warmup=0.1, schedule="linear")
    rates = [set_rates(optimiser, falling, step, 100) for step in (1, 10, 11, 51, 100)]
    assert rates == pytest.approx([0.1, 0.91, 0.9, 0.5, 0.01])


def test_the_classifier_may_use_its_own_learning_rate(tiny_encoder: Path) -> None:
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


def test_a_training_starts_in_a_new_or_empty_folder_and_resumes_in_its_own(tmp_path: Path) -> None:
    check_output_folder(tmp_path / "new", resume=False)
    check_output_folder(tmp_path, resume=False)
    with pytest.raises(CheckpointError, match="has no training to resume; leave out --resume"):
        check_output_folder(tmp_path, resume=True)
    (tmp_path / "log.jsonl").touch()
    for resume in (False, True):
        with pytest.raises(
            CheckpointError, match=r"is not empty and has no training of hill \(it has 'log.jsonl'\)"
        ) as raised:
            check_output_folder(tmp_path, resume)
        assert "--resume" not in str(raised.value)
    mark_training(tmp_path)
    check_output_folder(tmp_path, resume=False)  # nothing was learned yet
    with save_folder(tmp_path / "checkpoints" / "state-00000001-0000") as draft:
        (draft / "state.json").write_text("{}")
    check_output_folder(tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="has an unfinished training; add --resume to continue it"):
        check_output_folder(tmp_path, resume=False)
    (tmp_path / TRAINING).write_text('{"format": "mine"}')
    with pytest.raises(CheckpointError, match="has no training of hill"):
        check_output_folder(tmp_path, resume=True)
    (tmp_path / "files.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has a trained model; choose another --out"):
        check_output_folder(tmp_path, resume=True)


def test_the_output_folder_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="File name too long; choose a shorter name"):
        check_output_folder(tmp_path / ("x" * 300), resume=False)
    with pytest.raises(CheckpointError, match=r"--out is the data folder '.*'; choose another --out"):
        check_output_folder(tmp_path, resume=False, data=tmp_path)
    monkeypatch.chdir(tmp_path)
    check_output_folder(Path("."), resume=False)


def test_a_disk_without_room_for_a_checkpoint(
    tiny_encoder: Path, animals: Taxonomy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10_000))
    with pytest.raises(
        CheckpointError, match=r"has 0.0 MB free, but a checkpoint needs about 0.\d MB; free some space"
    ):
        list(classifier(animals, tiny_encoder).training(toy_data(animals), tmp_path / "out"))


def test_data_that_cannot_be_trained_on(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path) -> None:
    model = classifier(animals, tiny_encoder)
    with pytest.raises(DataError, match="nothing to train on"):
        list(model.training({"test": toy_data(animals)["dev"]}, tmp_path))
    with pytest.raises(DataError, match="1 document cannot be split"):
        list(model.training({"train": label_documents(["x"], [["p"]], animals)}, tmp_path))


def test_a_time_limit_leaves_more_time_for_the_end_if_steps_are_slower_than_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("hill.train.trainer.time", SimpleNamespace(monotonic=lambda: now[0]))

    def stops_at(step_seconds: float, after: float) -> float:
        limit, step = TimeLimit(100.0, after, 1.0), 1
        now[0] = 0.0
        while limit.share(step) < 1:
            step, now[0] = step + 1, now[0] + step_seconds
        return now[0]

    assert stops_at(1.0, after=20.0) == 100 and stops_at(0.5, after=20.0) == 100
    assert stops_at(2.0, after=20.0) == 80  # the end takes twice as long, too: 20 seconds more
    assert stops_at(2.0, after=0.0) == 100
    assert stops_at(4.0, after=90.0) == 52  # at least half of the time is for steps
