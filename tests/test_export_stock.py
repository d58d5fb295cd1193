"""Export to stock transformers models: the same scores from a class that knows nothing of this package."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from hill.classifier import HillClassifier
from hill.data.documents import label_documents
from hill.errors import ConfigError, HillError
from hill.export import stock
from hill.export.stock import HEADS, check_stock, export_transformers, stock_model
from hill.models import MODELS
from hill.nn import Transformer
from hill.settings import make
from hill.train.store import Stored
from tests.conftest import animals_taxonomy, toy_documents
from tests.test_export import fit, raw

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
NAMES = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
DISTILBERT = {NAMES.get(name, name): size for name, size in SIZES.items() if name != "intermediate_size"}
SPECIAL = {"distilbert": DISTILBERT, "electra": {**SIZES, "embedding_size": 16}, "mpnet": {**SIZES, "pad_token_id": 1}}


def tiny(kind: str, encoder: Path, pooling: str = "cls", name: str = "flat", **settings: Any) -> Stored:
    """A model of large logits on a tiny encoder of any type."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SPECIAL.get(kind, SIZES))
    text = Transformer(transformers.AutoModel.from_config(config), pooling, 0.1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder).backend_tokenizer
    taxonomy, model = animals_taxonomy(), MODELS[name]
    chosen = make(model.Config, settings, "model")
    documents = label_documents(["a"], [["p"]], taxonomy)
    built = model(text, taxonomy, chosen, model.prepare(documents, taxonomy, chosen, tokenizer)).eval()
    with torch.no_grad():
        for weight in built.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return Stored(name, built, taxonomy, tokenizer, {"model": {}})


@pytest.mark.parametrize("kind", HEADS)
def test_a_stock_model_gives_the_same_logits(kind: str, tiny_encoder: Path) -> None:
    stored = tiny(kind, tiny_encoder)
    check_stock(stored)
    ids = torch.randint(2, 40, (20, 12))
    mask = (torch.arange(12) < torch.randint(1, 13, (20, 1))).long()
    with torch.inference_mode():
        wanted = stored.model.head(stored.model.text(ids, mask))  # type: ignore[operator]
        found = stock_model(stored)(input_ids=ids, attention_mask=mask).logits
    assert (wanted - found).abs().max() < 2e-5 and wanted.std() > 0.5
    assert (wanted.sigmoid() - found.sigmoid()).abs().max() < stock.TOLERANCE


@pytest.fixture(scope="module")
def trained(tiny_encoder: Path) -> HillClassifier:
    return fit(tiny_encoder, "hill", {"pooling": "cls", "classifier": "text"}, epochs=6)


def test_the_folder_is_all_that_transformers_needs(trained: HillClassifier, tmp_path: Path) -> None:
    export_transformers(trained, tmp_path / "out" / "stock")
    texts = [*toy_documents(30, 9)[0], "wing feather sky beak nest egg " * 40]
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    pipe = transformers.pipeline(
        "text-classification",
        model=load(tmp_path / "out" / "stock"),
        tokenizer=transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "stock"),
        top_k=None,
    )
    found = [{item["label"]: item["score"] for item in each} for each in pipe(texts, truncation=True, batch_size=8)]
    wanted = raw(trained, texts)
    scores = np.array([[each[label] for label in trained.taxonomy.ids] for each in found])
    assert np.abs(scores - wanted).max() < 1e-5 and wanted.std() > 0.1
    config = json.loads((tmp_path / "out" / "stock" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification" and config["id2label"]["3"] == "bat"
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["stock"]
    with pytest.raises(ConfigError, match="stock' exists and is not empty; choose another folder"):
        export_transformers(trained, tmp_path / "out" / "stock")


def test_what_no_stock_model_holds(
    trained: HillClassifier, tiny_encoder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    for stored, message in (
        (tiny("bert", tiny_encoder, pooling="mean"), "is the mean over its tokens, but the stock model of type 'bert'"),
        (tiny("bert", tiny_encoder, name="hill"), "model 'hill' reads more than the text's vector.* --model flat"),
        (tiny("bert", tiny_encoder, name="hiagm", node_width=4), "model 'hiagm' reads more than the text's vector"),
        (tiny("bert", tiny_encoder, loss="softmax"), "model.loss is 'softmax', but a stock model scores each label"),
        (tiny("albert", tiny_encoder), "type 'albert' has no known stock head; expected one of bert, roberta"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_stock(stored)
    small = {"model": {"text": "rcnn", "word_width": 4, "gru_width": 4, "filters": 2}, "train": {"epochs": 1}}
    words = HillClassifier(animals_taxonomy(), "textrcnn", small).fit(*toy_documents(16, 0))
    with pytest.raises(ConfigError, match="reads texts with a RCNN; expected a transformer"):
        export_transformers(words, tmp_path / "x")
    monkeypatch.setattr(stock, "SMALL", 0.5)  # where tanh bends
    with pytest.raises(HillError, match=r"scores of the stock model are 0\.\d+ off"):
        export_transformers(trained, tmp_path / "x")
    assert not list(tmp_path.iterdir())
