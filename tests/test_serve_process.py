"""The server as a process of its own, asked over the network as its users do."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from hypothesis import HealthCheck, given, settings

from hill.export import OnnxClassifier
from tests.conftest import ROOT
from tests.test_serve import TEXTS, one_by_one

PROGRAM = "import sys; from hill.cli import main, serve; sys.argv[0] = 'hill'; main()"
BODIES = int(os.environ.get("HILL_BODIES", "600"))
EXAMPLES = int(os.environ.get("HILL_EXAMPLES", "15"))
STRANGE = [None, True, -1, 0, 0.5, 1e400, "", " ", "wing", "\ud800", "\x00", "é" * 50, [], {}, ["wing"], [[]], {"a": 1}]
FIELDS = ["text", "texts", "model", "strategy", "threshold", "top_k", "explain", "other"]
STATUSES = {200, 400, 404, 409, 413, 422}


class Process:
    """A server that listens; its log is read as it comes."""

    def __init__(self, arguments: list[Any], **environment: str) -> None:
        command = [sys.executable, "-c", PROGRAM, "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        )
        assert self.process.stderr
        self.lines = [self.process.stderr.readline()]
        self.url = json.loads(self.lines[0])["url"]
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()))
        self._reader.start()

    def end(self, number: int = signal.SIGTERM) -> list[dict[str, Any]]:
        """Ask it to end, and give its log when it has."""
        self.process.send_signal(number)
        assert self.process.wait(60) == 0
        self._reader.join(60)
        return [json.loads(line) for line in self.lines]


@contextmanager
def running(*arguments: Any, **environment: str) -> Iterator[Process]:
    server = Process(list(arguments), **environment)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        assert server.process.stderr
        server.process.stderr.close()


@pytest.fixture(scope="module")
def server(exported: Path) -> Iterator[Process]:
    with running(exported, "--max-body", 100_000) as process:
        yield process


def test_clients_at_once_get_their_own_answers(server: Process, exported: Path) -> None:
    classifier = OnnxClassifier.load(exported)

    def ask(text: str) -> Any:
        return requests.post(f"{server.url}/v1/predict", json={"text": text}, timeout=60).json()["predictions"][0]

    expected = [one_by_one(classifier, text) for text in TEXTS]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, TEXTS * 3)) == expected * 3


def test_annif_as_its_http_backend_asks(server: Process, exported: Path) -> None:
    """The requests of Annif's http backend: the project is asked for at the endpoint without its end."""
    endpoint, headers = f"{server.url}/v1/projects/animals/suggest", {"User-Agent": "Annif/1.4.3"}
    project = requests.get(endpoint.replace("/suggest", ""), headers=headers, timeout=60)
    project.raise_for_status()
    assert project.json()["is_trained"] is True
    changed = np.datetime64(project.json()["modification_time"].removesuffix("+00:00"))
    assert abs((np.datetime64("now") - changed) / np.timedelta64(1, "s")) < 1500
    answer = requests.post(endpoint, data={"text": TEXTS[0], "project": "animals"}, headers=headers, timeout=60)
    answer.raise_for_status()
    response = answer.json()
    hits = {hit["uri"]: hit["score"] for hit in response["results"] if hit["score"] > 0.0}
    classifier = OnnxClassifier.load(exported)
    scores = dict(zip(classifier.taxonomy.ids, classifier.predict_proba([TEXTS[0]])[0].tolist(), strict=True))
    assert hits == {label: pytest.approx(score, abs=2e-6) for label, score in scores.items()}


def test_random_bodies_are_answered_or_refused(server: Process) -> None:
    draw = np.random.default_rng(0)
    seen: set[int] = set()
    with requests.Session() as session:
        for number in range(BODIES):
            body, kind = random_body(draw, number)
            answer = session.post(server.url + kind[0], data=body, headers={"Content-Type": kind[1]}, timeout=60)
            assert answer.status_code in STATUSES, (body, answer.text)
            assert answer.status_code == 200 or [*answer.json()] == ["detail"]
            seen.add(answer.status_code)
        assert session.get(f"{server.url}/readyz", timeout=60).status_code == 200
    assert {200, 404, 422} <= seen


