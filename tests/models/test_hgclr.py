"""What HGCLR alone promises beside the conformance suite: ways between labels, Graphormer, kept tokens, second view."""

from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from hill.encoders import Transformer
from hill.errors import ConfigError
from hill.models import HGCLR
from hill.models.hgclr import (
    TOKENS_FILE,
    Graphormer,
    HGCLRConfig,
    NodePaths,
    TokenKeeper,
    find_paths,
    keep_tokens,
)
from hill.models.layers import nt_xent
from hill.taxonomy import Label, Taxonomy
from hill.types import Batch
from tests.conftest import animals_taxonomy, random_taxonomy
from tests.made import make_model, packed
from tests.tree.test_coding_tree import NYT, RCV1, WOS

SMALL = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
ENCODERS: dict[str, Any] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SMALL), add_pooling_layer=False),
    "roberta": lambda: transformers.RobertaModel(
        transformers.RobertaConfig(**SMALL, pad_token_id=1), add_pooling_layer=False
    ),
    "distilbert": lambda: transformers.DistilBertModel(
        transformers.DistilBertConfig(
            vocab_size=30, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=40
        )
    ),
}


def forest(runs: list[tuple[int, int]]) -> Taxonomy:
    """The labels of a data set, given as runs of (parent, how many children)."""
    parents = [parent for parent, count in runs for _ in range(count)]
    return Taxonomy(
        [Label(str(i), f"name {i}", (str(parent),) if parent >= 0 else ()) for i, parent in enumerate(parents)]
    )


def model_on(encoder: nn.Module, taxonomy: Taxonomy, pooling: str = "mean", **settings: Any) -> HGCLR:
    """HGCLR on this encoder; the name of label i is 4, 5, ... of length 1 + i % 4."""
    names = [[4 + place for place in range(1 + row % 4)] for row in range(len(taxonomy))]
    return HGCLR(
        Transformer(encoder, pooling, 0.0), taxonomy, HGCLRConfig(dropout=0.0, **settings), {TOKENS_FILE: names}
    )


def some_batch(pad: int, labels: int) -> Batch:
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(4, 30, (3, 9), generator=draw)
    mask = (torch.arange(9) < torch.tensor([[9], [4], [6]])).long()
    return Batch(torch.where(mask > 0, ids, pad), mask, torch.rand(3, labels, generator=draw) < 0.4)


def ups(taxonomy: Taxonomy, row: int) -> dict[int, int]:
    """Steps from a label up to each label above it and to a virtual root, -1."""
    found, queue = {row: 0}, deque([row])
    while queue:
        node = queue.popleft()
        above = taxonomy.parents(node).tolist() if node >= 0 else []
        for parent in above or ([-1] if node >= 0 else []):
            if parent not in found:
                found[parent] = found[node] + 1
                queue.append(parent)
    return found


