"""CSV and TSV with a header: text, labels, and if there is one an id."""

import csv
import zlib
from collections.abc import Iterator
from pathlib import Path

from hill.data.files import open_lines

LONGEST_FIELD = 2**26
"""Characters of a field; one without end is a quote that was never closed, and would be read into memory whole."""


def read_table(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Each row by column name, with the line it begins on, or a sentence on why it cannot be read."""
    csv.field_size_limit(LONGEST_FIELD)
    line = 1
    try:
        # Bytes that are not UTF-8 pass as surrogates, so that one bad row does not hide the rows after it.
        lines = (content.decode("utf-8", "surrogateescape") for _, content in open_lines(path))
        header, delimiter = _header(next(lines, "").removeprefix("\ufeff"), ".tsv" in path.name.lower())
        reader = csv.reader(lines, delimiter=delimiter)
        line = 2
        for cells in reader:
            if cells:
                yield line, _row(header, cells)
            line = reader.line_num + 2
    except (csv.Error, OSError, EOFError, zlib.error) as error:
        yield line, f"the file cannot be read on: {error}"


def _row(header: list[str], cells: list[str]) -> dict[str, str] | str:
    if len(cells) != len(header):
        return f"{len(cells)} columns; the header has {len(header)} ({', '.join(header[:6])})"
    for cell in cells:
        try:
            cell.encode()
        except UnicodeEncodeError as error:
            return f"byte 0x{ord(cell[error.start]) - 0xDC00:02x} is not UTF-8; save the file as UTF-8"
    return dict(zip(header, cells, strict=True))


def _header(first: str, tabs: bool) -> tuple[list[str], str]:
    delimiter = "\t" if tabs else ";" if first.count(";") > first.count(",") else ","
    names = [name.strip().casefold() for name in next(csv.reader([first], delimiter=delimiter), [])]
    return ["labels" if name == "label" else name for name in names], delimiter
