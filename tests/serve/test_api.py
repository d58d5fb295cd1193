"""The application in one process: every endpoint, every limit and every error message."""

import html
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from hill.classifier import HillClassifier
from hill.cli import app as command_line
from hill.cli import use as serve_command
from hill.decode import DecodeConfig, Decoder
from hill.errors import ConfigError, HillError
from hill.explain import explain
from hill.predictor import Predictor, ScoredBatch
from hill.serve import ServeConfig
from hill.serve.api import top_rows
from hill.serve.app import PAGE, bind, make_app
from hill.serve.config import check_address, read_key
from hill.serve.middleware import JsonLines
from hill.serve.registry import LabelIndex, ModelRegistry
from hill.serve.worker import Job, QueueFull, Worker, WorkerClosed
from hill.settings import describe
from hill.taxonomy import Label, Taxonomy
from tests.conftest import animals_taxonomy, random_taxonomy, toy_documents

SETTINGS: dict[str, dict[str, Any]] = {
    "model": {"height": 2, "dropout": 0.0, "readout_dropout": 0.1},
    "train": {"epochs": 4, "batch_size": 8, "encoder_lr": 5e-3, "lr": 5e-3, "head_start": "off"},
    "data": {"max_length": 16},
}
TEXTS = toy_documents(40, 9)[0]


def train_tiny(encoder: Path) -> HillClassifier:
    settings = SETTINGS | {"model": SETTINGS["model"] | {"encoder": str(encoder)}}
    return HillClassifier(animals_taxonomy(), settings=settings, preset=None).fit(*toy_documents(64, 1))


@pytest.fixture(scope="module")
def fitted(tiny_encoder: Path) -> HillClassifier:
    return train_tiny(tiny_encoder)


@pytest.fixture(scope="module")
def client(fitted: HillClassifier) -> Iterator[TestClient]:
    config = ServeConfig(max_texts=50, max_body=20_000)
    with client_of(make_app(ModelRegistry([(Path("animals"), fitted, explain)]), config)) as asked:
        yield asked


def client_of(app: FastAPI) -> TestClient:
    """A client that sends the Host header of a browser on the same machine."""
    return TestClient(app, base_url="http://localhost")


class FirstWordPredictor(Predictor):
    """Scores each text by its first word, a number; waits until `resume` is set."""

    name = "given"
    thresholds = None
    max_length = 8

    def __init__(self, taxonomy: Taxonomy) -> None:
        self.taxonomy, self.decode_config = taxonomy, DecodeConfig(strategy="raw", threshold=0.5)
        self.metrics: dict[str, Any] = {"micro_f1": float("nan"), "levels": [{"ece": float("inf")}]}
        self.resume, self.started = threading.Event(), threading.Event()
        self.resume.set()
        self.batches: list[int] = []
        self.texts: list[str] = []

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        self.batches.append(len(texts))
        self.texts.extend(texts)
        self.started.set()
        assert self.resume.wait(60)
        if "bad" in texts:
            raise RuntimeError("cannot read bad")
        if "wrong" in texts:
            raise HillError("the text is wrong")
        for number, text in reversed(list(enumerate(texts))):
            yield np.array([number]), np.full((1, len(self.taxonomy)), float(text.split()[0]), dtype=np.float32)


def expected_prediction(classifier: Predictor, text: str) -> dict[str, Any]:
    """The prediction of the classifier for one text, in the format of the server."""
    (found,) = classifier.predictions([text])
    taxonomy = classifier.taxonomy
    labels = [
        {"id": id, "name": taxonomy[taxonomy.row(id)].name, "score": pytest.approx(score, abs=2e-6), "level": level}
        for id, score in zip(found.labels, found.scores, strict=True)
        for level in [{"a": 1, "p": 1, "m": 2, "f": 2}.get(id, 3)]
    ]
    return {"labels": labels, "paths": [list(path) for path in found.paths]}


def test_predictions_are_those_of_the_classifier(client: TestClient, fitted: HillClassifier) -> None:
    answer = client.post("/v1/predict", json={"texts": TEXTS}).json()
    config = fitted.decode_config
    assert {key: answer[key] for key in ("model", "strategy", "threshold")} == {
        "model": "animals",
        "strategy": config.strategy,
        "threshold": config.threshold,
    }
    assert answer["predictions"] == [expected_prediction(fitted, text) for text in TEXTS]
    one = client.post("/v1/predict", json={"text": TEXTS[3]}).json()["predictions"]
    assert one == [expected_prediction(fitted, TEXTS[3])]
    assert any(len(each["paths"]) > 0 for each in answer["predictions"])


