"""What HiAGM alone promises: priors, structures and label attention against slow implementations of the formulas."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hill.data.documents import label_documents
from hill.errors import ConfigError
from hill.models import MODELS, HiAGM
from hill.models.base import COUNTS_FILE, child_priors
from hill.models.hiagm import HiAGMConfig
from hill.models.layers import EdgeLSTM, LabelGCN, TreeLSTM, attend
from hill.taxonomy import Label, Taxonomy
from hill.types import Batch
from tests.conftest import random_taxonomy
from tests.made import blank_model, make_model


def scramble(module: nn.Module) -> None:
    """Weights far from their start, so that no term is lost in a zero."""
    for weight in module.parameters():
        nn.init.normal_(weight, 0.0, 0.5)


def ends(taxonomy: Taxonomy) -> tuple[Tensor, Tensor]:
    child, parent = (torch.from_numpy(rows.copy()) for rows in taxonomy.edge_array.T)
    return child, parent


def structure(kind: Any, taxonomy: Taxonomy, width: int, dropout: float = 0.0) -> Any:
    priors = child_priors(taxonomy, list(range(len(taxonomy))))
    return kind(*ends(taxonomy), priors, len(taxonomy), width, dropout)


@given(st.integers(0, 1000), st.integers(1, 3), st.integers(0, 12))
def test_priors_are_counted_documents_over_those_of_siblings(seed: int, most_parents: int, count: int) -> None:
    taxonomy = random_taxonomy(seed, n=15, roots=2, most_parents=most_parents)
    draw = np.random.default_rng(seed)
    given_labels = [draw.choice(taxonomy.ids, size=2).tolist() for _ in range(count)]
    documents = label_documents(["text"] * count, given_labels, taxonomy)
    counts = HiAGM.prepare(documents, taxonomy, HiAGMConfig(), None)[COUNTS_FILE]  # type: ignore[arg-type]
    priors = child_priors(taxonomy, counts)
    closed = [set(taxonomy.closure(taxonomy.encode(labels)).tolist()) for labels in given_labels]
    with_both = {
        (child, parent): sum(child in labels and parent in labels for labels in closed)
        for child, parent in taxonomy.edge_array.tolist()
    }
    for (child, parent), prior in zip(taxonomy.edge_array.tolist(), priors.tolist(), strict=True):
        siblings = taxonomy.children(parent).tolist()
        together = sum(with_both[sibling, parent] for sibling in siblings)
        assert prior == pytest.approx(with_both[child, parent] / together if together else 1 / len(siblings))
    for parent in set(taxonomy.edge_array[:, 1].tolist()):
        assert priors[taxonomy.edge_array[:, 1] == parent].sum().item() == pytest.approx(1.0)


def dense_gcn(gcn: LabelGCN, nodes: Tensor) -> Tensor:
    """The formulas over all pairs of labels, with anything at all where there is no edge."""
    n, child, parent = nodes.shape[1], gcn.child, gcn.parent
    mask = torch.zeros(n, n)
    mask[parent, child] = 1.0
    a_in, a_out = torch.randn(n, n), torch.randn(n, n)
    a_in[parent, child], a_out[child, parent] = gcn.up.detach(), gcn.down.detach()
    up = torch.sigmoid(nodes @ gcn.gates[0] + gcn.gate_bias[0]) * ((mask * a_in) @ nodes + gcn.bias[0])
    down = torch.sigmoid(nodes @ gcn.gates[1] + gcn.gate_bias[1]) * ((mask.T * a_out) @ nodes + gcn.bias[1])
    return torch.relu(up + down + torch.sigmoid(nodes @ gcn.gates[2]) * nodes)


@pytest.mark.parametrize(("seed", "most_parents"), [(0, 1), (1, 3)])
def test_the_gcn_is_the_formula_over_all_pairs_of_labels(seed: int, most_parents: int) -> None:
    torch.manual_seed(seed)
    taxonomy = random_taxonomy(seed, most_parents=most_parents)
    gcn, nodes = structure(LabelGCN, taxonomy, 6), torch.randn(3, len(taxonomy), 6)
    scramble(gcn)
    assert torch.allclose(gcn(nodes), dense_gcn(gcn, nodes), atol=1e-5)


def test_the_gcn_starts_as_in_the_paper(animals: Taxonomy) -> None:
    gcn = structure(LabelGCN, animals, 300)
    assert torch.equal(gcn.up, torch.ones(6))
    assert torch.equal(gcn.down, child_priors(animals, list(range(7))))
    assert not any(bias.any() for bias in [*gcn.gate_bias, *gcn.bias])
    for gate in gcn.gates:
        assert gate.std().item() == pytest.approx((2 / 301) ** 0.5, rel=0.2)


@pytest.mark.parametrize("kind", [LabelGCN, TreeLSTM])
def test_dropout_falls_on_all_that_a_structure_says(kind: Any, animals: Taxonomy) -> None:
    deaf = structure(kind, animals, 4, dropout=1.0)
    scramble(deaf)
    nodes = torch.randn(2, 7, 4)
    assert not deaf.train()(nodes).any() and deaf.eval()(nodes).any()
    default = kind(*ends(animals), torch.ones(6), 7, 4)
    assert default.dropout.p == 0.05


def slow_lstm(cell: EdgeLSTM, nodes: Tensor) -> Tensor:
    """Node by node from the formulas of Tai et al., the states and cells that come along an edge times its weight."""
    memory, done = cell.memory, {}

    def visit(node: int) -> tuple[Tensor, Tensor]:
        if node not in done:
            edges = (cell.target == node).nonzero()[:, 0].tolist()
            heard = [tuple(part * cell.weight[e] for part in visit(int(cell.source[e]))) for e in edges]
            i, o, u, f = cell.read(nodes[:, node]).split(memory, dim=1)
            none = torch.zeros(len(nodes), memory)
            hi, ho, hu = cell.hear(sum((h for h, _ in heard), none)).split(memory, dim=1)
            c = torch.sigmoid(i + hi) * torch.tanh(u + hu)
            c = c + sum((torch.sigmoid(f + cell.forget(h)) * below for h, below in heard), none)
            done[node] = torch.sigmoid(o + ho) * torch.tanh(c), c
        return done[node]

    return torch.stack([visit(node)[0] for node in range(nodes.shape[1])], dim=1)


@pytest.mark.parametrize(("seed", "most_parents", "width"), [(0, 1, 6), (1, 3, 6), (2, 2, 5)])
def test_the_tree_lstm_is_the_recursion_over_nodes(seed: int, most_parents: int, width: int) -> None:
    torch.manual_seed(seed)
    taxonomy = random_taxonomy(seed, most_parents=most_parents)
    lstm, nodes = structure(TreeLSTM, taxonomy, width), torch.randn(2, len(taxonomy), width)
    scramble(lstm)
    expected = torch.cat([slow_lstm(lstm.up, nodes), slow_lstm(lstm.down, nodes)], dim=2)
    found = lstm(nodes)
    assert found.shape == nodes.shape and torch.allclose(found, expected, atol=1e-5)
    weights = list(lstm.parameters())
    seeds = torch.randn_like(found)
    pairs = zip(*(torch.autograd.grad((out * seeds).sum(), weights) for out in (found, expected)), strict=True)
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in pairs)


def test_the_tree_lstm_runs_both_ways_and_starts_from_the_priors(animals: Taxonomy) -> None:
    lstm = structure(TreeLSTM, animals, 6)
    child, parent = ends(animals)
    assert torch.equal(lstm.up.source, child) and torch.equal(lstm.up.target, parent)
    assert torch.equal(lstm.down.source, parent) and torch.equal(lstm.down.target, child)
    assert torch.equal(lstm.up.weight, torch.ones(6))
    assert torch.equal(lstm.down.weight, child_priors(animals, list(range(7))))


@pytest.mark.parametrize("kind", [LabelGCN, TreeLSTM])
def test_labels_without_edges_hear_only_themselves(kind: Any) -> None:
    taxonomy = Taxonomy([Label(name, name) for name in "abc"])
    alone, nodes = structure(kind, taxonomy, 4), torch.randn(2, 3, 4)
    with torch.no_grad():
        changed = nodes.clone()
        changed[:, 1] += 1.0
        differs = (alone(nodes) != alone(changed)).any(dim=2)
    assert differs[:, 1].all() and not differs[:, [0, 2]].any()


def slow_attention(labels: Tensor, states: Tensor, mask: Tensor) -> Tensor:
    """Document by document, label by label, over the tokens that there are."""
    read = torch.zeros(len(states), *labels.shape)
    for row, label in product(range(len(states)), range(len(labels))):
        tokens = states[row][mask[row].bool()]
        weights = torch.exp(tokens @ labels[label])
        read[row, label] = (weights[:, None] * tokens).sum(dim=0) / weights.sum()
    return read


def test_labels_attend_to_tokens_and_never_to_padding() -> None:
    torch.manual_seed(0)
    labels, states = torch.randn(4, 3), torch.randn(3, 5, 3)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    found = attend(labels, states, mask)
    assert torch.allclose(found, slow_attention(labels, states, mask), atol=1e-5)
    assert torch.allclose(found[2], states[2, :1].expand(4, 3), atol=1e-6)
    assert torch.equal(attend(labels, states.masked_fill(mask[..., None] == 0, 1e4), mask), found)
    assert attend(labels, states, torch.zeros_like(mask)).isfinite().all()


@pytest.mark.parametrize("text", ["transformer", "rcnn"])
@pytest.mark.parametrize("kind", ["gcn", "treelstm"])
def test_text_propagation(text: str, kind: str, tiny_encoder: Path) -> None:
    made = make_model("hiagm", {"text": text, "structure": kind, "node_width": 6}, tiny_encoder)
    model, batch = made.model.eval(), made.batch
    assert type(model.structure) is {"gcn": LabelGCN, "treelstm": TreeLSTM}[kind]
    vectors = model.text(batch.ids, batch.mask)
    nodes = torch.stack([(vectors @ model.spread.weight.T + model.spread.bias)[:, 6 * i : 6 * i + 6] for i in range(7)])
    passed = model.structure(nodes.transpose(0, 1)).reshape(16, 42)
    assert torch.allclose(model(batch).logits, passed @ model.head.weight.T + model.head.bias, atol=1e-5)


@pytest.mark.parametrize("text", ["transformer", "rcnn"])
@pytest.mark.parametrize("kind", ["gcn", "treelstm"])
def test_label_attention(text: str, kind: str, tiny_encoder: Path) -> None:
    made = make_model("hiagm", {"fusion": "la", "text": text, "structure": kind, "gru_width": 4}, tiny_encoder)
    model, batch = made.model.eval(), made.batch
    width = {"transformer": 16, "rcnn": 8}[text]
    assert model.labels.shape == (7, width) and model.labels.abs().max() <= (6 / width) ** 0.5  # He et al., fan in
    labels = model.structure(model.labels[None])[0]
    read = slow_attention(labels, model.text.states(batch.ids, batch.mask), batch.mask).reshape(16, 7 * width)
    assert torch.allclose(model(batch).logits, read @ model.head.weight.T + model.head.bias, atol=1e-4)


def test_what_only_vectors_need_is_not_trained_in_label_attention(tiny_encoder: Path) -> None:
    for fusion, trained in (("tp", True), ("la", False)):
        made = make_model("hiagm", {"fusion": fusion, "text": "rcnn", "node_width": 4}, tiny_encoder)
        assert {weight.requires_grad for weight in made.model.text.convolutions.parameters()} == {trained}


def test_nodes_and_labels_are_dropped_out_before_the_structure(tiny_encoder: Path) -> None:
    for fusion in ("tp", "la"):
        made = make_model("hiagm", {"fusion": fusion, "readout_dropout": 1.0, "node_width": 4}, tiny_encoder)
        seen: list[Tensor] = []
        made.model.structure.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
        made.model.train()(made.batch)
        made.model.eval()(made.batch)
        assert not seen[0].any() and seen[1].any()


def test_parameters_on_the_shape_of_wos() -> None:
    """141 labels, text and nodes 300 wide: 12.7 million weights spread the text, 6.0 million read the nodes."""
    taxonomy = Taxonomy(
        [Label(str(i), str(i)) for i in range(7)] + [Label(str(i), str(i), (str(i % 7),)) for i in range(7, 141)]
    )
    model = blank_model("hiagm", taxonomy, 300, {})
    counts = {name: sum(w.numel() for w in part.parameters()) for name, part in model.named_children()}
    nodes = 141 * 300
    assert counts["spread"] == 300 * nodes + nodes == 12_732_300
    assert counts["head"] == nodes * 141 + 141 == 5_964_441
    assert counts["structure"] == 2 * 134 + 3 * 300 + 2 * 141 + 2 * nodes  # edges, gates, their biases, B1 and B2


@pytest.mark.parametrize("text", ["transformer", "rcnn"])
@pytest.mark.parametrize("kind", ["gcn", "treelstm"])
@pytest.mark.parametrize(("name", "settings"), [("hiagm", {}), ("hiagm", {"fusion": "la"}), ("htcinfomax", {})])
def test_mixed_precision(name: str, settings: dict[str, Any], kind: str, text: str, tiny_encoder: Path) -> None:
    made = make_model(name, {"structure": kind, "text": text, **settings}, tiny_encoder)
    model = made.model.eval()
    exact = model(made.batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(made.batch)
    rough.loss.backward()
    assert torch.allclose(rough.logits.float(), exact.logits, atol=0.05)
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.requires_grad)


def test_the_loss_is_bce_and_the_recursive_regularisation(tiny_encoder: Path) -> None:
    made = make_model("hiagm", {"recursive": 0.5, "node_width": 4}, tiny_encoder)
    output, labels = made.model.eval()(made.batch), made.batch.labels
    assert labels is not None
    gold, p = labels.double(), output.logits.double().sigmoid()
    assert output.parts["labels"].item() == pytest.approx(
        -(gold * p.log() + (1 - gold) * (1 - p).log()).mean().item(), rel=1e-4
    )
    weight = made.model.head.weight
    apart = sum(
        ((weight[parent] - weight[child]) ** 2).sum().item() / 2
        for child, parent in made.stored.taxonomy.edge_array.tolist()
    )
    assert output.parts["recursive"].item() == pytest.approx(0.5 * apart, rel=1e-4)


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings, message in [
        ({"fusion": "lp"}, "unknown model.fusion 'lp'"),
        ({"structure": "gnc"}, "unknown model.structure 'gnc'; did you mean 'gcn'?"),
        ({"node_width": 1}, "model.node_width is 1; expected a number from 2 to"),
        ({"readout_dropout": -1.0}, "model.readout_dropout is -1.0; expected a number from 0 to"),
    ]:
        with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
            HiAGMConfig(**settings)  # type: ignore[arg-type]
    assert MODELS["hiagm"].Config is HiAGMConfig


def test_a_label_without_documents_and_a_document_alone(tiny_encoder: Path) -> None:
    for settings in ({"node_width": 4}, {"fusion": "la"}):
        made = make_model("hiagm", settings, tiny_encoder)
        batch = made.batch
        assert batch.labels is not None
        one = Batch(batch.ids[:1], batch.mask[:1], torch.zeros_like(batch.labels[:1]))
        loss = made.model.train()(one).loss
        loss.backward()
        assert loss.isfinite() and all(w.grad.isfinite().all() for w in made.model.head.parameters())
