"""How far paths are right: where they part from the gold ones, and how far from those they end."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array, eye_array

from hill.metrics.edges import Edges
from hill.report.block import Block
from hill.taxonomy import Taxonomy
from hill.types import BoolArray, IntArray

KINDS = ("right", "early", "deep", "sibling", "cousin", "far", "nothing")
RIGHT, EARLY, DEEP, SIBLING, COUSIN, FAR, NOTHING = range(len(KINDS))
SWAPPED = [RIGHT, DEEP, EARLY, SIBLING, COUSIN, FAR, NOTHING]
"""Seen from the prediction, what ends before the gold path does is too early, and what goes on after it too deep."""
NEVER = np.int16(2**15 - 1)


class Paths:
    """Counts paths by kind and by the level where they are first wrong, 0 where they are right.

    A path is a most specific label with all above it. Of a gold path, the prediction has it (right), has it and more
    below it (deep), or lacks its end. Then there is a wrong label under the same parent (sibling), a wrong label below
    the last label that both share (cousin), or no wrong label there, and the prediction ends at that label (early).
    Where they share no label, something wrong is predicted (far) or not (nothing); nothing, too, where the prediction
    only goes on to other right labels. The same for predicted paths, gold and predicted being exchanged.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._depth = taxonomy.depth.astype(np.int16)
        every: csr_array[Any] = csr_array(eye_array(len(taxonomy), dtype=bool))
        self._closure = taxonomy.closures(every)
        self._parents = parent_matrix(taxonomy)
        levels = len(taxonomy.levels) + 1
        self.gold, self.predicted = np.zeros((2, len(KINDS), levels), dtype=np.int64)
        self.documents: IntArray = np.zeros(levels, dtype=np.int64)
        """Documents by the first level at which any label is wrong or missed."""

    def update(self, block: Block) -> None:
        """Count these documents."""
        differing = np.where(block.closed != block.closed_gold, self._depth[:, None], NEVER)  # (L, B)
        first = differing.min(axis=0, initial=NEVER)
        self.documents += np.bincount(np.where(first < NEVER, first, 0), minlength=len(self.documents))
        self.gold += self._compare(block.closed_gold, block.closed, block)
        self.predicted += self._compare(block.closed, block.closed_gold, block)[SWAPPED]

    def _compare(self, own: BoolArray, other: BoolArray, block: Block) -> IntArray:
        """What became of each path of `own` in `other`: kinds by levels."""
        strange = other & ~own
        rows, documents = np.nonzero(block.ends(own))  # P paths
        other_ends, below = block.ends(other), self._first_below(strange, block.edges)
        path, step = _expand(self._closure, rows)
        found = other[step, documents[path]]
        depth = self._depth[step]
        reach, first = np.zeros(len(rows), dtype=np.int16), np.full(len(rows), NEVER)
        np.maximum.at(reach, path[found], depth[found])
        np.minimum.at(first, path[~found], depth[~found])
        last = found & (depth == reach[path])
        astray = _any(last & (below[step, documents[path]] < NEVER), path, len(rows))
        stops = _any(last & other_ends[step, documents[path]], path, len(rows))
        path, parent = _expand(self._parents, rows)
        sibling = _any(block.edges.with_child(strange)[parent, documents[path]], path, len(rows))
        hit, ended = other[rows, documents], other_ends[rows, documents]
        lost = (reach == 0) & np.any(strange, axis=0)[documents]
        kind = np.select(
            [hit & ended, hit, sibling, astray, stops, lost], [RIGHT, DEEP, SIBLING, COUSIN, EARLY, FAR], NOTHING
        )
        level = np.where(hit, np.where(ended, 0, below[rows, documents]), first).astype(np.int64)
        width = self.gold.shape[1]
        return np.bincount(kind * width + level, minlength=self.gold.size).reshape(-1, width)

    def _first_below(self, strange: BoolArray, edges: Edges) -> "np.ndarray[Any, np.dtype[np.int16]]":
        """The first level of these labels at or below each label: (L, B) to (L, B)."""
        return -edges.close(np.where(strange, -self._depth[:, None], -NEVER))


def parent_matrix(taxonomy: Taxonomy) -> csr_array[Any]:
    """True where the label of a column is a parent of that of the row: (L, L)."""
    children, parents = taxonomy.edge_array.T
    shape = (len(taxonomy), len(taxonomy))
    return csr_array((np.ones(len(children), dtype=bool), (children, parents)), shape=shape)


def _expand(matrix: csr_array[Any], rows: IntArray) -> tuple[IntArray, IntArray]:
    """For each of these rows (P) the columns that it has: the place in `rows` of each, and the columns."""
    found = matrix[rows]
    return np.repeat(np.arange(len(rows)), np.diff(found.indptr)), found.indices.astype(np.int64)


def _any(mask: BoolArray, group: IntArray, groups: int) -> BoolArray:
    """Whether any of the masks of each group is true."""
    return np.bincount(group[mask], minlength=groups) > 0
