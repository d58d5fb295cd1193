"""Some documents as a report counts them: what is gold, what is predicted, and the paths both form."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hill.decode import Decoder
from hill.metrics.edges import Edges
from hill.taxonomy.cells import Table, as_dense
from hill.types import BoolArray, IntArray

Scores = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Block:
    """Numbers of documents (B), their gold and predicted labels, and their scores before and after decoding (B, L).

    Only the scores before decoding may be sparse.
    """

    documents: IntArray
    gold: BoolArray
    chosen: BoolArray
    raw: Table
    effective: Scores
    edges: Edges

    @cached_property
    def missed(self) -> BoolArray:
        """Gold labels that are not predicted (B, L)."""
        return self.gold & ~self.chosen

    @cached_property
    def wrong(self) -> BoolArray:
        """Predicted labels that are not gold (B, L)."""
        return self.chosen & ~self.gold

    @cached_property
    def closed_gold(self) -> BoolArray:
        """Gold labels and their ancestors, a row a label: (L, B)."""
        return self.edges.close(np.ascontiguousarray(self.gold.T))

    @cached_property
    def closed(self) -> BoolArray:
        """Predicted labels and their ancestors, a row a label: (L, B)."""
        return self.edges.close(np.ascontiguousarray(self.chosen.T))

    def ends(self, closed: BoolArray) -> BoolArray:
        """The most specific labels of closed sets: (L, B) to (L, B)."""
        return closed & ~self.edges.with_child(closed)

    def compared(self, decoder: Decoder) -> Scores:
        """Scores above which a threshold that all labels share would predict each label: (B, L)."""
        found = as_dense(decoder.compared(self.raw))
        if decoder.config.strategy != "raw":
            found = self.edges.close(np.ascontiguousarray(found.T)).T
        kept = self.effective.max(axis=1, keepdims=True) > np.float64(decoder.config.abstain)
        return np.where(kept, found, 0) if decoder.config.abstain else found
