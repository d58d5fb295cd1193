"""What HiTIN alone promises beside the conformance suite."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hill.errors import ConfigError
from hill.models import hitin as tin
from hill.models.hitin import TREE_FILE, HiTINConfig
from hill.taxonomy import Label, Taxonomy
from hill.tree import CodingTree, build_tree
from tests.conftest import animals_taxonomy, random_taxonomy
from tests.made import blank_model, make_model

OFF = {"dropout": 0.0, "readout_dropout": 0.0}


def shaken(settings: dict[str, Any], taxonomy: Taxonomy, width: int = 5) -> Any:
    """A model whose every weight and running statistic is drawn at random."""
    model = blank_model("hitin", taxonomy, width, OFF | settings)
    torch.manual_seed(3)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) + 0.5 if "running_var" in name else torch.randn_like(value))
    return model


def released(model: Any, text: Tensor) -> Tensor:
    """Logits as the released code gets them: copies of the features, a map of the label axis, node after node."""
    structure, tree = model.structure, model.tree
    hidden, labels = structure.features.out_features, tree.sizes[0]
    mixed = torch.randn(labels, labels)
    mixed[:, 0] = mixed[:, 0] + structure.leaves.slope - mixed.sum(dim=1)
    rows = []
    for vector in text:
        copies = torch.stack([structure.features(vector) for _ in range(labels)])  # (L, H)
        rows.append([*(mixed @ copies + structure.leaves.offset[:, None])])
    logits = pooled(model, rows, 0, hidden)
    for level, (parents, net) in enumerate(zip(tree.parents, structure.levels, strict=True), start=1):
        size = tree.sizes[level]
        rows = [
            [sum(node for node, above in zip(nodes, parents, strict=True) if above == v) for v in range(size)]
            for nodes in rows
        ]
        for linear, norm in zip(net.linear, net.norm, strict=True):
            rows = normed([[linear(node) for node in nodes] for nodes in rows], norm)
        logits = logits + pooled(model, rows, level, hidden)
    return logits + model.head.bias


def normed(rows: list[list[Tensor]], norm: Any) -> list[list[Tensor]]:
    every = torch.stack([node for nodes in rows for node in nodes])
    mean, variance = norm.running_mean, norm.running_var
    if norm.training:
        mean, variance = every.mean(dim=0), every.var(dim=0, unbiased=False)
    scale = norm.weight / (variance + norm.eps).sqrt()
    return [[((node - mean) * scale + norm.bias).relu() for node in nodes] for nodes in rows]


def pooled(model: Any, rows: list[list[Tensor]], level: int, hidden: int) -> Tensor:
    """W_k pool_k of every document."""
    weight = model.head.weight[:, level * hidden : (level + 1) * hidden]
    together = torch.stack([torch.stack(nodes) for nodes in rows])  # (B, N, H)
    pool = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}[model.config.readout]
    return pool(together, dim=1) @ weight.T


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("readout", ["sum", "mean", "max"])
@pytest.mark.parametrize("height", [1, 2, 3])
def test_it_is_the_released_network_node_by_node(
    height: int, readout: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tin, "CHUNK", 4)
    taxonomy = random_taxonomy(height, n=13, most_parents=2)
    model = shaken({"height": height, "readout": readout, "hidden": 6, "recursive": 0.0}, taxonomy).train(training)
    text = torch.randn(4, 5)
    logits, expected = model.classify(text).logits, released(model, text)
    scale = float(expected.detach().abs().max())
    assert torch.allclose(logits, expected, atol=1e-5 * scale)
    weights = dict(model.structure.named_parameters())
    found, wanted = (torch.autograd.grad(values.square().mean(), weights.values()) for values in (logits, expected))
    for name, one, other in zip(weights, found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-5 * scale**2), name


def test_the_tree_is_the_one_of_the_settings() -> None:
    taxonomy = random_taxonomy(5, n=40)
    for height, method in ((2, "paper"), (3, "refined"), (2, "authors")):
        model = blank_model("hitin", taxonomy, 4, {"height": height, "method": method})
        expected = build_tree(taxonomy, height, method).tree
        assert model.tree == expected == CodingTree(model.assets[TREE_FILE]["parents"])
    assert HiTINConfig().height == 2 and HiTINConfig().method == "paper"


def test_regularisation_is_the_sum_over_the_heads_of_all_levels() -> None:
    taxonomy = animals_taxonomy()
    model = shaken({"recursive": 0.25, "hidden": 6}, taxonomy).eval()
    output = model.classify(torch.randn(2, 5), torch.zeros(2, 7))
    expected = 0.0
    for level in range(3):
        weight = model.head.weight[:, level * 6 : (level + 1) * 6]
        for label in range(7):
            expected += sum((weight[p] - weight[label]).square().sum().item() for p in taxonomy.parents(label)) / 2
    assert output.parts["recursive"].item() == pytest.approx(0.25 * expected, rel=1e-5)


@pytest.mark.parametrize(("labels", "height"), [(141, 2), (103, 3)])
def test_parameters_are_the_released_ones_less_what_equal_copies_waste(labels: int, height: int) -> None:
    d = 768
    linear, norm = d * d + d, 2 * d
    whole = linear + (labels**2 + labels) + height * 2 * (linear + norm) + (height + 1) * (d * labels + labels)
    taxonomy = Taxonomy([Label("r", "r")] + [Label(str(i), str(i), ("r",)) for i in range(labels - 1)])
    model = blank_model("hitin", taxonomy, d, {"height": height})
    left_out = (labels**2 - labels) + height * labels  # |Y|² weights become |Y| row sums; K + 1 biases become one
    assert sum(weight.numel() for weight in model.parameters()) == whole - left_out


def test_nodes_are_as_wide_as_the_settings_say(tiny_encoder: Path) -> None:
    assert make_model("hitin", {}, tiny_encoder).model.structure.features.out_features == 16
    assert make_model("hitin", {"hidden": 9}, tiny_encoder).model.structure.features.out_features == 9
    words = {"text": "rcnn", "word_width": 4, "filters": 2}
    assert make_model("hitin", words, tiny_encoder).model.structure.features.out_features == 512


def test_dropouts_fall_on_leaves_level_one_and_readouts() -> None:
    taxonomy, text = animals_taxonomy(), torch.randn(3, 5)
    blind = shaken({"readout_dropout": 1.0}, taxonomy)
    assert torch.equal(blind.classify(text).logits, blind.head.bias.expand(3, 7))
    model = shaken({"dropout": 1.0}, taxonomy)
    leaves = model.structure(text)[:, :5]
    assert torch.allclose(leaves, model.structure.leaves.offset.sum().expand(3, 5))
    with torch.no_grad():
        received: list[Tensor] = []
        model.structure.levels[0].register_forward_pre_hook(lambda _, inputs: received.extend(inputs))
        model.structure(text)
    assert torch.equal(received[0], torch.zeros_like(received[0]))


def test_the_highest_of_many_leaves_needs_no_leaf_in_memory() -> None:
    leaves = tin.Leaves(5_000)
    features = torch.randn(2, 3, requires_grad=True)
    every = leaves.slope[:, None, None] * features + leaves.offset[:, None, None]  # (L, B, H)
    found = leaves.read(features, "max")
    assert torch.allclose(found, every.amax(dim=0))
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        leaves.read(features, "max")
    assert max(tensor.numel() for tensor in saved) <= 5_000


def test_it_runs_in_mixed_precision(tiny_encoder: Path) -> None:
    made = make_model("hitin", {}, tiny_encoder)
    whole = made.model(made.batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = made.model(made.batch)
    mixed.loss.backward()
    assert mixed.loss.dtype == torch.float32
    assert mixed.loss.item() == pytest.approx(whole.loss.item(), rel=0.05)


def test_settings_out_of_range_are_refused() -> None:
    for settings in (
        {"height": 0},
        {"hidden": -1},
        {"readout": "median"},
        {"method": "best"},
        {"readout_dropout": -0.1},
    ):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            HiTINConfig(**settings)  # type: ignore[arg-type]
