"""Tables with a row a label: TSV or CSV with columns id, parents, name and description."""

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from hill.errors import TaxonomyError
from hill.taxonomy.label import Label
from hill.taxonomy.source import Found, Source
from hill.taxonomy.taxonomy import Taxonomy

COLUMNS = ("id", "parents", "name", "description")
Row = tuple[int, list[str]]


def read_table(source: Source) -> Taxonomy:
    """Labels by row. Several parents are joined by `|`; where there is no name column the id is the name."""
    rows = table_rows(source)
    first = next(rows, None)
    if first is None:
        raise TaxonomyError(f"taxonomy file '{source.path}' holds no labels, only empty cells")
    header = header_of(first[1])
    if header is None:
        return _read_bare(source, first, rows)
    found = [Found(_label(header, _of_width(source, row, len(header), "the header")), row[0]) for row in rows]
    return source.taxonomy(found)


def _read_bare(source: Source, first: Row, others: Iterator[Row]) -> Taxonomy:
    """A table without a header promises less: a blank name becomes the id, and siblings may share a name."""
    columns = COLUMNS[: len(first[1])]
    found = []
    for row in chain([first], others):
        label = _label(columns, _of_width(source, row, len(columns), "line 1"))
        found.append(Found(label if label.name else replace(label, name=label.id), row[0]))
    return source.taxonomy(found, unique_names=False)


def is_table(source: Source) -> bool:
    """Whether tabs are between the columns of a table: it has a header, or a root with an empty second column."""
    first = next(table_rows(source), None)
    if first is None or header_of(first[1]):
        return True
    blank = (len(cells) > 1 and not cells[1].strip() for _, cells in table_rows(source))
    return 2 <= len(first[1]) <= len(COLUMNS) and any(blank)


def header_of(cells: list[str]) -> list[str] | None:
    """The names of the columns, if this row names them."""
    names = [cell.strip().casefold() for cell in cells]
    names = ["parents" if name == "parent" else name for name in names]
    return names if "id" in names and {"parents", "name"} & set(names) else None


def table_rows(source: Source) -> Iterator[Row]:
    """Rows with the line they begin on. Tab-separated files have no quoting: a quote is a character like others."""
    first = next(text for _, text in source.lines())
    if "\t" in first:
        yield from ((line, text.split("\t")) for line, text in source.lines())
        return
    delimiter = ";" if first.count(";") > first.count(",") else ","
    reader = csv.reader(io.StringIO(source.text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise TaxonomyError(f"this is not CSV: {error}{source.place(line)}; check the quotes") from None


def _of_width(source: Source, row: Row, width: int, model: str) -> list[str]:
    line, cells = row
    if len(cells) != width:
        raise TaxonomyError(f"{_columns(len(cells))}{source.place(line)}; {model} has {_columns(width)}")
    return [" ".join(cell.strip().splitlines()) for cell in cells]


def _columns(count: int) -> str:
    return f"{count} column{'s' if count != 1 else ''}"


def _label(header: list[str] | tuple[str, ...], cells: list[str]) -> Label:
    values = dict(zip(header, cells, strict=True))
    parents = tuple(parent for cell in values.get("parents", "").split("|") if (parent := cell.strip()))
    return Label(values["id"], values.get("name", values["id"]), parents, values.get("description", ""))
