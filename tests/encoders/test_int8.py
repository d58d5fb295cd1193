"""Prediction in int8: products are those of a slow quantisation by definition, and scores are close to fp32."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hill.classifier import HillClassifier
from hill.data.tokens import Tokens
from hill.encoders.int8 import LIMIT, PackedMatrix, cpu_has_int8, int8_linear, quantise
from hill.encoders.packed import GELU_MINIMUM, int8_weights, use_weights
from hill.errors import HillError
from hill.models.inference import Inference
from hill.train import Session, TrainConfig
from tests.conftest import animals_taxonomy, toy_documents
from tests.encoders.test_lora import adapted
from tests.encoders.test_packed import CPU, KINDS, packed_batch, random_tokens, transformer
from tests.made import make_model

pytestmark = pytest.mark.skipif(not cpu_has_int8(), reason="this CPU has no VNNI")


def slow_linear(inputs: Any, weight: Any, bias: Any, refined: int, least: float | None) -> Any:
    """Round each row to integers, multiply them, and undo the scales.

    Weights and inputs are between -127 and 127. Inputs with a minimum are that minimum plus 0 to 255 steps. For the
    last `refined` outputs, the rounding error of an input is rounded too, to 1/254 of a step.
    """
    found = np.zeros((len(inputs), len(weight)))
    for i, row in enumerate(inputs.double().numpy()):
        step = (np.abs(row).max() / 127 if least is None else (row.max() - least) / 255) or 1.0
        steps = (row if least is None else row - least) / step
        whole = np.round(steps)
        fine = whole + np.round((steps - whole) * 254) / 254
        for j, column in enumerate(weight.double().numpy()):
            scale = np.abs(column).max() / 127 or 1.0
            values = (fine if j >= len(weight) - refined else whole) * step + (least or 0.0)
            found[i, j] = (values * np.round(column / scale) * scale).sum() + (0.0 if bias is None else float(bias[j]))
    return found


@pytest.mark.parametrize("least", [None, GELU_MINIMUM])
@pytest.mark.parametrize("refined", [0, 5, 13])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_product_is_that_of_a_slow_quantisation(has_bias: bool, refined: int, least: float | None) -> None:
    draw = torch.manual_seed(0)
    inputs = torch.randn(9, 21, generator=draw) * torch.logspace(-4, 4, 9)[:, None]  # rows of very different sizes
    weight = torch.randn(13, 21, generator=draw) * torch.logspace(-3, 3, 13)[:, None]
    inputs[4], weight[5] = 0, 0
    if least is not None:
        inputs = torch.nn.functional.gelu(inputs)
    bias = torch.randn(13, generator=draw) if has_bias else None
    found = int8_linear(inputs, quantise(weight, refined, least), bias)
    wanted = torch.from_numpy(slow_linear(inputs, weight, bias, refined, least)).float()
    sizes = inputs.abs().amax(dim=1, keepdim=True).clamp(min=0.17) * weight.abs().sum(dim=1)
    assert found.dtype == torch.float32 and ((found - wanted).abs() <= 1e-5 * sizes + 1e-6).all()
    error = (torch.nn.functional.linear(inputs, weight, bias) - wanted).abs() / sizes.clamp(min=1e-9)
    assert refined == 13 or error[:, : 13 - refined].max() > 1e-4


def test_refined_rows_have_a_smaller_error() -> None:
    draw = torch.manual_seed(0)
    inputs, weight = (torch.randn(50, 64, generator=draw).round(decimals=3) for _ in range(2))
    weight = (weight * 50).round().clamp(-127, 127)
    weight[:, 0] = 127  # weights are integers already: only inputs are rounded
    errors = [(int8_linear(inputs, quantise(weight, rows), None) - inputs @ weight.T).std() for rows in (0, 50)]
    assert errors[1] < errors[0] / 100


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
    def two_products_in_16_bits(inputs: torch.Tensor, weight: PackedMatrix, zero: int) -> torch.Tensor:
        pairs = (inputs.long() * LIMIT).view(len(inputs), -1, 2).sum(dim=2).clamp(max=2**15 - 1)
        return ((pairs.sum(dim=1) - zero * LIMIT * inputs.shape[1])[:, None] * weight.scales).float()

    def missing(*given: Any) -> torch.Tensor:
        raise AttributeError("'_OpNamespace' 'onednn' object has no attribute 'qlinear_pointwise'")

    find = cpu_has_int8.__wrapped__
    assert find()
    for product in (two_products_in_16_bits, missing):
        monkeypatch.setattr("hill.encoders.int8.int8_product", product)
        assert not find()
    monkeypatch.undo()
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: False)
    assert not find()


def all_scores(inference: Inference, tokens: Tokens) -> Any:
    return np.concatenate([values for _, values in inference.scores(tokens)])


def test_trained_wide_encoders_predict_in_int8_on_a_cpu(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the processor says is replaced."""
    tokens = Tokens(random_tokens(5).ids % 20, random_tokens(5).starts)
    model = make_model("hill", {}, tiny_encoder).model
    prepared: list[Any] = []
    spy = lambda encoder: prepared.append(int8_weights(encoder)) or prepared[-1]  # noqa: E731
    monkeypatch.setattr("hill.models.inference.int8_weights", spy)
    rules = {(16, True, True): False, (16, False, False): False, (17, False, True): False, (16, False, True): True}
    for (least, has_bf16, has_int8), expected in rules.items():
        monkeypatch.setattr("hill.models.inference.MIN_WIDTH", least)
        monkeypatch.setattr("hill.models.inference.cpu_has_bf16", lambda found=has_bf16: found)
        monkeypatch.setattr("hill.models.inference.cpu_has_int8", lambda found=has_int8: found)
        assert Inference(model, CPU, trained=True).int8 == expected
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
    monkeypatch.setattr("hill.models.inference.cpu_has_bf16", lambda: False)
    texts, labels = toy_documents(40, seed=0)
    settings = {"model": {"encoder": str(tiny_encoder)}, "train": {"epochs": 1, "device": "cpu"}}
    classifier = HillClassifier(animals_taxonomy(), settings=settings, preset=None).fit(texts, labels)
    classifier.save(tmp_path / "model")
    loaded, exact = (HillClassifier.load(tmp_path / "model", "cpu", precision) for precision in ("", "fp32"))
    before, after, other = (next(each.scores(texts))[1] for each in (classifier, loaded, exact))
    assert np.array_equal(before, after) and 0 < np.abs(other - after).max() < 0.02
    with pytest.raises(HillError, match=r"unknown precision 'int4'"):
        HillClassifier.load(tmp_path / "model", "cpu", "int4")
