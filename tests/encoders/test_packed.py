"""Packed batches give the vectors, losses and scores of padded batches and of Hugging Face's own forward."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy.sparse import csr_array

import hill.encoders.transformer
from hill.data.batches import DeviceDocuments, collate, packed_size, padded_length, reading_order
from hill.data.tokens import Tokens
from hill.encoders import RCNN, Transformer
from hill.encoders.packed import ARCHITECTURES, TILE, _draw_kept, _DroppedAttention, _gelu, list_tiles
from hill.encoders.transformer import without_pooler
from hill.errors import ConfigError
from hill.models import MODELS
from hill.models.inference import Inference
from hill.train import Session, Split, TrainConfig
from hill.train.trainer import StepRunner, freeze_layers, make_steps
from hill.types import Batch, Packed
from tests.made import make_model

CPU = torch.device("cpu")
KINDS = {
    "bert": transformers.BertConfig,
    "roberta": transformers.RobertaConfig,
    "xlm-roberta": transformers.XLMRobertaConfig,
    "camembert": transformers.CamembertConfig,
    "electra": transformers.ElectraConfig,
    "mpnet": transformers.MPNetConfig,
    "distilbert": transformers.DistilBertConfig,
    "modernbert": transformers.ModernBertConfig,
}
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "electra": {"embedding_size": 8},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2}
    | {f"{name}_token_id": 2 for name in ("bos", "eos", "cls", "sep")},
}


def random_tokens(seed: int, count: int = 9, longest: int = 30) -> Tokens:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, longest + 1, count)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Tokens(draw.integers(5, 50, starts[-1]).astype(np.uint16), starts)


def random_labels(seed: int, count: int = 9) -> Any:
    return csr_array(np.random.default_rng(seed).random((count, 7)) < 0.3)


def packed_batch(tokens: Tokens, labels: Any, documents: list[int]) -> Packed:
    resident = DeviceDocuments(tokens, labels, 1, CPU)
    return resident.packed(torch.tensor(documents), resident.size(np.array(documents)))


def transformer(kind: str, pooling: str = "mean", width: int = 16, **settings: Any) -> Transformer:
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 2 * width}
    if kind == "distilbert":
        sizes = {"dim": width, "n_layers": 2, "n_heads": 2, "hidden_dim": 2 * width}
    given = {"vocab_size": 50, "max_position_embeddings": 98, "pad_token_id": 1, **sizes}
    config = KINDS[kind](**given | OWN_SETTINGS.get(kind, {}) | settings)
    encoder = without_pooler(transformers.AutoModel.from_config, config)
    for weight in encoder.parameters():  # large weights: positions, biases and windows must matter
        torch.nn.init.normal_(weight, std=0.3) if weight.dim() == 2 else weight.data.add_(0.1)
    return Transformer(encoder, pooling, 0.1)


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_have_the_vectors_and_gradients_of_padded_ones(kind: str, pooling: str) -> None:
    text, tokens, documents = transformer(kind, pooling).eval(), random_tokens(1), [4, 0, 7, 2]
    assert text.packs
    packed = text.read(packed_batch(tokens, None, documents))
    padded = text.read(collate(tokens, None, np.array(documents), 1))
    assert torch.allclose(packed, padded, atol=1e-6)
    weights = torch.randn(packed.shape, generator=torch.manual_seed(2))
    one = torch.autograd.grad((packed * weights).sum(), list(text.parameters()), allow_unused=True)
    other = torch.autograd.grad((padded * weights).sum(), list(text.parameters()), allow_unused=True)
    for a, b in zip(one, other, strict=True):
        assert (a is None and b is None) or torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("act", ["gelu_new", "gelu_pytorch_tanh"])
def test_other_activations_are_supported(act: str) -> None:
    text, tokens = transformer("bert", hidden_act=act).eval(), random_tokens(3)
    packed, padded = packed_batch(tokens, None, [1, 2]), collate(tokens, None, np.array([1, 2]), 1)
    assert torch.allclose(text.read(packed), text.read(padded), atol=1e-6)


def test_positions_start_after_the_padding_token() -> None:
    text, tokens = transformer("roberta", pad_token_id=0).eval(), random_tokens(3)
    packed, padded = packed_batch(tokens, None, [1, 2]), collate(tokens, None, np.array([1, 2]), 0)
    assert torch.allclose(text.read(packed), text.read(padded), atol=1e-6) and text.longest == 97


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_documents_without_tokens_are_read(pooling: str) -> None:
    text = transformer("bert", pooling).eval()
    for lengths in ([0], [3, 0], [0, 0, 4], [2, 0, 5]):
        tokens = Tokens(np.arange(5, 5 + sum(lengths)), np.concatenate([[0], np.cumsum(lengths)]))
        vectors = text.read(packed_batch(tokens, None, list(range(len(lengths)))))
        alone = [text.read(packed_batch(tokens, None, [n])) for n, length in enumerate(lengths) if length]
        assert vectors.isfinite().all() and len(vectors) == len(lengths)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(vectors[np.array(lengths) > 0], alone, strict=True))


def test_bf16_is_close_to_fp32_and_its_gradients_are_fp32() -> None:
    text, batch = transformer("bert").eval(), packed_batch(random_tokens(1), None, [4, 0, 7])
    weight = text.encoder.encoder.layer[0].intermediate.dense.weight
    vectors = text.read(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = text.read(batch)
    assert rough.dtype == torch.float32 and 0 < (rough - vectors).abs().max() < 0.05
    exact, found = (torch.autograd.grad(each.square().sum(), weight)[0] for each in (vectors, rough))
    assert found.dtype == torch.float32 and torch.allclose(found, exact, atol=0.05 * float(exact.abs().max()))


def test_dropout_masks_are_random_and_follow_from_the_seed() -> None:
    like, size = torch.empty(300, 401), 300 * 401
    for rate in (0.1, 0.5):
        kept, factor = _draw_kept(like, rate, np.random.SFC64(3))
        dropped = ~kept
        assert int(dropped.sum()) == pytest.approx(rate * size, abs=5 * (rate * (1 - rate) * size) ** 0.5)
        assert factor == pytest.approx(1 / (1 - rate), rel=1e-4)
        for shift in (1, 2, 3, 4, 401):  # four values come from one random number
            both = torch.stack([dropped.flatten()[:-shift], dropped.flatten()[shift:]]).float()
            assert abs(torch.corrcoef(both)[0, 1]) < 5 / size**0.5
        assert torch.equal(kept, _draw_kept(like, rate, np.random.SFC64(3))[0])
        assert not torch.equal(kept, _draw_kept(like, rate, np.random.SFC64(4))[0])
    assert not _draw_kept(like, 1.0, np.random.SFC64(3))[0].any()


@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_attention_with_dropout_is_attention_on_average(kind: str) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 5, 4, generator=draw, dtype=torch.float64)
    masks = {"bool": torch.ones(5, 5).tril().bool(), "float": torch.randn(2, 5, 5, generator=draw, dtype=torch.float64)}
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=masks.get(kind))
    found = [
        _DroppedAttention.apply(query, key, value, masks.get(kind), rate, np.random.SFC64(seed))
        for rate, seed in ((0.0, 0), *((0.5, seed) for seed in range(2_000)))
    ]
    assert torch.allclose(found[0], wanted)
    sample = torch.stack(found[1:])
    assert ((sample.mean(dim=0) - wanted).abs() <= 5 * sample.std(dim=0) / len(sample) ** 0.5 + 1e-12).all()
    assert sample.std(dim=0).mean() > 0.1
    given = [query, key, value, *([masks["float"]] if kind == "float" else [])]

    def attend(*parts: torch.Tensor) -> torch.Tensor:
        mask = parts[3] if kind == "float" else masks.get(kind)
        found: torch.Tensor = _DroppedAttention.apply(*parts[:3], mask, 0.3, np.random.SFC64(5))
        return found

    assert torch.autograd.gradcheck(attend, [part.clone().requires_grad_() for part in given])


@pytest.mark.parametrize("kind", ["bert", "mpnet", "modernbert"])
def test_recomputed_layers_drop_the_same_values(kind: str) -> None:
    rates = {"attention_dropout": 0.3} if kind == "modernbert" else {"attention_probs_dropout_prob": 0.3}
    text, batch, gradients = transformer(kind, **rates).train(), packed_batch(random_tokens(1), None, [4, 0, 7]), []
    for seed, text.recompute in ((1, False), (1, True), (2, True)):
        torch.manual_seed(seed)
        vectors = text.read(batch)
        gradients.append(torch.autograd.grad(vectors.square().sum(), list(text.encoder.parameters())[-3]))
    assert torch.allclose(*(found for (found,) in gradients[:2]), rtol=1e-4)
    assert not torch.allclose(gradients[0][0], gradients[2][0], rtol=0.1)


def test_memory_does_not_grow_with_the_sizes_of_batches() -> None:
    """With oneDNN, gradients of GELU in bf16 took 20 MiB for every number of tokens."""

    def resident_mib() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    def read(rows: int) -> None:
        values = torch.ones(rows, 1_536, dtype=torch.bfloat16, requires_grad=True)
        found = _gelu(values, "none")
        assert found.is_contiguous()
        found.backward(values.detach())

    read(3_060)
    before = resident_mib()
    for rows in range(3_000, 3_060):
        read(rows)
    assert resident_mib() - before < 200


def test_prediction_leaves_the_random_state_alone() -> None:
    text, before = transformer("bert").eval(), torch.get_rng_state()
    text.read(packed_batch(random_tokens(1), None, [4, 0, 7]))
    assert torch.equal(torch.get_rng_state(), before)


def test_encoders_that_cannot_read_packed_batches() -> None:
    assert not transformer("bert", hidden_act="relu").packs
    assert not RCNN(10).packs
    with pytest.raises(TypeError, match="RCNN reads no packed batches"):
        RCNN(10).read(packed_batch(random_tokens(0), None, [0]))


@pytest.mark.parametrize("seed", range(5))
def test_a_packed_batch_is_its_documents_one_after_the_other(seed: int) -> None:
    tokens, labels, documents = random_tokens(seed), random_labels(seed), [8, 1, 1, 5]
    batch = packed_batch(tokens, labels, documents)
    size = int(tokens.lengths[documents].sum())
    expected = [int(token) for document in documents for token in tokens[document]]
    assert batch.ids.tolist() == expected + [1] * (len(batch.ids) - size)
    assert batch.positions[:size].tolist() == [place for d in documents for place in range(len(tokens[d]))]
    assert batch.document[:size].tolist() == [i for i, d in enumerate(documents) for _ in tokens[d]]
    bounds = [0, *np.cumsum(tokens.lengths[documents]).tolist()]
    assert batch.bounds[:5].tolist() == bounds and int(batch.bounds[-1]) == len(batch.ids)
    assert (batch.bounds.diff() >= 0).all() and batch.bounds.diff().max() <= batch.longest
    assert batch.count == 4 and batch.labels is not None
    assert np.array_equal(batch.labels.numpy(), labels[documents].toarray())


def test_packed_sizes_are_few_and_waste_little() -> None:
    sizes = {packed_size(tokens) for tokens in range(1, 60_000)}
    assert len(sizes) <= 110 and all(size % 256 == 0 for size in sizes)
    assert all(0 <= packed_size(tokens) - tokens < 1_024 for tokens in range(1, 60_000, 7))
    assert packed_size(0) == 256


def test_collate_is_a_slow_loop() -> None:
    tokens, labels, documents = random_tokens(4), random_labels(4), np.array([3, 0, 8])
    batch = collate(tokens, labels, documents, 1)
    width = padded_length(int(tokens.lengths[documents].max()))
    for row, document in enumerate(documents):
        known = tokens[int(document)].tolist()
        assert batch.ids[row].tolist() == known + [1] * (width - len(known))
        assert batch.mask[row].tolist() == [1] * len(known) + [0] * (width - len(known))
    assert batch.labels is not None and np.array_equal(batch.labels.numpy(), labels[documents].toarray())


def test_reading_by_budget_reads_everything_once_longest_first() -> None:
    lengths = random_tokens(6, count=300).lengths
    batches = reading_order(lengths, 0, budget=100)
    order = np.concatenate(batches)
    assert sorted(order.tolist()) == list(range(300)) and (np.diff(lengths[order]) <= 0).all()
    assert max(int(lengths[batch].sum()) for batch in batches) <= 100 + lengths.max()
    assert len(batches) <= lengths.sum() / 100 + 1
    assert [len(batch) for batch in reading_order(np.array([7, 5, 3]), 0, budget=1)] == [1, 1, 1]


def session(encoder: Path, **train: Any) -> Session:
    """A session without dropout on the CPU; with `plain`, its batches are padded."""
    model = make_model("hill", {}, encoder).model
    model.text.encoder.config.hidden_dropout_prob = model.text.encoder.config.attention_probs_dropout_prob = 0.0
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return Session(model, TrainConfig(batch_size=4, **train), CPU)


def test_packed_steps_are_padded_steps(tiny_encoder: Path) -> None:
    tokens = Tokens(random_tokens(5).ids % 20, random_tokens(5).starts)
    data, group = Split(tokens, random_labels(5)), [np.array([0, 3, 5, 1]), np.array([7, 2, 8, 4])]
    losses = []
    for plain in (True, False):
        steps = make_steps(session(tiny_encoder, accumulate=2, plain=plain), data)
        steps.session.model.train()
        losses.append([steps.step(group).loss.item() for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][2] < losses[0][1] < losses[0][0]


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_cpu_reads_parts_without_padding_and_learns_the_same(
    tiny_encoder: Path, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hill.encoders.packed.CPU_TOKENS", 60)
    tokens = Tokens(random_tokens(5).ids % 20, random_tokens(5).starts)
    data, documents, read, found = Split(tokens, random_labels(5)), np.array([0, 3, 5, 1, 8]), [], []
    spied = hill.encoders.transformer.packed_states
    spy = lambda *given: read.append(given[1].ids.tolist()) or spied(*given)  # noqa: E731
    monkeypatch.setattr("hill.encoders.transformer.packed_states", spy)
    for train in ({"plain": True}, {"plain": True, "recompute": True}, {}, {"recompute": True}):
        read.clear()
        steps = make_steps(session(tiny_encoder, **train), data)
        text: Any = steps.session.model.train().text
        text.pooling = pooling
        found.append([steps.step([documents]).loss.item() for _ in range(3)])
        assert bool(read) != ("plain" in train)
    assert all(losses == pytest.approx(found[0], rel=1e-5) for losses in found)
    wanted = [tokens[n] for n in documents]  # of 21, 25, 16, 25 and 30 tokens
    assert read == [np.concatenate(part).tolist() for part in (wanted[:2], wanted[2:])] * 3


def test_scores_of_packed_documents_are_those_of_padded_ones(tiny_encoder: Path) -> None:
    tokens = Tokens(random_tokens(5).ids % 20, random_tokens(5).starts)
    found = []
    for plain in (True, False):
        inference, scores = session(tiny_encoder, plain=plain).inference, np.zeros((9, 7), dtype=np.float32)
        assert inference.packed != plain
        for documents, values in inference.scores(tokens):
            scores[documents] = values
        found.append(scores)
    assert np.allclose(found[0], found[1], atol=1e-6) and found[0].min() > 0


def test_steps_are_packed_unless_plain_and_graphed_on_a_gpu(
    tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Split(random_tokens(5), random_labels(5))
    assert type(make_steps(session(tiny_encoder, plain=True), data)) is StepRunner
    assert make_steps(session(tiny_encoder), data).resident is not None
    monkeypatch.setattr("hill.train.trainer.GraphedSteps", lambda *given: "graphed")
    monkeypatch.setattr("hill.train.trainer.StepRunner", lambda *given: "packed")
    monkeypatch.setattr(Inference, "packed", True)
    for train, expected in (({}, "graphed"), ({"accumulate": 2}, "packed"), ({"recompute": True}, "packed")):
        on_gpu = session(tiny_encoder, **train)
        on_gpu.device = torch.device("cuda")
        assert make_steps(on_gpu, data) == expected


def test_every_vector_model_reads_packed_batches(tiny_encoder: Path) -> None:
    assert {"flat", "hill"} <= set(MODELS)
    for name in ("flat", "hill"):
        made = make_model(name, {}, tiny_encoder)
        lengths = made.batch.mask.sum(dim=1).numpy()
        ids = made.batch.ids.numpy()[made.batch.mask.numpy() == 1]
        tokens = Tokens(ids, np.concatenate([[0], np.cumsum(lengths)]))
        packed = packed_batch(tokens, None, list(range(16)))
        model = made.model.eval()
        assert torch.allclose(model(packed).logits, model(Batch(made.batch.ids, made.batch.mask)).logits, atol=1e-5)


def test_tiles_cover_every_token_once() -> None:
    bounds = torch.tensor([0, 5, 135, 199, 199, 200, 256]).int()
    tiles = list_tiles(bounds, 256)
    found = [(document, first) for document, first in tiles.T.tolist() if document >= 0]
    expected = [
        (d, first) for d in range(6) for first in range(int(bounds[d]), int(bounds[d + 1]), TILE)
    ]  # fmt: skip
    assert found == expected and tiles.shape[1] >= len(expected)


def test_gradients_of_a_group_are_averaged(tiny_encoder: Path) -> None:
    tokens = Tokens(random_tokens(5).ids % 20, random_tokens(5).starts)
    steps = StepRunner(session(tiny_encoder), Split(tokens, random_labels(5)))
    steps.session.model.train()
    found = []
    for share in (1, 2):
        steps.backward(steps.batch(np.array([0, 3, 5, 1])), share)
        found.append(steps.session.model.head.bias.grad.clone())
        steps.session.model.zero_grad()
    assert torch.allclose(found[0], 2 * found[1]) and found[0].abs().sum() > 0


@pytest.mark.parametrize("kind", ["bert", "mpnet", "distilbert", "modernbert"])
def test_lower_layers_of_every_architecture_can_be_frozen(kind: str) -> None:
    text = transformer(kind)
    freeze_layers(text, 1)
    layers = text.encoder.get_submodule(ARCHITECTURES[kind].layers)
    assert not any(weight.requires_grad for weight in text.encoder.embeddings.parameters())
    assert [any(weight.requires_grad for weight in layer.parameters()) for layer in layers] == [False, True]
    text.encoder.config.model_type = "another"
    with pytest.raises(ConfigError, match=r"train.freeze is 1, but the encoder is of type another"):
        freeze_layers(text, 1)


def test_a_cpu_with_bf16_uses_it_for_wide_encoders(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the processor says is replaced: this machine may have bf16 or not."""
    tokens = Tokens(random_tokens(5).ids % 20, random_tokens(5).starts)
    model = make_model("hill", {}, tiny_encoder).model
    width, scores = model.text.width, {}
    for has_bf16, least, expected in ((True, width, True), (True, width + 1, False), (False, width, False)):
        monkeypatch.setattr("hill.models.inference.cpu_has_bf16", lambda found=has_bf16: found)
        monkeypatch.setattr("hill.models.inference.MIN_WIDTH", least)
        inference = Inference(model, CPU)
        assert inference.bf16 == expected
        scores[expected] = np.concatenate([values for _, values in inference.scores(tokens)])
        assert not Inference(model, CPU, "fp32").bf16 and Inference(model, CPU, "bf16").bf16
    assert 0 < np.abs(scores[True] - scores[False]).max() < 0.02
