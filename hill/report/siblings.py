"""Which siblings are taken for each other."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.report.block import Block
from hill.taxonomy import Taxonomy
from hill.types import BoolArray, IntArray


class Siblings:
    """Counts documents in which a label is missed and a sibling wrongly predicted; roots are siblings of each other."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._parents = taxonomy.parent_table
        children, parents = taxonomy.edge_array.T
        self._edges = np.sort(children * len(taxonomy) + parents)
        self._root: BoolArray = np.diff(self._parents.indptr) == 0
        self.counts: csr_array[Any] = csr_array((len(taxonomy), len(taxonomy)), dtype=np.int64)
        """Missed labels by wrongly predicted ones (L, L)."""

    def update(self, block: Block) -> None:
        """Count these documents."""
        missed, wrong = (labels.astype(np.int64) for labels in (block.missed, block.wrong))
        pairs = (missed.T @ wrong).tocoo()
        missing, taken = (places.astype(np.int64) for places in pairs.coords)
        kept = self._are_siblings(missing, taken)
        self.counts = self.counts + csr_array((pairs.data[kept], (missing[kept], taken[kept])), shape=pairs.shape)

    def _are_siblings(self, one: IntArray, other: IntArray) -> BoolArray:
        """Whether the labels of each pair share a parent, or both have none."""
        above = self._parents[one]
        pair = np.repeat(np.arange(len(one)), np.diff(above.indptr))
        keys = other[pair] * len(self._root) + above.indices
        known = np.append(self._edges, -1)[np.searchsorted(self._edges, keys)] == keys
        shared = pair[known]
        return (np.bincount(shared, minlength=len(one)) > 0) | (self._root[one] & self._root[other])
