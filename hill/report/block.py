"""Some documents as a report counts them: what is gold, what is predicted, and the paths both form."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.decode import Decoder
from hill.metrics.sparse import AnyEdges, SparseEdges, look_up
from hill.taxonomy.cells import Table, places_of
from hill.types import IntArray

Cells = csr_array[Any]
"""A label set of each document (B, L), of which only true cells are held."""


@dataclass(frozen=True)
class Block:
    """Numbers of documents (B), their gold and predicted labels, and their scores before and after decoding (B, L).

    Label sets are few of all labels and always sparse; scores are as the model gives them.
    """

    documents: IntArray
    gold: Cells
    chosen: Cells
    raw: Table
    effective: Table
    edges: AnyEdges

    @cached_property
    def missed(self) -> Cells:
        """Gold labels that are not predicted (B, L)."""
        return self.gold > self.chosen

    @cached_property
    def wrong(self) -> Cells:
        """Predicted labels that are not gold (B, L)."""
        return self.chosen > self.gold

    @cached_property
    def closed_gold(self) -> Cells:
        """Gold labels and their ancestors (B, L)."""
        return self.moving.close(self.gold)

    @cached_property
    def closed(self) -> Cells:
        """Predicted labels and their ancestors (B, L)."""
        return self.moving.close(self.chosen)

    @cached_property
    def gold_ends(self) -> Cells:
        """The most specific labels of the gold ones (B, L)."""
        return self.ends(self.closed_gold)

    @cached_property
    def chosen_ends(self) -> Cells:
        """The most specific labels of the predicted ones (B, L)."""
        return self.ends(self.closed)

    def ends(self, closed: Cells) -> Cells:
        """The most specific labels of closed sets: (B, L) to (B, L)."""
        return closed > self.moving.with_child(closed)

    def scores(self, labels: Cells) -> npt.NDArray[np.floating]:
        """The score after decoding of each cell of these label sets."""
        return look_up(csr_array(self.effective), places_of(labels))

    def compared(self, decoder: Decoder) -> Table:
        """Scores above which a threshold that all labels share would predict each label: (B, L)."""
        edges, config = self.edges.of(self.raw), decoder.config
        found = edges.enter(decoder.compared(self.raw))
        if config.strategy != "raw":
            found = edges.close(found)
        if config.abstain:
            kept = edges.highest(edges.enter(self.effective)) > np.float64(config.abstain)
            found = edges.of_documents(found, kept)
        table: Table = edges.leave(found)
        return table

    @property
    def moving(self) -> SparseEdges:
        """What moves label sets along the edges of the taxonomy."""
        edges: SparseEdges = self.edges.of(self.gold)
        return edges
