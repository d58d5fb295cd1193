"""The errors that the model is surest of, of all documents seen."""

from heapq import nlargest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hill.report.block import Block, Cells
from hill.taxonomy import Taxonomy
from hill.taxonomy.cells import documents_of

Scores = npt.NDArray[np.floating]


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
        self._depth = taxonomy.depth
        self._most = most
        self.wrong: list[Error] = []
        self.missed: list[Error] = []

    def update(self, block: Block) -> None:
        """Look at these documents."""
        wrong, missed = block.scores(block.wrong), block.scores(block.missed)
        self.wrong = self._merge(self.wrong, block, block.wrong, wrong, wrong)
        self.missed = self._merge(self.missed, block, block.missed, missed, 1 - missed)

    def _merge(self, kept: list[Error], block: Block, labels: Cells, scores: Scores, sure: Scores) -> list[Error]:
        """Of these labels (B, L), with a score and a sureness for each cell, the surest of each document."""
        documents, rows = documents_of(labels), labels.indices
        order = np.lexsort((rows, -self._depth[rows], -sure, documents))
        best = order[np.flatnonzero(np.diff(documents[order], prepend=-1))]
        front = best[np.lexsort((block.documents[documents[best]], -sure[best]))][: self._most]
        found = [
            Error(
                float(sure[cell]),
                int(block.documents[documents[cell]]),
                int(rows[cell]),
                float(scores[cell]),
                tuple(block.chosen[[documents[cell]]].indices.tolist()),
            )
            for cell in front.tolist()
        ]
        return nlargest(self._most, [*kept, *found], key=lambda error: (error.sure, -error.document))
