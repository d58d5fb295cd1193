"""Layers and losses against naive implementations written from the formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hill.models import hill
from hill.models.hill import HILLConfig, LabelMap, TreeEncoder
from hill.models.layers import level_softmax, level_softmax_loss, nt_xent, zlpr_loss

TREES = {
    1: [[0] * 9],
    2: [[0, 0, 1, 1, 1, 2, 3, 3, 3], [0, 0, 0, 0]],
    3: [[0, 0, 1, 1, 2, 2, 3, 4, 4], [0, 0, 1, 1, 2], [0, 0, 0]],
    4: [[0, 1, 1, 2, 3, 3, 4, 5, 5], [0, 1, 1, 2, 3, 3], [0, 0, 1, 1], [0, 0]],
}


def tensors(parents: list[list[int]]) -> list[Tensor]:
    return [torch.tensor(level) for level in parents]


def set_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let label maps have this rank, or full rank if it is 0."""
    monkeypatch.setattr(hill, "FULL_RANK", 0 if rank else 5_000)
    monkeypatch.setattr(hill, "LOW_RANK", rank)


def scramble(module: torch.nn.Module) -> None:
    """Weights far from their start, so that no term is lost in a zero."""
    for weight in module.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.5)
    for name, buffer in module.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand_like(buffer) + 0.5)


def naive_leaves(encoder: TreeEncoder, text: Tensor) -> Tensor:
    """X^0 of one document, the projector unfolded: |Y| copies, a first label map with these row sums, a second."""
    labels = encoder.labels
    copies = encoder.features(text)[None].expand(len(labels.slope), -1)  # (L, D)
    first = torch.zeros(len(labels.slope), len(labels.slope), dtype=copies.dtype)
    first[:, 0] = labels.slope  # any matrix with these row sums
    hidden = F.relu(first @ copies + labels.offset[:, None])
    second = labels.weight if labels.outer is None else labels.outer @ labels.weight
    return second @ hidden + labels.bias[:, None]


def naive_forward(encoder: TreeEncoder, parents: list[list[int]], text: Tensor) -> Tensor:
    """h_T of one document, node by node."""
    nodes, read = list(naive_leaves(encoder, text)), []
    for level, above in enumerate(parents):
        size = len(parents[level + 1]) if level + 1 < len(parents) else 1
        sums = [sum(nodes[i] for i in range(len(nodes)) if above[i] == v) for v in range(size)]
        net = encoder.levels[level]
        nodes = []
        for x in sums:
            for linear, norm in zip(net.linear, net.norm, strict=True):
                x = F.relu(norm(linear(x)[None])[0])
            nodes.append(x)
        stacked = torch.stack(nodes)
        read.append({"sum": stacked.sum(0), "mean": stacked.mean(0), "max": stacked.max(0).values}[encoder.readout])
    return encoder.align(torch.cat(read))


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("readout", ["sum", "mean", "max"])
@pytest.mark.parametrize("height", [1, 2, 3, 4])
def test_the_folded_tree_encoder_equals_the_unfolded_one(
    height: int, readout: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rank(rank, monkeypatch)
    torch.manual_seed(height)
    encoder = TreeEncoder(tensors(TREES[height]), 5, HILLConfig(hidden=7, readout=readout))
    scramble(encoder)
    encoder.eval().double()
    text = torch.randn(4, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([naive_forward(encoder.double(), TREES[height], row) for row in text])
        found = encoder.float()(text.float())
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("product", [True, False])
def test_the_label_map_and_its_gradients_equal_the_unfolded_ones(
    product: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hill, "use_matmul", lambda tensor, count: product)
    torch.manual_seed(0)
    parents = torch.tensor(TREES[3][0])
    folded = LabelMap(parents, 5).double()
    scramble(folded)
    with torch.no_grad():
        folded.slope[2] = 0.0
    z = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    gains = torch.randn(3, 6, 5, dtype=torch.float64)
    (folded(z) * gains).sum().backward()
    found = [z.grad.clone(), *(weight.grad.clone() for weight in folded.parameters())]  # type: ignore[union-attr]
    z.grad = None
    folded.zero_grad()
    hidden = F.relu(z.unsqueeze(2) * folded.slope + folded.offset)  # (B, D, L)
    leaves = hidden @ folded.weight.T + folded.bias
    sums = F.one_hot(parents, 5).double()
    (leaves @ sums * gains).sum().backward()
    expected = [z.grad, *(weight.grad for weight in folded.parameters())]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_every_weight_of_the_tree_encoder_gets_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    for rank in (0, 3):
        set_rank(rank, monkeypatch)
        encoder = TreeEncoder(tensors(TREES[3]), 5, HILLConfig(hidden=7))
        encoder(torch.randn(6, 5)).square().sum().backward()
        for name, weight in encoder.named_parameters():
            assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_a_batch_of_one_document_trains() -> None:
    encoder = TreeEncoder(tensors(TREES[1] + [[0]]), 5, HILLConfig(hidden=7))
    assert torch.isfinite(encoder.train()(torch.randn(1, 5))).all()


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_nt_xent_is_cross_entropy_with_the_partner_as_target(temperature: float) -> None:
    torch.manual_seed(0)
    one, other = torch.randn(5, 8), torch.randn(5, 8)
    rows = [*one, *other]
    total = 0.0
    for i, row in enumerate(rows):
        likeness = [float(F.cosine_similarity(row, r, dim=0)) / temperature for r in rows]
        partner = (i + 5) % 10
        others = torch.tensor([likeness[j] for j in range(10) if j != i], dtype=torch.float64)
        total += float(torch.logsumexp(others, 0)) - likeness[partner]
    assert float(nt_xent(one, other, temperature)) == pytest.approx(total / 10, abs=1e-6)


def test_nt_xent_of_uninformed_views() -> None:
    """With all similarities equal the loss is log(2B - 1): 3.85 for B = 24."""
    assert float(nt_xent(torch.ones(24, 4), torch.ones(24, 4))) == pytest.approx(3.85, abs=0.005)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_documents_can_be_excluded_from_the_negatives(temperature: float) -> None:
    torch.manual_seed(0)
    one, other = torch.randn(5, 8), torch.randn(5, 8)
    negatives = torch.ones(5, 5, dtype=torch.bool)
    negatives[0, 1] = negatives[1, 0] = negatives[2, 3] = False
    negatives[4] = False
    rows = [*one, *other]
    total = 0.0
    for i, row in enumerate(rows):
        partner = (i + 5) % 10
        likeness = [math.exp(float(F.cosine_similarity(row, r, dim=0)) / temperature) for r in rows]
        others = sum(likeness[j] for j in range(10) if j % 5 != i % 5 and negatives[i % 5, j % 5])
        total += math.log(likeness[partner] + others) - math.log(likeness[partner])
    assert float(nt_xent(one, other, temperature, negatives)) == pytest.approx(total / 10, abs=1e-6)


def test_all_negatives_are_the_default_and_without_any_there_is_no_loss() -> None:
    torch.manual_seed(0)
    one, other = torch.randn(5, 8, requires_grad=True), torch.randn(5, 8)
    everything = torch.ones(5, 5, dtype=torch.bool)
    assert torch.equal(nt_xent(one, other, 0.5, everything), nt_xent(one, other, 0.5))
    alone = nt_xent(one, other, 0.5, ~everything)
    (gradient,) = torch.autograd.grad(alone, one)
    assert alone.item() == 0.0 and torch.equal(gradient, torch.zeros(5, 8))


def test_level_softmax() -> None:
    torch.manual_seed(0)
    levels = [torch.tensor([0, 3]), torch.tensor([1, 2, 4])]
    logits = torch.randn(3, 5)
    scores = level_softmax(logits, levels)
    for rows in levels:
        assert torch.allclose(scores[:, rows].sum(1), torch.ones(3))
    labels = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 1, 0], [1, 0, 1, 0, 1]])
    log = scores.log()
    by_hand = -(log[0, 0] + log[0, 1] + log[1, 3] + log[2, 0] + (log[2, 2] + log[2, 4]) / 2) / 5
    assert torch.allclose(level_softmax_loss(logits, labels, levels), by_hand)
    assert float(level_softmax_loss(logits, torch.zeros(3, 5), levels)) == 0.0


