"""The first sheet of an Excel workbook (.xlsx), row by row, without Excel; what no Excel writes is refused."""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser
from zipfile import BadZipFile, ZipFile

from hill.data.spool import Spool
from hill.errors import DataError

COLUMNS = 16_384
ESCAPED = re.compile("_x00([0-7][0-9A-Fa-f])_")
CHUNK = 2**16
LONGEST = 2**25
"""Bytes of one row, of one shared string, or of a list of sheets; every row but such a one fits into memory."""
INFLATED = 200
"""Times that a part may be larger than packed; what is packed better is made to fill up memory and disk."""
DEPTH = 100
DAMAGE = (
    *(BadZipFile, KeyError, IndexError, ValueError, ParseError, LookupError),
    *(zlib.error, OSError, EOFError, NotImplementedError, RuntimeError),
)
"""What a damaged workbook raises: of another compression, locked by a password, of a foreign encoding."""


def read_xlsx(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Each row's number and its cells as text; a cell that is left out is empty."""
    try:
        with ZipFile(path) as book, Spool() as strings:
            if "xl/sharedStrings.xml" in book.namelist():
                for element in _elements(book, "xl/sharedStrings.xml", "si"):
                    strings.append(_text(element))
            for place, row in enumerate(_elements(book, _first_sheet(book), "row"), start=1):
                yield int(row.get("r", place)), _cells(row, strings)
    except DAMAGE as error:
        raise DataError(f"'{path}' is not a usable .xlsx workbook: {error}; save it from Excel again") from None


class Plain:
    """Builds the elements of one kind, one after the other, and forgets all others; no document type, no deep nest."""

    def __init__(self, kind: str) -> None:
        self.found: list[Element] = []
        self._kind, self._depth, self._inside = kind, 0, 0
        self._builder = TreeBuilder()

    def doctype(self, name: str, public: str, system: str) -> None:
        """Refuse it: with one come entities, which multiply or name other files."""
        raise ValueError("it declares a document type")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Begin an element."""
        self._depth += 1
        if self._depth > DEPTH:
            raise ValueError(f"its elements are nested more than {DEPTH} deep")
        if self._inside or _kind(tag) == self._kind:
            self._inside += 1
            self._builder.start(tag, attributes)

    def data(self, text: str) -> None:
        """Take in text."""
        if self._inside:
            self._builder.data(text)

    def end(self, tag: str) -> None:
        """End an element."""
        self._depth -= 1
        if self._inside:
            self._inside -= 1
            element = self._builder.end(tag)
            if not self._inside:
                self.found.append(element)
                self._builder = TreeBuilder()

    def close(self) -> None:
        """Nothing is left to do."""


def _elements(book: ZipFile, name: str, kind: str) -> Iterator[Element]:
    """The elements of one kind of a part, each forgotten after its turn."""
    part = book.getinfo(name)
    if part.file_size > max(LONGEST, INFLATED * part.compress_size):
        raise ValueError(f"'{name}' is {part.file_size:,} bytes, packed into {part.compress_size:,}")
    target = Plain(kind)
    parser = XMLParser(target=target)
    with book.open(part) as file:
        for _ in _feed(file, parser, target):
            yield from target.found
            target.found.clear()


def _feed(file: IO[bytes], parser: XMLParser, target: Plain) -> Iterator[None]:
    """Parse a file chunk by chunk, stopping where elements were found and at the end."""
    since = 0
    while chunk := file.read(CHUNK):
        parser.feed(chunk)
        since += len(chunk)
        if target.found:
            since = 0
            yield
        elif since > LONGEST:
            raise ValueError(f"'{file.name}' has a part of more than {LONGEST:,} bytes")
    parser.close()
    yield


def _kind(tag: str) -> str:
    return tag.rpartition("}")[2]


def _first_sheet(book: ZipFile) -> str:
    """The file of the sheet that stands first in the workbook."""
    links = _elements(book, "xl/_rels/workbook.xml.rels", "Relationship")
    targets = {element.get("Id"): element.get("Target", "") for element in links}
    sheet = next(_elements(book, "xl/workbook.xml", "sheet"), Element("sheet"))
    name = next((value for key, value in sheet.items() if key.endswith("}id")), None)
    if name not in targets:
        raise ValueError("its list of sheets does not tell where the first one is")
    target = targets[name]
    return target.removeprefix("/") if target.startswith("/") else f"xl/{target}"


def _cells(row: Element, strings: Spool) -> list[str]:
    cells: list[str] = []
    for cell in row:
        column = _column(cell.get("r", "")) or len(cells) + 1
        if column > COLUMNS:
            raise ValueError(f"cell '{cell.get('r', '')[:20]}' is beyond the last column")
        cells.extend([""] * (column - len(cells)))
        cells[column - 1] = _value(cell, strings)
    return cells


def _column(place: str) -> int:
    """The number of a cell's column by its name: 1 for A7, 28 for AB7, 0 if it has none.

    >>> _column("A7"), _column("AB7"), _column("")
    (1, 28, 0)
    """
    number = 0
    for letter in place.rstrip("0123456789")[:8]:
        if not "A" <= letter <= "Z":
            raise ValueError(f"'{place[:20]}' is no place of a cell; expected one such as AB7")
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def _value(cell: Element, strings: Spool) -> str:
    text = _text(cell)
    return strings[_number(text, len(strings))] if cell.get("t") == "s" and text else text


def _number(text: str, count: int) -> int:
    if not text.strip().isascii() or not text.strip().isdecimal() or len(text) > 12 or int(text) >= count:
        raise ValueError(f"a cell is shared string '{text[:20]}', of which there are {count:,}")
    return int(text)


def _text(element: Element) -> str:
    """The value or the runs of text inside; how East Asian text is read aloud is not among them."""
    kind = _kind(element.tag)
    if kind in ("v", "t"):
        return ESCAPED.sub(lambda match: chr(int(match[1], 16)), element.text or "")
    return "" if kind == "rPh" else "".join(map(_text, element))
