"""One suite over every model and variant: what each must do whatever it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hill.metrics import flat_scores
from hill.models import HTCModel
from hill.train.store import load_stored
from hill.types import Batch
from tests.made import Made, make_model

SMALL = {"text": "rcnn", "word_width": 12, "gru_width": 8, "filters": 6, "word_count": 1}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "flat": ("flat", {}),
    "flat-softmax": ("flat", {"loss": "softmax"}),
    "hill": ("hill", {}),
    "hill-height-1": ("hill", {"height": 1}),
    "hill-no-contrast": ("hill", {"contrast": 0.0}),
    "hill-tree": ("hill", {"classifier": "tree"}),
    "hill-residual": ("hill", {"classifier": "residual"}),
    "hill-text": ("hill", {"classifier": "text"}),
    "hill-layer-max": ("hill", {"norm": "layer", "readout": "max"}),
    "hill-low-rank": ("hill", {"label_rank": 2, "readout": "mean", "hidden": 12}),
    "hill-softmax": ("hill", {"loss": "softmax", "method": "refined"}),
    "textrcnn": ("textrcnn", {**SMALL, "recursive": 0.01}),
    "textrcnn-top-2": ("textrcnn", {**SMALL, "top": 2, "recursive": 0.0, "gru_layers": 2}),
}
UNUSED = {"hill-no-contrast": ("text_view", "tree_view")}
"""Weights that a variant does not use, by the start of their names."""


@pytest.fixture(params=VARIANTS, ids=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def build(tiny_encoder: Path) -> Callable[[str], Made]:
    return lambda variant: make_model(*VARIANTS[variant], tiny_encoder)


@pytest.fixture
def made(build: Callable[[str], Made], variant: str) -> Made:
    return build(variant)


def fit(model: HTCModel, batch: Batch, steps: int, rate: float = 5e-3) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = model.train()(batch).loss
        loss.backward()
        optimiser.step()


def test_shapes_and_a_loss_exactly_when_labels_are_given(made: Made) -> None:
    output = made.model(made.batch)
    assert output.logits.shape == (16, 7) and output.loss is not None and output.loss.ndim == 0
    assert torch.allclose(output.loss, sum(output.parts.values()))
    without = made.model(Batch(made.batch.ids, made.batch.mask))
    assert without.loss is None and not without.parts
    scores = made.model.scores(output.logits)
    assert scores.min() >= 0 and scores.max() <= 1


def test_every_weight_gets_a_gradient(made: Made, variant: str) -> None:
    made.model.train()(made.batch).loss.backward()
    for name, weight in made.model.named_parameters():
        if not name.startswith(UNUSED.get(variant, "-")):
            assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_padding_and_company_change_no_score(made: Made) -> None:
    model, batch = made.model.eval(), made.batch
    with torch.no_grad():
        together = model(batch).logits
        wider = Batch(nn.functional.pad(batch.ids, (0, 9)), nn.functional.pad(batch.mask, (0, 9)))
        assert torch.allclose(model(wider).logits, together, atol=1e-5)
        alone = torch.cat([model(Batch(batch.ids[i : i + 1], batch.mask[i : i + 1])).logits for i in range(16)])
    assert torch.allclose(alone, together, atol=1e-5)


def test_it_overfits_one_batch(made: Made) -> None:
    model, labels = made.model, made.batch.labels
    fit(model, made.batch, steps=150)
    with torch.no_grad():
        scores = model.eval().scores(model(made.batch).logits)
    assert labels is not None
    if model.config.loss == "bce":
        assert flat_scores(labels.numpy(), (scores > 0.5).numpy())["micro_f1"] >= 0.99
        return
    for rows in model.levels:
        single = labels[:, rows].sum(dim=1) == 1
        assert torch.equal(scores[single][:, rows].argmax(1), labels[single][:, rows].int().argmax(1))


def test_saved_and_loaded_it_says_the_same_to_the_bit(made: Made, tmp_path: Path) -> None:
    fit(made.model, made.batch, steps=2)
    made.stored.save(tmp_path / "model", {})
    loaded = load_stored(tmp_path / "model").model
    with torch.no_grad():
        assert torch.equal(loaded(made.batch).logits, made.model.eval()(made.batch).logits)
        assert loaded.assets == made.model.assets


def test_a_seed_fixes_the_training(build: Callable[[str], Made], variant: str) -> None:
    weights = []
    for _ in range(2):
        made = build(variant)
        torch.manual_seed(5)
        fit(made.model, made.batch, steps=3)
        weights.append(made.model.state_dict())
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


@pytest.mark.parametrize("variant", ["flat", "hill", "hill-tree"])
def test_the_head_can_be_started(build: Callable[[str], Made], variant: str) -> None:
    model = build(variant).model.eval()
    weight, bias = torch.randn(7, 16), torch.randn(7)
    model.start_head(weight, bias)
    assert torch.equal(model.head.bias, bias)
    if variant != "hill-tree":
        assert torch.equal(model.head.weight[:, :16], weight)
