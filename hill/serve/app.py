"""The ASGI application, and the server that runs it with limits per connection."""

import asyncio
import json
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, cast

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hill.errors import ConfigError
from hill.html import render
from hill.serve import annif, api
from hill.serve.api import Server, ServerState
from hill.serve.config import ServeConfig, check_address, read_key
from hill.serve.middleware import RequestMiddleware, ServerMetrics, add_error_handlers, log_event, start_log
from hill.serve.registry import ModelRegistry
from hill.serve.review import Review
from hill.serve.review import router as review_router
from hill.serve.worker import Worker

PAGE = Path(__file__).parent / "page"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""The page may load files of this server only."""

# The application


def make_app(
    registry: ModelRegistry, config: ServeConfig | None = None, key: str = "", review: Review | None = None
) -> FastAPI:
    """The ASGI application that serves these models. With a key, requests must send it.

    With a review, the page has a Review tab; its answers file is closed when the application ends.
    """
    config, metrics = config or ServeConfig(), ServerMetrics()
    worker = Worker(config, metrics.batches.observe)
    metrics.queue.set_function(lambda: worker.queue_size)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        worker.close()
        if review:
            review.close()

    app = FastAPI(
        title="hill",
        version=version("hill-htc"),
        summary="Classify text into a taxonomy.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.server = ServerState(registry, worker, config, metrics)
    app.state.review = review
    app.include_router(api.router)
    app.include_router(review_router)
    app.include_router(annif.router)
    app.add_api_route("/healthz", _health, tags=["server"])
    app.add_api_route("/readyz", _readiness, tags=["server"], responses={503: {"description": "Not ready."}})
    app.add_api_route("/metrics", _metrics, tags=["server"], response_class=Response)
    app.add_api_route("/docs", _docs, include_in_schema=False)
    app.add_api_route("/", _page, include_in_schema=False)
    app.add_api_route("/favicon.ico", _icon, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=PAGE, check_dir=False))
    add_error_handlers(app)
    app.add_middleware(RequestMiddleware, config=config, key=key, metrics=metrics)
    return app


async def _health() -> dict[str, str]:
    """Whether the process is alive."""
    return {"status": "alive"}


async def _readiness(server: Server) -> JSONResponse:
    """Whether the server accepts requests: the models are loaded and it is not shutting down."""
    ready = server.worker.ready
    return JSONResponse({"status": "ready" if ready else "closed"}, 200 if ready else 503)


async def _metrics(server: Server) -> Response:
    """Metrics for Prometheus."""
    return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")


async def _docs(request: Request) -> HTMLResponse:
    # the documentation pages of FastAPI load scripts from another site; this one needs none
    return HTMLResponse(render("api.html", description=request.app.openapi()))


async def _page() -> FileResponse:
    return FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})


async def _icon() -> FileResponse:
    return FileResponse(PAGE / "icon.svg", media_type="image/svg+xml")


# The server


def bind(config: ServeConfig, review: bool = False) -> socket.socket:
    """Bind a socket to the configured address, without listening yet; raise if the address is not allowed."""
    check_address(config, read_key(), review)
    family = socket.AF_INET6 if ":" in config.host or not config.host else socket.AF_INET
    # With an explicit protocol asyncio turns on TCP_NODELAY, which sends small responses without delay.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((config.host, config.port))
    except OSError as error:
        bound.close()
        reason = f"{error.strerror or error}; choose another --host or --port"
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}") from None
    return bound


def serve(registry: ModelRegistry, config: ServeConfig, bound: socket.socket, review: Review | None = None) -> None:
    """Serve models on a socket from `bind` until SIGINT or SIGTERM; then finish the accepted requests."""
    start_log()

    class LimitedConnection(Connection):
        limits = config

    server = uvicorn.Server(
        uvicorn.Config(
            make_app(registry, config, read_key(), review),
            http=LimitedConnection,
            ws="none",  # the limits do not apply to WebSockets
            backlog=BACKLOG,
            timeout_keep_alive=config.idle_timeout,  # type: ignore[arg-type]  # uvicorn also accepts a float
            log_config=None,
            access_log=False,
            server_header=False,
        )
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again at the end; exit with status 0
    bound.listen(BACKLOG)  # from now on clients can connect; they wait until the server has started
    host, port = bound.getsockname()[:2]
    log_event(logging.INFO, message="listening", url=f"http://{f'[{host}]' if ':' in host else host}:{port}")
    server.run([bound])
    log_event(logging.INFO, message="ended")


# Limits per connection that uvicorn lacks

BACKLOG = 128
"""Clients that wait in the kernel to be accepted; they do not use file descriptors of the process."""
TOTAL_FACTOR = 3
"""Maximum number of open connections in total, as a multiple of those per client."""
MAX_HEADERS = 65_536
"""Maximum number of bytes of the headers of a request, or of its trailers."""


class Connection(HttpToolsProtocol):
    """A connection that is closed if its client is too slow, and refused if its client has too many connections.

    The middleware limits the time to send a body and to predict. One timer limits the rest. It starts when the
    connection begins to wait for its client, and single bytes do not restart it:

    - The headers of the next request must arrive within `idle_timeout` seconds. So must the rest of a body that was not
      read because the response did not depend on it.
    - The client must read a response that does not fit into the send buffer within `timeout` seconds.
    """

    limits: ClassVar[ServeConfig] = ServeConfig()
    _timer: asyncio.TimerHandle | None = None
    _unparsed = 0
    """Bytes since the parser last reported headers or a chunk of a body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, unless too many connections are open."""
        super().connection_made(transport)
        limit, connections = self.limits.max_connections, cast("set[Connection]", self.connections)
        addresses = [other.client and other.client[0] for other in connections]
        if addresses.count(self.client and self.client[0]) > limit:
            limited = f"more than {limit} connections are open from your address"
            self._refuse(429, f"{limited}; --max-connections allows more")
        elif len(self.connections) > TOTAL_FACTOR * limit:
            self._refuse(503, f"more than {TOTAL_FACTOR * limit} connections are open; try again later")
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        """Parse; complete headers stop the timer, and headers that are too large end the connection."""
        waiting = self._waits_for_request()
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEADERS:
            self._refuse(431, f"the headers are too large; expected at most {MAX_HEADERS} bytes")
        elif waiting and not self._waits_for_request():
            self._set_timer()

    def on_headers_complete(self) -> None:
        """Start a request."""
        self._unparsed = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Add a chunk of a body to its request."""
        self._unparsed = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._set_timer()

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        super().pause_writing()
        self._set_timer()

    def resume_writing(self) -> None:
        """Continue to write."""
        super().resume_writing()
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        super().connection_lost(exc)
        if self._timer:
            self._timer.cancel()

    def _waits_for_request(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _set_timer(self) -> None:
        """Restart the timer for the current state of the connection."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self.flow.write_paused or self._waits_for_request():
            seconds = self.limits.timeout if self.flow.write_paused else self.limits.idle_timeout
            # Not close(), which waits until the client has read everything.
            self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _refuse(self, status: int, detail: str) -> None:
        """Send an error response without calling the application, and close the connection."""
        self.connections.discard(self)
        body = json.dumps({"detail": detail}).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()
        log_event(logging.WARNING, message=f"refused a connection: {detail}", status=status)
