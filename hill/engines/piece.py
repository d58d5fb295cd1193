"""A piece of a file of lines, which the readers of JSONL and CSV open as they open a whole file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hill.data.files import format_of
from hill.data.records import READERS
from hill.engines.source import open_source
from hill.errors import DataError


class Lines:
    """Lines as a file gives them, one after the other."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[bytes]:
        return self._lines

    def readline(self, size: int = -1) -> bytes:
        """The next line, however long; none at the end."""
        return next(self._lines, b"")


@dataclass
class Piece:
    """The lines of a file from an offset on, after the header where it has one."""

    source: str
    offset: int = 0
    end: int = 0
    """Byte after the last line that was read."""
    whole: bool = False
    """Whether the last line was read."""
    suffix = ""
    """What a gzipped piece ends in too: it is unpacked here."""

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.source).name

    @property
    def format(self) -> str:
        """`jsonl` or `table`."""
        return format_of(Path(self.name))

    def records(self) -> Iterator[Mapping[str, Any] | str]:
        """Each record's fields, or a sentence on why they cannot be read; a file that breaks off is an error."""
        fields: Mapping[str, Any] | str = "it has no lines"
        for _, fields in READERS[self.format](cast(Path, self)):  # of a path they ask no more than a piece has
            yield fields
        if not self.whole:
            raise DataError(f"'{self.source}' breaks off: {fields}; repair it, or take it out")

    @contextmanager
    def open(self, mode: str) -> Iterator[Lines]:
        """The lines of the piece."""
        with open_source(self.source) as file:
            yield Lines(self._lines(file))

    def _lines(self, file: Any) -> Iterator[bytes]:
        try:
            if self.offset and self.format == "table":
                yield file.readline()
            if self.offset:
                file.seek(self.offset)
            self.end = self.offset
            for line in file:
                self.end += len(line)
                yield line
            self.whole = True
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"'{self.source}' breaks off: {error}; repair it, or take it out") from None
