"""What to label next: rare labels first, the most uncertain document of each label, and nothing twice."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hill import DataError, HillClassifier
from hill.data.answers import Answers
from hill.data.documents import label_documents
from hill.suggest import best_leaves, choose, label_support, suggest
from tests.command import hill
from tests.conftest import animals_taxonomy, toy_documents


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suggest") / "model"
    classifier = HillClassifier(animals_taxonomy(), "linear", {"decode": {"calibrate": "off"}}, preset=None)
    classifier.fit(*toy_documents(60, 1)).save(folder)
    return folder


def slow_choose(labels: list[int], uncertain: list[float], support: list[int], count: int) -> list[int]:
    """By definition: look at all documents that are left, each time."""
    left, support = set(range(len(labels))), list(support)
    chosen = []
    while left and len(chosen) < count:
        best = min(left, key=lambda i: (support[labels[i]], -uncertain[i], labels[i], i))
        chosen.append(best)
        left.remove(best)
        support[labels[best]] += 1
    return chosen


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=12),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.integers(1, 14),
)
def test_documents_are_chosen_as_defined(documents: list[tuple[int, float]], support: list[int], count: int) -> None:
    labels, uncertain = [label for label, _ in documents], [value for _, value in documents]
    found = choose(np.array(labels, dtype=np.int64), np.array(uncertain), np.array(support), count)
    assert found == slow_choose(labels, uncertain, support, count)


def test_the_best_leaf_and_its_lead() -> None:
    taxonomy = animals_taxonomy()  # leaves: bat, mo, fo, p
    scores = np.array([[0.9, 0.9, 0.1, 0.5, 0.3, 0.1, 0.1], [0.0] * 7])
    leaves, uncertain = best_leaves(scores, taxonomy)
    assert taxonomy[int(leaves[0])].id == "bat" and uncertain.tolist() == pytest.approx([1 - 0.2 / 1.0, 1])


def test_the_queue_has_no_text_twice_and_none_that_is_known(model: Path) -> None:
    classifier = HillClassifier.load(model)
    seen, new = toy_documents(60, 1)[0], ["nest egg beak", "Nest  egg beak", "leaf root", "bark leaf", "cave echo"]
    labelled = label_documents(["leaf root"], [["p"]], classifier.taxonomy)
    support = label_support(classifier, [labelled])
    assert support.tolist() == (label_support(classifier) + labelled.labels.toarray()[0]).tolist()
    assert label_support(classifier)[classifier.taxonomy.row("a")] > 0
    found = suggest(classifier, [*seen, *new], support, 100, [labelled])
    assert sorted(each.index - len(seen) for each in found) == [0, 3, 4]
    first = {new[each.index - len(seen)]: each for each in found}["cave echo"]
    assert first.labels == ("bat",) and {"a", "m", "f", "bat"} <= first.scores.keys()
    assert "probably 'Bats', which has" in first.reason


def test_the_command_writes_a_queue(model: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(
        "".join(json.dumps({"id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(toy_documents(40, 7)[0]))
    )
    done = hill("suggest", model, texts, "--count", "5", "--out", tmp_path / "queue.jsonl")
    assert done.returncode == 0 and "5 documents, probably of" in done.stdout, done.stderr
    queue = [json.loads(line) for line in (tmp_path / "queue.jsonl").read_text().splitlines()]
    assert len(queue) == 5 and all(each["id"].startswith("d") and each["reason"] for each in queue)
    assert all(set(each["labels"]) <= each["scores"].keys() for each in queue)
    again = hill("suggest", model, texts, "--count", "5", "--out", tmp_path / "queue.jsonl")
    assert again.returncode == 2 and "exists and may have somebody's work" in again.stderr
    with Answers(tmp_path / "answers.sqlite") as answers:
        answers.add("ann", "skip", queue[0]["id"], queue[0]["text"])
        answers.add("ann", "accept", queue[1]["id"], queue[1]["text"], queue[1]["labels"])
    given = ["--labelled", tmp_path / "answers.sqlite", "--out", tmp_path / "next.jsonl"]
    done = hill("suggest", model, texts, "--count", "40", *given)
    later = {json.loads(line)["text"] for line in (tmp_path / "next.jsonl").read_text().splitlines()}
    assert done.returncode == 0 and queue[2]["text"] in later
    assert not later & {queue[0]["text"], queue[1]["text"]}, "neither a skipped nor a labelled one"


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "there is nothing to suggest: there are no texts"), (None, "all 60 texts are already labelled")],
)
def test_an_empty_queue_is_an_error(content: str | None, message: str, model: Path, tmp_path: Path) -> None:
    known = "".join(json.dumps({"text": text}) + "\n" for text in toy_documents(60, 1)[0])
    (tmp_path / "texts.jsonl").write_text(known if content is None else content)
    done = hill("suggest", model, tmp_path / "texts.jsonl", "--out", tmp_path / "queue.jsonl")
    assert done.returncode == 2 and message in done.stderr
    assert not (tmp_path / "queue.jsonl").exists()


def test_the_queue_is_a_jsonl_file(model: Path, tmp_path: Path) -> None:
    done = hill("suggest", model, tmp_path / "texts.jsonl", "--out", tmp_path / "queue.csv")
    assert done.returncode == 2 and "expected a .jsonl file" in done.stderr


def test_without_texts_nothing_is_suggested(model: Path) -> None:
    classifier = HillClassifier.load(model)
    with pytest.raises(DataError, match="there are no texts"):
        suggest(classifier, [], label_support(classifier), 3)
