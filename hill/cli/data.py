"""Commands on data and taxonomies."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hill.cli.common import TAXONOMY_HELP, Data, Json, Language, TaxonomyFile, app, counting


@app.command()
def check(data: Data, taxonomy: TaxonomyFile, language: Language = "en", as_json: Json = False) -> None:
    """Tell whether data is fit to train on; name file, line and remedy where it is not."""
    from rich.console import Console

    from hill.data.check import check as check_data
    from hill.data.report import print_check
    from hill.taxonomy import read_taxonomy

    labels = read_taxonomy(taxonomy, language)
    with counting("documents") as tick:
        found = check_data(data, labels, tick)
    if as_json:
        print(json.dumps(found.document(), ensure_ascii=False))
    else:
        print_check(found, Console())
    raise typer.Exit(0 if found.fit else 1)


@app.command()
def tree(
    taxonomy: Annotated[Path, typer.Argument(help=TAXONOMY_HELP)],
    height: Annotated[int, typer.Option(help="Height of the coding tree: edges from the root to every label.")] = 3,
    method: Annotated[
        str, typer.Option(help="paper, authors (released code) or refined (lowest entropy).")
    ] = "refined",
    compare: Annotated[bool, typer.Option("--compare", help="Print all methods side by side.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the tree beside the taxonomy: tree.svg, .png, .pdf.")] = None,
    language: Language = "en",
    as_json: Json = False,
) -> None:
    """Build the coding tree of a taxonomy: the tree that encodes it in the fewest bits."""
    from rich.console import Console

    from hill.taxonomy import read_taxonomy
    from hill.tree.build import METHODS, build_tree
    from hill.tree.drawing import draw_tree
    from hill.tree.report import print_comparison, print_tree

    labels = read_taxonomy(taxonomy, language)
    with Console(stderr=True).status("building the coding tree"):
        trees = [build_tree(labels, height, name) for name in (METHODS if compare else [method])]
        if plot:
            draw_tree(labels, trees[-1], plot)
    if as_json:
        documents = [built.document() for built in trees]
        print(json.dumps({"trees": documents} if compare else documents[0]))
    elif compare:
        print_comparison(labels, trees, Console())
    else:
        print_tree(labels, trees[0], Console())


data_app = typer.Typer(help="Data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="wos, rcv1 or nyt.")],
    source: Annotated[Path, typer.Option(help="Folder of the original distribution.")],
    out: Annotated[Path, typer.Option(help="Folder for the data set.")],
) -> None:
    """Turn an original distribution into train, dev and test files with the standard splits."""
    from hill.data.prepare import prepare as prepare_data

    with counting("documents") as tick:
        prepared = prepare_data(name, source, out, tick)
    for split, count in prepared.documents.items():
        print(f"{split}: {count:,} documents")
    print(f"{prepared.labels} labels in {out / 'taxonomy.json'}")
    for note in prepared.notes:
        print(f"note: {note}")
