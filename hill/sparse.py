"""Sparse document × label matrices; missing entries are 0."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack

from hill.types import MANY_LABELS, BoolArray, IntArray

Matrix = npt.NDArray[Any] | csr_array[Any]
"""Values per document and label, (documents, L), dense or sparse."""

DEFAULT_TOP_K = 100
"""Scores stored per document if there are more than `MANY_LABELS` labels."""


def to_dense(matrix: Matrix) -> npt.NDArray[Any]:
    """Return the matrix as a dense array.

    >>> to_dense(csr_array([[0.0, 0.5]]))
    array([[0. , 0.5]])
    """
    return matrix.toarray() if isinstance(matrix, csr_array) else np.asarray(matrix)


# Top-k scores


def max_entries(keep: int, labels: int) -> int:
    """Return how many scores to store per document for the setting `keep`; 0 means all, in a dense matrix."""
    if not keep:
        return DEFAULT_TOP_K if labels > MANY_LABELS else 0
    return keep if keep < labels else 0


def top_k(scores: npt.NDArray[Any], count: int) -> csr_array[Any]:
    """Keep the `count` highest scores per document: (B, L) to sparse (B, L)."""
    rows = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    return top_k_matrix(np.take_along_axis(scores, rows, axis=1), rows, scores.shape[1])


def top_k_matrix(scores: npt.NDArray[Any], rows: IntArray, labels: int) -> csr_array[Any]:
    """Build the sparse matrix (B, L) from k scores per document and their labels, (B, k) each."""
    order = np.argsort(rows, axis=1)
    scores, rows = (np.take_along_axis(values, order, axis=1) for values in (scores, rows))
    indptr = np.arange(len(rows) + 1) * rows.shape[1]
    return csr_array((scores.ravel(), rows.ravel(), indptr), shape=(len(rows), labels))


# Assembling


def assemble_rows(parts: Iterable[tuple[IntArray, Any]], shape: tuple[int, int]) -> Matrix:
    """Join parts, each given as row indices and scores, into one matrix; without any part it is dense zeros."""
    iterator = iter(parts)
    first = next(iterator, (np.arange(0), np.zeros((0, shape[1]), dtype=np.float32)))
    if isinstance(first[1], csr_array):
        indices, blocks = zip(first, *iterator, strict=True)
        empty_row = csr_array(np.zeros((1, shape[1]), dtype=np.float32))
        stacked: Any = vstack([*blocks, empty_row], format="csr")
        order = np.concatenate(indices)
        source = np.full(shape[0], len(order))  # rows without a part are empty
        source[order] = np.arange(len(order))
        matrix: Matrix = stacked[source]
        return matrix
    scores = np.zeros(shape, dtype=np.float32)
    for rows, block in chain([first], iterator):
        scores[rows] = block
    return scores


def merge_entries(
    documents: IntArray,
    labels: npt.NDArray[np.integer[Any]],
    values: npt.NDArray[Any],
    shape: tuple[int, int],
    join: np.ufunc,
) -> csr_array[Any]:
    """Build a matrix from entries in any order; entries at the same position are combined with `join`."""
    positions = documents * shape[1] + labels
    order = np.argsort(positions, kind="stable")
    positions = positions[order]
    starts = np.flatnonzero(np.diff(positions, prepend=-1))
    joined = join.reduceat(values[order], starts) if len(starts) else values
    rows, columns = np.divmod(positions[starts], max(shape[1], 1))
    return csr_array((joined, columns, np.searchsorted(rows, np.arange(shape[0] + 1))), shape=shape)


# Entries


def row_indices(matrix: csr_array[Any]) -> IntArray:
    """Return the row of each entry."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def flat_indices(matrix: csr_array[Any]) -> IntArray:
    """Return the index of each entry in the flattened dense matrix, ascending."""
    indices: IntArray = row_indices(matrix) * matrix.shape[1] + matrix.indices
    return indices


def with_values(matrix: csr_array[Any], values: npt.NDArray[Any]) -> csr_array[Any]:
    """Return a matrix with the same entries and other values."""
    return csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def select_entries(matrix: csr_array[Any], selected: BoolArray) -> csr_array[Any]:
    """Keep the entries for which `selected` is true."""
    indptr = np.append(0, np.cumsum(selected))[matrix.indptr]
    return csr_array((matrix.data[selected], matrix.indices[selected], indptr), shape=matrix.shape)


def expand_rows(matrix: csr_array[Any], rows: npt.NDArray[np.integer[Any]]) -> tuple[IntArray, IntArray]:
    """Concatenate the column indices of these rows; return for each its position in `rows`, and the column.

    >>> positions, columns = expand_rows(csr_array([[1, 1], [0, 1]]), np.array([1, 0, 1]))
    >>> positions.tolist(), columns.tolist()
    ([0, 1, 1, 2], [1, 0, 1, 1])
    """
    starts = matrix.indptr[rows].astype(np.int64)
    counts = matrix.indptr[rows + 1] - starts
    ends = np.cumsum(counts)
    entries = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + counts, counts)
    return np.repeat(np.arange(len(rows)), counts), matrix.indices[entries].astype(np.int64)
