"""Commands for those who publish a model."""

from pathlib import Path
from typing import Annotated

import typer

from hill.cli.common import app


@app.command()
def card(model: Annotated[Path, typer.Argument(help="Folder of a trained model.")]) -> None:
    """Print the model card: data, labels, metrics, settings and limits, from the model's own files."""
    from hill.hub import make_card, read_facts

    print(make_card(read_facts(model)), end="")
