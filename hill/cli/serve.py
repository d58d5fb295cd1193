"""The command that serves."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hill.cli.common import app, load_model


@app.command()
def serve(
    models: Annotated[list[Path], typer.Argument(help="Folders of trained or exported models; the first is default.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that others can reach needs an API key, or --public.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.")] = 8000,
    public: Annotated[
        bool, typer.Option("--public", help="Let everyone who can reach the address in, without a key.")
    ] = False,
    batch: Annotated[int, typer.Option(help="Most texts that are computed together.")] = 64,
    wait_ms: Annotated[
        float,
        typer.Option(help="Milliseconds that a text waits for others to be computed with, when the server is idle."),
    ] = 2.0,
    queue: Annotated[
        int, typer.Option(help="Most texts that wait; a request beyond that is told to come again (503).")
    ] = 512,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request is given up (504).")] = 30.0,
    max_texts: Annotated[int, typer.Option(help="Most texts of a request (422).")] = 256,
    max_body: Annotated[int, typer.Option(help="Most bytes of a request (413).")] = 4_000_000,
) -> None:
    """Serve models over HTTP, with a page. The API key, if any, is HILL_API_KEY in the environment."""
    from hill.extras import need
    from hill.serve.config import ServeConfig

    for package in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        need(package, "serve", "hill serve")
    config = ServeConfig(host, port, public, batch, wait_ms, queue, timeout, max_texts, max_body)
    from hill.serve.run import bind
    from hill.serve.run import serve as run_server
    from hill.serve.shelf import Shelf

    with bind(config) as place:  # before the models are loaded, so that a wrong address is told at once
        run_server(Shelf((folder, load_model(folder), _explainer(folder)) for folder in models), config, place)


def _explainer(folder: Path) -> Any:
    """What explains the model of a folder; nothing for an exported one, which needs no torch."""
    from hill.export.folder import is_export

    if is_export(folder):
        return None
    from hill.explain import explain

    return explain
