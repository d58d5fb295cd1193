"""Connections to a real server: slow, idle and surplus ones are closed while other clients get responses."""

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import requests

from tests.serve.test_process import Process, running_server

IDLE, TIMEOUT = 1.0, 3.0
"""Time limits of the server `strict`: for headers and idle connections, and for bodies and responses."""
MAX_CONNECTIONS = 10
"""Limit of connections per address of the server `narrow`."""
LATE = 20.0
"""Seconds after which a connection counts as never closed, also on a busy machine."""
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEADERS = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
POST = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b"Content-Length: 1000\r\n\r\n"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have only one loopback address")


@pytest.fixture(scope="module")
def strict(exported: Path) -> Iterator[Process]:
    with running_server(exported, "--idle-timeout", IDLE, "--timeout", TIMEOUT, HILL_API_KEY="s3cret") as server:
        yield server


@pytest.fixture(scope="module")
def narrow(exported: Path) -> Iterator[Process]:
    with running_server(
        exported, "--idle-timeout", 60, "--max-connections", MAX_CONNECTIONS, HILL_API_KEY="s3cret"
    ) as server:
        yield server


def connect(server: Process, source: str = "127.0.0.1") -> socket.socket:
    """A connection from an address of the loopback network; each address is a separate client."""
    port = int(server.url.rsplit(":", 1)[1])
    return socket.create_connection(("127.0.0.1", port), timeout=LATE, source_address=(source, 0))


@contextmanager
def connections(server: Process, count: int, source: str) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connect(server, source)) for _ in range(count)]


def ask(connection: socket.socket, request: bytes = GET) -> int:
    """Send a request, read the complete response and return its status."""
    connection.sendall(request)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, "the connection was closed"
        head += byte
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while length:
        length -= len(connection.recv(length))
    return int(head.split()[1])


def trickle(slow: Sequence[socket.socket], seconds: float = LATE) -> int:
    """Send single bytes on each connection; return how many were closed within this time."""
    end, still = time.monotonic() + seconds, list(slow)
    while still and time.monotonic() < end:
        time.sleep(0.05)
        for connection in list(still):
            try:
                connection.sendall(b"a")
            except OSError:
                still.remove(connection)
    return len(slow) - len(still)


@contextmanager
def requests_in_parallel(server: Process) -> Iterator[list[int]]:
    """Send requests from 127.0.0.1 in a thread, each on a new connection; collect their statuses."""
    stop = threading.Event()
    statuses: list[int] = []

    def send_requests() -> None:
        while not stop.is_set():
            statuses.append(requests.get(f"{server.url}/healthz", timeout=60).status_code)

    thread = threading.Thread(target=send_requests)
    thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    "begin",
    [HEADERS, GET + HEADERS, POST + BODY, POST + b"X-API-Key: s3cret\r\n" + BODY],
    ids=["headers", "headers after a response", "body after its response", "body"],
)
def test_slow_clients_are_closed_in_time_and_others_get_responses(strict: Process, begin: bytes) -> None:
    """Without a key, the response (401) is sent before the body is read."""
    start = time.monotonic()
    with requests_in_parallel(strict) as statuses, connections(strict, 100, "127.0.0.2") as slow:
        for connection in slow:
            connection.sendall(begin)
        assert trickle(slow) == 100
    assert time.monotonic() - start > IDLE
    assert len(statuses) >= 5 and set(statuses) == {200}


def test_idle_connections_are_closed_and_those_in_use_are_not(strict: Process) -> None:
    start = time.monotonic()
    with connect(strict) as used, connect(strict) as silent:
        while time.monotonic() < start + 2 * IDLE:
            assert ask(used) == 200
            time.sleep(IDLE / 10)
        assert silent.recv(1) == b""
        answered = time.monotonic()
        assert used.recv(1) == b"" and time.monotonic() - answered > IDLE / 2