def test_concurrent_requests_get_their_own_responses(client: TestClient, fitted: HillClassifier) -> None:
    def ask(text: str) -> Any:
        return client.post("/v1/predict", json={"text": text}).json()["predictions"][0]

    expected = [expected_prediction(fitted, text) for text in TEXTS]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, TEXTS)) == expected
    text = client.get("/metrics").text
    batches = float(text.split("hill_batch_texts_count ")[1].split()[0])
    texts = float(text.split("hill_batch_texts_sum ")[1].split()[0])
    assert texts > batches, "some texts shared a batch"


@pytest.mark.parametrize("strategy", ["closure", "ancestors", "top-down", "path", "safe", "raw"])
def test_strategy_and_threshold_per_request(client: TestClient, fitted: HillClassifier, strategy: str) -> None:
    body = {"texts": TEXTS, "strategy": strategy, "threshold": 0.2, "top_k": 3}
    answer = client.post("/v1/predict", json=body).json()
    assert (answer["strategy"], answer["threshold"]) == (strategy, 0.2)
    config = DecodeConfig(strategy=strategy, threshold=0.2, tune="off", calibrate="off")
    decoder = Decoder(fitted.taxonomy, config, None, fitted.calibrator)
    scores = np.zeros((len(TEXTS), 7), dtype=np.float32)
    for documents, found in fitted.scores(TEXTS):
        scores[documents] = found
    chosen, effective = decoder.decide(scores)
    for row, each in enumerate(answer["predictions"]):
        assert [label["id"] for label in each["labels"]] == fitted.taxonomy.decode(np.flatnonzero(chosen[row]))
        best = sorted(range(7), key=lambda i: (-effective[row, i], -fitted.taxonomy.depth[i]))[:3]
        assert [label["score"] for label in each["scores"]] == pytest.approx(effective[row, best].tolist(), abs=2e-6)
    assert chosen.any()


def test_a_strategy_alone_keeps_the_thresholds_per_label() -> None:
    model = FirstWordPredictor(animals_taxonomy())
    model.thresholds = np.array([0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9])  # type: ignore[assignment]
    with client_of(make_app(ModelRegistry([(Path("given"), model, None)]))) as client:

        def ids(**more: Any) -> list[str]:
            answer = client.post("/v1/predict", json={"text": "0.5", **more}).json()
            return [label["id"] for label in answer["predictions"][0]["labels"]]

        assert ids() == ids(strategy="top-down") == ["a"]
        assert ids(threshold=0.4) == animals_taxonomy().ids and ids(threshold=0.6) == []
        shown = client.get("/v1/model").json()
        model.thresholds = np.full(7, 0.5)  # type: ignore[assignment]
        assert not client.get("/v1/model").json()["thresholds_differ"]
        assert shown["thresholds_differ"] and shown["metrics"] == {"micro_f1": None, "levels": [{"ece": None}]}


def test_a_model_on_words_has_no_encoder() -> None:
    words = HillClassifier(animals_taxonomy(), "linear", preset=None).fit(*toy_documents(24, 0))
    registry = ModelRegistry([(Path("words"), words, None)])
    with client_of(make_app(registry)) as client:
        assert client.get("/v1/model").json()["encoder"] is None


def test_browsers_find_an_icon_also_without_the_key() -> None:
    registry = ModelRegistry([(Path("given"), FirstWordPredictor(animals_taxonomy()), None)])
    with client_of(make_app(registry, key="a key")) as client:
        assert client.get("/v1/models").status_code == 401
        for path in ("/favicon.ico", "/static/icon.svg"):
            icon = client.get(path)
            assert icon.status_code == 200 and icon.headers["content-type"].startswith("image/svg+xml")
            assert icon.text.lstrip().startswith("<svg")
        for page in ("/", "/docs"):
            text = client.get(page).text
            assert '<link rel="icon" href="/static/icon.svg"' in text and "img-src 'self'" in text


