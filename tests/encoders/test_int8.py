"""Prediction in int8: products are those of a slow quantisation by definition, and scores are close to fp32."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hill.classifier import HillClassifier
from hill.data.tokens import Tokens
from hill.encoders.int8 import LIMIT, REDUCED_LIMIT, Int8Matrix, input_limit, int8_linear, quantise
from hill.encoders.packed import int8_weights, use_weights
from hill.errors import HillError
from hill.models.inference import Inference
from hill.train import Session, TrainConfig
from tests.conftest import animals_taxonomy, toy_documents
from tests.encoders.test_lora import adapted
from tests.encoders.test_packed import CPU, KINDS, packed_batch, random_tokens, transformer
from tests.made import make_model

pytestmark = pytest.mark.skipif(not input_limit(), reason="this CPU has no fast products of 8-bit integers")


def slow_linear(inputs: Any, weight: Any, bias: Any, limit: int) -> Any:
    """Round each row to integers between -limit and limit, or ±127 for weights; multiply them; undo the scales."""
    found = np.zeros((len(inputs), len(weight)))
    for i, row in enumerate(inputs):
        for j, column in enumerate(weight):
            row_scale = max(abs(float(value)) for value in row) / limit or 1.0
            column_scale = max(abs(float(value)) for value in column) / 127 or 1.0
            products = [
                round(float(a) / row_scale) * round(float(b) / column_scale) for a, b in zip(row, column, strict=True)
            ]
            found[i, j] = sum(products) * row_scale * column_scale + (0.0 if bias is None else float(bias[j]))
    return found


@pytest.mark.parametrize("limit", [LIMIT, REDUCED_LIMIT])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_product_is_that_of_a_slow_quantisation(limit: int, has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if limit > input_limit():
        pytest.skip("this CPU has no VNNI")
    monkeypatch.setattr("hill.encoders.int8.input_limit", lambda: limit)
    draw = torch.manual_seed(0)
    inputs = torch.randn(9, 21, generator=draw) * torch.logspace(-6, 6, 9)[:, None]  # rows of very different sizes
    weight = torch.randn(13, 21, generator=draw) * torch.logspace(-3, 3, 13)[:, None]
    inputs[4], weight[5] = 0, 0
    bias = torch.randn(13, generator=draw) if has_bias else None
    found, wanted = int8_linear(inputs, quantise(weight), bias), slow_linear(inputs, weight, bias, limit)
    assert found.dtype == torch.float32 and np.allclose(found, wanted, rtol=1e-4, atol=1e-9)
    exact = torch.nn.functional.linear(inputs, weight, bias)
    assert not np.allclose(exact, wanted, rtol=1e-4, atol=1e-9)


def test_the_largest_values_do_not_overflow() -> None:
    for sign in (1, -1):
        found = int8_linear(torch.full((3, 512), 2.0), quantise(torch.full((5, 512), 0.5 * sign)), None)
        assert torch.allclose(found, torch.full((3, 5), 512.0 * sign))


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_every_architecture_are_close_to_fp32(kind: str) -> None:
    text, batch = transformer(kind, width=32).eval(), packed_batch(random_tokens(1), None, [4, 0, 7, 2])
    with torch.inference_mode():
        exact = text.read(batch)
        with use_weights(int8_weights(text.encoder)):
            rough = text.read(batch)
        assert torch.equal(text.read(batch), exact)
    assert rough.dtype == torch.float32 and (rough != exact).any()
    assert torch.cosine_similarity(rough, exact).min() > 0.998


def test_adapters_are_part_of_the_weights() -> None:
    text, batch = adapted("bert"), packed_batch(random_tokens(1), None, [4, 0, 7, 2])
    with torch.inference_mode(), use_weights(int8_weights(text.encoder)):
        rough = text.read(batch)
    assert torch.cosine_similarity(rough, text.read(batch)).min() > 0.999
    assert torch.cosine_similarity(rough, transformer("bert").eval().read(batch)).min() < 0.99


def test_a_document_has_the_same_vector_in_every_batch() -> None:
    text, tokens = transformer("bert").eval(), random_tokens(1)
    empty = Tokens(tokens.ids, np.concatenate([tokens.starts, tokens.starts[-1:]]))
    with torch.inference_mode(), use_weights(int8_weights(text.encoder)):
        together = text.read(packed_batch(empty, None, [*range(10)]))
        alone = torch.cat([text.read(packed_batch(empty, None, [n])) for n in range(10)])
    assert torch.allclose(together, alone, atol=1e-6) and not together[9].any()


def test_which_cpus_multiply_in_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_products_in_16_bits(inputs: torch.Tensor, weight: Int8Matrix, zero: int) -> torch.Tensor:
        pairs = (inputs.long() * LIMIT).view(len(inputs), -1, 2).sum(dim=2).clamp(max=2**15 - 1)
        return ((pairs.sum(dim=1) - zero * LIMIT * inputs.shape[1])[:, None] * weight.scales).float()

    def missing(*given: Any) -> torch.Tensor:
        raise AttributeError("'_OpNamespace' 'onednn' object has no attribute 'qlinear_pointwise'")

    find = input_limit.__wrapped__
    assert find() == input_limit() in (LIMIT, REDUCED_LIMIT)
    monkeypatch.setattr("hill.encoders.int8.int8_product", two_products_in_16_bits)
    assert find() == REDUCED_LIMIT
    monkeypatch.setattr("hill.encoders.int8.int8_product", missing)
    assert find() == 0
    monkeypatch.undo()
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: False)
    assert find() == 0


def all_scores(inference: Inference, tokens: Tokens) -> Any:
    return np.concatenate([values for _, values in inference.scores(tokens)])


def test_trained_wide_encoders_predict_in_int8_on_a_cpu(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the processor says is replaced."""
    tokens = Tokens(random_tokens(5).ids % 20, random_tokens(5).starts)
    model = make_model("hill", {}, tiny_encoder).model
    prepared: list[Any] = []
    spy = lambda encoder: prepared.append(int8_weights(encoder)) or prepared[-1]  # noqa: E731
    monkeypatch.setattr("hill.models.inference.int8_weights", spy)
    monkeypatch.setattr("hill.models.inference.cpu_has_bf16", lambda: False)
    rules = {(16, False, 127): True, (16, False, 63): True, (17, False, 127): False, (16, True, 127): False}
    for (least, has_amx, limit), expected in {**rules, (16, False, 0): False}.items():
        monkeypatch.setattr("hill.models.inference.MIN_WIDTH", least)
        monkeypatch.setattr("hill.models.inference.cpu_has_amx", lambda found=has_amx: found)
        monkeypatch.setattr("hill.models.inference.input_limit", lambda found=limit: found)
        assert Inference(model, CPU, trained=True).int8 == expected
    monkeypatch.setattr("hill.models.inference.input_limit", lambda: 127)
    assert not any(Inference(model, CPU, precision, True).int8 for precision in ("fp32", "bf16"))
    assert not Inference(model, CPU).int8 and not Session(model, TrainConfig(), CPU).inference.int8
    inference, exact = Inference(model, CPU, trained=True), all_scores(Inference(model, CPU), tokens)
    vectors = [torch.cat([each for _, each in one.vectors(tokens)]) for one in (inference, Inference(model, CPU))]
    assert torch.equal(*vectors) and not prepared  # vectors are for training
    found = [all_scores(inference, tokens) for _ in range(2)]
    assert len(prepared) == 1 and np.array_equal(*found)
    assert 0 < np.abs(found[0] - exact).max() < 0.02


def test_a_saved_model_has_the_scores_it_had_after_training(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hill.models.inference.MIN_WIDTH", 16)
    monkeypatch.setattr("hill.models.inference.cpu_has_amx", lambda: False)
    texts, labels = toy_documents(40, seed=0)
    settings = {"model": {"encoder": str(tiny_encoder)}, "train": {"epochs": 1, "device": "cpu"}}
    classifier = HillClassifier(animals_taxonomy(), settings=settings).fit(texts, labels)
    classifier.save(tmp_path / "model")
    loaded, exact = (HillClassifier.load(tmp_path / "model", "cpu", precision) for precision in ("", "fp32"))
    before, after, other = (next(each.scores(texts))[1] for each in (classifier, loaded, exact))
    assert np.array_equal(before, after) and 0 < np.abs(other - after).max() < 0.02
    with pytest.raises(HillError, match=r"unknown precision 'int4'"):
        HillClassifier.load(tmp_path / "model", "cpu", "int4")
