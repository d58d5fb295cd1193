"""A server that ends while it is asked: what it took on is answered, and after a kill it answers as before."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import requests

from tests.faults import tell, times
from tests.test_serve_process import Process, running

TEXTS = ["fur milk", "wing beak nest", "leaf root bark"]


def ask(server: Process, text: str) -> Any:
    return requests.post(f"{server.url}/v1/predict", json={"text": text}, timeout=60)


def clients(server: Process, answers: list[int], count: int) -> Callable[[], None]:
    """Clients that ask until nobody listens; returns what waits for them to end."""

    def keep_asking() -> None:
        while True:
            try:
                answers.append(ask(server, TEXTS[0]).status_code)
            except requests.ConnectionError:
                return
            except requests.exceptions.ChunkedEncodingError:  # half an answer, of a server that was killed
                return

    threads = [threading.Thread(target=keep_asking) for _ in range(count)]
    for thread in threads:
        thread.start()
    return lambda: [thread.join(120) for thread in threads].clear()


def test_a_server_told_to_end_answers_what_it_took_on(exported: Path) -> None:
    draw = np.random.default_rng(2)
    for _ in range(times(1, 10)):
        answers: list[int] = []
        with running(exported, "--wait-ms", 30) as server:
            wait = clients(server, answers, 6)
            while answers.count(200) <= 6:
                time.sleep(0.01)
            time.sleep(draw.uniform(0.1, 0.6))
            log = server.end(signal.SIGTERM)
            wait()
        done = [line["status"] for line in log if line.get("path") == "/v1/predict"]
        assert done.count(200) > 6 and log[-1]["message"] == "ended"
        tell("SIGTERM to a server at work", abs(done.count(200) - answers.count(200)))
        assert set(done) <= {200, 503}


def test_a_server_that_was_killed_answers_as_before(exported: Path) -> None:
    found: list[Any] = []
    for _ in range(times(2, 5)):
        with running(exported) as server:
            wait = clients(server, [], 2)
            found.append([ask(server, text).json() for text in TEXTS])
            server.process.kill()
            wait()
        tell("SIGKILL to a server at work", len(str(found[0])) * (found[-1] != found[0]))
