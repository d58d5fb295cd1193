"""Lists of paths, a label a line: `Animals & Pet Supplies > Live Animals`, as Google and Shopify publish them."""

import re
from itertools import accumulate

from hill.errors import TaxonomyError
from hill.taxonomy.checks import MAX_NAME
from hill.taxonomy.label import Label
from hill.taxonomy.source import Found, Source
from hill.taxonomy.taxonomy import SEPARATOR, Taxonomy

LEADING_ID = re.compile(r"\s*(?P<id>\d+|gid://\S+)\s+[-:]\s+(?P<path>.+)")
Steps = tuple[str, ...]


def read_paths(source: Source) -> Taxonomy:
    """Labels in the file's order. Without leading ids the path is the id, and parents without a line are added."""
    lines = [(line, text) for line, text in source.lines() if not text.lstrip().startswith("#")]
    matches = [LEADING_ID.fullmatch(text) for _, text in lines]
    with_ids = all(matches)
    ids: dict[Steps, str] = {}
    places: dict[Steps, int] = {}
    for (line, text), match in zip(lines, matches, strict=True):
        path = match["path"] if match and with_ids else text
        steps = _steps(source, line, path, with_ids)
        if steps in places:
            twice = f"'{SEPARATOR.join(steps)}' stands twice{source.place(line)}"
            raise TaxonomyError(f"{twice}, first{source.place(places[steps])}; remove one")
        ids[steps] = match["id"] if match and with_ids else SEPARATOR.join(steps)
        places[steps] = line
    if not with_ids:
        _add_missing(ids, places)
    return source.taxonomy([Found(_label(source, steps, ids, places[steps]), places[steps]) for steps in ids])


def _steps(source: Source, line: int, path: str, with_ids: bool) -> Steps:
    if len(path) > 2 * MAX_NAME and not with_ids:  # it is the id, and so are all its beginnings
        raise TaxonomyError(
            f"the path '{path.strip()[:40]}…' is {len(path):,} characters long{source.place(line)}; "
            f"at most {MAX_NAME:,} are allowed: is this file a taxonomy?"
        )
    steps = tuple(step.strip() for step in path.split(">"))
    if not all(steps):
        raise TaxonomyError(f"an empty name in '{path.strip()[:80]}'{source.place(line)}; write the path as A > B > C")
    return steps


def _add_missing(ids: dict[Steps, str], places: dict[Steps, int]) -> None:
    """Give parents that have no line of their own a place before their first child."""
    listed = dict(ids)
    ids.clear()
    for path in listed:
        for steps in accumulate((step,) for step in path):
            if steps == path or steps not in listed:
                ids.setdefault(steps, SEPARATOR.join(steps))
                places.setdefault(steps, places[path])


def _label(source: Source, steps: Steps, ids: dict[Steps, str], line: int) -> Label:
    above = steps[:-1]
    if above and above not in ids:
        raise TaxonomyError(
            f"'{SEPARATOR.join(steps)}' lies under '{SEPARATOR.join(above)}', which has no line{source.place(line)}; "
            "add one with its id"
        )
    return Label(ids[steps], steps[-1], (ids[above],) if above else ())
