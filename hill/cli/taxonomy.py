"""Commands on taxonomies."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hill.cli.common import TAXONOMY_HELP, Json, Language, app
from hill.guard import shown

taxonomy_app = typer.Typer(help="Taxonomies.", no_args_is_help=True)
app.add_typer(taxonomy_app, name="taxonomy")

TITLES = {
    "added": "added",
    "removed": "removed",
    "moved": "moved to other parents",
    "renamed": "with another name",
    "recoded": "likely with another id",
    "described": "with another description",
    "splits": "perhaps split",
    "merges": "perhaps merged",
}


@taxonomy_app.command()
def diff(
    a: Annotated[Path, typer.Argument(help=f"The earlier version. {TAXONOMY_HELP}")],
    b: Annotated[Path, typer.Argument(help="The later version.")],
    most: Annotated[int, typer.Option(help="Changes of each kind that are listed; --json lists all.")] = 20,
    language: Language = "en",
    as_json: Json = False,
) -> None:
    """Tell what changed between two versions of a taxonomy."""
    from hill.taxonomy import read_taxonomy
    from hill.taxonomy.diff import diff as compare

    found = compare(read_taxonomy(a, language), read_taxonomy(b, language)).document()
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    print(f"{found['labels'][0]:,} labels before, {found['labels'][1]:,} after, {found['kept']:,} with the same id")
    for kind, title in TITLES.items():
        if changes := found[kind]:
            print(f"\n{len(changes):,} {title}")
            for change in changes[:most]:
                print(f"  {shown(_line(kind, change))}")
            if len(changes) > most:
                print(f"  … and {len(changes) - most:,} more")


def _line(kind: str, change: Any) -> str:
    match kind:
        case "moved":
            return f"{_name(change)}: from {_ids(change['from'])} to {_ids(change['to'])}"
        case "renamed":
            return f"{change['id']}: '{change['from']}' is now '{change['to']}'"
        case "recoded":
            return f"{change['from']} is now {change['to']} ({change['name']})"
        case "described":
            return str(change)
        case "splits":
            return f"{_name(change['from'])} into {', '.join(map(_name, change['to']))}"
        case "merges":
            return f"{', '.join(map(_name, change['from']))} into {_name(change['to'])}"
    return f"{_name(change)} under {_ids(change['parents'])}" if change["parents"] else f"{_name(change)}, a root"


def _name(label: dict[str, Any]) -> str:
    return label["id"] if label["id"] == label["name"] else f"{label['id']} ({label['name']})"


def _ids(ids: list[str]) -> str:
    return " and ".join(ids) or "the roots"
