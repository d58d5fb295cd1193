"""What the research data sets share: finding their files, holding documents out, and what their readers give."""

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from hill.data.files import open_lines
from hill.errors import DataError
from hill.taxonomy import Taxonomy
from hill.types import IntArray

TICK = 1_000

Item = TypeVar("Item")
Tick = Callable[[int], None]
"""Hears now and then how many documents were read since."""


class Entry(NamedTuple):
    """A document to be written: the number of its text in the spool, and the ids of its labels with all ancestors."""

    id: str
    text: int
    labels: Sequence[str]


@dataclass(frozen=True)
class Corpus:
    """A data set that was read: its splits, its taxonomy, and sentences on what was done to it."""

    splits: Mapping[str, Iterable[Entry]]
    taxonomy: Taxonomy
    notes: list[str]


def find_file(candidates: Sequence[Path], origin: str) -> Path:
    """The first of these files that is there."""
    for path in candidates:
        if path.is_file():
            return path
    looked_for = ", ".join(f"'{path}'" for path in candidates)
    raise DataError(f"none of {looked_for} is there; get it from {origin}")


def find_list(source: Path, name: str, origin: str) -> Path:
    """A file of lines in the source folder, plain or gzipped."""
    return find_file([source / name, source / f"{name}.gz"], origin)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not blank, numbered from 1, without white space at their ends."""
    line = 0
    try:
        for line, content in open_lines(path):
            if text := content.decode().strip():
                yield line, text
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"'{path}' cannot be read after line {line}: {error}; get the file again") from None


def hold_out(items: IntArray, share: float) -> tuple[IntArray, IntArray]:
    """The items to keep and those held out: what scikit-learn's `train_test_split` gives with `random_state=0`.

    >>> hold_out(np.arange(5), 0.2)
    (array([0, 1, 3, 4]), array([2]))
    """
    order = np.random.RandomState(0).permutation(len(items))
    held = math.ceil(share * len(items))
    return items[order[held:]], items[order[:held]]


def ticking(items: Iterable[Item], tick: Tick) -> Iterator[Item]:
    """The same items, while `tick` hears of them."""
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


def counted(number: int, one: str, many: str) -> list[str]:
    """A note that begins with a number: `one` or `many` goes on; none if there is nothing to tell."""
    return [f"{number:,} {one if number == 1 else many}"] if number else []
