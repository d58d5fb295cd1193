"""Very many labels: a loss over a sample of them, label lists in place of targets, and the best labels in blocks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hill.classifier import HillClassifier
from hill.data.batches import DeviceDocuments, batch_labels, collate, most_labels
from hill.data.documents import label_documents
from hill.data.tokens import Tokens
from hill.errors import ConfigError
from hill.models import hill as hill_model
from hill.models import large_label
from hill.models.hill import HILLConfig
from hill.models.large_label import LargeLabelConfig, SampledLoss
from hill.models.layers import to_indicator, to_label_lists
from hill.settings import make
from hill.taxonomy import Taxonomy
from hill.train import head_start as head
from hill.train import trainer
from hill.types import Batch
from tests.conftest import animals_taxonomy, random_taxonomy, toy_documents
from tests.made import blank_model, make_model

WIDTH = 5


def random_targets(taxonomy: Taxonomy, documents: int, seed: int) -> Tensor:
    """Closed label sets, some of them empty."""
    draw = np.random.default_rng(seed)
    targets = torch.zeros(documents, len(taxonomy), dtype=torch.bool)
    for document in range(documents):
        rows = draw.choice(len(taxonomy), size=int(draw.integers(0, 3)), replace=False)
        targets[document, taxonomy.closure(rows)] = True
    return targets


def sampled_loss(taxonomy: Taxonomy, count: int) -> SampledLoss:
    child, parent = (torch.from_numpy(ends.copy()) for ends in taxonomy.edge_array.T)
    return SampledLoss(child, parent, torch.from_numpy(taxonomy.roots), len(taxonomy), count)


def gradients(loss: Tensor, weights: list[Tensor]) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, weights)]


@pytest.mark.parametrize("taxonomy", [random_taxonomy(2, 30, 3), random_taxonomy(3, 40, 3, 2)], ids=["forest", "dag"])
def test_the_mean_over_all_draws_is_the_exact_loss_and_its_gradient(
    taxonomy: Taxonomy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One label is drawn, so that the draws can be gone through one by one, whatever children come with them."""
    torch.manual_seed(0)
    targets = random_targets(taxonomy, 3, seed=1)
    features = torch.randn(3, WIDTH, requires_grad=True)
    linear = nn.Linear(WIDTH, len(taxonomy))
    weights = [features, linear.weight, linear.bias]
    exact = gradients(F.binary_cross_entropy_with_logits(linear(features), targets.float()), weights)
    loss, found = sampled_loss(taxonomy, 1), []
    for label in range(len(taxonomy)):
        monkeypatch.setattr(large_label.torch, "randint", lambda *_, label=label, **__: torch.tensor([label]))
        torch.manual_seed(7)
        found.append(gradients(loss(features, linear, to_label_lists(targets)), weights))
    assert not all(torch.allclose(each[0], exact[0]) for each in found), "a single draw is not the loss"
    for expected, values in zip(exact, zip(*found, strict=True), strict=True):
        assert torch.allclose(torch.stack(values).mean(dim=0), expected, atol=1e-6)


def test_draws_are_uniform_and_come_from_torchs_generator() -> None:
    taxonomy = random_taxonomy(0, 40, 3, 2)
    loss, lists = sampled_loss(taxonomy, 50_000), torch.full((1, 1), 40)
    torch.manual_seed(3)
    rows, weight = loss.draw(lists)
    torch.manual_seed(3)
    again = loss.draw(lists)
    assert torch.equal(rows, again[0]) and torch.equal(weight, again[1])
    times = torch.bincount(rows[-50_000:], minlength=40).double()
    assert ((times - 1_250).abs() < 5 * 1_250**0.5).all(), "within five standard deviations"
    assert not torch.equal(rows, loss.draw(lists)[0])


@pytest.mark.parametrize("taxonomy", [animals_taxonomy(), random_taxonomy(3, 40, 3, 2)], ids=["animals", "dag"])
def test_labels_near_the_documents_count_once_and_others_stand_for_the_rest(taxonomy: Taxonomy) -> None:
    labels = len(taxonomy)
    lists = to_label_lists(random_targets(taxonomy, 6, seed=2))
    torch.manual_seed(0)
    rows, weight = sampled_loss(taxonomy, 9).draw(lists)
    assert torch.equal(rows[: lists.numel()], lists.flatten())
    near, others = rows[:-9].tolist(), rows[-9:].tolist()
    children = {row: set(taxonomy.children(row).tolist()) for row in range(labels)} | {
        labels: {*taxonomy.roots.tolist()}
    }
    drawn = torch.tensor(near[lists.numel() :]).reshape(large_label.SAMPLED_CHILDREN, -1)
    for column, label in enumerate(lists.flatten().tolist()):
        assert set(drawn[:, column].tolist()) <= (children[label] or {labels})
    for label in set(near) - {labels}:
        assert sum(float(weight[place]) for place, row in enumerate(near) if row == label) == pytest.approx(1)
    assert all(weight[place] == 0 for place, row in enumerate(near) if row == labels)
    expected = [0.0 if row in near else labels / 9 for row in others]
    assert weight[-9:].tolist() == pytest.approx(expected)


