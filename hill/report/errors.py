"""The errors that the model is surest of, of all documents seen."""

from heapq import nlargest
from typing import NamedTuple

import numpy as np

from hill.report.block import Block, Scores
from hill.taxonomy import Taxonomy
from hill.types import BoolArray


class Error(NamedTuple):
    """A wrong or missed label: how sure the model is, the document, the label, its score, and all that is predicted."""

    sure: float
    document: int
    row: int
    score: float
    predicted: tuple[int, ...]


class Errors:
    """Keeps the surest error of a document, for the documents where it is surest.

    Wrong labels are surer the higher they score, missed ones the lower; of equals the most specific label counts.
    """

    def __init__(self, taxonomy: Taxonomy, most: int) -> None:
        self._order = np.argsort(-taxonomy.depth, kind="stable")
        self._most = most
        self.wrong: list[Error] = []
        self.missed: list[Error] = []

    def update(self, block: Block) -> None:
        """Look at these documents."""
        self.wrong = self._merge(self.wrong, block, block.wrong, block.effective)
        self.missed = self._merge(self.missed, block, block.missed, 1 - block.effective)

    def _merge(self, kept: list[Error], block: Block, mask: BoolArray, sure: Scores) -> list[Error]:
        order = self._order
        best = order[np.where(mask, sure, -1)[:, order].argmax(axis=1)]  # (B)
        places = np.flatnonzero(mask.any(axis=1))
        values = sure[places, best[places]]
        front = np.lexsort((block.documents[places], -values))[: self._most]
        found = [
            Error(
                float(values[i]),
                int(block.documents[place]),
                int(best[place]),
                float(block.effective[place, best[place]]),
                tuple(np.flatnonzero(block.chosen[place]).tolist()),
            )
            for i, place in zip(front.tolist(), places[front].tolist(), strict=True)
        ]
        return nlargest(self._most, [*kept, *found], key=lambda error: (error.sure, -error.document))
