"""Commands on data sets, coding trees and taxonomies: check, errors, tree and taxonomy."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hill.cli.common import (
    TAXONOMY_HELP,
    Data,
    Json,
    LabelsColumn,
    Language,
    Separator,
    TaxonomyFile,
    TextColumn,
    app,
    check_new_file,
    counting,
)
from hill.errors import counted, printable

if TYPE_CHECKING:  # for a quick `hill --help`
    from hill.taxonomy import Taxonomy
    from hill.tree import BuiltTree

# Check


@app.command()
def check(
    data: Data,
    taxonomy: TaxonomyFile,
    text_column: TextColumn = "text",
    labels_column: LabelsColumn = None,
    separator: Separator = "",
    language: Language = "en",
    as_json: Json = False,
) -> None:
    """Check whether data can be used for training; problems are listed with file, line and remedy."""
    from hill.data.check import check as check_data
    from hill.data.check import print_check
    from hill.data.documents import column_names
    from hill.taxonomy import read_taxonomy

    columns = column_names(text_column, labels_column, separator)
    labels = read_taxonomy(taxonomy, language)
    with counting("documents") as tick:
        result = check_data(data, labels, tick, columns)
    if as_json:
        print(json.dumps(result.to_dict(), ensure_ascii=False))
    else:
        print_check(result, Console())
    raise typer.Exit(0 if result.fit else 1)


# Label errors


@app.command()
def errors(
    data: Data,
    taxonomy: TaxonomyFile,
    most: Annotated[int, typer.Option(help="How many errors to print; --json and --html have all.", min=1)] = 20,
    encoder: Annotated[
        str, typer.Option(help="Also use vectors of this text encoder: minilm, mpnet, a folder, or a hub name. Slower.")
    ] = "",
    html: Annotated[Path | None, typer.Option(help="Write a page with all errors to this file.")] = None,
    text_column: TextColumn = "text",
    labels_column: LabelsColumn = None,
    separator: Separator = "",
    language: Language = "en",
    as_json: Json = False,
) -> None:
    """Find documents that are probably labelled wrongly, with the proposed correction."""
    from hill.cold_start import encode_texts
    from hill.data.documents import join_splits, read_data
    from hill.io import write_text
    from hill.label_errors import FOLDS, find_errors
    from hill.taxonomy import read_taxonomy

    labels = read_taxonomy(taxonomy, language)
    documents = join_splits(read_data(data, labels, text_column, labels_column or "labels", separator))
    with Console(stderr=True).status("encoding texts") as status:
        vectors = encode_texts(documents.texts, encoder) if encoder else None
        for step in find_errors(documents, labels, vectors):
            status.update(f"scoring documents: fold {step} of {FOLDS}")
    report = step
    if html:
        write_text(html, report.html())
    found = report.to_dict()
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    print(
        f"{len(found['errors']):,} of {found['documents']:,} documents may be labelled wrongly, the most likely first"
    )
    if found["unjudged"]:
        print(f"{counted(found['unjudged'], 'document')} could not be judged: no other document has their labels")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("id", "text", "probably wrong", "proposed", "score"):
        table.add_column(column, justify="right" if column == "score" else "left")
    for error in found["errors"][:most]:
        text = " ".join(error["text"].split())
        shown = (error["id"], f"{text[:60]}…" if len(text) > 61 else text, error["wrong_name"], error["proposed_name"])
        table.add_row(*(Text(printable(value)) for value in shown), f"{error['score']:.2f}")
    if found["errors"]:
        Console().print(table)
    if len(found["errors"]) > most:
        print(f"and {len(found['errors']) - most:,} more: --most, --json or --html")
    if html:
        print(f"page: {html}")


# Coding trees


@app.command()
def tree(
    taxonomy: Annotated[Path, typer.Argument(help=TAXONOMY_HELP)],
    height: Annotated[int, typer.Option(help="Height of the coding tree: edges from the root to every label.")] = 3,
    method: Annotated[
        str, typer.Option(help="paper, authors (released code) or refined (lowest entropy).")
    ] = "refined",
    compare: Annotated[bool, typer.Option("--compare", help="Print all methods side by side.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Save a plot of the tree: tree.svg, .png or .pdf.")] = None,
    language: Language = "en",
    as_json: Json = False,
) -> None:
    """Build the coding tree of a taxonomy: the tree that encodes its label graph in the fewest bits."""
    from hill.taxonomy import read_taxonomy
    from hill.tree import METHODS, build_tree
    from hill.tree.plot import draw_tree

    labels = read_taxonomy(taxonomy, language)
    with Console(stderr=True).status("building the coding tree"):
        trees = [build_tree(labels, height, name) for name in (METHODS if compare else [method])]
        if plot:
            draw_tree(labels, trees[-1], plot)
    if as_json:
        documents = [built.to_dict() for built in trees]
        print(json.dumps({"trees": documents} if compare else documents[0]))
    elif compare:
        print_comparison(labels, trees, Console())
    else:
        print_tree(labels, trees[0], Console())


def print_tree(taxonomy: "Taxonomy", built: "BuiltTree", console: Console) -> None:
    """Print the levels of one tree, leaves first, and the entropy that it saves compared with the flat tree."""
    console.print(f"[bold]{taxonomy!r}[/bold]", highlight=False)
    table = Table(title=f"coding tree by {built.method}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("height", "nodes", "children each", "bits"):
        table.add_column(column, justify="right")
    sizes = built.tree.sizes
    for height, size in enumerate(sizes):
        children = f"{sizes[height - 1] / size:.1f}" if height else ""
        bits = f"{built.levels[height]:.4f}" if height < len(built.levels) else ""
        table.add_row(str(height), f"{size:,}", children, bits)
    console.print(table)
    console.print(
        f"entropy {built.entropy:.4f} bits, {_saved(built)} below the flat tree ({built.flat:.4f})\n"
        f"built in {_seconds(built)}",
        highlight=False,
    )


def print_comparison(taxonomy: "Taxonomy", trees: Sequence["BuiltTree"], console: Console) -> None:
    """Print several trees of one taxonomy, one per row."""
    console.print(f"[bold]{taxonomy!r}[/bold]", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method")
    for column in ("entropy", "saved", "time"):
        table.add_column(column, justify="right")
    table.add_column("nodes, leaves to root")
    for built in trees:
        sizes = " ".join(f"{size:,}" for size in built.tree.sizes)
        table.add_row(built.method, f"{built.entropy:.4f}", _saved(built), _seconds(built), sizes)
    console.print(table)


def _saved(built: "BuiltTree") -> str:
    return f"{1 - built.entropy / built.flat:.1%}" if built.flat else "0 %"


def _seconds(built: "BuiltTree") -> str:
    return f"{built.seconds * 1000:.1f} ms" if built.seconds < 1 else f"{built.seconds:.2f} s"


# Taxonomies

taxonomy_app = typer.Typer(help="Compare taxonomies, and use a model with another version.", no_args_is_help=True)
app.add_typer(taxonomy_app, name="taxonomy")

TITLES = {
    "added": "added",
    "removed": "removed",
    "moved": "moved to other parents",
    "renamed": "with another name",
    "recoded": "probably with another id",
    "described": "with another description",
    "similar": "of the removed and added perhaps renamed: similar names under the same parents",
}


@taxonomy_app.command()
def diff(
    a: Annotated[Path, typer.Argument(help=f"The earlier version. {TAXONOMY_HELP}")],
    b: Annotated[Path, typer.Argument(help="The later version.")],
    most: Annotated[int, typer.Option(help="Maximum number of changes to list per kind; --json lists all.")] = 20,
    language: Language = "en",
    as_json: Json = False,
) -> None:
    """Show what changed between two versions of a taxonomy."""
    from hill.settings import check_at_least
    from hill.taxonomy import read_taxonomy
    from hill.taxonomy.diff import diff as compare

    check_at_least(most, 0, "--most")
    result = compare(read_taxonomy(a, language), read_taxonomy(b, language)).to_dict()
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    print(f"{result['labels'][0]:,} labels before, {result['labels'][1]:,} after, {result['kept']:,} with the same id")
    for kind, title in TITLES.items():
        if changes := result[kind]:
            print(f"\n{len(changes):,} {title}")
            for change in changes[:most]:
                print(f"  {printable(_format_change(kind, change))}")
            if len(changes) > most:
                print(f"  … and {len(changes) - most:,} more")


@taxonomy_app.command("apply")
def apply_taxonomy(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model that reads the names of labels.")],
    taxonomy: Annotated[Path, typer.Argument(help=f"The new version. {TAXONOMY_HELP}")],
    out: Annotated[Path, typer.Option(help="Folder for the model with the new taxonomy.")],
    language: Language = "en",
) -> None:
    """Use a model with a new version of its taxonomy, without training: new labels are scored by name."""
    from hill.classifier import HillClassifier
    from hill.revision import apply_taxonomy as apply
    from hill.taxonomy import read_taxonomy
    from hill.train.checkpoint import check_output_folder

    labels = read_taxonomy(taxonomy, language)
    check_output_folder(out, resume=False)
    classifier = HillClassifier.load(model)
    changed, changes = apply(classifier, labels)
    changed.save(out)
    counts = {"new": changes.added, "removed": changes.removed, "moved": changes.moved, "renamed": changes.renamed}
    print(", ".join(f"{len(rows):,} {kind}" for kind, rows in counts.items()) + f"; {len(labels):,} labels")
    if classifier.members:
        print("the linear model that was mixed in is left out: it does not read names")
    if len(changes.added):
        print("new labels are scored by name and description until they have documents: hill train --warm-start")
    print(f'saved to {out}; try: hill predict {out} "a text"')


@taxonomy_app.command()
def recode(
    model: Annotated[Path, typer.Argument(help="Folder of a model for the new taxonomy.")],
    data: Annotated[Path, typer.Argument(help="Documents with labels of the old taxonomy, by id.")],
    table: Annotated[Path, typer.Option(help="Correspondence table: a CSV file with the columns old and new.")],
    out: Annotated[Path, typer.Option(help="Documents with labels of the new taxonomy, a new .jsonl file.")],
    old: Annotated[
        Path | None,
        typer.Option(help="The old taxonomy, if documents have ancestors as labels, too, or labels by name or path."),
    ] = None,
    text_column: TextColumn = "text",
    labels_column: LabelsColumn = None,
    separator: Separator = "",
    language: Language = "en",
) -> None:
    """Give documents with old labels new ones: of the candidates of each old label, the one with the highest score."""
    from hill.cli.common import load_model
    from hill.data.documents import column_names, split_labels
    from hill.data.readers import find_splits, raise_error, read_records
    from hill.errors import TaxonomyError
    from hill.io import write_text
    from hill.revision import recode as choose
    from hill.taxonomy import read_taxonomy
    from hill.taxonomy.correspondence import allowed_labels, old_ids, read_correspondence

    check_new_file(out, ".jsonl")
    classifier = load_model(model)
    labels = classifier.taxonomy
    pairs = read_correspondence(table, labels)
    columns = column_names(text_column, labels_column, separator)
    records = list(read_records([file for split in find_splits(data).values() for file in split], raise_error, columns))
    before = read_taxonomy(old, language) if old else None
    candidates = []
    for record in records:
        given = record.labels
        if isinstance(given, str):
            given = split_labels(given, lambda label: label in pairs or bool((before or labels).find(label)))
        try:
            found = allowed_labels(old_ids(given, before) if before else given, pairs, labels)
            candidates.append([own for own in found if own])
        except TaxonomyError as error:
            raise TaxonomyError(f"{error} (line {record.line} of {record.file})") from None
    chosen = choose(classifier, [record.text for record in records], candidates)
    lines = [
        {"id": record.id or str(i), "text": record.text, "labels": [label for label, _ in own], "scores": dict(own)}
        for i, (record, own) in enumerate(zip(records, chosen, strict=True))
    ]
    write_text(out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    decided = sum(any(len(own) > 1 for own in each) for each in candidates)
    print(f"{counted(len(records), 'document')} in {out}; the model chose among candidates for {decided:,} of them")
    if empty := sum(not own for own in chosen):
        sys.stderr.write(f"hill: documents without a label, since theirs were removed: {empty:,}\n")


def _format_change(kind: str, change: Any) -> str:
    if kind == "described":
        return str(change)
    if kind == "renamed":
        return f"{change['id']}: '{change['from']}' is now '{change['to']}'"
    if kind == "similar":
        ids, names = (change["from"], change["to"]), change["names"]
        pairs = zip(ids, names, strict=True)
        old, new = (f"'{id}'" if name in id else f"'{id}' ({name})" for id, name in pairs)
        return f"{old} is perhaps now {new}"
    if kind == "recoded":
        return f"{change['from']} is now {change['to']} ({change['name']})"
    label = change["id"] if change["id"] == change["name"] else f"{change['id']} ({change['name']})"
    if kind == "moved":
        before, after = (" and ".join(change[key]) or "the roots" for key in ("from", "to"))
        return f"{label}: from {before} to {after}"
    return f"{label} under {' and '.join(change['parents'])}" if change["parents"] else f"{label}, a root"