def test_all_children_are_drawn_at_some_time() -> None:
    taxonomy = random_taxonomy(5, 60, 4)
    loss = sampled_loss(taxonomy, 1)
    for label in [*range(60), 60]:
        torch.manual_seed(label)
        children = set(taxonomy.children(label).tolist()) if label < 60 else set(taxonomy.roots.tolist())
        drawn = set(loss.draw(torch.full((500, 1), label))[0][500:-1].tolist())
        assert drawn == (children or {60})


SETS = st.lists(st.sets(st.integers(0, 39), max_size=6), min_size=1, max_size=7)


def as_targets(sets: list[set[int]]) -> Tensor:
    targets = torch.zeros(len(sets), 40, dtype=torch.bool)
    for row, labels in enumerate(sets):
        targets[row, list(labels)] = True
    return targets


@given(SETS)
def test_lists_say_what_targets_say(sets: list[set[int]]) -> None:
    targets = as_targets(sets)
    lists = to_label_lists(targets)
    assert lists.shape[1] == max(1, *map(len, sets))
    assert [{*row} - {40} for row in lists.tolist()] == sets
    assert torch.equal(to_indicator(lists, 40), targets.float())


def test_the_contrast_from_lists_is_that_from_targets() -> None:
    taxonomy = random_taxonomy(3, 40, 3, 2)
    model = blank_model("hill", taxonomy, 8, {"negatives": "others"})
    targets = random_targets(taxonomy, 20, seed=4)
    torch.manual_seed(0)
    views = torch.randn(2, 20, 8)
    expected, found = (model.contrast(*views, labels) for labels in (targets, to_label_lists(targets)))
    assert torch.allclose(found, expected, atol=1e-6)
    assert not torch.allclose(expected, model.contrast(*views, torch.zeros_like(targets)), atol=1e-3)


@pytest.mark.parametrize("name", ["flat", "hill"])
def test_a_model_learns_from_a_sample_and_is_asked_for_all(name: str, tiny_encoder: Path) -> None:
    made = make_model(name, {"sample": 3}, tiny_encoder)
    model, targets = made.model, made.batch.labels
    assert model.uses_label_lists and targets is not None
    listed = Batch(made.batch.ids, made.batch.mask, to_label_lists(targets))
    found = []
    for batch in (made.batch, listed):
        torch.manual_seed(0)
        output = model.train()(batch)
        assert output.logits.shape == (16, 0)
        found.append(output.loss)
    assert torch.equal(*found)
    model.eval()
    exact = [model(batch).parts["labels"] for batch in (made.batch, listed)]
    logits = model(Batch(made.batch.ids, made.batch.mask)).logits
    assert logits.shape == (16, 7)
    assert torch.equal(exact[0], F.binary_cross_entropy_with_logits(logits, targets.float()))
    assert torch.equal(*exact)


@pytest.mark.parametrize("name", ["flat", "hill"])
def test_as_many_labels_as_there_are_or_few_are_not_sampled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taxonomy = animals_taxonomy()
    assert blank_model(name, taxonomy, 8, {"sample": 6}).sampled_loss.count == 6
    assert not blank_model(name, taxonomy, 8, {"sample": 7}).uses_label_lists
    assert not blank_model(name, taxonomy, 8, {}).uses_label_lists
    monkeypatch.setattr(large_label, "MANY_LABELS", 6)
    monkeypatch.setattr(large_label, "SAMPLE_SIZE", 5)
    assert blank_model(name, taxonomy, 8, {}).sampled_loss.count == 5
    assert not blank_model(name, taxonomy, 8, {"loss": "softmax"}).uses_label_lists
    assert not blank_model("textrcnn", taxonomy, 8, {}).uses_label_lists


@pytest.mark.parametrize("kind", [LargeLabelConfig, HILLConfig])
def test_a_sample_needs_a_loss_a_label(kind: type) -> None:
    with pytest.raises(ConfigError, match=r"model.sample is 3, but model.loss is 'softmax', which needs all labels"):
        make(kind, {"sample": 3, "loss": "softmax"}, "model")
    with pytest.raises(ConfigError, match=r"model.sample is -1; expected at least 0"):
        make(kind, {"sample": -1}, "model")