def way(paths: NodePaths, one: int, other: int) -> tuple[list[int], list[int]]:
    """Both halves of a way, each from its label up."""
    nothing = len(paths.distance)
    first, second = (
        paths.nodes[number].tolist() for number in (paths.half_path[one, other], paths.half_path[other, one])
    )
    return [node for node in first if node != nothing], [node for node in second if node != nothing]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("shape", "millions"),
    [(WOS, (11.658, 18.746)), (RCV1, (11.541, 18.629)), (NYT, (11.735, 18.823))],
    ids=["wos", "rcv1", "nyt"],
)
def test_parameters_are_the_released_ones_less_the_dead(shape: Any, millions: tuple[float, float], layers: int) -> None:
    """Without the encoder, d = 768, 12 heads; the released figures are in millions with three decimals."""
    taxonomy, d = forest(shape), 768
    labels, linear, norm = len(taxonomy), d * d + d, 2 * d
    classifier = d * labels + labels
    feed = (d * 4 * d + 4 * d) + (4 * d * d + d) + norm
    projector = 2 * linear
    embeddings = (labels + 1) * d + 20 + (labels + 1)  # of labels, of distances, of nodes on a way
    extra = classifier + (linear + classifier)  # one in the last layer, one with a hidden layer for tokens
    released = layers * (4 * linear + norm + feed) + (4 * linear + norm) + projector + classifier + extra + embeddings
    assert round(released / 1e6, 3) == millions[layers - 1]

    steps = [ups(taxonomy, row) for row in range(labels)]
    farthest = max(min(a[t] + b[t] for t in a.keys() & b.keys()) for a in steps for b in steps)
    dead = {
        "feed-forward net of the last layer": feed,
        "values and output of cross attention, and its norm": 2 * linear + norm,
        "extra classifiers": extra,
        "rows for padding": d + 1,
        "rows for a label's distance to itself and beyond the farthest": 20 - farthest,
        "biases of keys, over which softmax cancels them": (layers + 1) * d,
        "bias of the last norm, which is one for all keys": d,
    }
    config = transformers.BertConfig(vocab_size=30, num_hidden_layers=0, max_position_embeddings=8)
    model = model_on(transformers.BertModel(config, add_pooling_layer=False), taxonomy, layers=layers)
    assert model.structure.attention[0].heads == 12
    own = sum(weight.numel() for name, weight in model.named_parameters() if not name.startswith("text."))
    assert own == released - sum(dead.values())


@pytest.mark.parametrize("parents", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_ways_between_labels_are_the_shortest(seed: int, parents: int) -> None:
    taxonomy = random_taxonomy(seed, n=24, roots=1 + seed, most_parents=parents)
    assert parents == 1 or taxonomy.is_dag
    paths = find_paths(taxonomy.edge_array, len(taxonomy))
    steps = [ups(taxonomy, row) for row in range(len(taxonomy))]
    for i, one in enumerate(steps):
        for j, other in enumerate(steps):
            apart = {top: one[top] + other[top] for top in one.keys() & other.keys()}
            least, halves = min(apart.values()), way(paths, i, j)
            assert paths.distance[i, j] == least == len(halves[0]) + len(halves[1])
            tops = _above(taxonomy, i, halves[0]) & _above(taxonomy, j, halves[1])
            assert any(apart[top] == least for top in tops)
            if parents == 1:
                assert set(halves[0]) == one.keys() - other.keys() and set(halves[1]) == other.keys() - one.keys()


def _above(taxonomy: Taxonomy, row: int, half: list[int]) -> set[int]:
    """Where half a way from a label leads, if each of its steps leads to a parent."""
    if not half:
        return {row}
    assert half[0] == row and all(parent in taxonomy.parents(node) for node, parent in pairwise(half))
    return set(taxonomy.parents(half[-1]).tolist()) or {-1}


def test_ways_in_the_animals() -> None:
    taxonomy = animals_taxonomy()
    paths = find_paths(taxonomy.edge_array, len(taxonomy))
    bat, m, f, mo, fo, a, p = (taxonomy.row(name) for name in ("bat", "m", "f", "mo", "fo", "a", "p"))
    assert way(paths, bat, mo) == ([bat], [mo]) and way(paths, fo, bat) == ([fo], [bat])
    assert way(paths, m, f) == ([m], [f]), "a shared child is no way"
    assert way(paths, mo, a) == ([mo, m], []) and way(paths, mo, fo) == ([mo, m], [fo, f])
    assert paths.distance[p, bat] == 4 and way(paths, p, mo) == ([p], [mo, m, a])
    assert way(paths, f, f) == ([], [])


def graphormer(taxonomy: Taxonomy, width: int, heads: int, layers: int) -> Graphormer:
    """With weights large enough to matter."""
    torch.manual_seed(0)
    module = Graphormer(find_paths(taxonomy.edge_array, len(taxonomy)), width, heads, layers, 0.0)
    for weight in module.parameters():
        nn.init.normal_(weight, 0.0, 0.5)
    return module


def test_the_bias_is_a_number_for_the_distance_and_the_mean_of_the_way() -> None:
    taxonomy = random_taxonomy(1, n=12, roots=2)
    module = graphormer(taxonomy, 4, 2, 1)
    bias = module.bias()
    steps = [ups(taxonomy, row) for row in range(12)]
    for i, one in enumerate(steps):
        for j, other in enumerate(steps):
            between = sorted(one.keys() ^ other.keys())
            mean = module.between[between].mean() + module.far[len(between) - 1, 0] if between else torch.zeros(())
            assert torch.allclose(bias[i, j], mean, atol=1e-6)


def test_the_graphormer_is_a_transformer_with_a_bias() -> None:
    module = graphormer(animals_taxonomy(), 8, 2, 2)
    vectors, bias = torch.randn(7, 8), module.bias()
    layer = nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True)
    _set_attention(layer.self_attn, module.attention[0])
    weights = module.feed[0].state_dict()
    layer.linear1.load_state_dict({name: weights[f"net.0.{name}"] for name in ("weight", "bias")})
    layer.linear2.load_state_dict({name: weights[f"net.2.{name}"] for name in ("weight", "bias")})
    layer.norm1.load_state_dict(module.attention[0].norm.state_dict())  # type: ignore[union-attr]
    layer.norm2.load_state_dict(module.feed[0].norm.state_dict())  # type: ignore[union-attr]
    middle = layer((vectors + module.own)[None], src_mask=bias)
    last = nn.MultiheadAttention(8, 2, batch_first=True)
    _set_attention(last, module.attention[1])
    read, _ = last(middle, middle, middle, attn_mask=bias)
    expected = F.layer_norm(middle + read, (8,), eps=1e-12)[0] * module.attention[1].norm.weight  # type: ignore[union-attr]
    assert torch.allclose(module(vectors), expected, atol=1e-5)


