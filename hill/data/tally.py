"""Counting documents while they stream by: a few numbers each, so that a million need no memory to speak of."""

from array import array
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from hill.data.problems import Problem, Problems
from hill.data.records import Record
from hill.taxonomy import Taxonomy

PERCENTILES = (0, 25, 50, 75, 90, 95, 99, 100)


class Tally:
    """The counts of one split."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._depth: list[int] = taxonomy.depth.tolist()
        self.label_counts = [0] * len(taxonomy)
        self.level_counts = [0] * len(taxonomy.levels)
        self.labels = 0
        self.added = 0
        self.words = array("Q")
        self.characters = array("Q")
        self.texts = array("Q")
        self.ids = array("Q")
        self.lines = array("Q")
        self.files: list[str] = []
        self._file_numbers = array("L")

    def __len__(self) -> int:
        return len(self.texts)

    def add(self, record: Record, rows: set[int], added: int) -> None:
        """Count one document with its closed rows, of which some were added."""
        words = record.text.split()
        self.words.append(len(words))
        self.characters.append(len(record.text))
        self.texts.append(_fingerprint(" ".join(words)))
        self.ids.append(_fingerprint(record.id) if record.id else 0)
        self.lines.append(record.line)
        if not self.files or self.files[-1] != record.file:
            self.files.append(record.file)
        self._file_numbers.append(len(self.files) - 1)
        self.labels += len(rows)
        self.added += added
        for row in rows:
            self.label_counts[row] += 1
        for depth in {self._depth[row] for row in rows}:
            self.level_counts[depth - 1] += 1

    def place(self, document: int) -> tuple[str, int]:
        """The file and line of a document."""
        return self.files[self._file_numbers[document]], self.lines[document]

    def document(self) -> dict[str, Any]:
        """The counts as plain values."""
        return {
            "documents": len(self),
            "labels_per_document": self.labels / max(len(self), 1),
            "ancestors_added": self.added,
            "levels": self.level_counts,
            "words": _percentiles(self.words),
            "characters": _percentiles(self.characters),
        }


def again(tallies: dict[str, Tally], problems: Problems) -> None:
    """Report texts and ids that came before: in the same split, or in an earlier one."""
    names = list(tallies)
    texts = np.concatenate([np.asarray(tally.texts, dtype=np.uint64) for tally in tallies.values()])
    ids = np.concatenate([np.asarray(tally.ids, dtype=np.uint64) for tally in tallies.values()])
    splits = np.repeat(np.arange(len(names)), [len(tally) for tally in tallies.values()])
    starts = np.searchsorted(splits, np.arange(len(names)))

    def where(document: int) -> tuple[str, int]:
        return tallies[names[splits[document]]].place(document - int(starts[splits[document]]))

    for document, first in _repeats(texts):
        kind, other = ("duplicate-text", "") if splits[document] == splits[first] else ("shared-text", " of the split")
        file, line = where(first)
        split = f"{other} {names[splits[first]]}" if other else ""
        problems.add(Problem(kind, *where(document), f"the same text as line {line} of {file}{split}"))
    for document, first in _repeats(ids):
        file, line = where(first)
        problems.add(Problem("duplicate-id", *where(document), f"the same id as line {line} of {file}"))


def _repeats(prints: npt.NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Each place whose non-zero fingerprint came before, with the first place it came."""
    _, first, inverse = np.unique(prints, return_index=True, return_inverse=True)
    firsts = first[inverse]
    later = np.flatnonzero((firsts != np.arange(len(prints))) & (prints != 0))
    return list(zip(later.tolist(), firsts[later].tolist(), strict=True))


def _fingerprint(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()) or 1


def _percentiles(lengths: "array[int]") -> dict[str, float]:
    values = np.percentile(np.asarray(lengths), PERCENTILES) if lengths else np.zeros(len(PERCENTILES))
    return {f"p{percentile}": float(value) for percentile, value in zip(PERCENTILES, values, strict=True)}
