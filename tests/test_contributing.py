"""The model that CONTRIBUTING shows is a model: it goes through the conformance suite and trains by name."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hill.classifier import HillClassifier
from hill.data.documents import label_documents
from hill.models import MODELS
from hill.taxonomy import Taxonomy
from tests.conftest import ROOT, toy_documents
from tests.made import Made, make_model
from tests.models import test_models


@pytest.fixture
def prototypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and the line in MODELS, as the text says."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    module = ModuleType("hill.models.prototypes")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block, "prototypes.py", "exec"), module.__dict__)
    monkeypatch.setitem(MODELS, "prototypes", module.Prototypes)


@pytest.fixture
def made(prototypes: None, tiny_encoder: Path) -> Made:
    return make_model("prototypes", {}, tiny_encoder)


@pytest.mark.usefixtures("prototypes")
def test_it_conforms(made: Made, tiny_encoder: Path, tmp_path: Path) -> None:
    test_models.test_shapes_and_a_loss_exactly_when_labels_are_given(made)
    test_models.test_every_weight_gets_a_gradient(made, "prototypes")
    test_models.test_padding_and_company_change_no_score(made)
    test_models.test_it_overfits_one_batch(made)
    test_models.test_saved_and_loaded_it_says_the_same_to_the_bit(made, tmp_path)


@pytest.mark.usefixtures("prototypes")
def test_it_trains_by_name(animals: Taxonomy, tiny_encoder: Path) -> None:
    settings: dict[str, dict[str, Any]] = {
        "model": {"encoder": str(tiny_encoder), "sharpness": 20.0},
        "train": {"epochs": 2, "batch_size": 8},
    }
    texts, labels = toy_documents(40, seed=1)
    classifier = HillClassifier(animals, "prototypes", settings, preset=None).fit(texts, labels)
    documents = label_documents(*toy_documents(20, seed=2), animals)
    assert 0 < classifier.evaluate(documents)["micro_f1"] <= 1
    assert classifier.settings()["model"]["sharpness"] == 20.0
