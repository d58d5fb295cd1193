"""What every request passes through: the middleware, the error responses, the metrics and the log.

Every error is a JSON object with one lower-case sentence: `{"detail": "..."}`.
"""

import asyncio
import hmac
import json
import logging
import time
import traceback
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hill.errors import HillError
from hill.serve.config import AllowedHosts, ServeConfig

PUBLIC_PATHS = ("/", "/favicon.ico", "/healthz", "/readyz", "/docs", "/openapi.json")
"""Paths that need no key; paths below /static/ need none either."""
SECURITY_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
"""Headers of every response: browsers must not guess its type, nor send its address to other sites."""
CLOSE = {"Connection": "close"}
"""For requests whose body was not read completely: the rest of it is not a new request."""


class RequestMiddleware:
    """Checks the Host header, the key (unless it is empty) and the body, and logs and counts the response."""

    def __init__(self, app: ASGIApp, config: ServeConfig, key: str, metrics: "ServerMetrics") -> None:
        self._app, self._config, self._metrics = app, config, metrics
        self._key, self._hosts = key.encode(), AllowedHosts(config, key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; log and count it also if it fails."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, failure = time.perf_counter(), 0, None  # the status is 0 until the response starts

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *SECURITY_HEADERS]}
            await send(message)

        try:
            await self._handle(scope, receive, send_with_headers)
        except Exception as error:  # do not raise it again: uvicorn would log its message, which may quote a text
            failure = error
            if not status:
                response = error_response(500, "internal server error; see the log of the server")
                await response(scope, receive, send_with_headers)
        finally:
            seconds, method, path = time.perf_counter() - start, scope["method"], scope["path"]
            self._metrics.count_request(method, getattr(scope.get("route"), "path", "other"), status, seconds)
            level = logging.ERROR if failure else logging.INFO
            texts, ms = scope.get("state", {}).get("texts", 0), round(seconds * 1000, 1)
            # the path without its query, which may quote a text
            log_event(level, failure, method=method, path=path, status=status, ms=ms, texts=texts)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = b",".join(value for name, value in scope["headers"] if name == b"host").decode("latin-1")
        if not self._hosts.accepts(host):
            detail = f"the Host header is {host[:100]!r}, which is not a name of this server; --allow-host adds a name"
            return await error_response(421, detail)(scope, receive, send)
        is_public = scope["path"] in PUBLIC_PATHS or scope["path"].startswith("/static/")
        if self._key and not is_public and not self._has_key(scope):
            response = error_response(401, "the API key is missing or wrong", {"WWW-Authenticate": "Bearer"})
            return await response(scope, receive, send)
        try:
            async with asyncio.timeout(self._config.timeout):
                body = await self._read_body(scope, receive)
        except TimeoutError:
            detail = f"the body did not arrive within {self._config.timeout:g} s"
            return await error_response(408, detail, CLOSE)(scope, receive, send)
        if body is None:
            detail = f"the body is too large; expected at most {self._config.max_body} bytes"
            return await error_response(413, detail, CLOSE)(scope, receive, send)
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, receive_body, send)

    def _has_key(self, scope: Scope) -> bool:
        """Whether a key of the request is right; each comparison takes constant time."""
        keys = [value for name, value in scope["headers"] if name == b"x-api-key"]
        bearers = [value for name, value in scope["headers"] if name == b"authorization"]
        keys += [value[7:].strip() for value in bearers if value[:7].lower() == b"bearer "]
        return any(hmac.compare_digest(key, self._key) for key in keys)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body, or None if it is too large."""
        content_length = dict(scope["headers"]).get(b"content-length", b"0")
        if content_length.isdigit() and int(content_length[:20]) > self._config.max_body:
            return None
        chunks, size = [], 0
        while True:
            message = await receive()
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._config.max_body:
                return None
            if not message.get("more_body", False):
                return b"".join(chunks)


# Errors


def error_response(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The response for an error."""
    return JSONResponse({"detail": detail}, status, headers)


