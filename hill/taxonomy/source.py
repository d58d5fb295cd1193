"""A taxonomy file as text, with line numbers for whoever must correct it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hill.errors import TaxonomyError
from hill.taxonomy.checks import check_siblings
from hill.taxonomy.label import Label
from hill.taxonomy.taxonomy import Taxonomy

MAGIC = {
    b"\x1f\x8b": "compressed",
    b"PK\x03\x04": "a zip archive or spreadsheet",
    b"%PDF": "a PDF",
    b"PAR1": "Parquet",
}


class Found(NamedTuple):
    """A label and where it was read: a line number, or a place inside a JSON document."""

    label: Label
    line: int | str


@dataclass(frozen=True)
class Source:
    """The name and text of a file."""

    path: Path
    text: str

    @classmethod
    def open(cls, path: Path) -> Source:
        """The file as text, if it is text."""
        try:
            content = path.read_bytes()
        except IsADirectoryError:
            raise TaxonomyError(f"'{path}' is a directory; give the taxonomy file inside it") from None
        except OSError as error:
            reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            raise TaxonomyError(f"taxonomy file '{path}' {reason}") from None
        text = _decode(path, content)
        if not text.strip():
            raise TaxonomyError(f"taxonomy file '{path}' is empty; it must hold at least one label")
        return cls(path, text)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines that are not blank, numbered from 1, without their ends."""
        for number, line in enumerate(self.text.split("\n"), start=1):
            if line.strip():
                yield number, line.rstrip("\r")

    def place(self, line: int | str) -> str:
        """Where in the file: ` (line 14 of tax.tsv)`."""
        return f" (line {line} of {self.path})" if isinstance(line, int) else f" (at {line} of {self.path})"

    def taxonomy(self, found: Sequence[Found], unique_names: bool = True) -> Taxonomy:
        """The taxonomy of these labels; errors tell the line. With `unique_names`, siblings must differ in name."""
        if not found:
            raise TaxonomyError(f"taxonomy file '{self.path}' holds no labels")
        labels = [label for label, _ in found]
        taxonomy = Taxonomy(labels, lambda row: self.place(found[row].line))
        if unique_names:
            check_siblings(labels, lambda row: self.place(found[row].line))
        return taxonomy


def _decode(path: Path, content: bytes) -> str:
    for magic, kind in MAGIC.items():
        if content.startswith(magic):
            raise TaxonomyError(f"'{path}' is {kind}, not text; save the taxonomy as TSV, CSV, JSON or SKOS")
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = content[error.start : error.start + 1].hex()
        raise TaxonomyError(f"'{path}' is not UTF-8 text: byte 0x{found} on line {line}; save it as UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise TaxonomyError(f"'{path}' is a binary file (a zero byte on line {line}); a taxonomy is a text file")
    return text
