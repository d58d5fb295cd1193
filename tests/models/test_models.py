"""One suite over every model and variant: what each must do whatever it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn

from hill.data.tokens import Tokens
from hill.metrics import flat_scores
from hill.models import HTCModel
from hill.models.inference import load_saved
from hill.types import Batch
from tests.made import Made, make_model, packed

SMALL = {"text": "rcnn", "word_width": 12, "gru_width": 8, "filters": 6}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "flat": ("flat", {}),
    "flat-softmax": ("flat", {"loss": "softmax"}),
    "flat-zlpr": ("flat", {"loss": "zlpr"}),
    "flat-conditional": ("flat", {"loss": "conditional-softmax"}),
    "flat-conditional-adjusted": ("flat", {"loss": "conditional-softmax", "adjust": 1.0}),
    "hill": ("hill", {}),
    "hill-height-1": ("hill", {"height": 1}),
    "hill-no-contrast": ("hill", {"contrast": 0.0}),
    "hill-tree": ("hill", {"classifier": "tree"}),
    "hill-text": ("hill", {"classifier": "text"}),
    "hill-max": ("hill", {"readout": "max"}),
    "hill-mean": ("hill", {"readout": "mean", "hidden": 12}),
    "hill-gcn": ("hill", {"structure": "gcn"}),
    "hill-gat": ("hill", {"structure": "gat"}),
    "hill-gin": ("hill", {"structure": "gin"}),
    "hill-softmax": ("hill", {"loss": "softmax", "method": "refined"}),
    "hill-conditional": ("hill", {"loss": "conditional-softmax"}),
    "hill-others": ("hill", {"negatives": "others", "temperature": 0.1}),
    "hill-random": ("hill", {"method": "random"}),
    "hill-rcnn": ("hill", {**SMALL, "method": "taxonomy"}),
    "hill-names": ("hill", {"name_weight": 10.0}),
    "hill-whole": ("hill", {"whole_label_map": True}),
    "hill-units": ("hill", {"leaf_units": 3, "hidden": 12}),
    "hill-units-text": ("hill", {"leaf_units": 2, "classifier": "text"}),
    "hill-units-gin": ("hill", {"leaf_units": 2, "name_weight": 5.0, "structure": "gin"}),
    "linear": ("linear", {"min_count": 1}),
    "linear-unigrams": ("linear", {"ngrams": 1, "min_count": 1, "loss": "softmax"}),
    "textrcnn": ("textrcnn", {**SMALL, "recursive": 0.01}),
    "hitin": ("hitin", {"recursive": 0.01}),
    "hitin-rcnn": ("hitin", {**SMALL, "hidden": 12, "height": 3, "method": "refined"}),
    "hitin-mean": ("hitin", {"readout": "mean", "recursive": 0.0, "hidden": 12}),
    "hitin-max": ("hitin", {"readout": "max", "height": 1}),
    "hiagm": ("hiagm", {}),
    "hiagm-la": ("hiagm", {"fusion": "la"}),
    "hiagm-treelstm": ("hiagm", {"structure": "treelstm", "node_width": 17}),
    "hiagm-la-treelstm": ("hiagm", {"fusion": "la", "structure": "treelstm"}),
    "hiagm-rcnn": ("hiagm", {**SMALL, "node_width": 16}),
    "hiagm-la-rcnn": ("hiagm", {**SMALL, "fusion": "la"}),
    "htcinfomax": ("htcinfomax", {}),
    "htcinfomax-rcnn": ("htcinfomax", {**SMALL, "structure": "treelstm"}),
    "hgclr": ("hgclr", {}),
    "hgclr-2-layers": ("hgclr", {"layers": 2}),
    "hgclr-cls": ("hgclr", {"pooling": "cls", "loss": "softmax", "contrast": 0.0}),
    "himatch": ("himatch", {"node_width": 16, "joint_width": 12}),
    "himatch-rcnn": ("himatch", {**SMALL, "node_width": 10, "joint_width": 12, "refresh": 3, "recursive": 0.01}),
}
UNUSED = {
    "hgclr-cls": ("view",),
    "hill-no-contrast": ("text_view", "tree_view"),
    "hiagm-la-rcnn": ("text.convolutions",),
    "htcinfomax-rcnn": ("text.convolutions",),
}
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


def fit(model: HTCModel, batch: Batch, steps: int, optimiser: torch.optim.Optimizer | None = None) -> None:
    if model.has_solver:
        tokens = Tokens(batch.ids.numpy().ravel(), np.arange(len(batch.ids) + 1) * batch.ids.shape[1])
        assert list(model.fit(tokens, csr_array(batch.labels.numpy()), seed=0))  # type: ignore[union-attr]
        return
    optimiser = optimiser or torch.optim.Adam(model.parameters(), lr=5e-3, fused=True)
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


def test_packed_documents_have_the_loss_and_the_gradients_of_padded_ones(made: Made) -> None:
    model, batch = made.model.eval(), made.batch
    if not model.text.packs:
        pytest.skip("its text encoder reads no packed batches")
    results = []
    for form in (batch, packed(batch)):
        output = model(form)
        loss = output.parts["labels"]  # other parts draw random numbers
        weights = list(model.text.parameters())
        results.append((output.logits, loss, *torch.autograd.grad(loss, weights)))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def overfitted(made: Made) -> bool:
    labels = made.batch.labels
    assert labels is not None
    with torch.no_grad():
        scores = made.model.eval().scores(made.model(made.batch).logits)
    if made.model.config.loss == "bce":
        return bool(flat_scores(labels.numpy(), (scores > 0.5).numpy())["micro_f1"] >= 0.99)
    for rows in made.model.levels:
        single = labels[:, rows].sum(dim=1) == 1
        if not torch.equal(scores[single][:, rows].argmax(1), labels[single][:, rows].int().argmax(1)):
            return False
    return True


def test_it_overfits_one_batch(made: Made) -> None:
    assert not overfitted(made)
    optimiser = torch.optim.Adam(made.model.parameters(), lr=5e-3, fused=True)
    assert any(fit(made.model, made.batch, 10, optimiser) or overfitted(made) for _ in range(40))


def test_saved_and_loaded_it_says_the_same_to_the_bit(made: Made, tmp_path: Path) -> None:
    fit(made.model, made.batch, steps=2)
    made.stored.save(tmp_path / "model", {})
    loaded = load_saved(tmp_path / "model").model
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
