"""Training with adapters: what is trained, checkpoints, and saved models that need no peft."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hill.classifier import HillClassifier
from hill.encoders.lora import is_adapted, merged_weights
from hill.errors import ConfigError
from hill.models.inference import read_tensors
from hill.taxonomy import Taxonomy
from hill.train import Epoch, Step, TrainConfig
from tests.conftest import ROOT, animals_taxonomy, toy_documents
from tests.train.test_trainer import classifier, same, toy_data, weights

pytest.importorskip("peft")
TEXTS = toy_documents(12, seed=5)[0]
LORA = {"lora": 2, "encoder_lr": 3e-2}


def train(model: HillClassifier, out: Path) -> list[Any]:
    return list(model.training(toy_data(model.taxonomy), out))


@pytest.fixture(scope="module")
def trained(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained without interruption."""
    torch.set_num_threads(1)
    model, out = classifier(animals_taxonomy(), tiny_encoder, **LORA), tmp_path_factory.mktemp("lora") / "model"
    train(model, out)
    model.save(out)
    return out


def test_a_saved_model_is_a_plain_model(tiny_encoder: Path, trained: Path, animals: Taxonomy, tmp_path: Path) -> None:
    before = read_tensors(tiny_encoder / "model.safetensors")
    after = {name.removeprefix("text.encoder."): value for name, value in weights(trained).items()}
    changed = {name for name, value in before.items() if name in after and not torch.equal(value, after[name])}
    linear = ("query", "key", "value", "dense")
    assert {name for name in after if name.endswith(tuple(f"{part}.weight" for part in linear))} >= changed
    assert sum(name.endswith("query.weight") for name in changed) == 2
    plain = classifier(animals, tiny_encoder, epochs=1, lora=0)
    train(plain, tmp_path / "plain")
    plain.save(tmp_path / "plain")
    assert weights(trained).keys() == weights(tmp_path / "plain").keys()
    program = f"""
import sys
sys.modules["peft"] = None
from hill.classifier import HillClassifier
print(HillClassifier.load({str(trained)!r}, device="cpu").predict({TEXTS!r}))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert found.stdout.strip() == str(HillClassifier.load(trained, device="cpu").predict(TEXTS))


@pytest.mark.parametrize("last", [1, 8, 18])
def test_a_stopped_training_resumes_to_the_same_weights(
    tiny_encoder: Path, trained: Path, animals: Taxonomy, tmp_path: Path, last: int
) -> None:
    torch.set_num_threads(1)
    for event in classifier(animals, tiny_encoder, **LORA).training(toy_data(animals), tmp_path / "out"):
        if isinstance(event, Step) and event.step == last:
            break
    (state, *_) = sorted((tmp_path / "out" / "checkpoints").glob("state-*"), reverse=True)
    names = read_tensors(state / "weights.safetensors")
    assert any("lora_A" in name for name in names)
    resumed = classifier(animals, tiny_encoder, **LORA)
    list(resumed.training(toy_data(animals), tmp_path / "out", resume=True))
    resumed.save(tmp_path / "out")
    assert same(weights(tmp_path / "out"), weights(trained))


def test_only_adapters_and_head_are_trained_and_the_best_epoch_is_restored(
    tiny_encoder: Path, animals: Taxonomy, tmp_path: Path
) -> None:
    high = LORA | {"encoder_lr": 0.1}  # the last epoch is not the best
    model = classifier(animals, tiny_encoder, epochs=3, warmup=0.0, schedule="constant", **high)
    best: dict[str, torch.Tensor] = {}
    last: dict[str, torch.Tensor] = {}
    improved = []
    for event in model.training(toy_data(animals), tmp_path / "run"):
        if isinstance(event, Step) and event.step == 1:
            optimiser = model._session.optimiser  # type: ignore[union-attr]
            names = {id(weight): name for name, weight in model.stored.model.named_parameters()}
            (adapters, rest, *_) = ([names[id(each)] for each in group["params"]] for group in optimiser.param_groups)
            assert adapters and all("lora_" in name for name in adapters)
            assert not any(name.startswith("text.") for name in rest)
        if isinstance(event, Epoch):
            improved.append(event.improved)
            last = {name: value.clone() for name, value in merged_weights(model.stored.model).items()}
            if event.improved:
                best = last
                model.save(tmp_path / "early")  # a model that is saved during training is plain too
    assert not improved[-1] and not same(best, last)
    assert not any(map(is_adapted, model.stored.model.modules()))
    model.save(tmp_path / "model")
    assert same(weights(tmp_path / "model"), best) and same(weights(tmp_path / "early"), best)
    loaded = HillClassifier.load(tmp_path / "model", device="cpu")
    assert (loaded.predict_proba(TEXTS) == model.predict_proba(TEXTS)).all()


def test_frozen_layers_keep_their_weights(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path) -> None:
    before = read_tensors(tiny_encoder / "model.safetensors")
    model = classifier(animals, tiny_encoder, freeze=1, epochs=1, **LORA)
    train(model, tmp_path / "run")
    after = {name.removeprefix("text.encoder."): value for name, value in model.stored.model.state_dict().items()}
    changed = {name for name, value in before.items() if name in after and not torch.equal(value, after[name])}
    assert changed and all(name.startswith("encoder.layer.1") for name in changed)


def test_a_warm_start_trains_new_adapters(tiny_encoder: Path, trained: Path, animals: Taxonomy, tmp_path: Path) -> None:
    still = classifier(animals, tiny_encoder, warm_start=str(trained), **LORA | {"encoder_lr": 0.0}, lr=0.0, epochs=1)
    train(still, tmp_path / "still")
    assert same(
        still.stored.model.text.state_dict(prefix="text."),
        {name: value for name, value in weights(trained).items() if name.startswith("text.")},
    )
    model = classifier(animals, tiny_encoder, warm_start=str(trained), **LORA, epochs=1)
    train(model, tmp_path / "run")
    model.save(tmp_path / "run")
    assert weights(tmp_path / "run").keys() == weights(trained).keys()


@pytest.mark.parametrize("model", ["hgclr", "linear", "textrcnn"])
def test_other_models(tiny_encoder: Path, animals: Taxonomy, tmp_path: Path, model: str) -> None:
    settings: Any = {"train": {"lora": 2, "epochs": 1}}
    settings |= {"model": {"encoder": str(tiny_encoder)}} if model == "hgclr" else {}
    made = HillClassifier(animals, model, settings, preset=None)
    if model == "hgclr":  # reads padded batches
        train(made, tmp_path)
        assert not any("lora" in name for name in made.stored.model.state_dict())
    else:
        with pytest.raises(ConfigError, match=r"train.lora is 2, but the text encoder is not pretrained"):
            train(made, tmp_path)
    with pytest.raises(ConfigError, match=r"train\.lora is -1"):
        TrainConfig(lora=-1)
