"""Where the nodes of a taxonomy and of its coding tree stand in a picture: rows from the top, columns from the root."""

from dataclasses import dataclass

import numpy as np

from hill.taxonomy import Taxonomy
from hill.tree.coding_tree import CodingTree
from hill.types import FloatArray, IntArray


@dataclass(frozen=True)
class Layout:
    """Points, the elbows between them, and the rows that each point stands for."""

    x: FloatArray
    y: FloatArray
    above: IntArray
    """The point each point hangs from, -1 for none."""
    low: FloatArray
    high: FloatArray

    @property
    def elbows(self) -> FloatArray:
        """One line of three points for each point that hangs from another: (lines, 3, 2)."""
        below = np.flatnonzero(self.above >= 0)
        top = self.above[below]
        corners = [(self.x[top], self.y[top]), (self.x[top], self.y[below]), (self.x[below], self.y[below])]
        return np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)


def taxonomy_layout(taxonomy: Taxonomy) -> Layout:
    """A row a label, each under its first parent, children in order; the column is the depth there."""
    first, n = taxonomy.first_parents, len(taxonomy)
    sizes, x, y = np.ones(n), np.zeros(n), np.zeros(n)
    for rows in taxonomy.levels[:0:-1]:
        np.add.at(sizes, first[rows], sizes[rows])
    before = _before(first, sizes)
    y[taxonomy.roots] = before[taxonomy.roots]
    for rows in taxonomy.levels[1:]:
        x[rows], y[rows] = x[first[rows]] + 1, y[first[rows]] + 1 + before[rows]
    return Layout(x, y, first, y, y)


def _before(parents: IntArray, sizes: FloatArray) -> FloatArray:
    """The summed sizes of the earlier children of the same parent."""
    order = np.argsort(parents, kind="stable")
    ends = np.cumsum(sizes[order])
    fresh = np.diff(parents[order], prepend=-2) != 0
    starts = (ends - sizes[order])[fresh]
    before = np.empty(len(sizes))
    before[order] = ends - sizes[order] - starts[np.cumsum(fresh) - 1]
    return before


def tree_layout(tree: CodingTree, rank: FloatArray) -> Layout:
    """Leaves on rows of their own, grouped by the tree and within it by rank; a node stands amid its leaves.

    Points are numbered level by level from the leaves; the root is in the first column.
    """
    n = tree.sizes[0]
    earliest = [np.full(size, np.inf) for size in tree.sizes]
    for level, members in enumerate(tree.levels):
        np.minimum.at(earliest[level], members, rank)
    keys = [earliest[level][members] for level, members in enumerate(tree.levels)]
    rows = np.empty(n)
    rows[np.lexsort(keys)] = np.arange(n)
    starts = np.concatenate([[0], np.cumsum(tree.sizes)])
    x, above = np.zeros(starts[-1]), np.full(starts[-1], -1, dtype=np.int64)
    low, high = np.full(starts[-1], np.inf), np.full(starts[-1], -np.inf)
    for level, members in enumerate(tree.levels):
        points = slice(starts[level], starts[level + 1])
        np.minimum.at(low, starts[level] + members, rows)
        np.maximum.at(high, starts[level] + members, rows)
        x[points] = tree.height - level
        if level < tree.height:
            above[points] = starts[level + 1] + tree.parents[level]
    return Layout(x, (low + high) / 2, above, low, high)