def random_body(draw: np.random.Generator, number: int) -> tuple[bytes, tuple[str, str]]:
    """Mostly requests of strange fields, some bytes of any kind, some that were cut or changed."""
    path = ("/v1/predict", "/v1/projects/animals/suggest-batch", "/v1/projects/animals/suggest")[number % 3]
    kind = "application/x-www-form-urlencoded" if number % 3 == 2 else "application/json"
    if number % 5 == 4:
        return draw.bytes(int(draw.integers(0, 300))), (path, kind)
    fields = draw.choice(FIELDS, size=int(draw.integers(1, 4)), replace=False).tolist()
    values = [STRANGE[i] for i in draw.integers(0, len(STRANGE), len(fields))]
    document: Any = dict(zip(fields, values, strict=True)) | ({"text": "wing"} if number % 2 else {})
    if number % 3 == 1:
        document = {"documents": [document, {"text": "wing"}]}
    body = json.dumps(document).encode()
    if number % 7 == 6:
        place = int(draw.integers(0, len(body)))
        body = body[:place] + draw.bytes(2) + body[place + 1 :]
    if kind != "application/json":
        body = b"text=" + body
    return body, (path, kind)


def test_the_api_is_as_its_description_says(server: Process) -> None:
    """Schemathesis asks every operation with what the description allows and with what it does not."""
    import schemathesis  # takes seconds, of every worker

    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    asked: set[str] = set()
    for result in schema.get_all_operations():
        allowed, other = (result.ok().as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode)

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=allowed | other)
        def ask(case: Any) -> None:
            asked.add(case.path)
            case.call_and_validate(timeout=60)

        ask()
    assert {"/v1/predict", "/v1/taxonomy", "/v1/projects/{project_id}/suggest"} <= asked


def test_a_signal_to_end_lets_accepted_work_finish_and_the_log_holds_no_text(exported: Path) -> None:
    """Requests wait for their batch when the signal comes; they are answered, and then the server is gone."""
    with running(exported, "--wait-ms", 5000) as server, ThreadPoolExecutor(4) as pool:
        maps = Path(f"/proc/{server.process.pid}/maps")
        assert not maps.exists() or "libtorch" not in maps.read_text(), "an exported model needs no torch"
        requests.get(f"{server.url}/v1/taxonomy", params={"search": "secret"}, timeout=60)
        requests.post(f"{server.url}/v1/predict", json={"text": "secret", "secret": 1}, timeout=60)
        url = f"{server.url}/v1/predict"
        answers = [pool.submit(requests.post, url, json={"texts": ["wing secret"] * 2}, timeout=60) for _ in range(4)]
        while "hill_queue_texts 8.0" not in requests.get(f"{server.url}/metrics", timeout=60).text:
            assert not any(answer.done() for answer in answers)
        log = server.end()
        assert [answer.result(60).status_code for answer in answers] == [200] * 4
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{server.url}/healthz", timeout=5)
    assert log[0]["message"] == "listening" and log[-1]["message"] == "ended"
    asked = [line for line in log if line.get("path") not in (None, "/metrics")]
    assert [(line["status"], line["texts"]) for line in asked] == [(200, 0), (422, 0)] + [(200, 2)] * 4
    assert all(line["ms"] > 0 for line in asked) and "secret" not in json.dumps(log)


def test_a_key_in_the_environment_and_the_other_signal(exported: Path) -> None:
    with running(exported, "--host", "0.0.0.0", HILL_API_KEY="s3cret") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert requests.get(f"{url}/v1/models", timeout=60).status_code == 401
        assert requests.get(f"{url}/v1/models", headers={"X-API-Key": "s3cret"}, timeout=60).status_code == 200
        assert "s3cret" not in json.dumps(server.end(signal.SIGINT))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "hill: '0.0.0.0' can be reached by others, and there is no API key; set HILL_API_KEY"),
        (["--port", "TAKEN"], "hill: cannot listen on 127.0.0.1:"),
    ],
)
def test_a_wrong_address_is_one_line_at_once(arguments: list[str], said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [word.replace("TAKEN", str(taken.getsockname()[1])) for word in arguments]
        command = [sys.executable, "-c", PROGRAM, "serve", "no-such-model", *words]
        environment = {name: value for name, value in os.environ.items() if name != "HILL_API_KEY"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith(said) and done.stderr.count("\n") == 1
