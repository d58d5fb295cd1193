"""What the readers of the research data sets share: text storage, notes, splits, and news stories in XML files."""

from __future__ import annotations

import lzma
import math
import os
import tarfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.entities import entitydefs
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import NamedTuple, TypeVar
from xml.etree.ElementTree import Element, ParseError, XMLParser, fromstring

import numpy as np

from hill.data.readers import open_lines
from hill.errors import DataError
from hill.taxonomy import Taxonomy
from hill.types import IntArray

Item = TypeVar("Item")
Tick = Callable[[int], None]
"""Called from time to time with the number of documents read since the last call."""
TICK = 1_000
"""Documents between two calls of a `Tick`."""
ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
LONGEST = 2**24
"""The maximum number of bytes of a story; the longest have a few hundred thousand."""


@dataclass(frozen=True)
class Corpus:
    """A data set: its splits, its taxonomy, and notes about changes to the original data."""

    splits: Mapping[str, Iterable[Entry]]
    taxonomy: Taxonomy
    notes: list[str]


class Entry(NamedTuple):
    """A document to write: the index of its text in the spool, and the ids of its labels and their ancestors."""

    id: str
    text: int
    labels: Sequence[str]


class Spool:
    """A growing list of texts in a temporary file, which is deleted when the spool is closed.

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

    def __getitem__(self, index: int) -> str:
        start, end = self._starts[index], self._starts[index + 1]
        self._file.seek(start)
        return self._file.read(end - start).decode()

    def append(self, text: str) -> int:
        """Add a text and return its index."""
        content = text.encode()
        self._file.seek(self._starts[-1])
        self._file.write(content)
        self._starts.append(self._starts[-1] + len(content))
        return len(self) - 1


def find_file(candidates: Sequence[Path], origin: str) -> Path:
    """The first of these files that exists, or a `DataError` that says where to get it."""
    for path in candidates:
        if path.is_file():
            return path
    paths = ", ".join(f"'{path}'" for path in candidates)
    raise DataError(f"none of {paths} exists; get it from {origin}")


def find_list(source: Path, name: str, origin: str) -> Path:
    """A text file in the source folder, plain or gzipped."""
    return find_file([source / name, source / f"{name}.gz"], origin)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The non-blank lines of a text file, stripped and numbered from 1."""
    line = 0
    try:
        for line, content in open_lines(path):
            if text := content.decode().strip():
                yield line, text
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"'{path}' cannot be read after line {line}: {error}; get the file again") from None


def hold_out(items: IntArray, share: float) -> tuple[IntArray, IntArray]:
    """Split off a share of the items, exactly as scikit-learn's `train_test_split` with `random_state=0`.

    >>> hold_out(np.arange(5), 0.2)
    (array([0, 1, 3, 4]), array([2]))
    """
    order = np.random.RandomState(0).permutation(len(items))
    n_second = math.ceil(share * len(items))
    return items[order[n_second:]], items[order[:n_second]]


def ticking(items: Iterable[Item], tick: Tick) -> Iterator[Item]:
    """Yield the items and call `tick` with their number from time to time."""
    since = 0
    try:
        for item in items:
            since += 1
            yield item
            if since == TICK:
                tick(since)
                since = 0
    finally:
        tick(since)


def counted(count: int, singular: str, plural: str) -> list[str]:
    """A note that begins with a count, or no note if the count is 0."""
    return [f"{count:,} {singular if count == 1 else plural}"] if count else []


# News stories


class Story(NamedTuple):
    """A news story: its file name without folders, and its XML."""

    name: str
    root: Element

    def paragraphs(self) -> list[str]:
        """The text of each `<p>` element in order."""
        return ["".join(paragraph.itertext()) for paragraph in self.root.iter("p")]


def read_stories(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Story]:
    """The stories below a folder whose file name is wanted: first from plain files, then from tar archives."""
    archives = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            if name.endswith(ARCHIVES):
                archives.append(path)
            elif wanted(name):
                _check_size(path.stat().st_size, f"'{path}'")
                yield Story(name, _parse(path.read_bytes(), f"'{path}'"))
    for archive in archives:
        yield from _read_archive(archive, wanted)


def _read_archive(path: Path, wanted: Callable[[str], bool]) -> Iterator[Story]:
    try:
        with tarfile.open(path, "r|*") as archive:
            while member := archive.next():
                name = member.name.rpartition("/")[2]
                if member.isfile() and wanted(name) and (file := archive.extractfile(member)):
                    place = f"'{member.name}' in '{path}'"
                    _check_size(member.size, place)
                    yield Story(name, _parse(file.read(), place))
                # The archive keeps a list of all members: a gigabyte for RCV1.
                archive.members.clear()  # type: ignore[attr-defined]
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError, UnicodeError) as error:
        raise DataError(f"the archive '{path}' cannot be read further: {error}; get the file again") from None


def _check_size(size: int, place: str) -> None:
    if size > LONGEST:
        raise DataError(f"{place} has {size:,} bytes, and no story more than {LONGEST:,}; get the file again")


def _parse(content: bytes, place: str) -> Element:
    # Without zero bytes, an entity declaration looks the same in every encoding that an XML file can have.
    if b"<!ENTITY" in content.replace(b"\0", b""):
        raise DataError(f"{place} declares entities of its own, which no story does; get the file again")
    parser = XMLParser()
    # The document type of a story is not available; define the characters that stories use from it.
    parser.entity.update(entitydefs)
    try:
        return fromstring(content, parser)
    except (ParseError, ValueError, LookupError) as error:
        raise DataError(f"{place} is not well-formed XML: {error}; get the file again") from None
