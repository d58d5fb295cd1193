"""`hill check`: what it counts and what it finds."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hill.data.check import Check, check, print_check
from hill.data.readers import MAX_EXAMPLES
from hill.taxonomy import Label, Taxonomy


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def found_kinds(found: Check) -> dict[str, int]:
    return {problem["kind"]: problem["count"] for problem in found.to_dict()["problems"]}


def shown(found: Check) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_check(found, console)
    console.file.close()
    return console.export_text()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    train = [{"text": f"one two {i}", "labels": ["bat"], "id": i} for i in range(12)]
    train += [{"text": f"a b c d e {i}", "labels": ["p", "m"], "id": 100 + i} for i in range(4)]
    write(tmp_path / "train.jsonl", train)
    write(tmp_path / "dev.jsonl", [{"text": "new", "labels": ["a", "m", "mo"], "id": "d1"}])
    return tmp_path


def test_what_it_counts(good: Path, animals: Taxonomy) -> None:
    ticks: list[int] = []
    found = check(good, animals, ticks.append)
    document = found.to_dict()
    assert found.fit and document["fit"] and sum(ticks) == 17
    train, dev = document["splits"]["train"], document["splits"]["dev"]
    assert train["documents"] == 16 and dev["documents"] == 1
    assert train["ancestors_added"] == 12 * 3 + 4 and dev["ancestors_added"] == 0
    assert train["labels_per_document"] == (12 * 4 + 4 * 3) / 16
    assert train["levels"] == [16, 16, 12] and train["words"]["p50"] == 3 and train["words"]["p100"] == 6
    labels = document["labels"]
    assert (labels["total"], labels["used"]) == (7, 6)
    assert labels["unused"] == {"count": 1, "examples": ["fo"]}
    assert labels["rare"] == {"count": 3, "examples": ["mo", "fo", "p"]}
    assert [(bar["from"], bar["labels"]) for bar in labels["histogram"]][:3] == [(0, 2), (1, 1), (10, 4)]
    assert labels["levels"][2] == {"level": 3, "labels": 3, "used": 2, "documents": 13}
    assert found_kinds(found) == {"untrained-label": 1}


def test_what_people_see(good: Path, animals: Taxonomy) -> None:
    text = shown(check(good, animals))
    for part in ("DAG of 7 labels", "6 of 7 labels are used", "fit to train on", "10–99", "1–9"):
        assert part in text
    assert "1 never used: fo (Others)" in text
    assert "3 with fewer than 10 training documents: mo (Others), fo (Others), p (Plants)" in text
    assert "label 'mo' (Others) has no training document" in text


def test_it_never_stops_at_the_first_problem(tmp_path: Path, animals: Taxonomy) -> None:
    bad: list[Any] = [{"text": "x", "labels": ["Plant"]}, {"text": "", "labels": []}, {"labels": []}, ["x"]]
    bad += [{"text": 3, "labels": []}, {"text": "y", "labels": ["Others"]}, {"text": "z", "labels": []}]
    bad += [{"text": "twice  over", "labels": ["p"], "id": 1}, {"text": "twice over", "labels": ["p"], "id": 1}]
    write(tmp_path / "train.jsonl", bad)
    write(tmp_path / "test.jsonl", [{"text": " twice over", "labels": ["p"]}])
    found = check(tmp_path, animals)
    assert found_kinds(found) == {
        "unreadable": 1,
        "missing-field": 1,
        "wrong-type": 1,
        "empty-text": 1,
        "unknown-label": 1,
        "ambiguous-label": 1,
        "no-labels": 1,
        "duplicate-text": 1,
        "shared-text": 1,
        "duplicate-id": 1,
    }
    assert not found.fit
    text = shown(found)
    assert "train.jsonl:1: label 'Plant' is not in the taxonomy; did you mean 'Plants'?" in text
    assert "train.jsonl:9: the same text as line 8 of" in text
    assert "of the split train" in text and "not fit to train on" in text


def test_it_keeps_the_first_of_each_kind_and_counts_the_rest(tmp_path: Path, animals: Taxonomy) -> None:
    records = [{"text": f"text {i}", "labels": ["p", f"unknown {i}"]} for i in range(MAX_EXAMPLES + 7)]
    write(tmp_path / "train.jsonl", records)
    found = check(tmp_path, animals)
    problem = found.to_dict()["problems"][0]
    assert problem["count"] == MAX_EXAMPLES + 7 and [e["line"] for e in problem["examples"]] == list(
        range(1, MAX_EXAMPLES + 1)
    )
    assert "… and 7 more" in shown(found)


def test_counts_need_no_plural(tmp_path: Path, animals: Taxonomy) -> None:
    write(tmp_path / "train.jsonl", [{"text": "x", "labels": ["p"]}])
    write(tmp_path / "dev.jsonl", [])
    assert "error: splits without documents: 1\n" in shown(check(tmp_path, animals))


def test_splits_that_cannot_be_trained_on(tmp_path: Path, animals: Taxonomy) -> None:
    write(tmp_path / "test.jsonl", [{"text": "x", "labels": ["p"]}])
    write(tmp_path / "dev.jsonl", [])
    assert found_kinds(check(tmp_path, animals)) == {"no-train": 1, "no-documents": 1, "untrained-label": 1}
    single = tmp_path / "mine.jsonl"
    write(single, [{"text": "x", "labels": ["p"]}])
    assert check(single, animals).fit


def test_unknown_labels_in_bulk_stay_quick(tmp_path: Path) -> None:
    taxonomy = Taxonomy(Label(f"label number {i}", f"name of {i}") for i in range(3_000))
    write(tmp_path / "train.jsonl", [{"text": f"text {i}", "labels": [f"lable number {i}"]} for i in range(3_000)])
    found = check(tmp_path, taxonomy)
    problem = found.to_dict()["problems"][1]
    assert problem["count"] == 3_000 and "did you mean 'label number 0'?" in problem["examples"][0]["message"]


@pytest.mark.parametrize("known", [0, 4])
def test_a_taxonomy_of_other_data_is_one_sentence(tmp_path: Path, animals: Taxonomy, known: int) -> None:
    labels = ["p"] * known + [f"cs.{i}" for i in range(100)]
    write(tmp_path / "train.jsonl", [{"text": f"text {i}", "labels": [label]} for i, label in enumerate(labels)])
    found = check(tmp_path, animals)
    hint, unknown = found.to_dict()["problems"][:2]
    assert not found.fit and hint["kind"] == "wrong-taxonomy" and hint["severity"] == "error" and hint["count"] == 1
    share = f"only {known} of {100 + known}" if known else "none of 100"
    assert hint["examples"][0]["message"] == (
        f"{share} labels of the documents are in the taxonomy: the documents have labels such as 'cs.0', the taxonomy "
        "has labels such as 'a' (Animals); give the taxonomy of this data"
    )
    assert unknown["kind"] == "unknown-label" and unknown["count"] == 100 and len(unknown["examples"]) == 3
    assert "… and 97 more" in shown(found)


def test_some_unknown_labels_are_no_wrong_taxonomy(tmp_path: Path, animals: Taxonomy) -> None:
    labels = ["p"] * 6 + [f"cs.{i}" for i in range(94)]
    write(tmp_path / "train.jsonl", [{"text": f"text {i}", "labels": [label]} for i, label in enumerate(labels)])
    assert "wrong-taxonomy" not in found_kinds(check(tmp_path, animals))
