"""Commands on taxonomies."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hill.cli.common import TAXONOMY_HELP, Json, Language, app
from hill.errors import printable

taxonomy_app = typer.Typer(help="Compare taxonomies.", no_args_is_help=True)
app.add_typer(taxonomy_app, name="taxonomy")

TITLES = {
    "added": "added",
    "removed": "removed",
    "moved": "moved to other parents",
    "renamed": "with another name",
    "recoded": "probably with another id",
    "described": "with another description",
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


def _format_change(kind: str, change: Any) -> str:
    match kind:
        case "moved":
            return f"{_format_label(change)}: from {_join_ids(change['from'])} to {_join_ids(change['to'])}"
        case "renamed":
            return f"{change['id']}: '{change['from']}' is now '{change['to']}'"
        case "recoded":
            return f"{change['from']} is now {change['to']} ({change['name']})"
        case "described":
            return str(change)
    position = f" under {_join_ids(change['parents'])}" if change["parents"] else ", a root"
    return f"{_format_label(change)}{position}"


def _format_label(label: dict[str, Any]) -> str:
    return label["id"] if label["id"] == label["name"] else f"{label['id']} ({label['name']})"


def _join_ids(ids: list[str]) -> str:
    return " and ".join(ids) or "the roots"
