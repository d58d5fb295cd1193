"""A level of a coding tree as a graph: the graph of its parents, another order, and numbers without gaps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hill.tree._compile import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Level(NamedTuple):
    """The nodes of one tree level as a graph, in CSR form."""

    indptr: Ints
    indices: Ints
    weights: Floats
    volumes: Floats
    """Sum of the degrees below each node."""
    inner: Floats
    """Weight of the edges between children of each node."""

    def above(self, parents: Ints, size: int) -> Level:
        """Return the level of the `size` parents."""
        arrays = contract(self.indptr, self.indices, self.weights, parents, size)
        return Level(*arrays[:3], np.bincount(parents, self.volumes, size).astype(np.float64), arrays[3])

    def reordered(self, order: Ints) -> Level:
        """Return the level with its nodes in another order."""
        size = len(order)
        matrix: Any = sp.csr_array((self.weights, self.indices, self.indptr), shape=(size, size))[order][:, order]
        matrix.sort_indices()
        arrays = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data
        # Volumes are summed anew: the last bit of a sum depends on the order of its terms.
        return Level(*arrays, np.asarray(matrix.sum(axis=1), dtype=np.float64), self.inner[order])


@njit
def contract(
    indptr: Ints, indices: Ints, weights: Floats, parents: Ints, size: int
) -> tuple[Ints, Ints, Floats, Floats]:
    """Return the graph of the `size` parents in CSR form and, for each, the weight of the edges inside it."""
    first, members = np.zeros(size + 2, np.int64), np.empty(len(parents), np.int64)
    for node in range(len(parents)):
        first[parents[node] + 2] += 1
    for parent in range(size):
        first[parent + 2] += first[parent + 1]
    for node in range(len(parents)):
        members[first[parents[node] + 1]] = node
        first[parents[node] + 1] += 1
    rows, columns, values = np.zeros(size + 1, np.int64), np.empty(len(indices), np.int64), np.empty(len(indices))
    slots, inner, filled = np.full(size, -1, np.int64), np.zeros(size), 0
    for parent in range(size):
        for member in range(first[parent], first[parent + 1]):
            node = members[member]
            for edge in range(indptr[node], indptr[node + 1]):
                other = parents[indices[edge]]
                if other == parent:
                    inner[parent] += weights[edge] / 2.0
                elif slots[other] < rows[parent]:
                    slots[other], columns[filled], values[filled] = filled, other, weights[edge]
                    filled += 1
                else:
                    values[slots[other]] += weights[edge]
        rows[parent + 1] = filled
    return rows, columns[:filled].copy(), values[:filled].copy(), inner


@njit
def renumber(up: Ints) -> Ints:
    """Number the nodes of every row in the order of their first child, without gaps; return the sizes of the rows."""
    rows, size = up.shape
    sizes, moved = np.empty(rows, np.int64), np.empty(size, np.int64)
    sizes[0] = size
    for j in range(rows):
        names, count = np.full(size, -1, np.int64), 0
        for node in range(sizes[j]):
            parent = up[j, node]
            if names[parent] < 0:
                names[parent] = count
                if j + 1 < rows:
                    moved[count] = up[j + 1, parent]
                count += 1
            up[j, node] = names[parent]
        if j + 1 < rows:
            sizes[j + 1] = count
            for node in range(count):
                up[j + 1, node] = moved[node]
    return sizes
