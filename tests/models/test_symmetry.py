"""Models that cannot see which label sits where in their structure (docs/theory.md).

For a permutation π of the labels, the model on the permuted structure, with its weights permuted in the same way,
learns the same function: after many steps of Adam, both give the same logits. If the starting weights are drawn
independently, the two starts are equally likely, so both structures give the same learner.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hill.models.hiagm import STRUCTURES
from hill.models.hill import TREE_FILE
from hill.taxonomy import Taxonomy
from tests.conftest import random_taxonomy
from tests.made import blank_model

LABELS, WIDTH, STEPS = 30, 8, 60
TOLERANCE = 1e-6
"""Rounding errors of 1e-16 grow over the steps, the most in GIN."""
OFF = {"dropout": 0.0, "readout_dropout": 0.0}
PERMUTATION = np.random.default_rng(0).permutation(LABELS)


@pytest.fixture(autouse=True)
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute in float64, also where models ask for float32: only rounding may differ."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def taxonomy() -> Taxonomy:
    return random_taxonomy(1, n=LABELS, roots=3)


def permuted_tree(model: Any) -> Any:
    """The same model on a tree whose leaf i has the parent of leaf π(i), before its weights are permuted."""
    leaves, *above = model.assets[TREE_FILE]["parents"]
    assets = model.assets | {TREE_FILE: {"parents": [np.asarray(leaves)[PERMUTATION].tolist(), *above]}}
    assert assets[TREE_FILE] != model.assets[TREE_FILE]
    return type(model)(model.text, taxonomy(), model.config, assets)


def tie(model: Any, other: Any, axes: dict[str, int]) -> None:
    """Copy the weights of a model to another one, with the labels of these axes permuted."""
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    for name, axis in axes.items():
        blocks = weights[name].unflatten(axis, (LABELS, -1))
        weights[name] = blocks.index_select(axis, torch.from_numpy(PERMUTATION)).flatten(axis, axis + 1)
    other.load_state_dict(weights)


def trained(model: Any) -> Tensor:
    """The logits of a model after training on random vectors and labels in float64."""
    draw = torch.Generator().manual_seed(0)
    texts = torch.randn(12, WIDTH, generator=draw, dtype=torch.float64)
    labels = (torch.rand(12, LABELS, generator=draw) < 0.2).double()
    model.double().train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimiser.zero_grad()
        model.classify(texts, labels).loss.backward()
        optimiser.step()
    logits: Tensor = model.classify(texts).logits.detach()
    return logits


def moved_far(model: Any, logits: Tensor) -> bool:
    """Whether training has changed the logits much; else, equal logits would prove nothing."""
    return float(logits.std()) > 0.5 and bool(torch.isfinite(logits).all())


HILL_AXES = {"structure.labels.weight": 0, "structure.labels.bias": 0}
UNIT_AXES = {"structure.units.read.weight": 0, "structure.units.read.bias": 0, "head_leaves.weight": 1}
ON_TREES = {
    "HILL": ("hill", {"height": 3, "method": "refined", "contrast": 0.5}, HILL_AXES),
    "HILL with units": ("hill", {"height": 2, "method": "refined", "leaf_units": 2}, HILL_AXES | UNIT_AXES),
    "HILL, maximum": ("hill", {"height": 2, "readout": "max", "contrast": 0.0}, HILL_AXES),
    "HiTIN": ("hitin", {"height": 3}, {"structure.leaves.slope": 0, "structure.leaves.offset": 0}),
    "HiTIN, maximum": ("hitin", {"readout": "max"}, {"structure.leaves.slope": 0, "structure.leaves.offset": 0}),
}


@pytest.mark.parametrize("case", ON_TREES)
def test_a_permutation_of_the_leaves_gives_the_same_learner(case: str) -> None:
    name, settings, axes = ON_TREES[case]
    torch.manual_seed(2)
    model = blank_model(name, taxonomy(), WIDTH, OFF | settings)
    other = permuted_tree(model)
    tie(model, other, axes)
    first, second = trained(model), trained(other)
    assert (first - second).abs().max() < TOLERANCE and moved_far(model, first)


def test_it_is_the_weights_that_make_up_for_the_permutation() -> None:
    """With equal weights instead of permuted ones, the two trees do give different functions."""
    torch.manual_seed(2)
    model = blank_model("hill", taxonomy(), WIDTH, OFF | {"height": 3, "method": "refined"})
    other = permuted_tree(model)
    tie(model, other, {})
    assert (trained(model) - trained(other)).abs().max() > 1e-2


@pytest.mark.parametrize("structure", ["gcn", "gat", "gin"])
def test_a_permutation_of_the_graph_gives_the_same_learner(structure: str) -> None:
    pytest.importorskip("torch_geometric")
    torch.manual_seed(2)
    model = blank_model("hill", taxonomy(), WIDTH, OFF | {"structure": structure, "contrast": 0.5})
    other = blank_model("hill", taxonomy(), WIDTH, OFF | {"structure": structure, "contrast": 0.5})
    place = torch.from_numpy(np.argsort(PERMUTATION))  # label π(i) of the first graph is label i of the second
    other.structure.edges.copy_(place[model.structure.edges])
    tie(model, other, HILL_AXES)
    first, second = trained(model), trained(other)
    assert (first - second).abs().max() < TOLERANCE and moved_far(model, first)


HIAGM_AXES = {
    "gcn": {f"structure.{name}.{number}": 0 for name in ("gate_bias", "bias") for number in range(2)},
    "treelstm": {},
}


def permuted_hiagm(structure: str, settings: dict[str, Any]) -> tuple[Any, Any]:
    """HiAGM-TP on the taxonomy, and with messages along a permuted taxonomy; edges keep their starting weights."""
    torch.manual_seed(2)
    pair = []
    for _ in range(2):
        pair.append(blank_model("hiagm", taxonomy(), WIDTH, OFF | {"structure": structure, "node_width": 4} | settings))
    model, other = pair
    place = torch.from_numpy(np.argsort(PERMUTATION))
    child, parent = place[model.head.child], place[model.head.parent]
    weights = model.structure.down if structure == "gcn" else model.structure.down.weight
    other.structure = STRUCTURES[structure](child, parent, weights.detach(), LABELS, 4)
    for each in pair:
        each.structure.dropout.p = 0.0
    tie(model, other, {"spread.weight": 0, "spread.bias": 0, "head.weight": 1} | HIAGM_AXES[structure])
    return model, other


@pytest.mark.parametrize("recursive", [0.0, 0.1])
@pytest.mark.parametrize("structure", ["gcn", "treelstm"])
def test_messages_along_a_permuted_taxonomy_give_the_same_learner(structure: str, recursive: float) -> None:
    """The regulariser of HiAGM compares whole rows of the head along the real edges, so it does not change this."""
    model, other = permuted_hiagm(structure, {"recursive": recursive})
    first, second = trained(model), trained(other)
    assert (first - second).abs().max() < TOLERANCE and moved_far(model, first)


def test_the_regulariser_of_hiagm_sees_the_taxonomy() -> None:
    """With its edges permuted too, the function is another one: only here, HiAGM-TP knows which label is where."""
    model, other = permuted_hiagm("gcn", {"recursive": 0.1})
    place = torch.from_numpy(np.argsort(PERMUTATION))
    for name in ("child", "parent"):
        getattr(other.head, name).copy_(place[getattr(other.head, name)])
    assert (trained(model) - trained(other)).abs().max() > 1e-3
