"""HillClassifier: fit, predict, evaluate, save and load."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hill.bulk import predict_file
from hill.classifier import HillClassifier
from hill.data import Documents, read_data
from hill.data.documents import label_documents
from hill.data.seen import text_hashes
from hill.data.tokens import tokenize
from hill.encoders.transformer import PACKAGED_ENCODERS, load_pretrained
from hill.errors import CheckpointError, ConfigError, DataError, HillError
from hill.io import CHECKSUMS
from hill.models.base import COUNTS_FILE
from hill.models.inference import Inference
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
    return HillClassifier(animals_taxonomy(), settings=settings, preset=None).fit(*toy_documents(96, 1))


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


def test_no_label_has_a_higher_probability_than_its_parents(fitted: HillClassifier) -> None:
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
    result = fitted.evaluate(tmp_path, include_seen=True)
    assert result["documents"] == 30 and result == fitted.evaluate(tmp_path / "test.jsonl", include_seen=True)
    assert {"micro_f1", "macro_f1", "hierarchical_f1", "violations", "levels", "threshold", "raw_violations"} <= set(
        result
    )


def test_evaluate_leaves_out_documents_of_the_training(fitted: HillClassifier, saved: Path) -> None:
    texts, labels = toy_documents(96, 1)  # the training documents of `fitted`
    new_texts, new_labels = toy_documents(30, 4)
    old = {" ".join(text.lower().split()) for text in texts}
    new = [i for i, text in enumerate(new_texts) if text not in old]
    documents = label_documents([*texts, *new_texts], labels + new_labels, fitted.taxonomy)
    unseen = label_documents([new_texts[i] for i in new], [new_labels[i] for i in new], fitted.taxonomy)
    for model in (fitted, HillClassifier.load(saved, device="cpu")):
        with pytest.warns(UserWarning, match=f"{126 - len(new)} of 126 documents .* so only the other {len(new)} are"):
            assert model.evaluate(documents) == model.evaluate(unseen)
        assert model.evaluate(documents, include_seen=True)["documents"] == 126
        only_seen = documents.take(np.arange(96))
        with pytest.warns(UserWarning, match="96 of 96 documents were in the training data; their scores say little"):
            assert model.evaluate(only_seen)["documents"] == 96
    model.seen = None  # as in a model of an earlier version
    assert model.evaluate(documents)["documents"] == 126


def test_models_of_earlier_versions_load_without_hashes(fitted: HillClassifier, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(saved, folder)
    sums = json.loads((folder / "files.json").read_text())
    del sums["seen.json"]
    (folder / "files.json").write_text(json.dumps(sums))
    (folder / "seen.json").unlink()
    loaded = HillClassifier.load(folder, device="cpu")
    assert loaded.seen is None and fitted.seen is not None
    loaded.save(folder)
    assert not (folder / "seen.json").exists()


def test_a_warm_start_also_remembers_the_documents_of_the_first_training(tmp_path: Path) -> None:
    first, second = toy_documents(40, 11), toy_documents(40, 12)
    HillClassifier(animals_taxonomy(), "linear", preset=None).fit(*first).save(tmp_path / "first")
    settings = {"train": {"warm_start": str(tmp_path / "first")}}
    warm = HillClassifier(animals_taxonomy(), "linear", settings, preset=None)
    hashes = warm._seen_texts(second[0])
    assert hashes.tolist() == sorted({*text_hashes([*first[0], *second[0]]).tolist()})


@pytest.mark.parametrize(("count", "share", "expected"), [(100, 0.1, 10), (100, 0.25, 25), (100, 0.0, 0), (4, 0.1, 0)])
def test_test_documents_are_held_out_of_a_file_without_splits(count: int, share: float, expected: int) -> None:
    taxonomy = animals_taxonomy()
    documents = label_documents([f"wing {i}" for i in range(count)], [["p"]] * count, taxonomy)
    classifier = HillClassifier(taxonomy, settings={"data": {"test_share": share}}, preset=None)
    data = classifier.hold_out_test({"data": documents})
    assert len(data.get("test", ())) == expected and len(data["data"]) == count - expected
    assert sorted(data["data"].texts + (data["test"].texts if expected else [])) == sorted(documents.texts)
    assert classifier.hold_out_test({"train": documents}) == {"train": documents}
    assert data["data"].texts == classifier.hold_out_test({"data": documents})["data"].texts


def test_a_saved_model_is_the_same_to_the_bit(fitted: HillClassifier, saved: Path) -> None:
    names = {str(file.relative_to(saved)) for file in saved.rglob("*") if file.is_file()}
    assert names == {
        "config.json", "taxonomy.json", "coding_tree.json", "label_counts.json", "tokenizer.json",
        "encoder/config.json", "model.safetensors", "thresholds.json", "metrics.json", "training.json", "seen.json",
        "files.json",
    }  # fmt: skip
    loaded = HillClassifier.load(saved, device="cpu")
    texts = toy_documents(25, 6)[0]
    assert np.array_equal(loaded.predict_proba(texts), fitted.predict_proba(texts))
    assert loaded.predict(texts) == fitted.predict(texts) and loaded.metrics == fitted.metrics
    assert loaded.settings() == fitted.settings() | {"train": fitted.settings()["train"] | {"device": "cpu"}}


def test_thresholds_by_label_are_saved(tiny_encoder: Path, tmp_path: Path) -> None:
    decode = {"strategy": "closure", "tune": "label"}
    settings = SETTINGS | {"model": SETTINGS["model"] | {"encoder": str(tiny_encoder)}, "decode": decode}
    model = HillClassifier(animals_taxonomy(), settings=settings, preset=None).fit(*toy_documents(60, 1))
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
    with pytest.raises(CheckpointError, match=r"is not a saved model: it has no config.json"):
        HillClassifier.load(tmp_path)
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"version": 99}))
    with pytest.raises(CheckpointError, match="version 99; expected 'hill-model', version 1"):
        HillClassifier.load(saved)


@pytest.mark.parametrize(("name", "value"), [("compile", False), ("compile", True), ("stages", "two")])
def test_removed_settings_of_training_do_not_matter_for_a_saved_model(
    fitted: HillClassifier, saved: Path, name: str, value: Any
) -> None:
    config = json.loads((saved / "config.json").read_text())
    config["settings"]["train"][name] = value
    (saved / "config.json").write_text(json.dumps(config))
    (saved / CHECKSUMS).unlink()
    loaded = HillClassifier.load(saved, device=fitted.train_config.device)
    assert loaded.settings() == fitted.settings()
    with pytest.raises(ConfigError, match=f"unknown setting of train '{name}'"):
        loaded.set_params(**{f"train__{name}": value})


def test_dev_is_scored_once_per_epoch_and_once_after_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scores, calls = Inference.scores, []

    def counted(self: Inference, tokens: Any, keep: int = 0) -> Any:
        calls.append(len(tokens))
        return scores(self, tokens, keep)

    monkeypatch.setattr(Inference, "scores", counted)
    settings: Any = {"data": {"dev_share": 0.25}, "decode": {"strategy": "closure", "tune": "global"}}
    kept = HillClassifier(animals_taxonomy(), "linear", settings, preset=None).fit(*toy_documents(40, 1))
    assert calls == [10, 10]  # the linear model has one epoch
    monkeypatch.setattr("hill.classifier.MAX_DEV_SCORES", 1)
    again = HillClassifier(animals_taxonomy(), "linear", settings, preset=None).fit(*toy_documents(40, 1))
    assert calls[2:] == [10, 10, 10]  # too large to keep
    assert again.metrics == kept.metrics and again.decode_config == kept.decode_config


def test_a_trained_classifier_has_no_optimiser(fitted: HillClassifier, saved: Path) -> None:
    for classifier in (fitted, HillClassifier.load(saved)):
        assert classifier._session is None and type(classifier._inference) is Inference


def test_a_foreign_taxonomy_is_refused(saved: Path) -> None:
    write_taxonomy(Taxonomy([Label("x", "X")]), saved / "taxonomy.json")
    with pytest.raises(CheckpointError, match=r"taxonomy.json' is damaged"):
        HillClassifier.load(saved)


def test_nothing_works_before_fit(animals: Taxonomy, tmp_path: Path) -> None:
    for call in (lambda c: c.predict(["x"]), lambda c: c.save(tmp_path)):
        with pytest.raises(ConfigError, match="has not learned anything yet"):
            call(HillClassifier(animals, preset=None))


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["x", "y"], [["p"]], "2 texts but 1 set of labels; expected one set per text"),
        (["x", " "], [["p"], ["p"]], r"texts\[1\] is empty; expected at least one word"),
        (["x", 3], [["p"], ["p"]], r"texts\[1\] is 3; expected a string"),
        ([None], [["p"]], r"texts\[0\] is None; expected a string"),
        ([b"x"], [["p"]], r"texts\[0\] is b'x'; expected a string"),
        (np.arange(2), [["p"], ["p"]], r"texts\[0\] is np.int64\(0\); expected a string"),
        (np.array([["x", "y"]]), [["p"]], r"texts is of type ndarray and shape \(1, 2\); expected a list"),
        (np.array("x"), [["p"]], r"texts is of type ndarray and shape \(\); expected a list"),
        (None, [["p"]], "texts is None; expected a list"),
        (3, [["p"]], "texts is 3; expected a list"),
        (b"x", [["p"]], "texts is b'x'; expected a list"),
        ("one text", [["p"]], "texts is 'one text' and labels are given; expected a list of texts"),
        (["x"], None, "labels is None; expected a list"),
        (["x"], 3, "labels is 3; expected a list"),
        (["x"], "p", "labels is 'p'; expected a list"),
        (["x"], [1], r"labels\[0\] is 1; expected a label or a list of labels"),
        (["x"], [None], r"labels\[0\] is None; expected a label"),
        (["x"], np.array([1.5]), r"labels\[0\] is np.float64\(1.5\); expected a label"),
        (["x"], [{"p": 1}], r"labels\[0\] is \{'p': 1\}; expected a label"),
        (["x"], [[1, 0]], r"labels\[0\] contains 1; .* need a matrix, such as numpy.array\(labels\)"),
        (["x"], [["p", None]], r"labels\[0\] contains None; expected labels"),
        (["x"], [[["a", "m"]]], r"labels\[0\] contains \['a', 'm'\]; expected labels"),
        (["x"], [["plnat"]], r"'plnat' is not in the taxonomy; did you mean 'Plants'\? \(labels\[0\]\)$"),
        (["x", "y"], ["p", "Others"], r"belongs to 2 labels; use an id .* \(labels\[1\]\)$"),
        ([], [], "there is nothing to train on"),
    ],
)
def test_what_cannot_be_learned_from(animals: Taxonomy, texts: Any, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        HillClassifier(animals, preset=None).fit(texts, labels)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "texts is None; expected a list"),
        ("one string", "texts is 'one string'; expected a list"),
        ([None], r"texts\[0\] is None; expected a string"),
        (["x", 1], r"texts\[1\] is 1; expected a string"),
        (np.ones((2, 2)), r"texts is of type ndarray and shape \(2, 2\); expected a list"),
        (["x", ""], r"texts\[1\] is empty; expected at least one word"),
        (["half \ud800"], r"texts\[0\] has half of a character"),
    ],
)
def test_invalid_texts(fitted: HillClassifier, texts: Any, message: str) -> None:
    for use in (fitted.predict, fitted.predict_proba, fitted.predict_paths, fitted.predictions):
        with pytest.raises(DataError, match=message):
            use(texts)
    assert fitted.predict([]) == [] and fitted.predict_proba([]).shape == (0, 7)


def test_invalid_evaluation_data(fitted: HillClassifier, tmp_path: Path) -> None:
    for data in (None, 3, ["a text"], b"test.jsonl"):
        with pytest.raises(DataError, match="expected documents, a data file or a folder; `score` takes texts"):
            fitted.evaluate(data)  # type: ignore[arg-type]
    others = Taxonomy([Label("x", "X")])
    (tmp_path / "test.jsonl").write_text('{"text": "wing", "labels": ["x"]}\n')
    with pytest.raises(
        DataError, match=r"labels of the shape \(1, 1\); expected \(1, 7\): read them with the taxonomy"
    ):
        fitted.evaluate(read_data(tmp_path, others)["test"])
    with pytest.raises(DataError, match=r"labels of the shape \(1, 1\); expected \(1, 7\)"):
        list(
            HillClassifier(animals_taxonomy(), preset=None).training(
                {"train": read_data(tmp_path, others)["test"]}, tmp_path
            )
        )
    (tmp_path / "test.jsonl").write_text("")
    (tmp_path / "train.jsonl").write_text('{"text": "wing", "labels": ["p"]}\n')
    with pytest.raises(DataError, match="there are no documents to evaluate"):
        fitted.evaluate(tmp_path)  # it was the training documents that were evaluated
    with pytest.raises(DataError, match="there are no documents to evaluate"):
        fitted.score([], [])


@pytest.mark.parametrize("data", [None, "data", {"train": ["text"]}])
def test_invalid_training_data(animals: Taxonomy, tmp_path: Path, data: Any) -> None:
    with pytest.raises(DataError, match="expected documents by split, as `read_data` returns them"):
        list(HillClassifier(animals, preset=None).training(data, tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"taxonomy": None}, "taxonomy is None; expected a Taxonomy or the path of a taxonomy file"),
        ({"taxonomy": ["a"]}, r"taxonomy is \['a'\]; expected a Taxonomy"),
        ({"taxonomy": "a\0"}, "expected a Taxonomy or the path of a taxonomy file"),
        ({"model": None}, "unknown model None; expected flat, hgclr"),
        ({"model": 3}, "unknown model 3; expected flat, hgclr"),
        ({"settings": "abc"}, "settings are 'abc'; expected a dictionary for each group"),
        ({"settings": []}, r"settings are \[\]; expected a dictionary for each group"),
        ({"settings": {"train": None}}, "expected a dictionary for each group, such as {'train': {'epochs': 3}}"),
        ({"settings": {1: {}, "a": {}}}, "unknown group of settings '1'"),
    ],
)
def test_parameters_of_the_wrong_kind(animals: Taxonomy, arguments: Any, message: str) -> None:
    classifier = HillClassifier(**{"taxonomy": animals, **arguments})
    uses = [lambda: classifier.fit(["x", "y"], ["p", "p"]), lambda: classifier.taxonomy]
    for use in uses if "taxonomy" in arguments else [*uses, classifier.settings]:
        with pytest.raises(HillError, match=message):
            use()
    if "settings" in arguments:
        with pytest.raises(ConfigError, match=message):
            classifier.set_params(train__epochs=3)


@pytest.mark.parametrize("device", ["meta", "mps", "xpu", "cuda:99", "cuda", "", "gpu", "cpu:x"])
def test_devices_that_cannot_be_used(fitted: HillClassifier, tmp_path: Path, device: str) -> None:
    """`meta` is in every torch, and loses what it is given; the others are missing on a machine with CPUs alone."""
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    message = f"the device is '{device}', which cannot be used here .*; expected auto, cpu, or cuda with a GPU"
    with pytest.raises(ConfigError, match=message):
        HillClassifier(animals_taxonomy(), "linear", {"train": {"device": device}}, preset=None).fit(
            *toy_documents(20, 1)
        )
    fitted.save(tmp_path / "model")
    with pytest.raises(ConfigError, match=message):
        HillClassifier.load(tmp_path / "model", device=device)


@pytest.mark.parametrize(
    "seed", [-1, 2**32, 10**22, 10**5_000], ids=["negative", "33 bits", "23 digits", "5,001 digits"]
)
def test_seeds_out_of_range(animals: Taxonomy, seed: int) -> None:
    with pytest.raises(ConfigError, match=r"train.seed is .*; expected a (finite )?number"):
        HillClassifier(animals, "linear", {"train": {"seed": seed}}, preset=None).fit(["x", "y"], ["p", "p"])


def test_the_smallest_and_the_largest_seed_can_be_used() -> None:
    for seed in (0, 2**32 - 1):
        HillClassifier(animals_taxonomy(), "linear", {"train": {"seed": seed}}, preset=None).fit(*toy_documents(20, 1))


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
    monkeypatch.setattr("hill.encoders.transformer.find_spec", lambda name: None)
    for name, encoder in PACKAGED_ENCODERS.items():
        with pytest.raises(ConfigError, match=f"install it with: {encoder.install}$"):
            load_pretrained(name)


def test_files_are_predicted_in_order(fitted: HillClassifier, tmp_path: Path) -> None:
    texts = toy_documents(50, 11)[0]
    source, target = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("id,text\n" + "".join(f"d{i},{text}\n" for i, text in enumerate(texts)))
    assert predict_file(fitted, source, target) == 50
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["id"] for line in lines] == [f"d{i}" for i in range(50)]
    assert [line["labels"] for line in lines] == fitted.predict(texts)
    source.write_text("id,text\na,\n")
    with pytest.raises(DataError, match=r"the text is empty; expected at least one word \(line 2"):
        predict_file(fitted, source, tmp_path / "other.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.jsonl"]


def test_a_training_that_is_refused_for_its_device_leaves_no_folder(tmp_path: Path) -> None:
    classifier = HillClassifier(animals_taxonomy(), settings={"train": {"device": "meta"}}, preset=None)
    with pytest.raises(ConfigError, match="the device is 'meta'"):
        classifier.fit(*toy_documents(20, 1), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_descriptions_of_labels_are_training_documents_unless_another_split_has_them(tmp_path: Path) -> None:
    told = "echo sounder with leather skin stretched wide"
    taxonomy = Taxonomy([Label("bat", "Bats", description=told), Label("dog", "Dogs"), Label("cat", "Cats")])
    texts, labels = ["paw and bone", "milk and whiskers", "bone", "milk"] * 5, ["dog", "cat", "dog", "cat"] * 5
    train, dev = (label_documents(each, labels[: len(each)], taxonomy) for each in (texts, texts[:4]))

    def counts(**splits: Documents) -> list[int]:
        """The training documents of each label."""
        classifier = HillClassifier(taxonomy, "linear", {"data": {"descriptions": True}}, preset=None)
        for _ in classifier.training({"train": train, **splits}, tmp_path / str(len(splits))):
            pass
        assert classifier.training_record["splits"]["train"]["documents"] == len(train)
        return list(classifier.stored.model.assets[COUNTS_FILE])

    held_out = label_documents([told.upper()], ["bat"], taxonomy)
    assert counts(dev=dev) == [2, 11, 11] and counts(dev=dev, test=held_out) == [1, 11, 11]