@pytest.mark.parametrize("count", [1, 3, 7, 50])
@pytest.mark.parametrize(("cells", "documents"), [(1, 3), (40, 16), (1 << 24, 4_096)])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("flat", {}),
        ("hill", {}),
        ("hill", {"leaf_units": 2}),
        ("hill", {"name_weight": 5.0}),
        ("flat", {"loss": "softmax"}),
    ],
)
def test_the_best_labels_in_blocks_are_the_best_of_all(
    name: str,
    settings: dict[str, Any],
    cells: int,
    documents: int,
    count: int,
    tiny_encoder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_label, "MAX_LOGITS", cells)
    monkeypatch.setattr(large_label, "TOP_K_DOCUMENTS", documents)
    monkeypatch.setattr(hill_model, "MAX_NODE_VALUES", 3 * 16 * 3)
    made = make_model(name, settings, tiny_encoder)
    nn.init.normal_(made.model.head.weight)
    made.model.eval()
    with torch.no_grad():
        scores = made.model.scores(made.model(made.batch).logits)
        values, rows = made.model.top_k(made.batch, count)
    expected = scores.sort(dim=1, descending=True)
    assert values.shape == rows.shape == (16, min(count, 7))
    assert torch.allclose(values, expected.values[:, :count], atol=1e-6)
    assert torch.allclose(scores.gather(1, rows), values, atol=1e-6)
    assert all(len({*row}) == len(row) for row in rows.tolist())


def test_batches_have_lists_where_they_are_wanted() -> None:
    taxonomy = random_taxonomy(3, 40, 3, 2)
    targets = random_targets(taxonomy, 9, seed=5)
    ids = [[taxonomy[row].id for row in labels.nonzero()[:, 0].tolist()] for labels in targets]
    labels = label_documents(["a text"] * 9, ids, taxonomy).labels
    tokens = Tokens(np.arange(18, dtype=np.int32), np.arange(0, 20, 2))
    documents = np.array([4, 0, 7])
    padded = collate(tokens, labels, documents, 0, as_lists=True).labels
    packed = (
        DeviceDocuments(tokens, labels, 0, torch.device("cpu"), as_lists=True)
        .packed(torch.from_numpy(documents), 256)
        .labels
    )
    assert padded is not None and packed is not None and torch.equal(padded, packed)
    assert padded.shape[1] == most_labels(labels) == int(targets.sum(dim=1).max())
    assert torch.equal(to_indicator(padded, 40), targets[documents].float())
    assert torch.equal(batch_labels(labels, documents, as_lists=False), targets[documents])


@pytest.mark.parametrize("name", ["flat", "hill"])
def test_a_batch_is_learned_from_samples(name: str, tiny_encoder: Path) -> None:
    made = make_model(name, {"sample": 1}, tiny_encoder)
    optimiser = torch.optim.Adam(made.model.parameters(), lr=5e-3)
    for _ in range(150):
        made.model.train()(made.batch).loss.backward()
        assert all(weight.grad is not None for weight in made.model.parameters())
        optimiser.step()
        optimiser.zero_grad()
    with torch.no_grad():
        scores = made.model.eval().scores(made.model(made.batch).logits)
    assert torch.equal(scores > 0.5, made.batch.labels)


def test_a_seed_fixes_a_training_on_samples(tiny_encoder: Path) -> None:
    texts, labels = toy_documents(30, seed=0)
    train = {"epochs": 1, "device": "cpu", "batch_size": 8}
    settings = {"model": {"encoder": str(tiny_encoder), "sample": 2}, "train": train}
    one, other = (
        HillClassifier(animals_taxonomy(), "flat", settings, preset=None).fit(texts, labels) for _ in range(2)
    )
    assert np.array_equal(one.predict_proba(texts), other.predict_proba(texts))


@pytest.mark.parametrize(("many", "fitted"), [(6, 0), (7, 10)])
def test_the_head_starts_from_centroids_alone_where_labels_are_many(
    many: int, fitted: int, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MANY_LABELS", many)
    texts, labels = toy_documents(20, seed=0)
    data = {split: label_documents(texts, labels, animals_taxonomy()) for split in ("train", "dev")}
    settings = {"model": {"encoder": str(tiny_encoder), "sample": 3}, "train": {"epochs": 1, "device": "cpu"}}
    reports = HillClassifier(animals_taxonomy(), "hill", settings, preset=None).training(data, tmp_path)
    starts = [report for report in reports if getattr(report, "stage", "") == "head start"]
    assert starts[-1].done == starts[-1].total == 20 * (1 + fitted)


def test_adam_follows_the_small_gradients_of_many_labels(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate of a label's bias is that of the settings however many labels share the loss."""
    model = make_model("flat", {}, tiny_encoder).model
    train = HillClassifier(animals_taxonomy(), "flat", {"train": {"lr": 0.1}}, preset=None).train_config
    for many, moved in [(7, False), (6, True)]:
        monkeypatch.setattr(trainer, "MANY_LABELS", many)
        optimiser = trainer.make_optimiser(model, train)
        before = model.head.bias.detach().clone()
        model.head.bias.grad = torch.full((7,), 1e-10)
        optimiser.step()
        assert torch.allclose(before - model.head.bias, torch.full((7,), 0.1), rtol=0.02) == moved
