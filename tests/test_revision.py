"""A taxonomy that changes: models for the new version, correspondence tables, and replay."""

import json
from collections import Counter
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hill import ConfigError, HillClassifier, Label, Taxonomy, TaxonomyError, write_taxonomy
from hill.data import Documents
from hill.data.documents import label_documents
from hill.decode.calibration import COARSE
from hill.revision import apply_taxonomy, recode
from hill.taxonomy.correspondence import allowed_labels, read_correspondence
from hill.train.warm_start import ALL, REPEATS, REPLAY, with_replay
from tests.command import hill
from tests.conftest import toy_documents

LABELS = [
    Label("m", "fur milk"),
    Label("mo", "paw tail", ("m",), "bone whiskers"),
    Label("bat", "cave echo", ("m",), "night"),
    Label("f", "wing feather"),
    Label("fo", "nest egg", ("f",), "beak"),
    Label("p", "leaf root"),
]
NEW = [*(label for label in LABELS if label.id != "p"), Label("new", "sky wing", ("f",), "feather sky")]


@pytest.fixture(scope="module")
def trained(tiny_encoder: Path) -> HillClassifier:
    settings = {
        "model": {
            "encoder": str(tiny_encoder),
            "name_weight": 10.0,
            "classifier": "text",
            "contrast": 0.0,
            "height": 2,
        },
        "train": {"epochs": 3, "batch_size": 8, "lr": 5e-3, "encoder_lr": 5e-3, "ensemble": True},
        "decode": {"tune": "label", "calibrate": "isotonic"},
    }
    return HillClassifier(Taxonomy(LABELS), "hill", settings, preset=None).fit(*toy_documents(80, 1))


def test_known_labels_keep_their_scores(trained: HillClassifier) -> None:
    changed, changes = apply_taxonomy(trained, Taxonomy(NEW))
    assert [len(changes.added), len(changes.removed)] == [1, 1]
    alone = HillClassifier(trained.taxonomy, "hill", trained.settings(), preset=None)
    alone.set_stored(trained.stored)
    texts = toy_documents(10, 5)[0]
    assert np.allclose(changed.score_matrix(texts)[:, :5], alone.score_matrix(texts)[:, :5], atol=1e-5)
    assert changed.stored.model.assets["label_counts.json"][-1] == 0
    assert all(np.isfinite(changed.predict_proba(texts)).ravel())


def test_even_odds_of_a_new_label_are_its_threshold(trained: HillClassifier) -> None:
    tuned = copy(trained)
    curve = np.linspace(0, 1, len(COARSE))
    calibrator = {"kind": "isotonic", "levels": [curve.tolist(), (curve**2).tolist()], "rows": [], "labels": []}
    document = {"strategy": "ancestors", "tune": "label", "labels": [0.5, 0.2, 0.4, 0.3, 0.6, 0.1]}
    tuned.own_decoding = {**trained.own_decoding, **document, "calibrator": calibrator}
    changed, _ = apply_taxonomy(tuned, Taxonomy(NEW))
    model: Any = changed.stored.model
    torch.manual_seed(0)
    model.unseen.prototypes.normal_()
    vectors = torch.randn(200, model.text.width)
    with torch.no_grad():
        odds = model.unseen(vectors)[:, 5].numpy()
        scores = model.classify(vectors).logits.sigmoid().numpy()
    compared, thresholds = changed.decoder().calibrated(scores)[:, 5], changed.thresholds
    assert thresholds is not None and thresholds[5] == pytest.approx(0.35)  # the mean of the others
    sure = np.abs(odds) > 1e-3
    assert ((compared > thresholds[5]) == (odds > 0))[sure].all()
    assert (odds > 0).sum() > 20 and (odds < 0).sum() > 20


def test_a_label_that_is_only_renamed_or_moved_is_not_new(trained: HillClassifier) -> None:
    same = [Label(label.id, f"{label.name} nest", label.parents, label.description) for label in LABELS]
    changed, changes = apply_taxonomy(trained, Taxonomy(same))
    assert not len(changes.added) and len(changes.renamed) == 6
    assert changed.predict(["cave echo"]) == changed.predict(["cave echo"])


def test_models_that_cannot_be_applied(trained: HillClassifier) -> None:
    linear = HillClassifier(Taxonomy(LABELS), "linear", preset=None).fit(*toy_documents(40, 1))
    with pytest.raises(ConfigError, match="this 'linear' model does not read the names of labels"):
        apply_taxonomy(linear, Taxonomy(NEW))
    with pytest.raises(ConfigError, match="have no label in common"):
        apply_taxonomy(trained, Taxonomy([Label("x", "something else")]))