def test_explanations(client: TestClient, fitted: HillClassifier) -> None:
    text = "wing feather sky cave echo"
    found = client.post("/v1/predict", json={"text": text, "explain": ["bat", "p"]}).json()["predictions"][0]
    expected = explain(fitted, text, ["bat", "p"]).to_dict()
    assert [label["id"] for label in found["explanation"]["labels"]] == ["bat", "p"]
    assert found["explanation"]["words"] == [dict(word) for word in expected["words"]]
    for label, other in zip(found["explanation"]["labels"], expected["labels"], strict=True):
        assert label["values"] == pytest.approx(other["values"], abs=1e-4)
    body = {"texts": [text], "explain": True, "threshold": 0.0, "strategy": "top-down"}
    found = client.post("/v1/predict", json=body).json()["predictions"][0]
    scores = {label["id"]: label["score"] for label in found["labels"]}
    told = {label["id"]: label["score"] for label in found["explanation"]["labels"]}
    assert told == scores and all(label["predicted"] for label in found["explanation"]["labels"])
    assert next(iter(told)) in ("bat", "mo", "fo")
    none = client.post("/v1/predict", json={"text": text, "explain": True, "threshold": 1.0}).json()["predictions"][0]
    (best,) = none["explanation"]["labels"]
    assert none["labels"] == [] and not best["predicted"]


def test_models(client: TestClient, fitted: HillClassifier) -> None:
    known = {"name": "animals", "labels": 7, "levels": 3, "default": True}
    assert client.get("/v1/models").json() == [known]
    found = client.get("/v1/model", params={"model": "animals"}).json()
    assert found | known == found and found["model"] == "hill" and found["explains"] is True
    assert "/" not in found["encoder"] and found["max_length"] == 16
    assert found["metrics"]["micro_f1"] == fitted.metrics["micro_f1"]
    assert found["strategy"] in found["strategies"] and "auto" not in found["strategies"]


def test_names_are_made_unique_and_the_first_is_the_default(fitted: HillClassifier) -> None:
    given = FirstWordPredictor(animals_taxonomy())
    registry = ModelRegistry([(Path("a/m"), given, None), (Path("b/m"), fitted, explain), (Path("c/m"), given, None)])
    assert list(registry.models) == ["m", "m-2", "m-3"]
    with client_of(make_app(registry)) as client:
        assert [model["default"] for model in client.get("/v1/models").json()] == [True, False, False]
        assert client.post("/v1/predict", json={"text": "0.9"}).json()["model"] == "m"
        other = client.post("/v1/predict", json={"text": TEXTS[0], "model": "m-2"}).json()
        assert other["model"] == "m-2" and other["predictions"] == [expected_prediction(fitted, TEXTS[0])]
        refused = client.post("/v1/predict", json={"text": "0.9", "explain": True})
        assert refused.status_code == 409 and "no gradients" in refused.json()["detail"]


def test_labels_are_listed_and_searched(client: TestClient) -> None:
    roots = client.get("/v1/taxonomy").json()
    assert roots["parent"] is None and [label["id"] for label in roots["labels"]] == ["a", "p"]
    below = client.get("/v1/taxonomy", params={"parent": "m"}).json()
    assert below["total"] == 2 and below["labels"][0] == {
        "id": "bat",
        "name": "Bats",
        "description": "Mammals with wings.",
        "level": 3,
        "children": 0,
        "parents": ["m", "f"],
    }
    page = client.get("/v1/taxonomy", params={"parent": "m", "offset": 1, "limit": 1}).json()
    assert page["total"] == 2 and [label["id"] for label in page["labels"]] == ["mo"]
    found = client.get("/v1/taxonomy", params={"search": "OTHERS"}).json()
    assert found["total"] == 2 and [label["id"] for label in found["labels"]] == ["mo", "fo"]
    whole = client.get("/v1/labels/bat").json()
    assert whole["paths"] == [["a", "m", "bat"], ["a", "f", "bat"]] and whole["parents"] == ["m", "f"]
    for path in ("/v1/taxonomy?parent=none", "/v1/labels/none", "/v1/labels/a/b", "/v1/labels/"):
        assert client.get(path).status_code == 404


def test_a_search_puts_the_best_first() -> None:
    names = {"x1": "Deep learning", "x2": "Learning", "x3": "Machine learning", "x4": "unlearning", "learn": "Other"}
    labels = LabelIndex(Taxonomy([Label(id, name) for id, name in names.items()]))
    assert [list(names)[row] for row in labels.search("learning")] == ["x2", "x1", "x3", "x4"]
    assert [list(names)[row] for row in labels.search("learn")] == ["learn", "x2", "x1", "x3", "x4"]
    assert [list(names)[row] for row in labels.search("learning deep")] == ["x1"]


