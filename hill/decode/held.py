"""Documents with scores and labels that are held in memory to decide on decoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.decode.calibration import Block
from hill.metrics.blocks import alike, blocks_of, width_of
from hill.taxonomy.cells import Table, join_tables
from hill.types import IntArray

MOST_CELLS = 2**26
"""Scores that are held, 256 MiB, or 512 in a sparse table; of more documents than that, a random sample is."""
SEED = 0
FOLDS = 4


@dataclass(frozen=True)
class Held:
    """Scores and gold labels of the same documents: (documents, L) each."""

    scores: Table
    labels: csr_array[Any]

    def __len__(self) -> int:
        return self.labels.shape[0]

    def blocks(self) -> Iterator[Block]:
        """Labels and scores, some documents at a time: both in dense arrays, or both sparse."""
        for start, stop in blocks_of(self.scores):
            yield alike(self.labels[start:stop].astype(bool), self.scores[start:stop])

    def take(self, documents: IntArray) -> Held:
        """Some of the documents."""
        return Held(self.scores[documents], self.labels[documents])

    def folds(self) -> Iterator[tuple[Held, Held]]:
        """Some random parts of the documents in turn: all others to decide on, and the part to see what comes of it."""
        order = np.random.default_rng(SEED).permutation(len(self))
        parts = np.array_split(order, FOLDS)
        for number, part in enumerate(parts):
            yield self.take(np.concatenate(parts[:number] + parts[number + 1 :])), self.take(part)


def hold(scored: Iterable[tuple[IntArray, Table]], labels: csr_array[Any]) -> Held:
    """What comes of documents in any order, some at a time, as one; of too many documents a random sample."""
    coming = iter(scored)
    first = next(coming, (np.arange(0), np.zeros((0, labels.shape[1]), dtype=np.float32)))
    kept = _sample(labels.shape[0], MOST_CELLS // max(width_of(first[1]), 1))
    place = np.full(labels.shape[0], -1)
    place[kept] = np.arange(len(kept))
    wanted = ((place[numbers], found) for numbers, found in chain([first], coming))
    parts = ((places[places >= 0], found[places >= 0]) for places, found in wanted)
    return Held(join_tables(parts, (len(kept), labels.shape[1])), labels[kept])


def _sample(documents: int, most: int) -> IntArray:
    if documents <= max(most, 1):
        return np.arange(documents)
    return np.sort(np.random.default_rng(SEED).choice(documents, max(most, 1), replace=False))