def test_zlpr_is_its_definition() -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.0, -1.0], [2.0, 4.0, 1.0], [90.0, -90.0, -90.0]])
    labels = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
    by_hand = []
    for row, gold in zip(logits.tolist(), labels.tolist(), strict=True):
        lacking = sum(math.exp(s) for s, has in zip(row, gold, strict=True) if not has)
        having = sum(math.exp(-s) for s, has in zip(row, gold, strict=True) if has)
        by_hand.append(math.log(1 + lacking) + math.log(1 + having))
    assert zlpr_loss(logits, labels).item() == pytest.approx(sum(by_hand) / 4, rel=1e-6)
    logits.requires_grad_()
    assert torch.autograd.grad(zlpr_loss(logits, labels), logits)[0].isfinite().all()


def test_a_whole_label_map_learns_as_the_released_code_and_row_sums_alone_do_not() -> None:
    """The oracle repeats the features for each label and maps the label axis by two whole matrices."""
    torch.manual_seed(0)
    count, parents = 9, torch.tensor([0, 0, 1, 1, 1, 2, 2, 0, 2])
    whole, folded = LabelMap(parents, 3, whole=True).double(), LabelMap(parents, 3).double()
    assert whole.first is not None
    first, second = (weight.detach().clone().requires_grad_() for weight in (whole.first, whole.weight))
    offset, bias = (torch.zeros(count, 1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    folded.load_state_dict({"slope": whole.first.detach().sum(1), **whole.state_dict()}, strict=False)
    features, wanted = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 4, 3, dtype=torch.float64)
    received = torch.zeros(3, count, dtype=torch.float64).index_put(
        (parents, torch.arange(count)), torch.ones(()).double()
    )

    def released(features: Tensor) -> Tensor:
        copies = features[:, None].expand(-1, count, -1)  # (B, L, D)
        leaves = second @ F.relu(first @ copies + offset) + bias
        return (received @ leaves).transpose(1, 2)

    runs = [(whole, list(whole.parameters())), (folded, list(folded.parameters()))]
    results = []
    for function, weights in [(released, [first, second, offset, bias]), *runs]:
        optimiser = torch.optim.Adam(weights, lr=0.01)
        for _ in range(20):
            optimiser.zero_grad()
            (function(features) - wanted).square().sum().backward()
            optimiser.step()
        results.append(function(features).detach())
    assert (results[0] - results[1]).abs().max() < 1e-9
    assert (results[0] - results[2]).abs().max() > 1e-3