def test_ids_may_contain_slashes() -> None:
    taxonomy = Taxonomy([Label("http://x.org/a b", "A"), Label("http://x.org/c", "C", ("http://x.org/a b",))])
    with client_of(make_app(ModelRegistry([(Path("uris"), FirstWordPredictor(taxonomy), None)]))) as client:
        assert client.get("/v1/labels/http%3A%2F%2Fx.org%2Fa%20b").json()["name"] == "A"
        assert client.get("/v1/labels/http://x.org/c").json()["paths"] == [["http://x.org/a b", "http://x.org/c"]]


def test_annif_projects_and_suggestions(client: TestClient, fitted: HillClassifier) -> None:
    (project,) = client.get("/v1/projects").json()["projects"]
    assert client.get("/v1/projects/animals").json() == project
    assert project["project_id"] == "animals" and project["is_trained"] is True
    scores = fitted.predict_proba(TEXTS[:2])
    depth = fitted.taxonomy.depth
    form = {"text": TEXTS[0], "limit": 3, "project": "ignored"}
    results = client.post("/v1/projects/animals/suggest", data=form).json()["results"]
    order = sorted(range(7), key=lambda i: (-scores[0, i], -depth[i]))
    assert [hit["uri"] for hit in results] == [fitted.taxonomy.ids[i] for i in order[:3]]
    assert [hit["score"] for hit in results] == pytest.approx([float(scores[0, i]) for i in order[:3]], abs=2e-6)
    assert {*results[0]} == {"uri", "label", "notation", "score"}
    least = float(np.median(scores[0]))
    cut = client.post("/v1/projects/animals/suggest", data={"text": TEXTS[0], "threshold": least}).json()["results"]
    assert 0 < len(cut) < 7 and all(hit["score"] >= least for hit in cut)
    documents = [{"text": TEXTS[0], "document_id": "one"}, {"text": " "}, {"text": TEXTS[1]}]
    batch = client.post("/v1/projects/animals/suggest-batch?limit=3", json={"documents": documents}).json()
    assert [each["document_id"] for each in batch] == ["one", None, None]
    assert [hit["uri"] for hit in batch[0]["results"]] == [hit["uri"] for hit in results] and batch[1]["results"] == []
    assert client.post("/v1/projects/animals/suggest", data={"text": TEXTS[0], "limit": 0}).json() == {"results": []}
    assert client.post("/v1/projects/none/suggest", data={"text": "a"}).status_code == 404


@pytest.mark.parametrize("seed", range(5))
def test_top_rows_equal_a_full_sort(seed: int) -> None:
    taxonomy = random_taxonomy(seed, most_parents=2)
    scores = np.random.default_rng(seed).integers(0, 6, len(taxonomy)).astype(np.float32)
    for count in (0, 1, 7, 30, 99):
        full = sorted(range(30), key=lambda i: (-scores[i], -taxonomy.depth[i], i))
        assert top_rows(taxonomy, scores, count).tolist() == full[:count]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 422, "give either text or texts"),
        ({"text": "a", "texts": ["b"]}, 422, "give either text or texts"),
        ({"text": " \n"}, 422, "text is empty; expected words"),
        ({"texts": ["a", ""]}, 422, "texts.1 is empty; expected words"),
        ({"texts": []}, 422, "texts: list should have at least 1 item"),
        ({"text": 3}, 422, "text: input should be a valid string"),
        ({"text": "a", "top_k": 1001}, 422, "top_k: input should be less than or equal to 1000"),
        ({"text": "a", "threshold": 1.5}, 422, "threshold: input should be less than or equal to 1"),
        ({"text": "a", "strategy": "auto"}, 422, "strategy: input should be 'closure'"),
        ({"text": "a", "txet": "b"}, 422, "txet: extra inputs are not permitted"),
        ({"texts": ["a", "b"], "explain": True}, 422, "explain is for one text; there are 2"),
        ({"text": "a", "explain": 3}, 422, "explain: input should be a valid boolean"),
        ({"text": "a", "explain": ["none"]}, 404, "there is no label 'none'"),
        ({"text": "a", "model": "none"}, 404, "there is no model 'none'; expected one of: animals"),
        ({"texts": ["a"] * 51}, 422, "there are 51 texts; expected at most 50"),
        ({"text": "a" * 20_000}, 413, "the body is too large; expected at most 20000 bytes"),
        ([], 422, "the body is not a JSON object"),
    ],
)
def test_invalid_requests(client: TestClient, body: Any, status: int, message: str) -> None:
    answer = client.post("/v1/predict", json=body)
    assert (answer.status_code, answer.json()["detail"][: len(message)]) == (status, message)


