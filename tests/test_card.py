"""Model cards: every number is counted again by hand, and unknown facts are left out."""

import json
import platform
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from hill import card as known_facts
from hill.card import ModelFacts, make_card, read_facts
from hill.classifier import HillClassifier
from hill.cli import use as hub
from hill.cli.common import app, main
from hill.data.documents import label_documents
from hill.settings import read_settings
from hill.taxonomy import Label, Taxonomy
from tests.conftest import animals_taxonomy, toy_documents

SHOWN = {
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "subset_accuracy": "documents with exactly the right labels",
    "violations": "documents with a label but not all of its ancestors",
}
SPLITS = {"train": (40, 1), "dev": (12, 2), "test": (20, 3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose test metrics were taken, as `hill train` leaves it; no document is a bat."""
    folder = tmp_path_factory.mktemp("card") / "model"
    data = {name: label_documents(*without_bats(*of), animals_taxonomy()) for name, of in SPLITS.items()}
    classifier = HillClassifier(animals_taxonomy(), "linear", {"decode": {"strategy": "closure"}}, preset=None)
    for _ in classifier.training(data, folder):
        pass
    classifier.metrics = classifier.evaluate(data["test"]) | {"split": "test"}
    classifier.save_pretrained(folder)
    return folder


def without_bats(count: int, seed: int) -> tuple[list[str], list[list[str]]]:
    pairs = [pair for pair in zip(*toy_documents(count, seed), strict=True) if pair[1] != ["bat"]]
    labels = [[*given, "p"] if place % 5 == 0 else given for place, (_, given) in enumerate(pairs)]
    return [text for text, _ in pairs], labels


def table(card: str, first: str) -> list[list[str]]:
    """The rows of the table whose head begins so."""
    lines = card[card.index(f"| {first} |") :].split("\n\n")[0].strip().split("\n")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def section(card: str, title: str) -> str:
    return card.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_splits_are_counted(folder: Path) -> None:
    record, taxonomy = json.loads((folder / "training.json").read_text()), animals_taxonomy()
    rows = {row[0]: row[1:] for row in table((folder / "README.md").read_text(), "split")}
    assert list(rows) == list(record["splits"]) == list(SPLITS) and record["held_out"] is False
    for name, of in SPLITS.items():
        sets = [set(taxonomy.closure(taxonomy.encode(labels)).tolist()) for labels in without_bats(*of)[1]]
        support = [sum(label in labels for labels in sets) for label in range(7)]
        sizes = [len(labels) for labels in sets]
        mean = sum(sizes) / len(sizes)
        assert record["splits"][name] == {
            "documents": len(sets),
            "labels_per_document": pytest.approx(mean),
            "fewest_labels": min(sizes),
            "most_labels": max(sizes),
            "support": support,
        }
        used = sum(count > 0 for count in support)
        assert rows[name] == [str(len(sets)), f"{mean:.2f}", str(min(sizes)), str(max(sizes)), str(used)]
    train = np.percentile(record["splits"]["train"]["support"], [0, 25, 50, 75, 100]).astype(int).tolist()
    assert "minimum {}, quartiles {}, {} and {}, maximum {}.".format(*train) in (folder / "README.md").read_text()
    assert "held out at random" not in (folder / "README.md").read_text()


def test_labels_and_levels(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    assert "7 labels on 3 levels; some labels have several parents." in card
    support = json.loads((folder / "training.json").read_text())["splits"]["train"]["support"]
    roots = "Animals, Plants" if support[0] >= support[6] else "Plants, Animals"
    rows = table(card, "level")
    assert rows[0] == ["1", "2", roots, "2"] and [row[:2] for row in rows] == [["1", "2"], ["2", "2"], ["3", "3"]]
    assert rows[2][3] == "2" and rows[2][2].split(", ")[-1] == "Bats", "the labels seen most come first"
    assert "1 label had no training documents; predictions of such labels are not reliable: `bat`" in card
    assert "2 labels had no training documents; predictions of such labels are not reliable: `a`, `b`\n" in make_card(
        facts(support=np.zeros(2, dtype=np.int64))
    )


def test_metrics_match_the_files(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    metrics, record = (json.loads((folder / name).read_text()) for name in ("metrics.json", "training.json"))
    assert "| % | test | dev |" in card and metrics["split"] == "test"
    rows = {row[0]: row[1:] for row in table(card, "%")}
    for name, shown in SHOWN.items():
        assert rows[shown] == [f"{100 * metrics[name]:.1f}", f"{100 * record['dev'][name]:.1f}"]
    levels = section(card, "Metrics").split("| level |")[1]
    for level in metrics["levels"]:
        assert f"| {level['level']} | {100 * level['micro_f1']:.1f} | {100 * level['macro_f1']:.1f} |" in levels
    assert f"Measured on {metrics['documents']} documents of test. Decoding: `closure`" in card
    assert "The dev set also selected" not in card
    (epoch,) = record["epochs"]
    assert f"| 1 | {100 * epoch['micro_f1']:.1f} |" in card.split("Dev after each epoch")[1]


def test_settings_can_be_used_for_training_again(folder: Path, tmp_path: Path) -> None:
    card, config = (folder / "README.md").read_text(), json.loads((folder / "config.json").read_text())
    (block,) = re.findall(r"```toml\n(.*?)```", card, re.DOTALL)
    found = tomllib.loads(block)
    assert found["model"].pop("name") == "linear" and found == config["settings"]
    (tmp_path / "run.toml").write_text(block)
    settings = read_settings(tmp_path / "run.toml", [], ("model", "train", "data", "decode"))
    assert (
        HillClassifier(animals_taxonomy(), settings["model"].pop("name"), settings, preset=None).settings()
        == config["settings"]
    )


def test_versions_are_those_in_use(folder: Path) -> None:
    versions = dict(table((folder / "README.md").read_text(), ""))
    assert versions["numpy"] == np.__version__ and set(versions) >= {"python", "hill-htc", "torch", "transformers"}


def test_the_front_matter_is_valid(folder: Path) -> None:
    card = ModelCard.load(folder / "README.md")
    assert card.data.to_dict() == yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    assert card.data.to_dict() == {
        "library_name": "hill",
        "pipeline_tag": "text-classification",
        "tags": ["hierarchical-text-classification", "multi-label-classification", "linear"],
        "metrics": ["f1"],
    }


def facts(model: dict[str, Any] | None = None, **known: Any) -> ModelFacts:
    settings: Any = {
        "model": {"text": "transformer", "encoder": "minilm", "adjust": 0.5, "loss": 'a "b" é'} | (model or {}),
        "train": {"plain": True},
        "data": {"max_length": 64},
        "decode": {"strategy": "closure", "threshold": 0.25, "tune": "global"},
    }
    taxonomy = Taxonomy([Label("a", "A | B"), Label("b", "Below", ("a",))])
    return ModelFacts(**({"name": "hill", "settings": settings, "taxonomy": taxonomy, "metrics": {}} | known))


@pytest.mark.parametrize(
    ("encoder", "base", "shown"),
    [
        ("minilm", "sentence-transformers/all-MiniLM-L6-v2", "minilm"),
        ("mpnet", "sentence-transformers/all-mpnet-base-v2", "mpnet"),
        ("bert-base-uncased", "bert-base-uncased", "bert-base-uncased"),
        ("google/electra-small", "google/electra-small", "google/electra-small"),
        ("/home/me/models/mine/", None, "./mine"),
        ("./mine", None, "./mine"),
        ("a/b/mine", None, "./mine"),
        ("C:\\me\\mine", None, "./mine"),
    ],
)
def test_encoders_have_a_name_but_no_path(encoder: str, base: str | None, shown: str) -> None:
    card = make_card(facts({"encoder": encoder}))
    assert ModelCard(card).data.to_dict().get("base_model") == base
    assert f"on the text encoder `{shown}`" in card and f'encoder = "{shown}"' in card and "/me" not in card
    words = make_card(facts({"encoder": "minilm", "text": "words"}))
    assert "base_model" not in words and "on the text encoder" not in words


def test_unknown_facts_are_left_out() -> None:
    card = make_card(facts())
    titles = re.findall(r"^## (.*)", card, re.MULTILINE)
    assert titles == ["How to use", "Labels", "Intended use and limits", "Settings"]
    assert not re.search(r"None|nan|\{|metrics:|licen|training doc", card)
    assert "| 1 | 1 | A \\| B |" in card and "every label has at most one parent" in card
    assert tomllib.loads(card.split("```toml")[1].split("```")[0])["model"]["loss"] == 'a "b" é'
    half = make_card(facts(metrics={"documents": 1234, "micro_f1": 0.5, "split": "dev"}))
    assert "Measured on 1,234 documents of dev. Decoding: `closure`, threshold 0.25." in half
    assert table(half, "%") == [["micro F1", "50.0"]] and "The dev set also selected the epoch" in half


@pytest.mark.parametrize(
    ("decode", "said"),
    [
        ({"strategy": "closure", "tune": "label"}, "`closure`, thresholds per label."),
        ({"strategy": "path", "tune": "global"}, "`path`."),
        ({"strategy": "raw", "tune": "off"}, "`raw`, threshold 0.5."),
    ],
)
def test_decoding_is_described(decode: dict[str, Any], said: str) -> None:
    known = facts(metrics={"documents": 3})
    known.settings["decode"] = {"threshold": 0.5, **decode}
    card = make_card(known)
    assert f"Decoding: {said}" in card and ("respect the taxonomy" in card) == (decode["strategy"] != "raw")
    noted = replace(known, training={"decoding": "60 dev documents: too few to tune <b>"})
    assert f"Decoding: {said} Tuning on 60 dev documents: too few to tune &lt;b&gt;.\n" in make_card(noted)
    known.settings["data"]["windows"] = 4
    assert "reads at most the first 64 tokens" in card and "reads at most" not in make_card(known)


def test_the_card_of_an_older_model_has_fewer_facts(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "taxonomy.json", "metrics.json", "label_counts.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["train"]["compile"] = False  # a setting that was removed
    (tmp_path / "config.json").write_text(json.dumps(config))
    lines: list[dict[str, Any]] = [{"step": 10, "epoch": 0, "loss": 1.0}, {"epoch": 1, "dev": {"micro_f1": 0.25}}]
    lines += [{"resumed": 10}, {"epoch": 1, "dev": {"micro_f1": 0.35}}, {"epoch": 2, "dev": {"micro_f1": 0.45}}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    card = make_card(read_facts(tmp_path))
    assert "compile" not in card
    assert table(card, "epoch") == [["1", "35.0"], ["2", "45.0"]] and "Training data" not in card
    assert "`bat`" in card and "| level | labels | for example | with training documents |" in card
    (tmp_path / "log.jsonl").unlink()
    (tmp_path / "label_counts.json").unlink()
    bare = make_card(read_facts(tmp_path))
    assert "Dev after each epoch" not in bare and "with training documents" not in bare and "Versions" not in bare


def test_a_held_out_dev_set_is_stated(tmp_path: Path) -> None:
    HillClassifier(animals_taxonomy(), "linear", preset=None).fit(*toy_documents(30, 1)).save_pretrained(
        tmp_path / "model"
    )
    card = (tmp_path / "model" / "README.md").read_text()
    assert "dev documents were held out at random from the training documents" in card and "| % | dev |" in card
    assert [row[:2] for row in table(card, "split")] == [["train", "27"], ["dev", "3"]]


def test_the_command_prints_the_card(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["card", str(folder)])
    assert result.exit_code == 0 and result.stdout == (folder / "README.md").read_text() and hub.card
    (tmp_path / "config.json").write_text('{"format": "hill-onnx"}')
    monkeypatch.setattr("sys.argv", ["hill", "card", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2


def test_versions_are_those_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_facts, "PACKAGES", ("numpy", "no-such-package"))
    assert known_facts.package_versions() == {"python": platform.python_version(), "numpy": np.__version__}