@torch.no_grad()
def _set_attention(theirs: nn.MultiheadAttention, ours: Any) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, torch.zeros_like(ours.query.bias), ours.value.bias]))
    theirs.out_proj.load_state_dict(ours.out.state_dict())


@pytest.mark.parametrize(("width", "heads"), [(16, 8), (12, 6), (14, 7), (11, 1)])
def test_tokens_attend_to_labels_as_in_cross_attention(width: int, heads: int) -> None:
    torch.manual_seed(0)
    keeper = TokenKeeper(width, 0.02)
    nn.init.normal_(keeper.query.weight)
    nn.init.normal_(keeper.query.bias)
    nn.init.normal_(keeper.key.weight)
    theirs = nn.MultiheadAttention(width, heads, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight[: 2 * width] = torch.cat([keeper.query.weight, keeper.key.weight])
        theirs.in_proj_bias.zero_()[:width] = keeper.query.bias
    words, vectors = torch.randn(2, 5, width), torch.randn(9, width)
    keys = vectors.expand(2, -1, -1)
    _, expected = theirs(words, keys, keys, average_attn_weights=True)
    assert torch.allclose(keeper.attend(words, vectors), expected, atol=1e-5)


def test_keeping_is_0_or_1_with_the_gradient_of_the_score() -> None:
    torch.manual_seed(0)
    attention = torch.rand(4, 50, 20).softmax(dim=2).requires_grad_()
    labels, weights = torch.rand(4, 20) < 0.15, torch.randn(4, 50)
    torch.manual_seed(7)
    keep = keep_tokens(attention, labels[:, None], 0.05)
    torch.manual_seed(7)
    noise = -torch.empty_like(attention).exponential_().log()
    shares = (attention + noise).exp()
    soft = (shares * labels[:, None]).sum(dim=2) / shares.sum(dim=2)  # k_t as it is defined
    kept = soft > 0.05
    assert 0 < kept.sum() < kept.numel()
    assert torch.equal(keep, kept.float())
    (ours,) = torch.autograd.grad((keep * weights).sum(), attention)
    (expected,) = torch.autograd.grad((soft * weights)[kept].sum(), attention)
    assert expected.abs().max() > 1e-3 and torch.allclose(ours, expected, atol=1e-6)


def test_an_eighth_of_the_tokens_is_kept_in_wos() -> None:
    """About 12 % by the reference: attention near uniform over 141 labels, 2 of them gold, γ = 0.02."""
    torch.manual_seed(0)
    attention = torch.full((4, 10_000, 141), 1 / 141)
    labels = torch.zeros(4, 141)
    labels[:, [3, 77]] = 1
    assert keep_tokens(attention, labels[:, None], 0.02).mean() == pytest.approx(0.12, abs=0.01)


@pytest.fixture(params=ENCODERS)
def encoder(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return ENCODERS[request.param]().eval()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_second_view_that_keeps_all_is_the_first(encoder: Any, pooling: str) -> None:
    model = model_on(encoder, animals_taxonomy(), pooling, keep=0.0).eval()
    batch = some_batch(model.text.pad, 7)
    everything = torch.ones(3, 7)
    first = model.text(batch.ids, batch.mask)
    assert torch.allclose(model.second_view(batch, everything), first, atol=1e-6)
    wider = Batch(F.pad(batch.ids, (0, 5), value=model.text.pad), F.pad(batch.mask, (0, 5)))
    assert torch.allclose(model.second_view(wider, everything), first, atol=1e-6)
    assert torch.allclose(model.second_view(packed(batch), everything), first, atol=1e-6)


def test_labels_are_the_means_of_their_names_embeddings(encoder: Any) -> None:
    model = model_on(encoder, animals_taxonomy()).eval()
    for row, vector in enumerate(model.label_vectors()):
        alone = encoder.embeddings(torch.tensor([model.assets[TOKENS_FILE][row]]))[0]
        assert torch.allclose(vector, alone.mean(dim=0), atol=1e-6)


def test_a_dropped_word_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    bert: Any = ENCODERS["bert"]().eval()
    model = model_on(bert, animals_taxonomy()).eval()
    batch = some_batch(0, 7)
    keep = (torch.rand(3, 9) < 0.5).float()
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def kept(words: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
        seen.append((words, vectors, labels))
        return keep if words.dim() == 3 else F.pad(keep[batch.mask > 0], (0, len(words) - int(batch.mask.sum())))

    monkeypatch.setattr(model.keeper, "forward", kept)
    parts = bert.embeddings
    words = parts.word_embeddings.weight[batch.ids]
    places = parts.position_embeddings.weight[:9] + parts.token_type_embeddings.weight[0]
    states = parts.LayerNorm(words * keep[..., None] + places)
    states = bert.encoder(states, attention_mask=_attended(batch.mask)).last_hidden_state
    expected = model.text.pool(states, batch.mask)
    assert torch.allclose(model.second_view(batch, batch.labels), expected, atol=1e-6)
    assert torch.equal(seen[0][0], words), "tokens ask with their words alone"
    assert torch.equal(seen[0][1], model.structure(model.label_vectors()))
    assert torch.allclose(model.second_view(packed(batch), batch.labels), expected, atol=1e-6)
    tokens = int(batch.mask.sum())
    for padded, given in ((words, seen[1][0]), (seen[0][2], seen[1][2])):  # words, and the labels of their documents
        assert torch.equal(given[:tokens], padded[batch.mask > 0])
    assert not seen[1][2][tokens:].any()


def _attended(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(mask == 0, torch.finfo(torch.float32).min)[:, None, None]


def test_the_loss_is_that_of_both_views_and_their_contrast(tiny_encoder: Path) -> None:
    made = make_model("hgclr", {"contrast": 0.3, "temperature": 0.5}, tiny_encoder)
    model, batch = made.model.eval(), made.batch
    torch.manual_seed(4)
    output = model(batch)
    torch.manual_seed(4)
    text, kept = model.text(batch.ids, batch.mask), model.second_view(batch, batch.labels)
    assert not torch.allclose(text, kept, atol=1e-3)
    first, second = (
        F.binary_cross_entropy(model.head(vectors).sigmoid(), batch.labels.float()) for vectors in (text, kept)
    )
    contrast = 0.3 * nt_xent(model.view(text), model.view(kept), 0.5)
    assert torch.allclose(output.loss, first + second + contrast)
    assert list(output.parts) == ["labels", "second_view", "contrast"]


def test_without_labels_the_encoder_reads_once(tiny_encoder: Path) -> None:
    made = make_model("hgclr", {}, tiny_encoder)
    calls: list[Any] = []
    made.model.text.encoder.register_forward_hook(lambda *call: calls.append(call))
    made.model.structure.register_forward_hook(lambda *call: calls.append(call))
    made.model(Batch(made.batch.ids, made.batch.mask))
    assert len(calls) == 1
    assert made.model.eval()(made.batch).loss.isfinite()
    assert len(calls) == 4


def test_names_are_tokens_of_labels(tiny_encoder: Path) -> None:
    made = make_model("hgclr", {}, tiny_encoder)
    tokenizer = made.stored.tokenizer
    tokenizer.enable_truncation(5)
    long = " ".join(["milk"] * 100)
    taxonomy = Taxonomy([Label("1", "milk fur"), Label("2", long), Label("3", "wing", ("1",))])
    documents: Any = type("Some", (), {"labels": np.zeros((1, 3))})
    names = HGCLR.prepare(documents, taxonomy, made.model.config, tokenizer)[TOKENS_FILE]
    milk, fur, wing = (tokenizer.token_to_id(word) for word in ("milk", "fur", "wing"))
    assert names[0] == [2, milk, fur, 3] and names[2] == [2, wing, 3]
    assert names[1] == [2, *[milk] * 62, 3]
    assert len(tokenizer.encode(long).ids) == 102, "the tokenizer cuts nothing afterwards"


def test_one_label_and_documents_without_labels() -> None:
    model = model_on(ENCODERS["bert"](), Taxonomy([Label("only", "only")]))
    batch = some_batch(0, 1)
    output = model(Batch(batch.ids, batch.mask, torch.zeros(3, 1)))
    assert output.loss is not None and output.loss.isfinite()
    output.loss.backward()


def test_half_precision_outside_and_whole_inside() -> None:
    torch.manual_seed(0)
    model = model_on(ENCODERS["bert"](), animals_taxonomy(), layers=2)
    seen: list[Tensor] = []
    model.keeper.register_forward_hook(lambda module, given, keep: seen.extend([*given[:2], keep]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(some_batch(0, 7)).loss
    assert loss is not None and loss.dtype == torch.float32
    loss.backward()
    assert {tensor.dtype for tensor in seen} == {torch.float32}
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def test_an_encoder_that_cannot_be_read_is_refused() -> None:
    narrow = transformers.AlbertModel(transformers.AlbertConfig(**SMALL, embedding_size=8), add_pooling_layer=False)
    with pytest.raises(ConfigError, match="cannot read the embeddings of an encoder of type 'albert'"):
        model_on(narrow, animals_taxonomy())
    other = transformers.T5EncoderModel(
        transformers.T5Config(vocab_size=30, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )
    with pytest.raises(ConfigError, match="of type 't5'; choose one whose embeddings"):
        model_on(other, animals_taxonomy())


@pytest.mark.parametrize(
    ("setting", "value"),
    [("layers", 0), ("keep", -0.1), ("contrast", -1.0), ("temperature", 0.0)],
)
def test_settings_out_of_range_are_refused(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"model\.{setting} is {value}; expected (a number from|at least)"):
        HGCLRConfig(**{setting: value})  # type: ignore[arg-type]
