"""HILL's ablations with graph convolutions, against dense computations of one document written from the formulas."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hill.errors import ConfigError
from hill.models.hill import TREE_FILE, GraphEncoder, HILLConfig
from hill.taxonomy import Label, Taxonomy
from tests.made import blank_model, make_model
from tests.models.test_layers import naive_leaves, scramble, set_rank
from tests.tree.test_coding_tree import WOS, label_graph

KINDS = ("gcn", "gat", "gin")
CHILD, PARENT, LABELS = [1, 2, 3, 3, 4, 5, 8], [0, 0, 1, 2, 1, 2, 7], 9
"""Two trees, of which one is a DAG, since 3 has two parents, and a label 6 with neither parents nor children."""


def make_encoder(kind: str, **settings: Any) -> GraphEncoder:
    config = HILLConfig(structure=kind, hidden=7, **settings)
    return GraphEncoder(torch.tensor(CHILD), torch.tensor(PARENT), LABELS, 5, config)


def star(kind: str, leaves: int) -> GraphEncoder:
    root = torch.zeros(leaves, dtype=torch.long)
    return GraphEncoder(torch.arange(1, leaves + 1), root, leaves + 1, 5, HILLConfig(structure=kind, hidden=7))


def adjacency() -> Tensor:
    matrix = torch.zeros(LABELS, LABELS, dtype=torch.float64)
    matrix[CHILD, PARENT] = matrix[PARENT, CHILD] = 1.0
    return matrix


def naive_gcn(layer: Any, x: Tensor) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 X Wᵀ + b with D the row sums of A + I."""
    looped = adjacency() + torch.eye(LABELS)
    root = torch.diag(looped.sum(dim=1) ** -0.5)
    return root @ looped @ root @ x @ layer.lin.weight.T + layer.bias


def naive_gat(layer: Any, x: Tensor) -> Tensor:
    """Σ_j α_ij W x_j + b, α the softmax over i and its neighbours of LeakyReLU(a · W x_i + a' · W x_j)."""
    looped, x = adjacency() + torch.eye(LABELS), x @ layer.lin.weight.T
    heard = []
    for i in range(LABELS):
        near = [j for j in range(LABELS) if looped[i, j]]
        raw = torch.stack([layer.att_dst.flatten() @ x[i] + layer.att_src.flatten() @ x[j] for j in near])
        weights = torch.where(raw < 0, 0.2 * raw, raw).exp()
        heard.append(sum(w / weights.sum() * x[j] for w, j in zip(weights, near, strict=True)))
    return torch.stack(heard) + layer.bias  # type: ignore[arg-type]


def naive_gin(layer: Any, x: Tensor) -> Tensor:
    """W2 ReLU(W1 (x_i + Σ_j x_j) + b1) + b2, as ε = 0."""
    first, _, second = layer.nn
    return F.relu((x + adjacency() @ x) @ first.weight.T + first.bias) @ second.weight.T + second.bias


