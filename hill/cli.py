"""The command line: parse, call, print."""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from hill.errors import HillError

app = typer.Typer(
    help="Classify text into a taxonomy.", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False
)

DATA_HELP = "JSONL, CSV or Parquet with text and labels, or a folder with train, dev and test files."
TAXONOMY_HELP = "The labels and their parents: a table, parent-child lines, paths, JSON or SKOS."

Data = Annotated[Path, typer.Argument(help=DATA_HELP)]
TaxonomyFile = Annotated[Path, typer.Option("--taxonomy", help=TAXONOMY_HELP)]
Language = Annotated[str, typer.Option(help="Language of the labels, where the taxonomy has several.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def main() -> None:
    """Run the command line; an error we know is one line and exit code 2."""
    try:
        app()
    except HillError as error:
        sys.stderr.write(f"hill: {error}\n")
        raise SystemExit(2) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hill {version('hill-htc')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


@app.callback()
def _hill(version: Version = False) -> None:
    pass


@app.command()
def check(data: Data, taxonomy: TaxonomyFile, language: Language = "en", as_json: Json = False) -> None:
    """Tell whether data is fit to train on; name file, line and remedy where it is not."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from hill.data.check import check as check_data
    from hill.data.report import print_check
    from hill.taxonomy import read_taxonomy

    labels = read_taxonomy(taxonomy, language)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} documents"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        reading = progress.add_task("reading", total=None)
        found = check_data(data, labels, lambda documents: progress.advance(reading, documents))
    if as_json:
        print(json.dumps(found.document(), ensure_ascii=False))
    else:
        print_check(found, Console())
    raise typer.Exit(0 if found.fit else 1)


@app.command()
def demo() -> None:
    """Train, evaluate and try a real model on embedded data (ICD-10-CM coding)."""
    sys.stderr.write("hill: the demo is not built yet; try: hill check --help\n")
    raise typer.Exit(1)
