"""The gate: every request passes it. It asks for the key, measures the body, and counts and logs the answer."""

import asyncio
import hmac
import logging
import time
from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hill.serve.config import ServeConfig
from hill.serve.log import note
from hill.serve.meter import Meter
from hill.serve.problems import problem

OPEN = ("/", "/healthz", "/readyz", "/docs", "/openapi.json")
"""Paths that need no key, as does all below /static/."""


class Gate:
    """Lets requests through to an application.

    Args:
        app: the application.
        config: the limits.
        key: the API key; empty to let everyone in.
        meter: the counters.
    """

    def __init__(self, app: ASGIApp, config: ServeConfig, key: str, meter: Meter) -> None:
        self._app, self._config, self._meter = app, config, meter
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and have it counted and logged however it ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, failed = time.perf_counter(), 0, None

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *ALWAYS]}
            await send(message)

        try:
            await self._admit(scope, receive, noted)
        except Exception as error:  # let no further: uvicorn would log its message, which may quote a text
            failed = error
            if not status:
                await problem(500, "the server made an error; its log says where")(scope, receive, noted)
        finally:
            self._note(scope, status, time.perf_counter() - start, failed)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._key and not _is_open(scope["path"]) and not self._has_key(scope):
            refusal = problem(401, "the API key is missing or wrong", {"WWW-Authenticate": "Bearer"})
            return await refusal(scope, receive, send)
        try:
            async with asyncio.timeout(self._config.timeout or None):
                body = await self._read(scope, receive)
        except TimeoutError:
            return await problem(408, "the body did not come in time", CLOSE)(scope, receive, send)
        if body is None:
            text = f"the body is too large; expected at most {self._config.max_body} bytes"
            return await problem(413, text, CLOSE)(scope, receive, send)
        await self._app(scope, _replay(body, receive), send)

    def _has_key(self, scope: Scope) -> bool:
        """Compares all keys that were given, each in the same time however much of it is right."""
        given = [hmac.compare_digest(key, self._key) for key in _keys(scope)]
        return any(given)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; nothing if it is too large."""
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > self._config.max_body:
            return None
        parts, size = [], 0
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._config.max_body:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)

    def _note(self, scope: Scope, status: int, seconds: float, failed: Exception | None) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self._meter.count(scope["method"], route, status, seconds)
        level = logging.ERROR if failed else logging.INFO
        texts = scope.get("state", {}).get("texts", 0)
        fields = {"method": scope["method"], "path": scope["path"], "status": status, "ms": round(seconds * 1000, 1)}
        note(level, failed, **fields, texts=texts)


ALWAYS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
"""Headers of every answer: browsers take it for what it says it is, and tell nobody where a reader came from."""
CLOSE = {"Connection": "close"}
"""Of a body that was not read to its end no more can follow."""


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith("/static/")


def _keys(scope: Scope) -> Iterator[bytes]:
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            yield value
        elif name == b"authorization" and value[:7].lower() == b"bearer ":
            yield value[7:].strip()


def _replay(body: bytes, receive: Receive) -> Receive:
    """What gives the body that was read, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