def test_limits_apply_per_request(strict: Process) -> None:
    """A body may take longer and be larger than headers; so may the headers of several requests together."""
    body = json.dumps({"text": "wing " * 60_000}).encode()
    with connect(strict) as connection:
        for _ in range(3):
            assert ask(connection, GET[:-2] + b"X-Long: " + b"a" * 40_000 + b"\r\n\r\n") == 200
        head = POST + b"X-API-Key: s3cret\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body[:200_000])
        time.sleep(1.5 * IDLE)
        assert ask(connection, body[200_000:]) == 200


def test_a_client_that_does_not_read_its_responses_is_closed(strict: Process) -> None:
    """The system buffers a few megabytes; the rest would stay in the memory of the server."""
    with requests.Session() as session, connect(strict, "127.0.0.2") as unread:

        def open_files() -> float:
            text = session.get(f"{strict.url}/metrics", headers={"X-API-Key": "s3cret"}, timeout=60).text
            return float(text.split("\nprocess_open_fds ")[1].split()[0])

        count = 30_000_000 // len(session.get(f"{strict.url}/openapi.json", timeout=60).content)
        assert ask(unread) == 200
        before, end = open_files(), time.monotonic() + LATE
        unread.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * count)
        while open_files() >= before:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_max_connections_per_client(narrow: Process) -> None:
    with connections(narrow, MAX_CONNECTIONS, "127.0.0.2") as full:
        assert {ask(connection) for connection in full} == {200}
        with connect(narrow, "127.0.0.2") as refused:
            head, _, body = refused.makefile("rb").read().partition(b"\r\n\r\n")
        message = f"more than {MAX_CONNECTIONS} connections are open from your address; --max-connections allows more"
        assert head.startswith(b"HTTP/1.1 429 ") and json.loads(body) == {"detail": message}
        with connect(narrow, "127.0.0.3") as other:
            assert ask(other) == 200
        assert {ask(connection) for connection in full} == {200}
        full[0].close()
        assert until_accepted(narrow, "127.0.0.2") == 200


def until_accepted(server: Process, source: str) -> int:
    """The status on a new connection, as soon as the server has noticed which others were closed."""
    for _ in range(100):
        with suppress(OSError), connect(server, source) as connection:
            if (status := ask(connection)) != 429:
                return status
        time.sleep(LATE / 100)
    return 429


def test_a_client_that_closes_its_connections_is_never_refused(narrow: Process) -> None:
    for _ in range(5 * MAX_CONNECTIONS):
        with connect(narrow, "127.0.0.4") as connection:
            assert ask(connection, GET[:-2] + b"Connection: close\r\n\r\n") == 200
            assert connection.recv(1) == b""


def test_max_connections_in_total(narrow: Process) -> None:
    with ExitStack() as stack:
        for number in (5, 6, 7):
            for connection in stack.enter_context(connections(narrow, MAX_CONNECTIONS, f"127.0.0.{number}")):
                assert ask(connection) == 200
        with connect(narrow, "127.0.0.8") as refused:
            head, _, body = refused.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body) == {"detail": f"more than {3 * MAX_CONNECTIONS} connections are open; try again later"}


@pytest.mark.parametrize(
    "begin",
    [b"GET /?", HEADERS, CHUNKED + b"1\r\n{\r\n0\r\nX-Trailer: "],
    ids=["path", "headers", "trailers"],
)
def test_headers_without_end_are_refused(narrow: Process, begin: bytes) -> None:
    """They could fill the memory within the time limit."""
    with connect(narrow, "127.0.0.9") as large, pytest.raises(OSError):
        large.sendall(begin)
        for _ in range(1000):
            large.sendall(b"a" * 100_000)


def test_the_response_to_large_headers_names_the_limit(narrow: Process) -> None:
    with connect(narrow, "127.0.0.9") as large:
        large.sendall(HEADERS + b"a" * 65_536)
        head, _, body = large.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body) == {"detail": "the headers are too large; expected at most 65536 bytes"}
