"""HillClassifier: what people hold."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hill import HillClassifier
from hill.data.tokens import tokenize
from hill.engines import predict_file
from hill.errors import CheckpointError, ConfigError, DataError
from hill.nn.pretrained import MINILM_INSTALL, load_pretrained
from hill.taxonomy import Label, Taxonomy, write_taxonomy
from tests.conftest import animals_taxonomy, toy_documents

SETTINGS: dict[str, dict[str, Any]] = {
    "model": {"height": 2, "dropout": 0.0, "readout_dropout": 0.1},
    "train": {"epochs": 12, "batch_size": 8, "encoder_lr": 5e-3, "lr": 5e-3, "head_start": "on", "head_epochs": 3},
    "data": {"max_length": 16},
}


@pytest.fixture(scope="module")
def fitted(tiny_encoder: Path) -> HillClassifier:
    settings = SETTINGS | {"model": SETTINGS["model"] | {"encoder": str(tiny_encoder)}}
    return HillClassifier(animals_taxonomy(), settings=settings).fit(*toy_documents(96, 1))


@pytest.fixture
def saved(fitted: HillClassifier, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "model")
    return tmp_path / "model"


def test_it_learns_and_predicts_consistent_sets(fitted: HillClassifier) -> None:
    texts, labels = toy_documents(40, 9)
    predicted = fitted.predict(texts)
    hits = sum(label[0] in found for label, found in zip(labels, predicted, strict=True))
    assert hits >= 34
    for found in predicted:
        rows = fitted.taxonomy.encode(found)
        assert fitted.taxonomy.closure(rows).tolist() == rows.tolist()
    assert fitted.metrics["micro_f1"] > 0.8 and fitted.metrics["violations"] == 0


def test_probabilities_never_rise_on_the_way_down(fitted: HillClassifier) -> None:
    scores = fitted.predict_proba(toy_documents(20, 3)[0])
    assert scores.shape == (20, 7) and scores.min() >= 0 and scores.max() <= 1
    for child, parent in fitted.taxonomy.edge_array:
        assert (scores[:, child] <= scores[:, parent]).all()


def test_paths_end_in_the_most_specific_labels(fitted: HillClassifier) -> None:
    texts = toy_documents(20, 5)[0]
    for labels, paths in zip(fitted.predict(texts), fitted.predict_paths(texts), strict=True):
        assert all(path[0] in ("a", "p") and set(path) <= set(labels) for path in paths)
        assert bool(paths) == bool(labels)


def test_evaluate_takes_folders_and_files(fitted: HillClassifier, tmp_path: Path) -> None:
    texts, labels = toy_documents(30, 4)
    records = [{"text": t, "labels": given} for t, given in zip(texts, labels, strict=True)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (tmp_path / "train.jsonl").write_text(json.dumps(records[0]) + "\n")
    result = fitted.evaluate(tmp_path)
    assert result["documents"] == 30 and result == fitted.evaluate(tmp_path / "test.jsonl")
    assert {"micro_f1", "macro_f1", "hierarchical_f1", "violations", "levels", "threshold", "raw_violations"} <= set(
        result
    )


def test_a_saved_model_is_the_same_to_the_bit(fitted: HillClassifier, saved: Path) -> None:
    names = {str(file.relative_to(saved)) for file in saved.rglob("*") if file.is_file()}
    assert names == {
        "config.json", "taxonomy.json", "coding_tree.json", "label_counts.json", "tokenizer.json",
        "encoder/config.json", "model.safetensors", "thresholds.json", "metrics.json", "training.json", "files.json",
    }  # fmt: skip
    loaded = HillClassifier.load(saved, device="cpu")
    texts = toy_documents(25, 6)[0]
    assert np.array_equal(loaded.predict_proba(texts), fitted.predict_proba(texts))
    assert loaded.predict(texts) == fitted.predict(texts) and loaded.metrics == fitted.metrics
    assert loaded.settings() == fitted.settings() | {"train": fitted.settings()["train"] | {"device": "cpu"}}


def test_thresholds_by_label_are_saved(tiny_encoder: Path, tmp_path: Path) -> None:
    decode = {"strategy": "closure", "tune": "label"}
    settings = SETTINGS | {"model": SETTINGS["model"] | {"encoder": str(tiny_encoder)}, "decode": decode}
    model = HillClassifier(animals_taxonomy(), settings=settings).fit(*toy_documents(60, 1))
    assert model.thresholds is not None and model.thresholds.shape == (7,)
    model.save(tmp_path / "model")
    texts = toy_documents(20, 5)[0]
    assert HillClassifier.load(tmp_path / "model").predict(texts) == model.predict(texts)


def test_order_and_batch_change_nothing(fitted: HillClassifier) -> None:
    texts = toy_documents(70, 8)[0]
    assert fitted.predict(texts[::-1]) == fitted.predict(texts)[::-1]


@pytest.mark.parametrize("name", ["model.safetensors", "taxonomy.json", "coding_tree.json", "tokenizer.json"])
def test_a_missing_or_damaged_file_is_named(saved: Path, name: str) -> None:
    whole = (saved / name).read_bytes()
    (saved / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=f"{name}' is damaged"):
        HillClassifier.load(saved)
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=f"lacks '{name}'"):
        HillClassifier.load(saved)


def test_folders_that_are_no_models(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        HillClassifier.load(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"is no saved model: it has no config.json"):
        HillClassifier.load(tmp_path)
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"version": 99}))
    with pytest.raises(CheckpointError, match="version 99; this program reads 'hill-model', version 1"):
        HillClassifier.load(saved)


def test_a_foreign_taxonomy_is_refused(saved: Path) -> None:
    write_taxonomy(Taxonomy([Label("x", "X")]), saved / "taxonomy.json")
    with pytest.raises(CheckpointError, match=r"taxonomy.json' is damaged"):
        HillClassifier.load(saved)


def test_nothing_works_before_fit(animals: Taxonomy, tmp_path: Path) -> None:
    for call in (lambda c: c.predict(["x"]), lambda c: c.save(tmp_path)):
        with pytest.raises(ConfigError, match="has not learned anything yet"):
            call(HillClassifier(animals))


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["x", "y"], [["p"]], "2 texts but 1 sets of labels"),
        (["x", " "], [["p"], ["p"]], "text 1 is empty"),
        (["x", 3], [["p"], ["p"]], "text 1 is 3; expected words"),
        (["x"], [["plnat"]], "label 'plnat' is not in the taxonomy"),
    ],
)
def test_what_cannot_be_learned_from(animals: Taxonomy, texts: Any, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        HillClassifier(animals).fit(texts, labels)


def test_a_text_of_a_million_characters_is_cut(fitted: HillClassifier) -> None:
    text = "wing feather sky beak nest egg " * 33_000
    assert len(text) > 1_000_000 and fitted.predict([text]) == fitted.predict([text[:2_000]])
    assert tokenize([text, "wing"], fitted.stored.tokenizer, fitted.max_length).truncated == 1


def test_encoders_that_cannot_be_loaded(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"encoder folder '\./none' does not exist"):
        load_pretrained("./none")
    shutil.copytree(tiny_encoder, tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no weights \(\*.safetensors\)"):
        load_pretrained(str(tmp_path / "copy"))
    (tmp_path / "copy" / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"has no config.json"):
        load_pretrained(str(tmp_path / "copy"))
    monkeypatch.setattr("hill.nn.pretrained.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"install it with: {MINILM_INSTALL}"):
        load_pretrained("minilm")


def test_files_are_predicted_in_order(fitted: HillClassifier, tmp_path: Path) -> None:
    texts = toy_documents(50, 11)[0]
    source, target = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("id,text\n" + "".join(f"d{i},{text}\n" for i, text in enumerate(texts)))
    assert predict_file(fitted, source, target) == 50
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["id"] for line in lines] == [f"d{i}" for i in range(50)]
    assert [line["labels"] for line in lines] == fitted.predict(texts)
    source.write_text("id,text\na,\n")
    with pytest.raises(DataError, match=r"the text is empty \(line 2"):
        predict_file(fitted, source, tmp_path / "other.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.jsonl"]
