"""The review API: what reviewers receive, what is saved, and who may ask."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from hill.data.answers import Answers, read_answers
from hill.decode import DecodeConfig
from hill.errors import ConfigError, DataError
from hill.predictor import Predictor, ScoredBatch
from hill.serve import ServeConfig
from hill.serve.app import make_app
from hill.serve.config import check_address
from hill.serve.registry import ModelRegistry
from hill.serve.review import MAX_SCORES, Review
from hill.taxonomy import Taxonomy
from tests.command import hill
from tests.conftest import animals_taxonomy
from tests.serve.test_api import client_of

QUEUE = [
    {"id": "d0", "text": "bat cave", "reason": "uncertain", "extra": [1]},
    {"id": "d1", "text": "mo paw", "labels": ["Flyers", "a"], "scores": {"f": 0.4}},
    {"text": "none of them"},
    {"id": "d3", "text": "p leaf"},
]
ANN, BOB = ({"reviewer": name, "session": ""} for name in ("ann", "bob"))


class LabelInText(Predictor):
    """Gives 0.9 to the label that is the first word of a text, and to its ancestors; 0.1 to others."""

    name = "given"
    thresholds = None
    max_length = 8

    def __init__(self, taxonomy: Taxonomy) -> None:
        self.taxonomy, self.decode_config = taxonomy, DecodeConfig(strategy="raw", threshold=0.5)
        self.metrics: dict[str, Any] = {}

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        scores = np.full((len(texts), len(self.taxonomy)), 0.1, dtype=np.float32)
        for row, text in enumerate(texts):
            if (label := text.split()[0]) in self.taxonomy:
                scores[row, self.taxonomy.closure([self.taxonomy.row(label)])] = 0.9
        yield np.arange(len(texts)), scores


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "queue.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in QUEUE))
    return path


def client_for(queue: Path, **options: Any) -> TestClient:
    taxonomy = animals_taxonomy()
    review = Review(queue, queue.with_name("answers.sqlite"), taxonomy)
    return client_of(
        make_app(ModelRegistry([(Path("animals"), LabelInText(taxonomy), None)]), review=review, **options)
    )


@pytest.fixture
def client(queue: Path) -> Iterator[TestClient]:
    with client_for(queue) as client:
        yield client


def post(client: TestClient, path: str, body: dict[str, Any], status: int = 200, **headers: str) -> Any:
    response = client.post(f"/v1/review/{path}", json=body, headers=headers)
    assert response.status_code == status, response.text
    return response.json()


def answer(client: TestClient, who: dict[str, str], document: Any, labels: list[str], action: str = "accept") -> Any:
    return post(client, "answers", who | {"document": document["key"], "labels": labels, "action": action})


def test_a_document_comes_with_suggestions_of_the_model_or_of_the_queue(client: TestClient) -> None:
    task = post(client, "next", ANN)
    document = task["document"]
    assert {key: document[key] for key in ("id", "text", "reason", "suggested", "given", "candidates")} == {
        "id": "d0",
        "text": "bat cave",
        "reason": "uncertain",
        "suggested": [{"id": "bat", "names": ["Animals", "Mammals", "Bats"], "score": pytest.approx(0.9)}],
        "given": [],
        "candidates": [
            {"id": "mo", "names": ["Animals", "Mammals", "Others"], "score": pytest.approx(0.1)},
            {"id": "fo", "names": ["Animals", "Flyers", "Others"], "score": pytest.approx(0.1)},
            {"id": "p", "names": ["Plants"], "score": pytest.approx(0.1)},
        ],
    }
    assert (
        document["prediction"]
        == client.post("/v1/predict", json={"text": "bat cave", "top_k": MAX_SCORES}).json()["predictions"][0]
    )
    assert task["progress"] == {"total": 4, "labelled": 0, "skipped": 0, "mine": 0}
    second, third = (post(client, "next", who)["document"]["suggested"] for who in (BOB, {"reviewer": "cy"}))
    assert [label["names"] for label in second] == [["Animals", "Flyers"]], "those of the queue, without ancestors"
    assert third == []


def test_answers_are_saved_with_name_and_action(client: TestClient, queue: Path) -> None:
    first = post(client, "next", ANN)["document"]
    assert answer(client, ANN, first, ["bat", "a"]) == {"total": 4, "labelled": 1, "skipped": 0, "mine": 1}
    second = post(client, "next", {"reviewer": " ann "})["document"]
    assert second["id"] == "d1"
    answer(client, ANN, second, ["p", "mo"], "correct")
    third = post(client, "next", ANN)["document"]
    assert answer(client, BOB, third, [], "skip") == {"total": 4, "labelled": 2, "skipped": 1, "mine": 1}
    saved = [(a.reviewer, a.action, a.id, a.text, a.labels) for a in read_answers(queue.with_name("answers.sqlite"))]
    assert saved == [
        ("ann", "accept", "d0", "bat cave", ("bat",)),
        ("ann", "correct", "d1", "mo paw", ("mo", "p")),
        ("bob", "skip", "2", "none of them", ()),
    ]
    assert client.get("/v1/review", params={"reviewer": "ann"}).json() == {
        "active": True,
        "total": 4,
        "labelled": 2,
        "skipped": 1,
        "mine": 2,
    }


def test_undo_returns_the_document_with_the_labels_that_were_given(client: TestClient) -> None:
    assert post(client, "undo", ANN)["document"] is None
    first = post(client, "next", ANN)["document"]
    answer(client, ANN, first, ["mo"], "correct")
    shown = post(client, "next", ANN)["document"]
    undone = post(client, "undo", ANN)
    given = {"id": "mo", "names": ["Animals", "Mammals", "Others"], "score": pytest.approx(0.1)}
    assert undone["document"] == first | {"given": [given]}
    assert undone["progress"]["labelled"] == 0
    answer(client, ANN, first, ["bat"])
    assert post(client, "next", ANN)["document"] == shown, "it is still reserved"


def test_the_queue_ends(client: TestClient) -> None:
    for _ in QUEUE:
        assert answer(client, ANN, post(client, "next", ANN)["document"], ["p"], "correct")
    task = post(client, "next", ANN)
    assert task == {"document": None, "progress": {"total": 4, "labelled": 4, "skipped": 0, "mine": 4}}


def test_windows_of_the_same_name_get_different_documents(client: TestClient) -> None:
    keys = {post(client, "next", {"reviewer": "ann", "session": session})["document"]["key"] for session in "abab"}
    assert len(keys) == 2


def test_two_servers_with_the_same_answers_share_the_queue(client: TestClient, queue: Path) -> None:
    with client_for(queue) as other:
        first, second = post(client, "next", ANN)["document"], post(other, "next", BOB)["document"]
        assert (first["id"], second["id"]) == ("d0", "d1")
        answer(other, BOB, second, ["p"], "correct")
        assert answer(client, ANN, first, ["bat"]) == {"total": 4, "labelled": 2, "skipped": 0, "mine": 1}
        assert post(client, "next", BOB)["document"]["text"] == "none of them"
        assert post(other, "next", ANN)["document"]["id"] == "d3"


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    ("next", {}, 422, "reviewer: field required"),
    ("next", {"reviewer": "  "}, 422, "reviewer is empty; expected a name"),
    ("next", {"reviewer": "x" * 101}, 422, "reviewer: string should have at most 100 characters"),
    ("next", ANN | {"other": 1}, 422, "other: extra inputs are not permitted"),
    ("answers", ANN | {"document": "x", "action": "skip"}, 404, "there is no document 'x' in the queue"),
    (
        "answers",
        ANN | {"document": "KEY", "action": "skip", "labels": ["p"]},
        422,
        "labels are given with the action skip",
    ),
    ("answers", ANN | {"document": "KEY", "action": "accept"}, 422, "there are no labels with the action accept"),
    ("answers", ANN | {"document": "KEY", "action": "accept", "labels": ["Plants"]}, 404, "there is no label 'Plants'"),
    (
        "answers",
        ANN | {"document": "KEY", "action": "undo"},
        422,
        "action: input should be 'accept', 'correct' or 'skip'",
    ),
]


@pytest.mark.parametrize(("path", "body", "status", "detail"), WRONG)
def test_invalid_requests_save_nothing(
    client: TestClient, queue: Path, path: str, body: dict[str, Any], status: int, detail: str
) -> None:
    key = post(client, "next", ANN)["document"]["key"]
    body = {name: key if value == "KEY" else value for name, value in body.items()}
    assert post(client, path, body, status)["detail"].startswith(detail)
    assert read_answers(queue.with_name("answers.sqlite")) == []


def test_pages_of_other_sites_cannot_write(client: TestClient) -> None:
    """A page can send a form or text to another site without permission; the server must see that it did."""
    for origin in ("https://evil.example", "null", "http://localhost:9", "http://localhost.evil.example"):
        assert post(client, "next", ANN, 403, Origin=origin)["detail"].startswith("the request comes from a page of")
    assert post(client, "next", ANN, Origin="http://localhost")["document"]


def test_without_a_queue(queue: Path) -> None:
    app = make_app(ModelRegistry([(Path("animals"), LabelInText(animals_taxonomy()), None)]))
    with client_of(app) as client:
        assert client.get("/v1/review").json() == {"active": False, "total": 0, "labelled": 0, "skipped": 0, "mine": 0}
        for path in ("next", "undo"):
            assert "start it with: hill serve MODEL --review" in post(client, path, ANN, 409)["detail"]


def test_a_key_is_needed_if_there_is_one(queue: Path) -> None:
    with client_for(queue, key="s3cret") as client:
        assert client.get("/v1/review").status_code == 401
        post(client, "next", ANN, 401)
        assert post(client, "next", ANN, Authorization="Bearer s3cret")["document"]


def test_other_machines_need_a_key_even_if_the_server_is_public() -> None:
    for config in (ServeConfig(host="0.0.0.0", public=True), ServeConfig(host="0.0.0.0")):
        with pytest.raises(ConfigError, match=r"--review needs an API key then, also with --public; set HILL_API_KEY"):
            check_address(config, "", review=True)
        check_address(config, "key", review=True)
    check_address(ServeConfig(), "", review=True)
    check_address(ServeConfig(host="0.0.0.0", public=True), "")


def test_a_failed_write_is_an_error_of_the_server(
    client: TestClient, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = post(client, "next", ANN)["document"]

    def fail(*_: Any) -> int:
        raise DataError("answers file 'a' cannot be used: database or disk is full; check the disk")

    with monkeypatch.context() as patched:
        patched.setattr(Answers, "add", fail)
        body = ANN | {"document": document["key"], "labels": ["p"], "action": "correct"}
        assert post(client, "answers", body, 503)["detail"].startswith("nothing was saved: answers file 'a' cannot be")
    assert answer(client, ANN, document, ["p"])["labelled"] == 1


def test_the_end_of_the_server_leaves_one_file_and_its_backup(queue: Path) -> None:
    with client_for(queue) as client:
        answer(client, ANN, post(client, "next", ANN)["document"], ["bat"])
    names = sorted(path.name for path in queue.parent.iterdir())
    assert names == ["answers.sqlite", "answers.sqlite.bak", "queue.jsonl"]
    assert len(read_answers(queue.with_name("answers.sqlite.bak"))) == 1


QUEUES = {
    "": r"queue '.+' has no documents; expected one per line with a text, as hill suggest writes",
    "\n\n": "has no documents",
    '{"id": 1, "label": "p"}\n': r"no 'text'; the record has 'id', 'label', 'labels' \(line 1 of",
    '{"text": "a"}\n{"text": " "}\n': r"the text is empty; expected at least one word \(line 2 of",
    '{"text": 5}\n': "the text is a number; expected a string",
    '{"text": "a", "labels": ["Mammal"]}\n': r"'Mammal' is not in the taxonomy; did you mean 'Mammals'\? \(line 1",
    '{"text": "a", "scores": [0.5]}\n': r"the scores are '\[0.5\]'; expected an object with one number per label",
    '{"text": "a", "scores": {"p": "x"}}\n': "expected an object with one number per label id",
    "text\n": "not JSON",
}


@pytest.mark.parametrize("content", QUEUES)
def test_a_queue_that_cannot_be_used(queue: Path, content: str) -> None:
    queue.write_text(content)
    with pytest.raises(DataError, match=QUEUES[content]):
        Review(queue, queue.with_name("answers.sqlite"), animals_taxonomy())
    assert not queue.with_name("answers.sqlite").exists()


def test_a_queue_that_does_not_exist(queue: Path) -> None:
    with pytest.raises(DataError, match=r"queue '.+none.jsonl' does not exist; hill suggest writes a queue"):
        Review(queue.with_name("none.jsonl"), queue.with_name("answers.sqlite"), animals_taxonomy())


def test_a_queue_has_each_text_once_and_may_be_a_table(queue: Path) -> None:
    table = queue.with_suffix(".csv")
    table.write_text('text,labels,scores\nwing,f,"{""f"": 0.5}"\nfur,,\nwing,m,\n')
    review = Review(table, queue.with_name("answers.sqlite"), animals_taxonomy())
    review.close()
    assert [(d.id, d.text, d.labels, d.scores) for d in review.documents.values()] == [
        ("0", "wing", ("f",), {"f": 0.5}),
        ("1", "fur", (), {}),
    ]


def test_the_command_needs_a_queue_for_answers() -> None:
    result = hill("serve", "no-such-model", "--answers", "a.sqlite")
    assert result.returncode == 2 and "but there is no --review; give the queue of documents" in result.stderr
