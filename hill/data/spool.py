"""Texts on disk, found again by number: for more of them than memory should hold."""

from __future__ import annotations

from array import array
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType


class Spool:
    """A growing list of texts in a temporary file, which goes when the spool is closed.

    >>> with Spool() as texts:
    ...     texts.append("one"), texts.append("zwölf"), texts[1], len(texts)
    (0, 1, 'zwölf', 2)
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115
        self._starts = array("Q", [0])

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def append(self, text: str) -> int:
        """Keep one more text; the answer is its number."""
        content = text.encode()
        self._file.seek(self._starts[-1])
        self._file.write(content)
        self._starts.append(self._starts[-1] + len(content))
        return len(self) - 1

    def __getitem__(self, number: int) -> str:
        start, end = self._starts[number], self._starts[number + 1]
        self._file.seek(start)
        return self._file.read(end - start).decode()
