"""Documents in memory: texts, and their labels as rows of the taxonomy."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.data.files import find_splits
from hill.data.labels import LabelReader
from hill.data.problems import refuse
from hill.data.records import read_records
from hill.taxonomy import Taxonomy


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


def read_documents(files: Iterable[Path], taxonomy: Taxonomy) -> Documents:
    """The documents of these files; the first unusable one is a `DataError`. Ids not given are places in the split."""
    reader = LabelReader(taxonomy)
    ids, texts, rows, starts, added = list[str](), list[str](), list[int](), [0], 0
    for record in read_records(files, refuse):
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