def test_bodies_that_cannot_be_read(client: TestClient) -> None:
    def send(body: Any, **headers: str) -> tuple[int, str]:
        answer = client.post("/v1/predict", content=body, headers={"content-type": "application/json"} | headers)
        return answer.status_code, answer.json()["detail"]

    assert send(b'{"text": "a"') == (422, "the body is not JSON: expecting ',' delimiter at character 12")
    assert send(b'{"text": "\\ud800"}') == (422, "text has a lone surrogate; expected valid Unicode text")
    assert send(b'{"text": "a", "threshold": NaN}')[0] == 422
    assert send(b"\xff\xfe\xff")[0] == 400 and send(b"[" * 10_000)[0] in (400, 422)
    pieces = (b'{"text": "' + b"a" * 100 for _ in range(300))
    assert send(pieces) == (413, "the body is too large; expected at most 20000 bytes")
    assert send(b"{}", **{"content-length": "9" * 30})[0] == 413
    assert send(b'{"text": "a"}', **{"content-type": "text/plain"})[0] == 422


def test_unknown_paths_and_methods(client: TestClient) -> None:
    assert client.get("/none").json() == {"detail": "there is nothing at '/none'; /docs lists all paths"}
    answer = client.put("/v1/predict")
    assert answer.status_code == 405 and answer.json()["detail"].startswith("'/v1/predict' does not support PUT")


def test_health_metrics_and_documentation(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}
    client.post("/v1/predict", json={"texts": TEXTS[:3]})
    client.request("BREW", "/none")
    text = client.get("/metrics").text
    for part in (
        'hill_requests_total{method="POST",route="/v1/predict",status="200"}',
        'hill_requests_total{method="other",route="other",status="404"}',
        'hill_request_seconds_bucket{le="0.005",route="/v1/predict"}',
        'hill_texts_total{model="animals"}',
        "hill_queue_texts 0.0",
        'hill_batch_texts_bucket{le="4.0"}',
        "process_resident_memory_bytes",
    ):
        assert part in text, part
    assert "BREW" not in text
    document = client.get("/openapi.json").json()
    assert "examples" in document["components"]["schemas"]["PredictRequest"]
    assert {"/v1/predict", "/v1/projects/{project_id}/suggest"} <= set(document["paths"])
    docs = client.get("/docs").text
    assert all(html.escape(path) in docs for path in document["paths"]) and 'href="#PredictRequest"' in docs
    assert "//" not in docs.replace("text/", ""), "it loads nothing from other sites"