def naive_forward(kind: str, encoder: GraphEncoder, text: Tensor) -> Tensor:
    """h_T of one document."""
    x, read = naive_leaves(encoder, text), []  # type: ignore[arg-type]
    for layer, norm in zip(encoder.convolutions, encoder.norms, strict=True):
        x = norm(F.relu({"gcn": naive_gcn, "gat": naive_gat, "gin": naive_gin}[kind](layer, x)))
        read.append({"sum": x.sum(0), "mean": x.mean(0), "max": x.max(0).values}[encoder.readout])
    return encoder.align[1](torch.cat(read))


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("readout", ["sum", "mean", "max"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_equals_each_document_computed_densely(
    kind: str, readout: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rank(rank, monkeypatch)
    torch.manual_seed(0)
    encoder = make_encoder(kind, readout=readout)
    scramble(encoder)
    encoder.eval()
    text = torch.randn(4, 5)
    with torch.no_grad():
        found = encoder(text).double()
        expected = torch.stack([naive_forward(kind, encoder.double(), row) for row in text.double()])
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize(("kind", "layers"), [("gcn", 2), ("gat", 2), ("gin", 3)])
def test_layers_are_those_of_the_paper(kind: str, layers: int, tiny_encoder: Path) -> None:
    model = make_model("hill", {"structure": kind, "hidden": 12}, tiny_encoder).model
    assert len(model.structure.convolutions) == layers
    assert model.structure.align[1].weight.shape == (16, 12 * layers)


@pytest.mark.parametrize(("kind", "released"), [("gcn", 6.165), ("gat", 6.168), ("gin", 9.119)])
def test_parameters_are_the_released_ones_less_what_is_left_out(kind: str, released: float) -> None:
    """WOS without the encoder, d = 768, concat, in millions; here the released code has no unused vector."""
    labels, d = len(label_graph(WOS)), 768
    linear = d * d + d
    layer = {"gcn": linear, "gat": linear + 2 * d, "gin": 2 * linear}[kind] + 2 * d  # with a BatchNorm
    layers = {"gcn": 2, "gat": 2, "gin": 3}[kind]
    formula = 2 * (labels**2 + labels) + 2 * linear + layers * layer + (layers * d * d + d)
    formula += 2 * d * labels + labels + 4 * linear
    assert round(formula / 1e6, 3) == released
    taxonomy = Taxonomy([Label("r", "r")] + [Label(str(i), str(i), ("r",)) for i in range(labels - 1)])
    model = blank_model("hill", taxonomy, d, {"structure": kind})
    left_out = labels**2 - labels  # |Y|² weights of the first label map become |Y| row sums
    assert sum(weight.numel() for weight in model.parameters()) == formula - left_out


@torch.no_grad()
def test_weights_start_as_in_the_released_code() -> None:
    """GCN and GAT as Glorot, uniform up to sqrt(6 / (2 d)); GIN's net as all linear layers, N(0, 0.02²)."""
    torch.manual_seed(0)
    root, d = torch.tensor([0]), 200
    gcn, gat, gin = (
        GraphEncoder(root + 1, root, 2, 5, HILLConfig(structure=kind, hidden=d)).convolutions[0] for kind in KINDS
    )
    most = (6 / (2 * d)) ** 0.5
    for glorot in (gcn.lin.weight, gat.lin.weight):  # type: ignore[union-attr]
        assert glorot.abs().max() <= most and float(glorot.std()) == pytest.approx(most / 3**0.5, rel=0.02)
    for linear in (gin.nn[0], gin.nn[2]):  # type: ignore[index]
        assert float(linear.weight.std()) == pytest.approx(0.02, rel=0.02) and not linear.bias.any()


@pytest.mark.parametrize("kind", KINDS)
def test_labels_without_any_edge_hear_themselves_alone(kind: str) -> None:
    torch.manual_seed(0)
    none = torch.zeros(0, dtype=torch.long)
    encoder = GraphEncoder(none, none, LABELS, 5, HILLConfig(structure=kind, hidden=7)).eval()
    scramble(encoder)
    x = torch.randn(2, LABELS, 7)
    changed = x.clone()
    changed[:, 4] += 1.0
    apart = (next(encoder.layers(x)) != next(encoder.layers(changed))).any(dim=2)
    assert apart[:, 4].all() and int(apart.sum()) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_one_label_and_one_document_train(kind: str) -> None:
    none = torch.zeros(0, dtype=torch.long)
    encoder = GraphEncoder(none, none, 1, 5, HILLConfig(structure=kind, hidden=7))
    assert torch.isfinite(encoder.train()(torch.randn(1, 5))).all()


@pytest.mark.parametrize("kind", KINDS)
def test_many_children_are_summed_in_full_precision(kind: str) -> None:
    torch.manual_seed(0)
    encoder = star(kind, 1_000)
    scramble(encoder)
    received = torch.rand(3, 1_001, 7)
    with torch.no_grad():
        exact = list(encoder.eval().layers(received))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = list(encoder.layers(received))
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32
        assert float((one[:, 0] - other[:, 0]).norm() / other[:, 0].norm()) < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_no_coding_tree_is_built_or_saved(kind: str, tiny_encoder: Path, tmp_path: Path) -> None:
    made = make_model("hill", {"structure": kind}, tiny_encoder)
    made.stored.save(tmp_path / "model", {})
    assert TREE_FILE not in made.model.assets and not hasattr(made.model, "tree")
    assert not (tmp_path / "model" / TREE_FILE).exists() and (tmp_path / "model" / "label_counts.json").exists()


@pytest.mark.parametrize("kind", ["tree", *KINDS])
def test_settings_reach_the_structure(kind: str) -> None:
    taxonomy = Taxonomy([Label("r", "r")] + [Label(str(i), str(i), ("r",)) for i in range(4)])
    told = {"dropout": 0.2, "readout_dropout": 0.3, "readout": "max", "hidden": 6}
    structure = blank_model("hill", taxonomy, 8, {"structure": kind, **told}).structure
    assert structure.features[-1].p == structure.dropout.p == 0.2 and structure.align[0].p == 0.3
    assert structure.readout == "max"
    assert structure.features[0].weight.shape == (6, 8)


def test_edges_are_those_of_the_taxonomy(tiny_encoder: Path) -> None:
    """Animals over mammals and flyers, both over bats, each over its others; plants alone."""
    encoder = make_model("hill", {"structure": "gin"}, tiny_encoder).model.structure
    up = {(1, 0), (2, 0), (3, 1), (3, 2), (4, 1), (5, 2)}
    assert sorted(map(tuple, encoder.edges.T.tolist())) == sorted(up | {(parent, child) for child, parent in up})


def test_it_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    for kind in KINDS:
        message = rf"structure={kind} needs torch_geometric, which is not installed; run: pip install 'torch-"
        with pytest.raises(ConfigError, match=message):
            make_encoder(kind)


def test_settings_that_cannot_be() -> None:
    taxonomy = Taxonomy([Label("r", "r")])
    with pytest.raises(ConfigError, match=r"unknown model\.structure 'gni'; did you mean 'gin'\?"):
        blank_model("hill", taxonomy, 8, {"structure": "gni"})
