"""Documents in memory: texts, and their labels as rows of the taxonomy."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.data.files import find_splits
from hill.data.labels import LabelReader
from hill.data.problems import refuse
from hill.data.records import Record, is_writable, read_records
from hill.errors import DataError
from hill.taxonomy import Taxonomy
from hill.types import IntArray


@dataclass(frozen=True)
class Documents:
    """A split: `labels` is (documents, L), true where a document has a label or one below it."""

    ids: list[str]
    texts: list[str]
    labels: csr_array[Any]
    added: int
    """Labels that were not given but added as ancestors."""

    def __len__(self) -> int:
        return len(self.texts)

    def split(self, share: float, seed: int) -> tuple["Documents", "Documents"]:
        """These documents without a share drawn at random, and that share: at least one document each."""
        if len(self) < 2:
            raise DataError(f"{len(self)} document cannot be split into train and dev; give more, or a dev split")
        order = np.random.default_rng(seed).permutation(len(self))
        held = min(max(1, round(share * len(self))), len(self) - 1)
        return self.take(np.sort(order[held:])), self.take(np.sort(order[:held]))

    def take(self, places: IntArray) -> "Documents":
        """The documents at these places."""
        ids, texts = ([values[place] for place in places] for values in (self.ids, self.texts))
        return Documents(ids, texts, self.labels[places], self.added)


def label_documents(texts: Sequence[str], labels: Sequence[Iterable[str]], taxonomy: Taxonomy) -> Documents:
    """Documents of texts and labels at hand: ids, names or paths, ancestors added."""
    if len(texts) != len(labels):
        raise DataError(f"{len(texts)} texts but {len(labels)} sets of labels; expected one set a text")
    for number, text in enumerate(texts, 1):
        if isinstance(text, str) and not is_writable(text):
            raise DataError(f"text {number} has half of a character (a lone surrogate); expected Unicode text")
    records = (
        Record(text, list(given), "", "", number)
        for number, (text, given) in enumerate(zip(texts, labels, strict=True), 1)
    )
    return _collect(records, taxonomy)


def read_documents(files: Iterable[Path], taxonomy: Taxonomy) -> Documents:
    """The documents of these files; the first unusable one is a `DataError`. Ids not given are places in the split."""
    return _collect(read_records(files, refuse), taxonomy)


def _collect(records: Iterable[Record], taxonomy: Taxonomy) -> Documents:
    reader = LabelReader(taxonomy)
    ids, texts, rows, starts, added = list[str](), list[str](), list[int](), [0], 0
    for record in records:
        closed, more = reader.read(record, refuse)
        ids.append(record.id or str(len(ids)))
        texts.append(record.text)
        rows.extend(sorted(closed))
        starts.append(len(rows))
        added += more
    shape = (len(texts), len(taxonomy))
    return Documents(ids, texts, csr_array((np.ones(len(rows), dtype=bool), rows, starts), shape=shape), added)


def read_data(path: str | os.PathLike[str], taxonomy: Taxonomy) -> dict[str, Documents]:
    """Every split of a data file or folder."""
    return {split: read_documents(files, taxonomy) for split, files in find_splits(path).items()}