def test_the_page_and_its_files(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200 and page.text == (PAGE / "index.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert client.get("/healthz").headers["x-content-type-options"] == "nosniff"
    for file in PAGE.iterdir():
        assert client.get(f"/static/{file.name}").content == file.read_bytes()
    assert client.get("/static/../app.py").status_code == client.get("/static/%2e%2e/app.py").status_code == 404


@pytest.mark.parametrize("header", [{"Authorization": "Bearer s3cret"}, {"X-API-Key": "s3cret"}])
def test_requests_need_the_key(header: dict[str, str]) -> None:
    with client_of(
        make_app(ModelRegistry([(Path("given"), FirstWordPredictor(animals_taxonomy()), None)]), key="s3cret")
    ) as client:
        wrong = ({}, {"X-API-Key": "s3cre"}, {"X-API-Key": ""}, {"Authorization": "Basic s3cret"})
        for headers in wrong:
            for path in ("/v1/models", "/metrics", "/v1/projects", "/none"):
                answer = client.get(path, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert client.post("/v1/predict", json={"text": "0.9"}).status_code == 401
        assert client.get("/v1/models", headers=header).status_code == 200
        assert client.post("/v1/predict", json={"text": "0.9"}, headers=header).status_code == 200
        assert client.get("/healthz").status_code == 200 and client.get("/readyz").status_code == 200


def test_a_full_queue_gives_503_and_loses_no_accepted_request() -> None:
    model = FirstWordPredictor(animals_taxonomy())
    config = ServeConfig(batch=2, queue=4, max_texts=4, wait_ms=0)
    with (
        client_of(make_app(ModelRegistry([(Path("given"), model, None)]), config)) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        worker = client.app.state.server.worker  # type: ignore[attr-defined]
        model.resume.clear()
        first = pool.submit(client.post, "/v1/predict", json={"text": "0.6"})
        assert model.started.wait(60)
        others = [pool.submit(client.post, "/v1/predict", json={"texts": ["0.7", "0.8"]}) for _ in range(2)]
        until(lambda: worker.queue_size == 4)
        refused = client.post("/v1/predict", json={"text": "0.9"})
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert "hill_queue_texts 4.0" in client.get("/metrics").text
        model.resume.set()
        assert [answer.result(60).status_code for answer in (first, *others)] == [200] * 3
        assert max(model.batches) == 2 and sum(model.batches) == 5
        assert client.post("/v1/predict", json={"text": "0.9"}).status_code == 200


def test_a_request_that_timed_out_is_never_predicted() -> None:
    model = FirstWordPredictor(animals_taxonomy())
    config = ServeConfig(timeout=0.3, wait_ms=0)
    with (
        client_of(make_app(ModelRegistry([(Path("given"), model, None)]), config)) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        model.resume.clear()
        pool.submit(client.post, "/v1/predict", json={"text": "0.6"})
        assert model.started.wait(60)
        start = time.monotonic()
        answer = client.post("/v1/predict", json={"text": "0.7"})
        assert answer.status_code == 504 and "0.3 s" in answer.json()["detail"]
        assert 0.25 < time.monotonic() - start < 20
        model.resume.set()
        until(lambda: client.post("/v1/predict", json={"text": "0.8"}).status_code == 200)
        assert "0.7" not in model.texts, "a request that timed out was not predicted"


def test_one_bad_text_fails_alone_and_its_text_stays_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    model = FirstWordPredictor(animals_taxonomy())
    config = ServeConfig(wait_ms=60_000, batch=4)
    texts = ["0.1 secret", "bad", "0.9 secret", "wrong"]
    with (
        client_of(make_app(ModelRegistry([(Path("given"), model, None)]), config)) as client,
        ThreadPoolExecutor(4) as pool,
        caplog.at_level(logging.INFO, "hill.serve"),
    ):
        answers = list(pool.map(lambda text: client.post("/v1/predict", json={"text": text}), texts))
    assert [answer.status_code for answer in answers] == [200, 500, 200, 422]
    assert model.batches[0] == 4, "they were in one batch first"
    assert [len(answers[i].json()["predictions"][0]["labels"]) for i in (0, 2)] == [0, 7]
    assert answers[3].json() == {"detail": "the text is wrong"}
    lines = [JsonLines().format(record) for record in caplog.records]
    assert not any("secret" in line or "bad" in line for line in lines)
    logged = [json.loads(line) for line in lines]
    (error,) = [line for line in logged if line["level"] == "error"]
    assert error["error"] == "RuntimeError" and any("test_api.py" in place for place in error["places"])
    asked = [line for line in logged if line.get("status") == 200]
    assert all({"time", "method", "path", "ms", "texts"} <= set(line) and line["texts"] == 1 for line in asked)


def test_a_batch_has_one_model_and_keeps_the_order() -> None:
    one, two = FirstWordPredictor(animals_taxonomy()), FirstWordPredictor(animals_taxonomy())
    worker = Worker(ServeConfig(batch=3, wait_ms=0))
    jobs = [Job(model, ["0.5"] * n, len) for model, n in [(one, 2), (two, 1), (one, 1), (one, 1), (two, 5)]]
    for job in jobs:
        worker.submit(job)
    worker.start()
    worker.close()
    assert [job.future.result(0) for job in jobs] == [2, 1, 1, 1, 5]
    assert (one.batches, two.batches) == ([3, 1], [1, 5])
    with pytest.raises(WorkerClosed):
        worker.submit(jobs[0])


def test_the_worker_waits_for_a_batch_unless_it_is_full() -> None:
    model = FirstWordPredictor(animals_taxonomy())
    worker = Worker(ServeConfig(batch=2, wait_ms=600_000))
    worker.start()
    jobs = [Job(model, ["0.5"], len) for _ in range(2)]
    worker.submit(jobs[0])
    time.sleep(0.1)
    assert not jobs[0].future.done(), "it waits for another job"
    worker.submit(jobs[1])
    assert [job.future.result(60) for job in jobs] == [1, 1] and model.batches == [2]
    worker.close()


def test_retry_after_depends_on_the_seconds_per_text() -> None:
    model = FirstWordPredictor(animals_taxonomy())
    worker = Worker(ServeConfig(batch=4, queue=40, max_texts=40, wait_ms=0))
    worker._seconds_per_text = 0.5
    worker.submit(Job(model, ["0.5"] * 40, len))
    with pytest.raises(QueueFull) as full:
        worker.submit(Job(model, ["0.5"], len))
    assert full.value.retry_after == 20


def test_without_a_key_only_loopback_addresses_are_allowed() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        check_address(ServeConfig(host=host), "")
    for host in ("0.0.0.0", "::", "", "192.0.2.1", "8.8.8.8"):
        with pytest.raises(ConfigError, match="set HILL_API_KEY, or give --public"):
            check_address(ServeConfig(host=host), "")
        check_address(ServeConfig(host=host), "a key")
        check_address(ServeConfig(host=host, public=True), "")
    with pytest.raises(ConfigError, match="not an address of this machine"):
        check_address(ServeConfig(host="no such host"), "")
    assert read_key({"HILL_API_KEY": " key\n"}) == "key" and read_key({}) == read_key({"HILL_API_KEY": " "}) == ""


def test_settings_are_checked_and_equal_the_options_of_the_command() -> None:
    with pytest.raises(ConfigError, match="holds the largest request"):
        ServeConfig(queue=10, max_texts=11)
    for name in ("", "http://hill.example", "hill.example/", "*.example", "a, b"):
        with pytest.raises(ConfigError, match="expected a host name such as"):
            ServeConfig(allow_host=("localhost", name))
    hints = serve_command.serve.__annotations__
    defaults = dict(zip(list(hints)[1:], serve_command.serve.__defaults__ or (), strict=False))
    for name, _, default, text in describe(ServeConfig):
        assert hints[name].__metadata__[0].help == text and defaults[name] == (None if default == () else default), name


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("port", [0, 65_535], [-1, 65_536]),
        ("batch", [1], [0, -3, 10**7]),
        ("wait_ms", [0, 0.5, 600_000], [-0.1, 600_001]),
        ("queue", [256], [0, 10**10]),
        ("timeout", [0.1, 86_400], [0, -1, 1e9]),
        ("max_texts", [1], [0]),
        ("max_body", [1], [0]),
        ("idle_timeout", [0.1, 86_400], [0, 0.05, 1e9]),
        ("max_connections", [1], [0, 10**7]),
    ],
)
def test_ranges_of_the_settings(name: str, valid: list[float], invalid: list[float]) -> None:
    for value in valid:
        ServeConfig(**{name: value})  # type: ignore[arg-type]
    for value in (*invalid, float("inf"), float("-inf"), float("nan")):
        with pytest.raises(ConfigError, match=rf"^serve\.{name} is .*; expected a number from [\d.]+ to \d+$"):
            ServeConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["0", "nan", "inf", "-1"])
def test_the_command_refuses_a_timeout_without_meaning(value: str) -> None:
    with pytest.raises(ConfigError, match=rf"serve\.timeout is {float(value)}; expected a number from 0\.1 to 86400"):
        CliRunner().invoke(command_line, ["serve", "no-such-model", "--timeout", value], catch_exceptions=False)


def test_the_command_loads_models_with_their_explainer(
    fitted: HillClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.save(tmp_path / "mine")
    served: list[Any] = []
    monkeypatch.setattr(
        "hill.serve.app.serve",
        lambda registry, config, bound, _: served.extend((registry, config, bound, bound.getsockname()[0])),
    )
    serve_command.serve([tmp_path / "mine"] * 2, port=0, queue=300, allow_host=["one", "two"])
    registry, config, bound, address = served
    assert address == "127.0.0.1" and config == ServeConfig(port=0, queue=300, allow_host=("one", "two"))
    assert bound.fileno() == -1, "it is closed when the server has stopped"
    assert list(registry.models) == ["mine", "mine-2"]
    assert registry.default.explain is explain and registry.default.predictor.predict(TEXTS) == fitted.predict(TEXTS)


def test_a_port_in_use_is_an_error() -> None:
    with bind(ServeConfig(port=0)) as taken, pytest.raises(ConfigError, match="choose another --host or --port"):
        taken.listen()
        bind(ServeConfig(port=taken.getsockname()[1]))


def until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
