"""Label errors: by definition, planted ones are found, and the command shows them as table, JSON and page."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from hill import DataError, write_taxonomy
from hill.cold_start import encode_texts
from hill.data.documents import label_documents
from hill.label_errors import (
    LOW,
    MIN_SCORE,
    ErrorReport,
    assign_folds,
    find_errors,
    most_specific,
    path_scores,
    rank_errors,
)
from tests.command import hill
from tests.conftest import animals_taxonomy, toy_documents

TAXONOMY = animals_taxonomy()
LEAVES = ["bat", "mo", "fo", "p"]


def slow_path_score(scores: dict[str, float], label: str) -> float:
    parents = TAXONOMY[TAXONOMY.row(label)].parents
    above = max((slow_path_score(scores, parent) ** 0.5 for parent in parents), default=1.0)
    return max(scores[label], MIN_SCORE) * above


@given(st.integers(0, 10_000))
def test_errors_are_those_of_the_definition(seed: int) -> None:
    draw = np.random.default_rng(seed)
    sets = [[str(x) for x in draw.choice(LEAVES, size=int(draw.integers(1, 3)), replace=False)] for _ in range(8)]
    documents = label_documents([f"text {i}" for i in range(8)], sets, TAXONOMY)
    scores = draw.random((8, len(TAXONOMY)))
    paths = [
        {leaf: slow_path_score(dict(zip(TAXONOMY.ids, row, strict=True)), leaf) for leaf in LEAVES} for row in scores
    ]
    used = {leaf for each in sets for leaf in each}
    others = [sum(path[leaf] for leaf in used - set(own)) for path, own in zip(paths, sets, strict=True)]
    shares = [
        {leaf: path[leaf] / (path[leaf] + rest) for leaf in own}
        for path, own, rest in zip(paths, sets, others, strict=True)
    ]
    mean = {leaf: np.mean([share[leaf] for share in shares if leaf in share]) for leaf in used}
    expected = []
    for i, own in enumerate(sets):
        wrong = min(own, key=lambda leaf: shares[i][leaf])
        new = max(used - set(own), key=lambda leaf: paths[i][leaf], default=None)
        if new and paths[i][new] > paths[i][wrong] and shares[i][wrong] < LOW * mean[wrong]:
            expected.append((i, wrong, new, 1 - shares[i][wrong]))
    expected.sort(key=lambda error: -error[3])
    found = rank_errors(scores, documents.labels, TAXONOMY)
    assert [(e.index, e.wrong, e.proposed) for e in found] == [error[:3] for error in expected]
    assert [e.score for e in found] == pytest.approx([error[3] for error in expected])
    assert all(set(e.labels) == set(sets[e.index]) - {e.wrong} | {e.proposed} for e in found)


def test_path_scores_and_most_specific_labels() -> None:
    scores = np.array([[0.81, 0.64, 0.25, 0.5, 0.1, 0.1, 0.3]])  # a m f bat mo fo p
    paths = path_scores(scores, TAXONOMY)[0]
    assert paths[1] == pytest.approx(0.64 * 0.9) and paths[3] == pytest.approx(0.5 * (0.64 * 0.9) ** 0.5)
    given_labels = np.array([[True, True, True, True, False, False, False], [True] + [False] * 6])
    assert most_specific(given_labels, TAXONOMY).nonzero()[1].tolist() == [3, 0]


def planted() -> tuple[list[str], list[list[str]]]:
    """Documents of which two in 60 have a wrong label."""
    texts, labels = toy_documents(60, 3)
    for index in (5, 17):
        labels[index] = ["p"] if labels[index] != ["p"] else ["fo"]
    return texts, labels


def test_planted_errors_come_first(tiny_encoder: Path) -> None:
    texts, labels = planted()
    documents = label_documents(texts, labels, TAXONOMY)
    for vectors in (None, encode_texts(texts, str(tiny_encoder))):
        *folds, report = find_errors(documents, TAXONOMY, vectors)
        assert folds == [1, 2, 3, 4, 5]
        assert {error.index for error in report.errors[:2]} == {5, 17}
        assert [error.proposed for error in report.errors if error.index == 5] == toy_documents(60, 3)[1][5]


def test_the_same_text_is_in_one_fold() -> None:
    documents = label_documents(["a b", "A  b", *map(str, range(20))], [["p"]] * 22, TAXONOMY)
    folds = assign_folds(documents)
    assert folds[0] == folds[1] and set(folds.tolist()) == {0, 1, 2, 3, 4}


def test_few_documents_are_refused() -> None:
    with pytest.raises(DataError, match="there are 3 documents; expected at least 10"):
        next(find_errors(label_documents(["x", "y", "z"], ["p"] * 3, TAXONOMY), TAXONOMY))


def test_the_command_prints_a_table_json_and_a_page(tmp_path: Path) -> None:
    texts, labels = planted()
    texts[5] += " <script>alert(1)</script> [bold]x[/bold]"
    lines = (
        json.dumps({"id": f"d{i}", "text": t, "labels": own}) + "\n"
        for i, (t, own) in enumerate(zip(texts, labels, strict=True))
    )
    (tmp_path / "data.jsonl").write_text("".join(lines))
    write_taxonomy(TAXONOMY, tmp_path / "taxonomy.json")
    command = ["errors", tmp_path / "data.jsonl", "--taxonomy", tmp_path / "taxonomy.json"]
    shown = hill(*command, "--html", tmp_path / "page.html", "--most", "1")
    assert shown.returncode == 0 and "of 60 documents may be labelled wrongly" in shown.stdout, shown.stderr
    page = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;alert(1)" in page and "<script>alert" not in page and "d17" in page
    found = json.loads(hill(*command, "--json").stdout)
    assert found["documents"] == 60 and {error["id"] for error in found["errors"][:2]} == {"d5", "d17"}
    assert found["errors"][0].keys() >= {"text", "wrong", "proposed", "labels", "score", "wrong_name", "proposed_name"}


def test_documents_without_labels_are_no_errors() -> None:
    labels = csr_array(np.zeros((3, len(TAXONOMY)), dtype=bool))
    assert rank_errors(np.random.default_rng(0).random((3, len(TAXONOMY))), labels, TAXONOMY) == []


def test_documents_that_cannot_be_judged_are_counted() -> None:
    labels = [["bat"], ["bat", "p"], ["mo"], ["p"], ["m"], ["fo"]]
    documents = label_documents([f"text {i}" for i in range(6)], labels, animals_taxonomy())
    report = ErrorReport(documents, animals_taxonomy(), [])
    assert report.unjudged == report.to_dict()["unjudged"] == 3, "one document each has mo, m and fo"
