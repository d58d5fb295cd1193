"""News stories, one XML file each: in folders, or streamed out of the tar archives that they are shipped in."""

import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from html.entities import entitydefs
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, ParseError, XMLParser, fromstring

from hill.errors import DataError

ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
LONGEST = 2**24
"""Bytes of a story, of which the longest have a few hundred thousand."""


class Story(NamedTuple):
    """One story: the name of its file without folders, and its XML."""

    name: str
    root: Element

    def paragraphs(self) -> list[str]:
        """The text of each `<p>`, in the order of the file."""
        return ["".join(paragraph.itertext()) for paragraph in self.root.iter("p")]


def read_stories(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Story]:
    """The stories below a folder whose file name is wanted: first those that lie open, then those in archives."""
    archives = []
    for above, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for name in sorted(names):
            if name.endswith(ARCHIVES):
                archives.append(Path(above, name))
            elif wanted(name):
                path = Path(above, name)
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
                # The archive remembers every member it has passed: a gigabyte for all of RCV1.
                archive.members.clear()  # type: ignore[attr-defined]
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError, UnicodeError) as error:
        raise DataError(f"the archive '{path}' cannot be read on: {error}; get the file again") from None


def _check_size(size: int, place: str) -> None:
    if size > LONGEST:
        raise DataError(f"{place} has {size:,} bytes, and no story more than {LONGEST:,}; get the file again")


def _parse(content: bytes, place: str) -> Element:
    # Of the encodings that an XML file may begin in, all spell it like this but for zeros between the letters.
    if b"<!ENTITY" in content.replace(b"\0", b""):
        raise DataError(f"{place} declares entities of its own, which no story does; get the file again")
    parser = XMLParser()
    # A story may name a document type that is not at hand, and use the characters it defines.
    parser.entity.update(entitydefs)
    try:
        return fromstring(content, parser)
    except (ParseError, ValueError, LookupError) as error:
        raise DataError(f"{place} is not well-formed XML: {error}; get the file again") from None