def test_the_commands(trained: HillClassifier, tmp_path: Path) -> None:
    trained.save(tmp_path / "model")
    write_taxonomy(Taxonomy(NEW), tmp_path / "new.json")
    done = hill("taxonomy", "apply", tmp_path / "model", tmp_path / "new.json", "--out", tmp_path / "changed")
    assert done.returncode == 0 and "1 new, 1 removed, 0 moved, 0 renamed; 6 labels" in done.stdout, done.stderr
    assert "1 labels are new" in hill("card", tmp_path / "changed").stdout
    (tmp_path / "old.jsonl").write_text(
        '{"id": "a", "text": "nest egg", "labels": ["birds"]}\n{"text": "paw", "labels": "mo"}\n'
    )
    (tmp_path / "table.csv").write_text("old,new\nbirds,fo\nbirds,new\n")
    options = ["--table", tmp_path / "table.csv", "--out", tmp_path / "recoded.jsonl"]
    done = hill("taxonomy", "recode", tmp_path / "changed", tmp_path / "old.jsonl", *options)
    assert done.returncode == 0 and "for 1 of them" in done.stdout, done.stderr
    first, second = (json.loads(line) for line in (tmp_path / "recoded.jsonl").read_text().splitlines())
    assert first["labels"][0] in ("fo", "new") and second == {
        "id": "1",
        "text": "paw",
        "labels": ["mo"],
        "scores": {"mo": 1.0},
    }
    (tmp_path / "new.jsonl").write_text(
        '{"text": "sky wing", "labels": ["new"]}\n{"text": "sky sky", "labels": ["new"]}\n'
    )
    lines = [{"text": f"nest egg {i}", "labels": ["fo"]} for i in range(20)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    more = [tmp_path / "train.jsonl", "--taxonomy", tmp_path / "new.json", "--out", tmp_path / "more", "--add"]
    options = ["--warm-start", tmp_path / "changed", "--set", "train.epochs=1", "--no-ensemble"]
    done = hill("train", *more, tmp_path / "new.jsonl", *options)
    assert done.returncode == 0, done.stderr
    support = HillClassifier.load(tmp_path / "more").stored.model.assets["label_counts.json"]
    # each document counts once; a tenth of the old is held out; the name "nest egg" is one more
    assert [support[row] for row in (4, 5)] == [18 + 1, 2]
    new_taxonomy = ["--taxonomy", tmp_path / "new.json", "--out", tmp_path / "z"]
    removed = hill("train", tmp_path / "old.jsonl", *new_taxonomy, *options)
    assert removed.returncode == 2 and "'birds' is not in the taxonomy" in removed.stderr
    assert "If the label was removed or split: hill taxonomy recode" in removed.stderr
    (tmp_path / "none.jsonl").write_text("")
    added = hill("train", tmp_path / "train.jsonl", *new_taxonomy, *options, "--add", tmp_path / "none.jsonl")
    assert added.returncode == 2 and "which has no documents; give new ones" in added.stderr
    begun = hill("start", tmp_path / "new.json", "--texts", tmp_path / "none.jsonl", "--out", tmp_path / "z")
    assert begun.returncode == 2 and "has no texts; give some like those to classify" in begun.stderr
    wrong = hill(
        "train", tmp_path / "old.jsonl", "--taxonomy", tmp_path / "new.json", "--out", tmp_path / "x", "--add", "y"
    )
    assert wrong.returncode == 2 and "there is no --warm-start" in wrong.stderr


def test_recode_on_the_command_line(trained: HillClassifier, tmp_path: Path) -> None:
    trained.save(tmp_path / "model")
    old = [Label("old", "Old"), Label("gone", "Gone", ("old",)), Label("split", "Split", ("old",)), *LABELS]
    write_taxonomy(Taxonomy(old), tmp_path / "old.json")
    (tmp_path / "old.csv").write_text("text,labels\nnest egg,old|split|mo\npaw,mo|m\nbark,Old > Split;mo\nleaf,gone\n")
    (tmp_path / "table.csv").write_text("new;old\nmo;split\n;gone\n;old\n")
    options = ["--table", tmp_path / "table.csv", "--out"]
    common = ["taxonomy", "recode", tmp_path / "model", tmp_path / "old.csv", *options]
    done = hill(*common, tmp_path / "a.jsonl", "--old", tmp_path / "old.json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line)["labels"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert found == [["mo"], ["mo"], ["mo"], []], "once, without ancestors and removed labels"
    assert "documents without a label, since theirs were removed: 1" in done.stderr
    for out, message in (("a.jsonl", "which exists"), ("a.csv", "expected a .jsonl file")):
        assert message in hill(*common, tmp_path / out).stderr
    by_name = hill(*common, tmp_path / "b.jsonl")
    assert by_name.returncode == 2
    assert "'Old > Split' is neither in the correspondence table nor in the new taxonomy" in by_name.stderr
    assert "(line 4 of" in by_name.stderr


def test_recoding_takes_the_best_candidate(trained: HillClassifier) -> None:
    scores = trained.predict_proba(["nest egg beak"])[0]
    best = max((1, 2), key=lambda row: scores[row])
    found = recode(trained, ["nest egg beak", "x"], [[(1, 2), (0,), (3,)], [(3,), (3,)]])
    assert found[0][0] == (LABELS[best].id, pytest.approx(scores[best], abs=1e-5))
    assert found[0][1:] == [("f", 1.0)] and found[1] == [("f", 1.0)], "without the ancestor m, and f once"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("old,new\na,nothing\n", "label 'nothing' is not in the new taxonomy \\(line 2 of"),
        ("a\n", "line 1 of .* has one column"),
        (None, "cannot be read"),
    ],
)
def test_wrong_tables(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "table.csv").write_text(content)
    with pytest.raises(TaxonomyError, match=message):
        read_correspondence(tmp_path / "table.csv", Taxonomy(LABELS))


