"""The conditional softmax against one that goes from group to group, and what the model and the loop make of it."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

from hill.data.tokens import Tokens
from hill.errors import ConfigError
from hill.models import MODELS
from hill.models.base import COUNTS_FILE
from hill.models.layers import ConditionalSoftmax
from hill.settings import make
from hill.taxonomy import Label, Taxonomy
from hill.train import Split
from hill.train.head_start import start_from_centroids
from hill.train.trainer import choose_labels
from tests.conftest import animals_taxonomy, random_taxonomy
from tests.made import make_model

SHAPES = [(0, 1), (1, 1), (2, 3), (3, 3)]


def siblings_of(taxonomy: Taxonomy, counts: list[int] | None = None, adjust: float = 0.0) -> ConditionalSoftmax:
    levels = [torch.from_numpy(rows.copy()) for rows in taxonomy.levels]
    child, parent = (torch.from_numpy(ends.copy()) for ends in taxonomy.edge_array.T)
    return ConditionalSoftmax(levels, child, parent, torch.tensor(counts or [0] * len(taxonomy)), adjust)


def groups_of(taxonomy: Taxonomy) -> list[list[int]]:
    found = [taxonomy.children(row).tolist() for row in range(len(taxonomy))]
    return [taxonomy.roots.tolist(), *(children for children in found if children)]


def draw_labels(taxonomy: Taxonomy, documents: int, seed: int) -> Tensor:
    """Closed sets of labels: none, one path, several paths, paths that end above the leaves."""
    draw = np.random.default_rng(seed)
    labels = torch.zeros(documents, len(taxonomy))
    for document in range(documents):
        labels[document, taxonomy.closure(draw.choice(len(taxonomy), size=document % 4, replace=False))] = 1
    return labels


def slow_loss(taxonomy: Taxonomy, logits: Tensor, labels: Tensor, counts: list[int], adjust: float) -> Tensor:
    total, reached = torch.zeros(()), 0
    for document, gold in zip(logits, labels, strict=True):
        for group in groups_of(taxonomy):
            of_document = [row for row in group if gold[row]]
            if not of_document:
                continue
            reached += 1
            among = sum(counts[row] + 1 for row in group)
            raised = torch.stack([document[row] + adjust * math.log((counts[row] + 1) / among) for row in group])
            for row in of_document:
                total = total - raised.log_softmax(0)[group.index(row)] / len(of_document)
    return total / max(reached, 1)


def slow_scores(taxonomy: Taxonomy, logits: Tensor) -> Tensor:
    """The likeliest of all ways from a root down to each label."""
    scores = torch.zeros_like(logits)
    for document, values in enumerate(logits):
        for row in range(len(taxonomy)):
            for path in taxonomy.paths(row):
                product = torch.ones(())
                for above, step in zip([None, *path], path, strict=False):
                    group = taxonomy.roots if above is None else taxonomy.children(above)
                    product = product * values[group].softmax(0)[group.tolist().index(step)]
                scores[document, row] = max(scores[document, row], product)
    return scores


@pytest.mark.parametrize("adjust", [0.0, 1.0, 0.5])
@pytest.mark.parametrize(("seed", "most_parents"), SHAPES)
def test_loss_and_gradient_are_those_of_every_group_for_itself(seed: int, most_parents: int, adjust: float) -> None:
    taxonomy = random_taxonomy(seed, most_parents=most_parents)
    counts = np.random.default_rng(seed).integers(0, 50, size=len(taxonomy)).tolist()
    torch.manual_seed(seed)
    logits = torch.randn(9, len(taxonomy), requires_grad=True)
    labels = draw_labels(taxonomy, 9, seed)
    found = siblings_of(taxonomy, counts, adjust).loss(logits, labels)
    (gradient,) = torch.autograd.grad(found, logits)
    expected = slow_loss(taxonomy, logits, labels, counts, adjust)
    (wanted,) = torch.autograd.grad(expected, logits)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(gradient, wanted, atol=1e-6)


@pytest.mark.parametrize(("seed", "most_parents"), SHAPES)
def test_scores_are_the_likeliest_ways_down(seed: int, most_parents: int) -> None:
    taxonomy = random_taxonomy(seed, most_parents=most_parents)
    torch.manual_seed(seed)
    logits = 3 * torch.randn(4, len(taxonomy))
    plain, adjusted = siblings_of(taxonomy), siblings_of(taxonomy, list(range(30)), 1.0)
    assert torch.allclose(plain.scores(logits), slow_scores(taxonomy, logits), atol=1e-6)
    assert torch.equal(plain.scores(logits), adjusted.scores(logits)), "the adjustment is for the loss alone"


def test_scores_never_rise_on_the_way_down_a_tree_and_leaves_sum_to_one() -> None:
    taxonomy = random_taxonomy(5, n=200, roots=4)
    torch.manual_seed(0)
    scores = siblings_of(taxonomy).scores(20 * torch.randn(8, 200))
    child, parent = taxonomy.edge_array.T
    assert (scores[:, child] <= scores[:, parent] * (1 + 1e-6)).all()
    assert torch.allclose(scores[:, taxonomy.leaves].sum(1), torch.ones(8), atol=1e-5)


def test_extreme_logits_stay_finite() -> None:
    taxonomy = animals_taxonomy()
    siblings = siblings_of(taxonomy)
    logits = torch.tensor([[500.0, -500, 500, -500, 500, 500, -500]], requires_grad=True)
    loss = siblings.loss(logits, torch.tensor([[1, 1, 0, 0, 1, 0, 0]]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None and loss.isfinite() and logits.grad.isfinite().all()
    assert loss.item() == pytest.approx(1000 / 3)  # of the groups reached, roots 0, animals 1000 and mammals 0
    assert siblings.scores(logits.bfloat16()).dtype == torch.float32
    assert torch.allclose(siblings.scores(logits), torch.tensor([[1.0, 0, 1, 0, 0, 1, 0]]))


def test_no_labels_no_loss() -> None:
    siblings = siblings_of(animals_taxonomy())
    assert float(siblings.loss(torch.randn(3, 7), torch.zeros(3, 7))) == 0.0


def test_a_parent_comes_before_its_child_however_short_another_way_is() -> None:
    """A label below a root and below a deep label: its score needs the deep one's."""
    chain = [Label("r", "r"), Label("x", "x", ("deep", "r")), Label("y", "y", ("r",)), Label("deep", "deep", ("y",))]
    taxonomy = Taxonomy(chain)
    logits = torch.tensor([[0.0, -9.0, 9.0, 0.0]])
    assert torch.allclose(siblings_of(taxonomy).scores(logits), torch.tensor([[1.0, 1.0, 1.0, 1.0]]), atol=1e-6)


