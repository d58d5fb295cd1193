"""WOS-46985: abstracts from the Web of Science, each with a domain and an area (Kowsari et al., HDLTex, 2017).

The `area` column has several names for some of its codes, and the research code merges them while it reads: a row
takes the first name seen so far under its code that is more frequent than its own. Frequency is the number of rows
with that domain and area in the whole file. What a name becomes thus depends on the order of the rows: a row that
comes before every more frequent name of its code keeps its own, as one row of `Electrical generator` does.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hill.data.corpus import Corpus, Entry, Tick, counted, find_file, hold_out, ticking
from hill.data.spool import Spool
from hill.data.xlsx import read_xlsx
from hill.errors import DataError
from hill.taxonomy import Label, Taxonomy
from hill.types import IntArray

ORIGIN = "'Web of Science Dataset' of Mendeley Data (doi 10.17632/9rw3vkcfy4), folder Meta-data"
HEADER = ("Y1", "Y2", "Y", "Domain", "area", "keywords", "Abstract")
ROWS = 46_985
CLITIC = re.compile("('s|'ve|n't|'re|'d|'ll)")
SPACES = re.compile(r"\s{2,}")


class Row(NamedTuple):
    """A row of the file: the code of its area, and the number of its text in the spool, none if it has no text."""

    code: str
    domain: str
    area: str
    text: int | None


def read_wos(source: Path, texts: Spool, tick: Tick) -> Corpus:
    """The corpus in `Data.xlsx` or `Data.txt`, split as the research code does."""
    path = _find(source)
    rows = [_row(cells, texts) for cells in ticking(_read_cells(path), tick)]
    if not rows:
        raise DataError(f"'{path}' has a header but no rows; get the file again")
    areas = merge_areas(rows)
    taxonomy = _taxonomy(rows, areas, path)
    train, dev, test = (_entries(indices, rows, areas) for indices in split_indices(len(rows)))
    return Corpus({"train": train, "dev": dev, "test": test}, taxonomy, _notes(rows, areas))


def clean(text: str) -> str:
    """An abstract as HGCLR and HILL have it: no quotes around, a space before clitics, lower case.

    >>> clean('"It isn\\'t  Ohm\\'s law."')
    "it is n't ohm 's law."
    """
    return SPACES.sub(" ", CLITIC.sub(r" \1", text.strip().strip('"'))).strip().lower()


def merge_areas(rows: Sequence[Row]) -> list[str]:
    """The area of each row after merging, as the head of this module tells."""
    frequency = Counter((row.domain, row.area) for row in rows)
    seen: defaultdict[str, dict[str, None]] = defaultdict(dict)
    areas = []
    for row in rows:
        seen[row.code][row.area] = None
        own = frequency[row.domain, row.area]
        areas.append(next((area for area in seen[row.code] if frequency[row.domain, area] > own), row.area))
    return areas


def split_indices(n: int) -> tuple[IntArray, IntArray, IntArray]:
    """The rows to train on, for dev and for test, in this order."""
    order = np.arange(n)
    np.random.RandomState(7).shuffle(order)
    rest, test = hold_out(order, 0.2)
    train, dev = hold_out(rest, 0.2)
    return train, dev, test


def _find(source: Path) -> Path:
    folders = (source, source / "Meta-data")
    old = [folder / "Data.xls" for folder in folders if (folder / "Data.xls").is_file()]
    try:
        return find_file([folder / name for folder in folders for name in ("Data.xlsx", "Data.txt")], ORIGIN)
    except DataError as error:
        if old:
            remedy = "open it and save it beside as Data.xlsx, or as Data.txt (Unicode text)"
            raise DataError(f"'{old[0]}' is an old binary workbook; {remedy}") from error
        raise


def _row(cells: list[str], texts: Spool) -> Row:
    text = clean(cells[6])
    place = texts.append(text) if text else None
    return Row(f"{cells[0]}-{cells[1]}", cells[3].strip(), cells[4].strip(), place)


def _read_cells(path: Path) -> Iterator[list[str]]:
    """The rows below the header, seven cells each, with a domain and an area."""
    rows = _read_sheet(path) if path.suffix == ".xlsx" else _read_text(path)
    _, header = next(rows, (1, []))
    if [cell.strip().casefold() for cell in header] != [name.casefold() for name in HEADER]:
        found = ", ".join(header[:8]) or "nothing"
        raise DataError(f"'{path}' begins with {found[:200]}; expected the columns {', '.join(HEADER)}")
    for number, cells in rows:
        if len(cells) != len(HEADER):
            raise DataError(f"{len(cells)} columns on line {number} of '{path}'; expected {len(HEADER)}, tabs between")
        if not (cells[3].strip() and cells[4].strip()):
            raise DataError(f"no domain or no area on line {number} of '{path}'; every row has both")
        yield cells


def _read_sheet(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank: a sheet leaves out empty cells, and may have some beyond the last column."""
    for number, cells in read_xlsx(path):
        while len(cells) > len(HEADER) and not cells[-1]:
            cells.pop()
        if any(cells):
            yield number, cells + [""] * (len(HEADER) - len(cells))


def _read_text(path: Path) -> Iterator[tuple[int, list[str]]]:
    with path.open("rb") as file:
        encoding = "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    with path.open(encoding=encoding) as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip("\n"):
                    yield number, line.rstrip("\n").split("\t")
        except UnicodeError as error:
            remedy = "save it from Excel as Unicode text"
            raise DataError(f"'{path}' is neither UTF-8 nor UTF-16 with a mark ({error}); {remedy}") from None


def _taxonomy(rows: Sequence[Row], areas: Sequence[str], path: Path) -> Taxonomy:
    """Domains, then areas, each in the order they first appear."""
    domains = dict.fromkeys(row.domain for row in rows)
    parents: dict[str, str] = {}
    for row, area in zip(rows, areas, strict=True):
        if parents.setdefault(area, row.domain) != row.domain:
            both = f"'{parents[area]}' and '{row.domain}'"
            raise DataError(f"the area '{area}' stands under {both} in '{path}'; rename it under one of them")
    below = [Label(area, area, (domain,)) for area, domain in parents.items()]
    return Taxonomy([*(Label(domain, domain) for domain in domains), *below])


def _entries(indices: IntArray, rows: Sequence[Row], areas: Sequence[str]) -> Iterator[Entry]:
    for index in indices.tolist():
        if (place := rows[index].text) is not None:
            yield Entry(str(index), place, (rows[index].domain, areas[index]))


def _notes(rows: Sequence[Row], areas: Sequence[str]) -> list[str]:
    notes = []
    if len(rows) != ROWS:
        notes.append(f"{len(rows):,} rows where WOS-46985 has {ROWS:,}: the split is not the published one")
    merged = Counter((row.code, row.area, area) for row, area in zip(rows, areas, strict=True) if row.area != area)
    for (code, name, area), count in merged.items():
        notes += counted(count, *(f"{what} of '{name}' merged into '{area}' (code {code})" for what in ("row", "rows")))
    empty = sum(row.text is None for row in rows)
    return notes + counted(empty, "row without an abstract left out", "rows without an abstract left out")
