"""Training in two stages: the contrastive loss alone, then that of the labels alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hill.classifier import HillClassifier
from hill.errors import ConfigError
from hill.taxonomy import Taxonomy
from hill.train import Epoch, Session, Split, Step, TrainConfig
from hill.train.trainer import GraphedSteps
from tests.conftest import animals_taxonomy
from tests.encoders.test_packed import random_labels, random_tokens
from tests.made import make_model
from tests.train.test_trainer import classifier, same, toy_data

TWO = {"stages": "two", "contrast_epochs": 2, "epochs": 4, "head_start": "off"}


def values(model: HillClassifier) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.stored.model.state_dict().items()}


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """The parts of the model that changed, by the start of their names."""
    return {name.split(".")[0] for name, value in before.items() if not torch.equal(value, after[name])}


@pytest.fixture(scope="module")
def epochs(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Each epoch of a training in two stages: its report, the weights after it, and the losses of its steps."""
    model, found, losses = classifier(animals_taxonomy(), tiny_encoder, **TWO), [], []
    for report in model.training(toy_data(model.taxonomy), tmp_path_factory.mktemp("epochs")):
        if isinstance(report, Step):
            losses.append(set(report.parts))
        elif isinstance(report, Epoch):
            found.append((report, values(model), losses[-6:]))
    return found


def test_each_stage_trains_only_its_own_weights(epochs: list[Any]) -> None:
    weights = [state for _, state, _ in epochs]
    assert changed(weights[0], weights[1]) == {"text", "structure", "text_view", "tree_view"}
    assert changed(weights[1], weights[2]) == changed(weights[2], weights[3]) == {"text", "structure", "head"}
    assert not weights[1]["head.bias"].any()
    assert [losses for _, _, losses in epochs] == [[{"contrast"}] * 6] * 2 + [[{"labels"}] * 6] * 2


def test_no_epoch_of_the_first_stage_is_the_best(epochs: list[Any]) -> None:
    reports = [report for report, _, _ in epochs]
    assert [report.improved for report in reports[:3]] == [False, False, True]
    assert all("micro_f1" in report.metrics for report in reports)


def test_patience_begins_with_the_second_stage(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path) -> None:
    settings = TWO | {"epochs": 30, "contrast_epochs": 3, "patience": 2, "encoder_lr": 0.0, "lr": 0.0}
    model = classifier(animals, tiny_encoder, **settings)
    reports = [r for r in model.training(toy_data(animals), tmp_path) if isinstance(r, Epoch)]
    assert [r.improved for r in reports] == [False] * 3 + [True, False, False]


def test_each_stage_has_its_own_loss_unweighted(tiny_encoder: Path) -> None:
    made = make_model("hill", {"contrast": 0.01}, tiny_encoder)
    model, batch = made.model.eval(), made.batch
    both = model(batch).parts
    assert set(both) == {"labels", "contrast"}
    model.stage = "contrast"
    assert torch.allclose(model(batch).loss, both["contrast"] * 100, rtol=1e-5)
    model.stage = "labels"
    assert torch.equal(model(batch).loss, both["labels"])


def interrupted(model: HillClassifier, out: Path, reports: int) -> None:
    """Train until so many steps and epochs are done, then stop without any warning."""
    training = model.training(toy_data(model.taxonomy), out)
    for _ in range(reports):
        while not isinstance(next(training), Step | Epoch):
            pass


@pytest.mark.parametrize("reports", [4, 13, 15, 23])
def test_a_stopped_training_resumes_in_its_stage(
    tiny_encoder: Path, animals: Taxonomy, tmp_path: Path, epochs: list[Any], reports: int
) -> None:
    """Stopped in the first stage, before and after its last epoch is told, and in the second; an epoch has 6 steps."""
    interrupted(classifier(animals, tiny_encoder, **TWO), tmp_path, reports)
    model = classifier(animals, tiny_encoder, **TWO)
    done = [r for r in model.training(toy_data(animals), tmp_path, resume=True) if isinstance(r, Step | Epoch)]
    assert 28 - reports <= len(done) <= 28 - reports + 1
    best = [state for report, state, _ in epochs if report.improved][-1]
    assert same(values(model), best)


def test_cuda_graphs_are_discarded_with_their_stage(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = iter(range(9))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    for name in ("Stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    session = Session(make_model("hill", {}, tiny_encoder).model, TrainConfig(), torch.device("cpu"))
    steps: Any = GraphedSteps(session, Split(random_tokens(5), random_labels(5)))
    steps.set_stage("contrast")
    steps._graphs[256], steps._seen[256], pool = "recorded", 2, steps._pool
    steps.set_stage("contrast")
    assert session.model.stage == "contrast" and steps._graphs and steps._seen[256] == 2 and steps._pool == pool
    steps.set_stage("labels")
    assert session.model.stage == "labels" and not steps._graphs and not steps._seen and steps._pool != pool


@pytest.mark.parametrize(
    ("name", "settings"), [("flat", {}), ("hgclr", {}), ("linear", {"min_count": 1}), ("hill", {"contrast": 0.0})]
)
def test_models_without_two_stages_say_so(name: str, settings: dict[str, Any], tiny_encoder: Path) -> None:
    model = make_model(name, settings, tiny_encoder).model
    with pytest.raises(ConfigError, match=r"train\.stages is 'two', but .*; set train\.stages=one, or use model hill"):
        Session(model, TrainConfig(stages="two"), torch.device("cpu"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stages": "three"}, r"unknown train\.stages 'three'"),
        ({"stages": "two", "contrast_epochs": 3, "epochs": 3}, r"contrast_epochs is 3, .* train\.epochs=3 to the sec"),
        ({"stages": "two", "head_start": "on"}, r"train\.head_start is 'on', but train\.stages is 'two'"),
        ({"contrast_epochs": 0}, r"train\.contrast_epochs is 0; expected at least 1"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**settings)


def test_two_stages_have_no_head_start_and_one_stage_counts_every_epoch() -> None:
    assert TrainConfig(epochs=3).has_head_start and not TrainConfig(epochs=3, stages="two").has_head_start
    assert TrainConfig().first_epochs == 0 and TrainConfig(stages="two", contrast_epochs=3).first_epochs == 3
    TrainConfig(epochs=1)