def add_error_handlers(app: FastAPI) -> None:
    """Turn expected exceptions into error responses; the middleware handles unexpected ones."""

    @app.exception_handler(RequestValidationError)
    async def handle_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(422, _printable(_validation_message(error.errors())))

    @app.exception_handler(StarletteHTTPException)
    async def handle_http_exception(request: Request, error: StarletteHTTPException) -> JSONResponse:
        detail, path = _lower_first(error.detail), request.scope["path"]
        if not isinstance(error, HTTPException):  # raised by the router, not by a route
            detail = {
                404: f"there is nothing at '{path}'; /docs lists all paths",
                405: f"'{path}' does not support {request.method}; /docs lists the methods of each path",
            }.get(error.status_code, detail)
        return error_response(error.status_code, _printable(detail), dict(error.headers or {}))

    @app.exception_handler(HillError)
    async def handle_hill_error(request: Request, error: HillError) -> JSONResponse:
        return error_response(422, _printable(str(error)))


def _validation_message(errors: Any) -> str:
    """The first error; if its field is a union, the error of the alternative that matched furthest."""
    first = max(errors, key=lambda error: (error["loc"][:2] == errors[0]["loc"][:2], len(error["loc"])))
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {_lower_first(first['ctx']['error'])} at character {first['loc'][-1]}"
    if first["type"] == "model_attributes_type" and len(first["loc"]) == 1:
        return "the body is not a JSON object; expected one, sent as application/json"
    field = ".".join(str(part) for part in first["loc"][1:] if part != "bool" and "[" not in str(part))
    message = _lower_first(first["msg"].removeprefix("Value error, "))
    if message.startswith(("is ", "has ")):
        return f"{field} {message}"
    return f"{field}: {message}" if field else message


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _printable(text: str) -> str:
    """One line of valid UTF-8 with at most 500 characters, because it may quote the request."""
    return str(HillError(text.encode(errors="replace").decode()[:500]))


# Metrics

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BATCH_SIZES = tuple(2**power for power in range(9))
_METHODS = ("GET", "HEAD", "OPTIONS", "POST")


class ServerMetrics:
    """Prometheus metrics: requests and their duration, texts, batches, and the queue."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.requests = Counter("hill_requests", "Requests.", ("method", "route", "status"), registry=self._registry)
        self.seconds = Histogram(
            "hill_request_seconds", "Seconds per request.", ("route",), registry=self._registry, buckets=_SECONDS
        )
        self.texts = Counter("hill_texts", "Texts predicted.", ("model",), registry=self._registry)
        self.batches = Histogram("hill_batch_texts", "Texts per batch.", registry=self._registry, buckets=_BATCH_SIZES)
        self.queue = Gauge("hill_queue_texts", "Texts waiting.", registry=self._registry)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. Unknown methods count as "other": every new label value takes memory."""
        self.requests.labels(method if method in _METHODS else "other", route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All metrics in the format of Prometheus."""
        return generate_latest(self._registry)


# Logging

LOGGER = logging.getLogger("hill.serve")
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # its warnings repeat what the response says


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON; of an exception only type and places, as its message may quote a text."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **(getattr(record, "fields", None) or {"message": record.getMessage()}),
        }
        if record.exc_info and (error := record.exc_info[1]):
            frames = traceback.extract_tb(error.__traceback__)[-8:]
            places = [f"{frame.filename}:{frame.lineno}" for frame in frames]
            line |= {"error": type(error).__name__, "places": places}
        return json.dumps(line)


def start_log(level: int = logging.INFO) -> None:
    """Log the events of the server and the warnings of uvicorn to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in (LOGGER.name, "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if logger is LOGGER else logging.WARNING)


def log_event(level: int, error: BaseException | None = None, **fields: Any) -> None:
    """Log a line with these fields."""
    LOGGER.log(level, "", extra={"fields": fields}, exc_info=error)
