"""Graph: an undirected weighted graph as sorted CSR arrays, checked once where it enters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hill.errors import TaxonomyError

# Two sums of the same weights in another order differ by rounding; that is not an asymmetric graph.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Graph:
    """The graph a coding tree encodes: symmetric, without self loops, neighbours sorted.

    >>> graph = Graph.from_adjacency([[0, 1, 0], [1, 0, 2], [0, 2, 0]])
    >>> len(graph), graph.degrees.tolist(), graph.volume
    (3, [1.0, 3.0, 2.0], 6.0)
    """

    indptr: NDArray[np.int64]
    """Neighbours of vertex i are indices[indptr[i]:indptr[i + 1]]."""
    indices: NDArray[np.int64]
    """Neighbours, ascending for each vertex."""
    weights: NDArray[np.float64]
    """Weight of the edge to each neighbour, above zero."""
    degrees: NDArray[np.float64]
    """Sum of the weights at each vertex."""
    volume: float
    """Sum of the degrees."""

    @classmethod
    def from_adjacency(cls, adjacency: Any) -> Graph:
        """Read a symmetric matrix (scipy sparse or array-like): duplicates are summed, the diagonal is dropped."""
        entries = _entries(adjacency)
        _check_weights(entries)
        matrix = _without_diagonal(entries).tocsr()
        _check_symmetric(matrix)
        return cls._from_csr(((matrix + matrix.T) / 2).tocsr())

    @classmethod
    def _from_csr(cls, matrix: Any) -> Graph:
        indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
        weights = matrix.data.astype(np.float64)
        with np.errstate(over="ignore"):
            degrees = np.bincount(_rows(indptr), weights, len(indptr) - 1).astype(np.float64)
            volume = float(degrees.sum())
        if not np.isfinite(volume):
            raise TaxonomyError("the weights of the graph add up to more than a float holds; divide them by a constant")
        return cls(indptr, indices, weights, degrees, volume)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __repr__(self) -> str:
        return f"Graph({len(self)} vertices, {len(self.indices) // 2} edges, volume {self.volume:g})"

    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return each edge once, as smaller end, larger end and weight, in ascending order."""
        rows = _rows(self.indptr)
        once = rows < self.indices
        return rows[once], self.indices[once], self.weights[once]


def _rows(indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(indptr) - 1, dtype=np.int64), np.diff(indptr))


def _entries(adjacency: Any) -> Any:
    if not sp.issparse(adjacency):
        adjacency = np.asarray(adjacency, dtype=np.float64)
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise TaxonomyError(f"adjacency has shape {adjacency.shape}; expected a square matrix, a row a label")
    return sp.coo_array(adjacency).astype(np.float64)


def _check_weights(entries: Any) -> None:
    wrong = np.flatnonzero(~(np.isfinite(entries.data) & (entries.data >= 0)))
    if wrong.size:
        row, column, weight = (int(entries.row[wrong[0]]), int(entries.col[wrong[0]]), float(entries.data[wrong[0]]))
        raise TaxonomyError(f"edge ({row}, {column}) has weight {weight}; expected a finite number of at least 0")


def _without_diagonal(entries: Any) -> Any:
    keep = entries.row != entries.col
    return sp.coo_array((entries.data[keep], (entries.row[keep], entries.col[keep])), shape=entries.shape)


def _check_symmetric(matrix: Any) -> None:
    excess = (abs(matrix - matrix.T) - ROUNDING * (matrix + matrix.T)).tocoo()
    wrong = np.flatnonzero(excess.data > 0)
    if wrong.size:
        row, column = int(excess.row[wrong[0]]), int(excess.col[wrong[0]])
        there, back = float(matrix[row, column]), float(matrix[column, row])
        raise TaxonomyError(
            f"edge ({row}, {column}) has weight {there} but ({column}, {row}) has {back};"
            " expected a symmetric matrix: add it to its transpose"
        )
