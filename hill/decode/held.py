"""Documents with scores and labels that are held in memory to decide on decoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.metrics.blocks import blocks
from hill.types import BoolArray, IntArray

MOST_CELLS = 2**26
"""Scores that are held, 256 MiB; of more documents than that, a random sample is."""
SEED = 0
FOLDS = 4


@dataclass(frozen=True)
class Held:
    """Scores and gold labels of the same documents: (documents, L) each."""

    scores: npt.NDArray[np.float32]
    labels: csr_array[Any]

    def __len__(self) -> int:
        return len(self.scores)

    def blocks(self) -> Iterator[tuple[BoolArray, npt.NDArray[np.float32]]]:
        """Labels and scores, some documents at a time."""
        for start, stop in blocks(*self.scores.shape):
            yield self.labels[start:stop].toarray().astype(bool), self.scores[start:stop]

    def take(self, documents: IntArray) -> Held:
        """Some of the documents."""
        return Held(self.scores[documents], self.labels[documents])

    def folds(self) -> Iterator[tuple[Held, Held]]:
        """Some random parts of the documents in turn: all others to decide on, and the part to see what comes of it."""
        order = np.random.default_rng(SEED).permutation(len(self))
        parts = np.array_split(order, FOLDS)
        for number, part in enumerate(parts):
            yield self.take(np.concatenate(parts[:number] + parts[number + 1 :])), self.take(part)


def hold(scored: Iterable[tuple[IntArray, npt.NDArray[np.float32]]], labels: csr_array[Any]) -> Held:
    """What comes of documents in any order, some at a time, as one; of too many documents a random sample."""
    documents, width = labels.shape
    most = max(MOST_CELLS // max(width, 1), 1)
    kept = np.arange(documents)
    if documents > most:
        kept = np.sort(np.random.default_rng(SEED).choice(documents, most, replace=False))
    place = np.full(documents, -1)
    place[kept] = np.arange(len(kept))
    scores = np.zeros((len(kept), width), dtype=np.float32)
    for numbers, found in scored:
        wanted = place[numbers] >= 0
        scores[place[numbers][wanted]] = found[wanted]
    return Held(scores, labels[kept])
