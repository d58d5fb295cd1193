"""Tables of documents by labels that hold some cells only, for very many labels: a missing cell counts as 0."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack

from hill.types import MANY_LABELS, IntArray

Table = npt.NDArray[Any] | csr_array[Any]
"""Values (documents, L): all of them, or those that are kept."""
BEST = 100
"""Scores of a document that are kept where there are very many labels."""


def as_dense(table: Table) -> npt.NDArray[Any]:
    """All cells of a table, for a few documents at a time.

    >>> as_dense(csr_array([[0.0, 0.5]]))
    array([[0. , 0.5]])
    """
    return table.toarray() if isinstance(table, csr_array) else np.asarray(table)


def most_kept(keep: int, labels: int) -> int:
    """How many scores of a document are kept where the setting says `keep`; 0 for all, in a dense table."""
    if not keep:
        return BEST if labels > MANY_LABELS else 0
    return keep if keep < labels else 0


def best_table(scores: npt.NDArray[Any], rows: IntArray, labels: int) -> csr_array[Any]:
    """The table of the best scores of each document and the labels they are of: (B, count) each, to (B, L)."""
    order = np.argsort(rows, axis=1)
    cells = (np.take_along_axis(each, order, axis=1).ravel() for each in (scores, rows))
    return csr_array((*cells, np.arange(len(rows) + 1) * rows.shape[1]), shape=(len(rows), labels))


def keep_best(scores: npt.NDArray[Any], count: int) -> csr_array[Any]:
    """The best scores of each document: (B, L) to (B, L)."""
    rows = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    return best_table(np.take_along_axis(scores, rows, axis=1), rows, scores.shape[1])


def join_tables(parts: Iterable[tuple[IntArray, Any]], shape: tuple[int, int]) -> Table:
    """Scores of documents that come in any order, some at a time, as one table; without any document, a dense one."""
    coming = iter(parts)
    first = next(coming, (np.arange(0), np.zeros((0, shape[1]), dtype=np.float32)))
    if isinstance(first[1], csr_array):
        return _stack([first, *coming], shape)
    scores = np.zeros(shape, dtype=np.float32)
    for places, found in chain([first], coming):
        scores[places] = found
    return scores


def _stack(parts: Iterable[tuple[IntArray, Any]], shape: tuple[int, int]) -> Table:
    places, found = zip(*parts, strict=True)
    nothing = csr_array(np.zeros((1, shape[1]), dtype=np.float32))
    table: Any = vstack([*found, nothing], format="csr")
    order = np.concatenate(places)
    source = np.full(shape[0], len(order))  # documents that did not come have no scores
    source[order] = np.arange(len(order))
    joined: Table = table[source]
    return joined


def documents_of(table: csr_array[Any]) -> IntArray:
    """The document of each cell."""
    return np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))


def places_of(table: csr_array[Any]) -> IntArray:
    """The number of each cell among all of a dense table, ascending."""
    places: IntArray = documents_of(table) * table.shape[1] + table.indices
    return places


def with_values(table: csr_array[Any], values: npt.NDArray[Any]) -> csr_array[Any]:
    """The same cells with other values."""
    return csr_array((values, table.indices, table.indptr), shape=table.shape)


def only(table: csr_array[Any], kept: npt.NDArray[np.bool_]) -> csr_array[Any]:
    """Some of the cells."""
    starts = np.append(0, np.cumsum(kept))[table.indptr]
    return csr_array((table.data[kept], table.indices[kept], starts), shape=table.shape)


def merge_cells(
    documents: IntArray,
    labels: npt.NDArray[np.integer[Any]],
    values: npt.NDArray[Any],
    shape: tuple[int, int],
    join: np.ufunc,
) -> csr_array[Any]:
    """The table of cells that come in any order; those of the same place are joined."""
    places = documents * shape[1] + labels
    order = np.argsort(places, kind="stable")
    places = places[order]
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    joined = join.reduceat(values[order], starts) if len(starts) else values
    rows, columns = np.divmod(places[starts], max(shape[1], 1))
    return csr_array((joined, columns, np.searchsorted(rows, np.arange(shape[0] + 1))), shape=shape)


def expand(matrix: csr_array[Any], rows: npt.NDArray[np.integer[Any]]) -> tuple[IntArray, IntArray]:
    """For each of these rows the columns that it has: the place in `rows` of each, and the columns."""
    starts = matrix.indptr[rows].astype(np.int64)
    counts = matrix.indptr[rows + 1] - starts
    ends = np.cumsum(counts)
    steps = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + counts, counts)
    return np.repeat(np.arange(len(rows)), counts), matrix.indices[steps].astype(np.int64)
