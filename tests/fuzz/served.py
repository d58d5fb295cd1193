"""The server with raw requests, without a client that corrects them."""

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from hill.errors import HillError
from hill.explain import explain
from hill.serve import ServeConfig
from hill.serve.app import make_app
from hill.serve.registry import ModelRegistry
from tests.fuzz.stored import classifier

BUSY = (503, 504)
REQUESTS = [
    'POST /v1/predict\ncontent-type: application/json\n\n{"text": "fur milk", "top_k": 3, "threshold": 0.4}',
    'POST /v1/predict\ncontent-type: application/json\n\n{"texts": ["fur", "wing"], "strategy": "path"}',
    'POST /v1/predict\ncontent-type: application/json\n\n{"text": "cave", "explain": ["bat"]}',
    "POST /v1/projects/animals/suggest\ncontent-type: application/x-www-form-urlencoded\n\ntext=fur&limit=3",
    "POST /v1/projects/animals/suggest\ncontent-type: multipart/form-data; boundary=b\n\n"
    '--b\r\nContent-Disposition: form-data; name="text"\r\n\r\nfur milk\r\n--b--\r\n',
    'POST /v1/projects/animals/suggest-batch?limit=2\ncontent-type: application/json\n\n{"documents": [{"text": "a"}]}',
    "GET /v1/taxonomy?search=b&limit=2\n\n",
    "GET /v1/taxonomy?parent=m&offset=1\n\n",
    "GET /v1/labels/bat\n\n",
    "GET /v1/projects/animals\nauthorization: Bearer x\n\n",
    "GET /static/index.html\n\n",
    "GET /\naccept: */*\n\n",
]


@cache
def _running() -> tuple[Any, asyncio.AbstractEventLoop, Any]:
    loop = asyncio.new_event_loop()
    config = ServeConfig(max_body=200_000, wait_ms=0, allow_host=("*",))
    app = make_app(ModelRegistry([(Path("animals"), classifier(), explain)]), config)
    lifespan = app.router.lifespan_context(app)
    loop.run_until_complete(lifespan.__aenter__())
    return app, loop, lifespan


def server(folder: Path) -> None:
    """Send the request; a status of 500 or more is a finding, except for 503 and 504."""
    status, kind, body = ask((folder / "request").read_bytes())
    if status >= 500 and status not in BUSY:
        raise AssertionError(f"status {status}: {body[:200]!r}")
    if status >= 400:
        raise HillError(json.loads(body)["detail"] if body else f"status {status}")
    if kind == b"application/json":
        json.loads(body)


def ask(request: bytes) -> tuple[int, bytes, bytes]:
    """Status, content type and body of the response to a raw request."""
    head, _, body = request.partition(b"\n\n")
    line, *headers = head.split(b"\n")
    method, _, target = line.partition(b" ")
    path, _, query = target.partition(b"?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method.decode("latin-1")[:20] or "GET",
        "path": "/" + unquote_to_bytes(path).decode("utf-8", "replace").lstrip("/"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "scheme": "http",
        "headers": [(name.lower().strip(), value.strip()) for name, _, value in (h.partition(b":") for h in headers)],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    app, loop, _ = _running()
    return loop.run_until_complete(_call(app, scope, body))


async def _call(app: Any, scope: dict[str, Any], body: bytes) -> tuple[int, bytes, bytes]:
    coming = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return coming.pop() if coming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    kind = dict(start["headers"]).get(b"content-type", b"")
    return start["status"], kind, b"".join(message.get("body", b"") for message in sent)
