"""Adapters: packed and padded batches give the same vectors and gradients, and merging changes neither."""

import sys
from typing import Any

import numpy as np
import pytest
import torch

from hill.data.batches import collate
from hill.encoders import RCNN, Transformer
from hill.encoders.lora import add_adapters, is_adapted, merge_adapters, merged_weights
from hill.errors import ConfigError
from tests.encoders.test_packed import KINDS, packed_batch, random_tokens, transformer

TOKENS, DOCUMENTS = random_tokens(1), [4, 0, 7, 2]


def adapted(kind: str, started: bool = True) -> Transformer:
    """An encoder whose adapters have been trained, unless they are only started."""
    pytest.importorskip("peft")
    text = transformer(kind).eval()
    add_adapters(text, rank=3)
    for name, weight in text.named_parameters():
        if started and "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    return text


def read(text: Transformer, packed: bool) -> torch.Tensor:
    batch = packed_batch(TOKENS, None, DOCUMENTS) if packed else collate(TOKENS, None, np.array(DOCUMENTS), 1)
    return text.read(batch)


def gradients(text: Transformer, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of all weights that get one."""
    factors = torch.randn(vectors.shape, generator=torch.manual_seed(2))
    (vectors * factors).sum().backward()
    found = {name: weight.grad for name, weight in text.named_parameters() if weight.grad is not None}
    text.zero_grad(set_to_none=True)
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float = 1e-5) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(one[name], other[name], atol=tolerance) for name in one)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_and_padded_batches_give_the_same_and_train_only_adapters(kind: str) -> None:
    text = adapted(kind)
    packed, padded = read(text, True), read(text, False)
    assert torch.allclose(packed, padded, atol=1e-5)
    assert not torch.allclose(packed, read(transformer(kind).eval(), True), atol=1e-2)
    one, other = gradients(text, packed), gradients(text, padded)
    assert same(one, other, 1e-4)
    layers = sum(map(is_adapted, text.modules()))
    linear = [each for each in transformer(kind).modules() if isinstance(each, torch.nn.Linear)]
    assert layers == len(linear) and len(one) == 2 * layers
    assert one.keys() == {name for name, weight in text.named_parameters() if weight.requires_grad}
    assert all("lora_" in name for name in one)


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_merging_leaves_the_plain_encoder_with_the_same_vectors(kind: str) -> None:
    text, plain = adapted(kind), transformer(kind)
    before, weights = read(text, True), merged_weights(text)
    assert text.state_dict().keys() != plain.state_dict().keys() == weights.keys()
    merge_adapters(text)
    assert text.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(value, weights[name]) for name, value in text.state_dict().items())
    assert not any(type(each).__module__.startswith("peft") for each in text.modules())
    assert not hasattr(text.encoder, "peft_config")
    assert torch.equal(read(text, True), before) and torch.allclose(read(text, False), before, atol=1e-5)
    merge_adapters(text)
    assert torch.equal(read(text, True), before)


def test_adapters_start_as_the_pretrained_encoder() -> None:
    assert torch.equal(read(adapted("bert", started=False), True), read(transformer("bert").eval(), True))
    text = transformer("bert")
    add_adapters(text, 0)
    assert not any(map(is_adapted, text.modules())) and all(weight.requires_grad for weight in text.parameters())


def test_bf16_is_close_to_fp32() -> None:
    text = adapted("bert")
    exact, vectors = gradients(text, read(text, True)), read(text, True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = read(text, True)
    assert 0 < (rough - vectors).abs().max() < 0.1
    for name, gradient in gradients(text, rough).items():
        assert gradient.dtype == torch.float32
        assert torch.allclose(gradient, exact[name], atol=0.1 * float(exact[name].abs().max()))


@pytest.mark.parametrize("packed", [True, False])
def test_recomputed_activations_give_the_same_gradients(packed: bool) -> None:
    text: Any = adapted("bert").train()
    for part in text.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    text.encoder.config.hidden_dropout_prob = text.encoder.config.attention_probs_dropout_prob = 0.0
    wanted = gradients(text, read(text, packed))
    text.recompute = packed
    if not packed:
        text.encoder.gradient_checkpointing_enable()
    assert same(gradients(text, read(text, packed)), wanted, 1e-5)


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"train.lora is 8, but the text encoder is not pretrained; set it to 0"):
        add_adapters(RCNN(10), 8)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"^train.lora needs peft, which is not .*; run: pip install 'peft>="):
        add_adapters(transformer("bert"), 8)
