"""The application and the server that runs it."""

import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles

from hill.errors import ConfigError
from hill.html import render
from hill.serve import annif, api
from hill.serve.api import Server, ServerState
from hill.serve.config import ServeConfig, check_address, read_key
from hill.serve.connection import Connection
from hill.serve.errors import add_error_handlers
from hill.serve.middleware import RequestMiddleware, ServerMetrics, log_event, start_log
from hill.serve.registry import ModelRegistry
from hill.serve.worker import Worker

PAGE = Path(__file__).parent / "page"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""The page may load files of this server only."""

# The server


def bind(config: ServeConfig) -> socket.socket:
    """Bind a socket to the configured address, without listening yet; raise if the address is not allowed."""
    check_address(config, read_key())
    family = socket.AF_INET6 if ":" in config.host or not config.host else socket.AF_INET
    # With an explicit protocol asyncio turns on TCP_NODELAY, which sends small responses without delay.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((config.host, config.port))
    except OSError as error:
        bound.close()
        reason = error.strerror or error
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {reason}; choose another --host or --port"
        ) from None
    return bound


def serve(registry: ModelRegistry, config: ServeConfig, bound: socket.socket) -> None:
    """Serve models on a socket from `bind` until SIGINT or SIGTERM; then finish the accepted requests."""
    start_log()

    class LimitedConnection(Connection):
        limits = config

    server = _UvicornServer(
        uvicorn.Config(
            make_app(registry, config, read_key()),
            http=LimitedConnection,
            ws="none",  # the limits do not apply to WebSockets
            backlog=128,  # surplus clients wait in the kernel and do not use file descriptors of the process
            timeout_keep_alive=config.idle_timeout,  # type: ignore[arg-type]  # uvicorn also accepts a float
            log_config=None,
            access_log=False,
            server_header=False,
        )
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again at the end; exit with status 0
    server.run([bound])
    log_event(logging.INFO, message="ended")


class _UvicornServer(uvicorn.Server):
    """Logs the address when it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for bound in sockets or []:
            host, port = bound.getsockname()[:2]
            log_event(logging.INFO, message="listening", url=f"http://{f'[{host}]' if ':' in host else host}:{port}")


# The application


def make_app(registry: ModelRegistry, config: ServeConfig | None = None, key: str = "") -> FastAPI:
    """The ASGI application that serves these models. With a key, requests must send it."""
    config, metrics = config or ServeConfig(), ServerMetrics()
    worker = Worker(config, metrics.batches.observe)
    metrics.watch_queue(lambda: worker.queue_size)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        worker.close()

    app = FastAPI(
        title="hill",
        version=version("hill-htc"),
        summary="Classify text into a taxonomy.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.server = ServerState(registry, worker, config, metrics)
    app.include_router(api.router)
    app.include_router(annif.router)
    app.add_api_route("/healthz", _health, tags=["server"])
    app.add_api_route("/readyz", _readiness, tags=["server"], responses={503: {"description": "Not ready."}})
    app.add_api_route("/metrics", _metrics, tags=["server"], response_class=Response)
    app.add_api_route("/docs", _docs, include_in_schema=False)
    app.add_api_route("/", _page, include_in_schema=False)
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