def test_what_is_chosen_is_the_path_best_from_the_roots_down_and_whatever_has_its_share() -> None:
    taxonomy = animals_taxonomy()
    siblings = siblings_of(taxonomy)
    a, m, f, bat, mo, fo, p = range(7)
    third = math.log(1 / 3)
    cases: list[tuple[list[float], set[int]]] = [
        ([9, 9, 0, 0, 9, 9, 0], {a, m, mo}),  # sure of one path
        ([0, 0, third - 0.1, 0, 9, 9, -9], {a, m, mo}),  # flyers: less than 1 in 4
        ([0, 0, third + 0.1, 0, 9, 9, -9], {a, m, f, mo, fo}),  # above it, and so the others of them
        ([0, 9, -9, 0, 0.5, 0, 0.1], {a, p, m, mo}),  # plants are likelier, yet all mammals are above a quarter
        ([0, 0, -0.1, 0, 0.1, 9, 9], {p}),  # no animal: nothing below it is looked at
        ([1, 0.1, 0, 0, 0.1, 0, 1.1], {a, p}),  # animals have their share, none of those below
        ([9, 1, 1, 9, 0, 0, 0], {a, m, f, bat}),  # both ways are the best
    ]
    for logits, rows in cases:
        chosen = siblings.choose(siblings.scores(torch.tensor([logits])))
        assert set(torch.nonzero(chosen[0])[:, 0].tolist()) == rows, logits


def test_the_loop_chooses_so(tiny_encoder: Path) -> None:
    model = make_model("flat", {"loss": "conditional-softmax"}, tiny_encoder).model
    scores = model.scores(torch.tensor([[9.0, 9, 9, 0, 9, 9, 9]])).numpy()
    assert choose_labels(model, scores).tolist() == [[True, True, True, False, True, True, True]]
    plain = make_model("flat", {}, tiny_encoder).model
    assert choose_labels(plain, np.array([[0.6, 0.4]], dtype=np.float32)).tolist() == [[True, False]]


@pytest.mark.parametrize("loss", ["bce", "softmax"])
def test_adjustment_needs_the_conditional_softmax(loss: str) -> None:
    with pytest.raises(ConfigError, match=f"model.adjust is 1, but model.loss is '{loss}'.*conditional-softmax"):
        make(MODELS["flat"].Config, {"loss": loss, "adjust": 1.0}, "model")
    with pytest.raises(ConfigError, match="at least 0"):
        make(MODELS["flat"].Config, {"loss": "conditional-softmax", "adjust": -1.0}, "model")


def test_a_model_adjusts_by_the_labels_of_its_training_documents(tiny_encoder: Path) -> None:
    made = make_model("flat", {"loss": "conditional-softmax", "adjust": 1.0}, tiny_encoder)
    model, labels = made.model.eval(), made.batch.labels
    assert labels is not None
    counts = labels.sum(0).int().tolist()
    assert model.assets[COUNTS_FILE] == counts and len(set(counts)) > 2
    logits = model(made.batch).logits
    expected = slow_loss(animals_taxonomy(), logits, labels, counts, 1.0)
    assert torch.allclose(model(made.batch).loss, expected, atol=1e-5)
    assert not torch.allclose(expected, slow_loss(animals_taxonomy(), logits, labels, counts, 0.0), atol=1e-3)


def test_the_head_starts_from_what_the_adjustment_leaves_of_the_frequencies(tiny_encoder: Path) -> None:
    biases = {}
    for name, settings in {"plain": {}, "adjusted": {"adjust": 1.0}}.items():
        made = make_model("flat", {"loss": "conditional-softmax", **settings}, tiny_encoder)
        vectors = torch.zeros(16, 16)
        vectors[:, 0] = torch.arange(16) % 2 * 2 - 1
        tokens = Tokens(np.zeros(16, dtype=np.int32), np.arange(17))
        labels = csr_array(made.batch.labels.numpy())  # type: ignore[union-attr]
        start_from_centroids(made.model, vectors, Split(tokens, labels), torch.device("cpu"))
        biases[name] = made.model.head.bias.detach().clone()
    frequency = (made.batch.labels.sum(0) + 0.5) / 17  # type: ignore[union-attr]
    assert torch.allclose(biases["plain"], frequency.log(), atol=1e-6)
    assert torch.allclose(biases["adjusted"], torch.zeros(7), atol=1e-6)
