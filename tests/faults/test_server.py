"""A server that ends while requests arrive, or is attacked: accepted requests are answered, and nothing leaks."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from tests.faults import record, times
from tests.serve.test_connections import HEADERS, connections, requests_in_parallel, trickle
from tests.serve.test_process import Process, running_server

TEXTS = ["fur milk", "wing beak nest", "leaf root bark"]
ALIVE = b'{"status":"alive"}'


def ask(server: Process, text: str) -> Any:
    return requests.post(f"{server.url}/v1/predict", json={"text": text}, timeout=60)


def clients(server: Process, answers: list[int], count: int) -> Callable[[], None]:
    """Start clients that send requests until the server is gone; returns a function that waits for them."""

    def send_requests() -> None:
        while True:
            try:
                answers.append(ask(server, TEXTS[0]).status_code)
            except requests.ConnectionError:
                return
            except requests.exceptions.ChunkedEncodingError:  # an incomplete response from a killed server
                return

    threads = [threading.Thread(target=send_requests) for _ in range(count)]
    for thread in threads:
        thread.start()
    return lambda: [thread.join(120) for thread in threads].clear()


def test_sigterm_answers_accepted_requests(exported: Path) -> None:
    draw = np.random.default_rng(2)
    for _ in range(times(1, 10)):
        answers: list[int] = []
        with running_server(exported, "--wait-ms", 30) as server:
            wait = clients(server, answers, 6)
            while answers.count(200) <= 6:
                time.sleep(0.01)
            time.sleep(draw.uniform(0.1, 0.6))
            log = server.end(signal.SIGTERM)
            wait()
        done = [line["status"] for line in log if line.get("path") == "/v1/predict"]
        assert done.count(200) > 6 and log[-1]["message"] == "ended"
        record("SIGTERM to a server at work", abs(done.count(200) - answers.count(200)))
        assert set(done) <= {200, 503}


def test_a_restarted_server_gives_the_same_responses(exported: Path) -> None:
    found: list[Any] = []
    for _ in range(times(2, 5)):
        with running_server(exported) as server:
            wait = clients(server, [], 2)
            found.append([ask(server, text).json() for text in TEXTS])
            server.process.kill()
            wait()
        record("SIGKILL to a server at work", len(str(found[0])) * (found[-1] != found[0]))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have only one loopback address")
def test_slow_clients_are_closed_and_others_get_responses(exported: Path) -> None:
    with running_server(exported, "--idle-timeout", 1) as server:
        for number in range(times(1, 10)):
            with requests_in_parallel(server) as statuses, connections(server, 190, f"127.0.0.{number + 2}") as slow:
                for connection in slow:
                    connection.sendall(HEADERS)
                closed = trickle(slow)
            for place in range(len(slow)):
                record("client that sends headers slowly", len(HEADERS) * (place >= closed))
            assert statuses
            for status in statuses:
                record("request beside slow clients", len(ALIVE) * (status != 200))


def test_foreign_hosts_are_refused(exported: Path) -> None:
    draw = np.random.default_rng(3)
    with running_server(exported) as server, requests.Session() as session:
        for _ in range(times(50, 2000)):
            name = "".join(draw.choice(list("abcxyz0189-."), size=int(draw.integers(1, 20))))
            host = f"{draw.choice(['', 'localhost.', '127.0.0.1.'])}{name}{draw.choice(['.example', '.x.', '.x:8000'])}"
            answer = session.get(f"{server.url}/v1/models", headers={"Host": host}, timeout=60)
            record("request for a foreign host", len(answer.content) * (answer.status_code != 421))
        assert ask(server, TEXTS[0]).status_code == 200
