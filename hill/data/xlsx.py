"""The first sheet of an Excel workbook (.xlsx), row by row, without Excel."""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from xml.etree.ElementTree import Element, ParseError, fromstring, iterparse
from zipfile import BadZipFile, ZipFile

from hill.data.spool import Spool
from hill.errors import DataError

COLUMNS = 16_384
ESCAPED = re.compile("_x00([0-7][0-9A-Fa-f])_")


def read_xlsx(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Each row's number and its cells as text; a cell that is left out is empty."""
    try:
        with ZipFile(path) as book, Spool() as strings:
            if "xl/sharedStrings.xml" in book.namelist():
                with book.open("xl/sharedStrings.xml") as file:
                    for element in _elements(file, "si"):
                        strings.append(_text(element))
            with book.open(_first_sheet(book)) as file:
                for place, row in enumerate(_elements(file, "row"), start=1):
                    yield int(row.get("r", place)), _cells(row, strings)
    except (BadZipFile, KeyError, IndexError, ValueError, ParseError, zlib.error, OSError, EOFError) as error:
        raise DataError(f"'{path}' is not a usable .xlsx workbook: {error}; save it from Excel again") from None


def _elements(file: IO[bytes], kind: str) -> Iterator[Element]:
    """The elements of one kind, each forgotten after its turn."""
    above: list[Element] = []
    for event, element in iterparse(file, ("start", "end")):
        if event == "start":
            above.append(element)
            continue
        above.pop()
        if _kind(element) == kind:
            yield element
            above[-1].clear()


def _kind(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _first_sheet(book: ZipFile) -> str:
    """The file of the sheet that stands first in the workbook."""
    workbook, links = fromstring(book.read("xl/workbook.xml")), fromstring(book.read("xl/_rels/workbook.xml.rels"))
    targets = {element.get("Id"): element.get("Target", "") for element in links}
    sheets = [element for element in workbook.iter() if _kind(element) == "sheet"]
    target = next(targets[value] for key, value in sheets[0].items() if key.endswith("}id"))
    return target.removeprefix("/") if target.startswith("/") else f"xl/{target}"


def _cells(row: Element, strings: Spool) -> list[str]:
    cells: list[str] = []
    for cell in row:
        column = _column(cell.get("r", "")) or len(cells) + 1
        if column > COLUMNS:
            raise ValueError(f"cell '{cell.get('r')}' is beyond the last column")
        cells.extend([""] * (column - len(cells)))
        cells[column - 1] = _value(cell, strings)
    return cells


def _column(place: str) -> int:
    """The number of a cell's column by its name: 1 for A7, 28 for AB7, 0 if it has none.

    >>> _column("A7"), _column("AB7"), _column("")
    (1, 28, 0)
    """
    number = 0
    for letter in place.rstrip("0123456789"):
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def _value(cell: Element, strings: Spool) -> str:
    text = _text(cell)
    return strings[int(text)] if cell.get("t") == "s" and text else text


def _text(element: Element) -> str:
    """The value or the runs of text inside; how East Asian text is read aloud is not among them."""
    kind = _kind(element)
    if kind in ("v", "t"):
        return ESCAPED.sub(lambda match: chr(int(match[1], 16)), element.text or "")
    return "" if kind == "rPh" else "".join(map(_text, element))
