"""What HTCInfoMax alone promises: its discriminators and losses against the formulas, document by document."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hill.errors import ConfigError
from hill.models.htcinfomax import HTCInfoMaxConfig, PairDiscriminator, PriorDiscriminator, pair_loss, prior_loss
from hill.types import Batch
from tests.made import make_model
from tests.models.test_hiagm import scramble, slow_attention

MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]])


def judge(pairs: PairDiscriminator, label: Tensor, tokens: Tensor) -> Tensor:
    """D(y, t) of one document from the tokens it has: convolutions with zeros around them, the mean, three layers."""
    near = F.conv1d(tokens.T[None], pairs.near.weight, pairs.near.bias, padding=1).relu()
    far = F.conv1d(near, pairs.far.weight, pairs.far.bias, padding=1)[0].mean(dim=1)
    x = torch.cat([label, far])
    first, second, third = (layer for layer in pairs.judge if isinstance(layer, nn.Linear))
    return third(second(first(x).relu()).relu())[0]


def made_pairs() -> tuple[PairDiscriminator, Tensor, Tensor]:
    torch.manual_seed(0)
    pairs = PairDiscriminator(5, hidden=7)
    scramble(pairs)
    return pairs, torch.randn(4, 5), torch.randn(4, 6, 5)


def jensen_shannon(pairs: PairDiscriminator, labels: Tensor, states: Tensor, shift: int) -> float:
    """Mean softplus(D(y_i, t_j)) + mean softplus(-D(y_i, t_i)), where j is i moved on by the shift."""
    texts = [states[i][MASK[i].bool()] for i in range(4)]
    apart = [torch.log1p(judge(pairs, labels[i], texts[(i + shift) % 4]).exp()) for i in range(4)]
    together = [torch.log1p((-judge(pairs, labels[i], texts[i])).exp()) for i in range(4)]
    return (torch.stack(apart).mean() + torch.stack(together).mean()).item()


def test_mutual_information_is_the_jensen_shannon_bound_over_other_texts() -> None:
    pairs, labels, states = made_pairs()
    possible = [jensen_shannon(pairs, labels, states, shift) for shift in range(4)]
    seen = {round(pair_loss(pairs, labels, states, MASK).item(), 4) for _ in range(40)}
    assert seen == {round(value, 4) for value in possible[1:]}, "every other text in its turn, never its own"


def test_mutual_information_of_a_document_alone_has_no_negative() -> None:
    pairs, labels, states = made_pairs()
    loss = pair_loss(pairs, labels[:1], states[:1], MASK[:1])
    assert torch.allclose(loss, F.softplus(-judge(pairs, labels[0], states[0])))


def test_the_discriminator_never_reads_padding() -> None:
    pairs, labels, states = made_pairs()
    found = pairs(labels, pairs.summarise(states, MASK))
    expected = torch.stack([judge(pairs, labels[i], states[i][MASK[i].bool()]) for i in range(4)])
    assert torch.allclose(found, expected, atol=1e-5)
    noisy = states.masked_fill(MASK[..., None] == 0, 100.0)
    wider = F.pad(noisy, (0, 0, 0, 3), value=7.0), F.pad(MASK, (0, 3))
    assert torch.allclose(pairs(labels, pairs.summarise(*wider)), expected, atol=1e-5)


def test_widths_are_those_of_the_paper() -> None:
    pairs, prior = PairDiscriminator(300), PriorDiscriminator(300)
    shapes = [tuple(weight.shape) for weight in pairs.parameters() if weight.ndim > 1]
    assert shapes == [(300, 300, 3), (512, 300, 3), (512, 812), (512, 512), (1, 512)]
    assert [tuple(w.shape) for w in prior.parameters() if w.ndim > 1] == [(1000, 300), (200, 1000), (1, 200)]
    assert HTCInfoMaxConfig().gru_width == 150


def probability(prior: PriorDiscriminator, vectors: Tensor) -> Tensor:
    first, second, third = (layer for layer in prior if isinstance(layer, nn.Linear))
    return torch.sigmoid(third(second(first(vectors).relu()).relu()))[:, 0]


def test_prior_matching_is_the_formula_and_its_gradients_are_adversarial() -> None:
    torch.manual_seed(0)
    prior, labels = PriorDiscriminator(3), torch.randn(6, 3, requires_grad=True)
    scramble(prior)
    for weight in prior.parameters():
        weight.data.mul_(0.1)  # far from 0 and 1, where the logarithms written out lose digits
    torch.manual_seed(1)
    loss = prior_loss(prior, labels)
    torch.manual_seed(1)
    drawn = torch.rand(6, 3)
    told = -sum(
        torch.log(probability(prior, drawn)[i]) + torch.log(1 - probability(prior, labels.detach())[i])
        for i in range(6)
    )
    assert loss.item() == pytest.approx(told.item() / 6, rel=1e-5)
    fooled = -torch.log(probability(prior, labels)).mean()
    weights = list(prior.parameters())
    found = torch.autograd.grad(loss, [labels, *weights])
    expected = torch.autograd.grad(fooled, [labels]) + torch.autograd.grad(told / 6, weights)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-6)


def test_labels_come_to_look_like_the_prior() -> None:
    torch.manual_seed(0)
    prior, labels = PriorDiscriminator(2), nn.Parameter(torch.randn(32, 2) * 0.1 - 2.0)
    groups = [{"params": prior.parameters()}, {"params": [labels], "lr": 0.03}]
    optimiser = torch.optim.Adam(groups, lr=1e-3)
    for _ in range(150):
        optimiser.zero_grad()
        prior_loss(prior, labels).backward()
        optimiser.step()
    assert ((labels > -0.3) & (labels < 1.3)).float().mean() > 0.8


def test_the_losses_are_weighted_by_a_learned_share(tiny_encoder: Path) -> None:
    made = make_model("htcinfomax", {"structure": "treelstm"}, tiny_encoder)
    model, batch = made.model.eval(), made.batch
    for part in (model.weigh_text, model.weigh_labels, model.pairs.judge):
        scramble(part)
    torch.manual_seed(2)
    parts = model(batch).parts
    states = model.text.states(batch.ids, batch.mask)
    vectors = model.structure(model.labels[None])[0] @ model.project.weight.T  # (L, S)
    text = torch.stack([states[i][batch.mask[i].bool()].mean(dim=0) for i in range(16)]).mean(dim=0)
    share = torch.sigmoid(model.weigh_text(text) + model.weigh_labels(vectors.reshape(-1)))
    gold = torch.stack([vectors[batch.labels[i].bool()].mean(dim=0) for i in range(16)])
    torch.manual_seed(2)
    pairs, prior = pair_loss(model.pairs, gold, states, batch.mask), prior_loss(model.prior, vectors)
    assert 0.01 < share.item() < 0.99
    assert parts["pairs"].item() == pytest.approx((share * pairs).item(), rel=1e-4)
    assert parts["prior"].item() == pytest.approx(((1 - share) * prior).item(), rel=1e-4)
    assert list(parts) == ["labels", "recursive", "pairs", "prior"]


@pytest.mark.parametrize("text", ["transformer", "rcnn"])
def test_logits_are_those_of_label_attention(text: str, tiny_encoder: Path) -> None:
    made = make_model("htcinfomax", {"text": text, "gru_width": 8}, tiny_encoder)
    model, batch = made.model.eval(), made.batch
    read = slow_attention(
        model.structure(model.labels[None])[0], model.text.states(batch.ids, batch.mask), batch.mask
    ).reshape(16, -1)
    assert torch.allclose(model(batch).logits, read @ model.head.weight.T + model.head.bias, atol=1e-4)


def test_labels_are_dropped_out_before_the_structure(tiny_encoder: Path) -> None:
    made = make_model("htcinfomax", {"readout_dropout": 1.0}, tiny_encoder)
    seen: list[Tensor] = []
    made.model.structure.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    made.model.train()(made.batch)
    made.model.eval()(made.batch)
    assert not seen[0].any() and seen[1].any()


def test_a_document_alone_and_one_without_labels_can_be_learned_from(tiny_encoder: Path) -> None:
    made = make_model("htcinfomax", {"text": "rcnn"}, tiny_encoder)
    ids, mask = made.batch.ids[:2], made.batch.mask[:2]
    for rows in (1, 2):
        made.model.zero_grad()
        loss = made.model.train()(Batch(ids[:rows], mask[:rows], torch.zeros(rows, 7))).loss
        loss.backward()
        gradients = [weight.grad for weight in made.model.parameters() if weight.grad is not None]
        assert loss.isfinite() and all(gradient.isfinite().all() for gradient in gradients)


def test_an_unknown_structure_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown model.structure 'tree'; did you mean 'treelstm'\?"):
        HTCInfoMaxConfig(structure="tree")
    with pytest.raises(ConfigError, match=r"model.readout_dropout is -1.0; expected a number from 0 to"):
        HTCInfoMaxConfig(readout_dropout=-1.0)
