"""The application: routes, the worker behind them and the gate before them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles

from hill.serve import annif, api
from hill.serve.config import ServeConfig
from hill.serve.desk import Desk, TheDesk
from hill.serve.docs import make_docs
from hill.serve.gate import Gate
from hill.serve.meter import Meter
from hill.serve.problems import handle_problems
from hill.serve.shelf import Shelf
from hill.serve.worker import Worker

PAGE = Path(__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""What the page may do: use what this server gives it, and nothing else."""


def make_app(shelf: Shelf, config: ServeConfig | None = None, key: str = "") -> FastAPI:
    """The application that serves these models; with a key, to those who have it."""
    config, meter = config or ServeConfig(), Meter()
    worker = Worker(config, meter.batches.observe)
    meter.watch(lambda: worker.waiting)

    @asynccontextmanager
    async def working(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        worker.close()

    app = FastAPI(
        title="hill",
        version=version("hill-htc"),
        summary="Classify text into a taxonomy.",
        lifespan=working,
        docs_url=None,
        redoc_url=None,
    )
    app.state.desk = Desk(shelf, worker, config, meter)
    app.include_router(api.router)
    app.include_router(annif.router)
    _add_own_routes(app)
    handle_problems(app)
    app.add_middleware(Gate, config=config, key=key, meter=meter)
    return app


def _add_own_routes(app: FastAPI) -> None:
    """How the server is, and its page."""
    app.add_api_route("/healthz", _health, tags=["server"])
    app.add_api_route("/readyz", _readiness, tags=["server"], responses={503: {"description": "Not ready."}})
    app.add_api_route("/metrics", _metrics, tags=["server"], response_class=Response)
    app.add_api_route("/docs", _docs, include_in_schema=False)
    app.add_api_route("/", _page, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=PAGE, check_dir=False))


async def _health() -> dict[str, str]:
    """Whether the process is alive."""
    return {"status": "alive"}


async def _readiness(desk: TheDesk) -> JSONResponse:
    """Whether requests are taken: the models are loaded and the queue is not closed."""
    ready = desk.worker.ready
    return JSONResponse({"status": "ready" if ready else "closed"}, 200 if ready else 503)


async def _metrics(desk: TheDesk) -> Response:
    """Counters for Prometheus."""
    return Response(desk.meter.text(), media_type="text/plain; version=0.0.4")


async def _docs(request: Request) -> HTMLResponse:
    return HTMLResponse(make_docs(request.app.openapi()))


async def _page() -> FileResponse:
    return FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": POLICY})
