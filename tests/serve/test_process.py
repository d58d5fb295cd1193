"""The server as a separate process, with requests over the network."""

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

from hill.data.answers import backup_path, read_answers
from hill.export import OnnxClassifier
from tests.command import hill
from tests.conftest import ROOT
from tests.serve.test_api import TEXTS, expected_prediction

PROGRAM = "import sys; from hill.cli import main; sys.argv[0] = 'hill'; main()"
BODIES = int(os.environ.get("HILL_BODIES", "600"))
EXAMPLES = int(os.environ.get("HILL_EXAMPLES", "15"))
UNUSUAL = [None, True, -1, 0, 0.5, 1e400, "", " ", "wing", "\ud800", "\x00", "é" * 50, [], {}, ["wing"], [[]], {"a": 1}]
FIELDS = ["text", "texts", "model", "strategy", "threshold", "top_k", "explain", "other"]
STATUSES = {200, 400, 404, 409, 413, 422}


class Process:
    """A running server; a thread collects its log."""

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
        """Send a signal, wait until the process ends and return its log."""
        self.process.send_signal(number)
        assert self.process.wait(60) == 0
        self._reader.join(60)
        return [json.loads(line) for line in self.lines]


@contextmanager
def running_server(*arguments: Any, **environment: str) -> Iterator[Process]:
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
    names = ("--allow-host", "one.example", "--allow-host", "two.example")
    with running_server(exported, "--max-body", 100_000, *names) as process:
        yield process


def test_concurrent_clients_get_their_own_responses(server: Process, exported: Path) -> None:
    classifier = OnnxClassifier.load(exported)

    def ask(text: str) -> Any:
        return requests.post(f"{server.url}/v1/predict", json={"text": text}, timeout=60).json()["predictions"][0]

    expected = [expected_prediction(classifier, text) for text in TEXTS]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, TEXTS * 3)) == expected * 3


def test_only_allowed_hosts_are_accepted(server: Process) -> None:
    def status(host: str) -> int:
        return requests.get(f"{server.url}/v1/models", headers={"Host": host}, timeout=60).status_code

    assert [status(host) for host in ("localhost", "ONE.example:80", "two.example")] == [200] * 3
    assert [status(host) for host in ("evil.example", "three.example:8000", "localhost.evil.example")] == [421] * 3
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=60) as old:
        old.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert old.makefile("rb").read().startswith(b"HTTP/1.1 421 ")


def test_requests_of_the_http_backend_of_annif(server: Process, exported: Path) -> None:
    """The backend requests the project at the URL of the endpoint without `/suggest`."""
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


def test_random_bodies_give_a_valid_status(server: Process) -> None:
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
    """Mostly requests with unusual fields; some random bytes, and some changed requests."""
    path = ("/v1/predict", "/v1/projects/animals/suggest-batch", "/v1/projects/animals/suggest")[number % 3]
    kind = "application/x-www-form-urlencoded" if number % 3 == 2 else "application/json"
    if number % 5 == 4:
        return draw.bytes(int(draw.integers(0, 300))), (path, kind)
    fields = draw.choice(FIELDS, size=int(draw.integers(1, 4)), replace=False).tolist()
    values = [UNUSUAL[i] for i in draw.integers(0, len(UNUSUAL), len(fields))]
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


def test_the_api_matches_its_openapi_description(server: Process) -> None:
    """Schemathesis calls every operation with valid and invalid input."""
    import schemathesis  # takes seconds per pytest worker

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


def test_sigterm_finishes_accepted_requests_and_the_log_has_no_text(exported: Path) -> None:
    """Requests that wait for their batch when the signal arrives are answered; then the server ends."""
    with running_server(exported, "--wait-ms", 5000) as server, ThreadPoolExecutor(4) as pool:
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


def test_key_in_the_environment_and_sigint(exported: Path) -> None:
    with running_server(exported, "--host", "0.0.0.0", HILL_API_KEY="s3cret") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert requests.get(f"{url}/v1/models", timeout=60).status_code == 401
        assert requests.get(f"{url}/v1/models", headers={"X-API-Key": "s3cret"}, timeout=60).status_code == 200
        assert "s3cret" not in json.dumps(server.end(signal.SIGINT))


def test_reviewers_at_two_servers_with_the_same_answers(exported: Path, tmp_path: Path) -> None:
    """No answer is lost, no document is answered twice, and the end of the servers leaves a backup."""
    queue, answers = tmp_path / "queue.jsonl", tmp_path / "labels.sqlite"
    queue.write_text("".join(json.dumps({"text": f"{text} {i}"}) + "\n" for i, text in enumerate(TEXTS)))
    options = (exported, "--review", queue, "--answers", answers)

    def review(number: int) -> int:
        url, body = f"{servers[number % 2].url}/v1/review", {"reviewer": "ann", "session": str(number)}
        for count in range(len(TEXTS) + 1):
            task = requests.post(f"{url}/next", json=body, timeout=60).json()
            if task["document"] is None:
                return count
            answer = body | {"document": task["document"]["key"], "action": "correct", "labels": ["p"]}
            assert requests.post(f"{url}/answers", json=answer, timeout=60).status_code == 200
        raise AssertionError("there are more documents than texts")

    with ThreadPoolExecutor(4) as pool, running_server(*options) as first, running_server(*options) as second:
        servers = [first, second]
        counts = list(pool.map(review, range(4)))
        logs = [server.end() for server in servers]
    assert sum(counts) == len(TEXTS) == len(read_answers(answers)) == len(read_answers(backup_path(answers)))
    assert all(TEXTS[0].split()[0] not in json.dumps(log) for log in logs)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["labels.sqlite", "labels.sqlite.bak", "queue.jsonl"]


def test_a_queue_or_an_answers_file_that_cannot_be_used_is_one_line(exported: Path, tmp_path: Path) -> None:
    queue, answers = tmp_path / "queue.jsonl", tmp_path / "answers.sqlite"
    queue.write_text("")
    refused = hill("serve", exported, "--port", "0", "--review", queue)
    assert refused.returncode == 2 and "has no documents; expected one per line" in refused.stderr
    queue.write_text('{"text": "wing"}\n')
    answers.write_text("damaged")
    refused = hill("serve", exported, "--port", "0", "--review", queue)
    assert refused.returncode == 2 and f"answers file '{answers}' is damaged" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--review", "q", "--public", "--host", "0.0.0.0"],
            "hill: other machines can reach '0.0.0.0', and --review needs",
        ),
        (["--host", "0.0.0.0"], "hill: other machines can reach '0.0.0.0', and there is no API key; set HILL_API_KEY"),
        (["--port", "TAKEN"], "hill: cannot listen on 127.0.0.1:"),
    ],
)
def test_an_invalid_address_is_one_line_before_models_are_loaded(arguments: list[str], message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [word.replace("TAKEN", str(taken.getsockname()[1])) for word in arguments]
        command = [sys.executable, "-c", PROGRAM, "serve", "no-such-model", *words]
        environment = {name: value for name, value in os.environ.items() if name != "HILL_API_KEY"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith(message) and done.stderr.count("\n") == 1