def test_labels_without_a_row_stay_or_are_an_error() -> None:
    taxonomy = Taxonomy(LABELS)
    assert allowed_labels(["x", "p"], {"x": (1, 2)}, taxonomy) == [(1, 2), (5,)]
    with pytest.raises(TaxonomyError, match="label 'y' is neither in the correspondence table nor"):
        allowed_labels(["y"], {}, taxonomy)


def documents_of(texts: list[str], label: str) -> Documents:
    return label_documents(texts, [label] * len(texts), Taxonomy(LABELS))


def test_replay_mixes_new_documents_with_old_ones() -> None:
    old, new = documents_of([f"old {i}" for i in range(300)], "p"), documents_of(["new 1", "new 2"], "fo")
    mixed = with_replay({"train": old, "dev": old}, new, 0.1, seed=3)
    counts = Counter(mixed["train"].texts)
    assert [counts.pop(text) for text in new.texts] == [REPEATS, REPEATS]
    assert set(counts.values()) == {1} and len(counts) == 2 * REPEATS * REPLAY < len(old)  # old ones are not repeated
    assert mixed["dev"] is old and mixed[ALL].texts == [*old.texts, *new.texts]
    assert mixed["train"].labels.sum() == 2 * REPEATS * (2 + REPLAY)  # fo and f, p
    with pytest.raises(ValueError, match="no train split to replay"):
        with_replay({"dev": old}, new, 0.1, seed=3)


def test_few_old_documents_are_repeated_but_not_more_often_than_new_ones() -> None:
    old, new = documents_of([f"old {i}" for i in range(30)], "p"), documents_of(["new 1", "new 2"], "fo")
    counts = Counter(with_replay({"train": old, "dev": old}, new, 0.1, seed=3)["train"].texts)
    assert {counts[text] for text in old.texts} == {2, 3}  # 80 of 30
    counts = Counter(with_replay({"train": new, "dev": old}, old, 0.1, seed=3)["train"].texts)
    assert set(counts.values()) == {REPEATS} and len(counts) == 32


def test_replay_without_dev_holds_out_old_and_new_documents() -> None:
    old, new = documents_of([f"old {i}" for i in range(30)], "p"), documents_of([f"new {i}" for i in range(10)], "fo")
    mixed = with_replay({"data": old}, new, 0.1, seed=3)
    held_out = set(mixed["dev"].texts)
    assert len(held_out & set(old.texts)) == 3 and len(held_out & set(new.texts)) == 1
    assert not held_out & set(mixed["train"].texts) and not held_out & set(mixed[ALL].texts)
    assert len(mixed[ALL]) == 36
    one = with_replay({"data": old}, documents_of(["new"], "fo"), 0.1, seed=3)
    assert "new" not in one["dev"].texts  # too few to hold one out
