"""Is this data fit to train on? Reads everything once, keeps little, and never stops at the first problem."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hill.data.files import find_splits
from hill.data.labels import LabelReader
from hill.data.problems import EXAMPLES, Problem, Problems
from hill.data.records import read_records
from hill.data.tally import Tally, again
from hill.taxonomy import Taxonomy
from hill.types import IntArray

RARE = 10
HISTOGRAM = (0, 1, 10, 100, 1_000, 10_000, 100_000)


@dataclass(frozen=True)
class Check:
    """What was found: the tally of each split, and the problems."""

    taxonomy: Taxonomy
    splits: dict[str, Tally]
    problems: Problems

    @property
    def fit(self) -> bool:
        """Whether a training can start."""
        return self.problems.fit

    @property
    def counts(self) -> IntArray:
        """Documents of each label, over all splits."""
        counts: IntArray = np.array([tally.label_counts for tally in self.splits.values()], dtype=np.int64).sum(axis=0)
        return counts

    @property
    def train_counts(self) -> IntArray:
        """Documents of each label to train on."""
        return np.array(self.splits[_training_split(self.splits)].label_counts, dtype=np.int64)

    def document(self) -> dict[str, Any]:
        """Everything as plain values, for `--json`."""
        return {
            "fit": self.fit,
            "splits": {name: tally.document() for name, tally in self.splits.items()},
            "labels": self._labels(),
            "problems": self.problems.document(),
        }

    def _labels(self) -> dict[str, Any]:
        counts, train = self.counts, self.train_counts
        unused, rare = np.flatnonzero(counts == 0), np.flatnonzero((train > 0) & (train < RARE))
        bins = np.searchsorted(HISTOGRAM, train, side="right") - 1
        return {
            "total": len(self.taxonomy),
            "used": int((counts > 0).sum()),
            "unused": self._some(unused),
            "rare": self._some(rare),
            "histogram": [
                {"from": start, "labels": int(number)}
                for start, number in zip(HISTOGRAM, np.bincount(bins, minlength=len(HISTOGRAM)), strict=True)
            ],
            "levels": [
                {
                    "level": level,
                    "labels": len(rows),
                    "used": int((counts[rows] > 0).sum()),
                    "documents": sum(tally.level_counts[level - 1] for tally in self.splits.values()),
                }
                for level, rows in enumerate(self.taxonomy.levels, start=1)
            ],
        }

    def _some(self, rows: IntArray) -> dict[str, Any]:
        return {"count": len(rows), "examples": self.taxonomy.decode(rows[:EXAMPLES])}


def check(
    path: str | os.PathLike[str], taxonomy: Taxonomy, tick: Callable[[int], None] = lambda documents: None
) -> Check:
    """Read a data set and report on it; `tick` hears now and then how many documents were read since."""
    splits, problems = find_splits(path), Problems()
    reader = LabelReader(taxonomy)
    tallies = {name: _tally(files, reader, taxonomy, problems, tick) for name, files in splits.items()}
    if _training_split(splits) not in ("train", "data"):
        problems.add(Problem("no-train", str(path), 0, f"only {', '.join(splits)}; expected a train file"))
    for name, tally in tallies.items():
        if not len(tally):
            problems.add(Problem("no-documents", str(path), 0, f"the split {name} has no usable document"))
    again(tallies, problems)
    found = Check(taxonomy, tallies, problems)
    _report_untrained(found, problems)
    return found


def _training_split(splits: Iterable[str]) -> str:
    return next(iter(splits))


def _tally(
    files: list[Path], reader: LabelReader, taxonomy: Taxonomy, problems: Problems, tick: Callable[[int], None]
) -> Tally:
    tally = Tally(taxonomy)
    for record in read_records(files, problems.add):
        rows, added = reader.read(record, problems.add)
        tally.add(record, rows, added)
        if len(tally) % 1_000 == 0:
            tick(1_000)
    tick(len(tally) % 1_000)
    return tally


def _report_untrained(found: Check, problems: Problems) -> None:
    if len(found.splits) < 2:
        return
    for label_id in found.taxonomy.decode(np.flatnonzero((found.counts > 0) & (found.train_counts == 0))):
        problems.add(Problem("untrained-label", "", 0, f"label '{label_id}' has no document to train on"))
