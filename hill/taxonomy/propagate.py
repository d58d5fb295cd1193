"""Moving values along the edges of a taxonomy, for dense and sparse document × label matrices.

`Edges` and `SparseEdges` have the same methods. `AnyEdges.of` returns the one that fits a matrix, so that callers
need not distinguish them. For label sets of either kind, `a * b` is the intersection and `a > b` the difference.
"""

from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.sparse import expand_rows, flat_indices, merge_entries, row_indices, select_entries, with_values
from hill.taxonomy.taxonomy import Taxonomy
from hill.types import BoolArray, FloatArray, IntArray

Values = TypeVar("Values", bound=npt.NDArray[Any])
SparseMatrix = csr_array[Any]

MAX_ROUNDS = 64
"""Rounds per level, after which the remaining edges of a label are reduced at once: it may have a million children."""

Round = tuple[IntArray, IntArray, IntArray | None]
"""Targets and sources of edges; with starts, target i receives from all sources from starts[i] to starts[i + 1]."""


class Edges:
    """The edges of a taxonomy, for dense matrices.

    Values are (L, b), one row per label, so that the values a round moves are contiguous in memory. Edges are
    processed in rounds: each label receives at most once per round, and only values that are complete.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        children, parents = taxonomy.edge_array.T
        depth = taxonomy.depth[children]
        self._up = _rounds(parents, children, -depth, MAX_ROUNDS)
        self._down = _rounds(children, parents, depth, MAX_ROUNDS)

    def enter(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert a matrix to the layout of the other methods: (b, L) to (L, b)."""
        return np.ascontiguousarray(table.T)

    def leave(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert values back: (L, b) to (b, L)."""
        return values.T

    def close(self, values: Values) -> Values:
        """Return the highest value of each label and its descendants: the closure, for booleans."""
        closed = values.copy()
        _receive(self._up, closed, closed, np.maximum)
        return closed

    def with_child(self, chosen: BoolArray) -> BoolArray:
        """Return whether each label has a chosen child."""
        result = np.zeros_like(chosen)
        _receive(self._up, result, chosen, np.logical_or)
        return result

    def least_above(self, values: Values) -> Values:
        """Return the lowest value of each label and its ancestors: whether all are chosen, for booleans."""
        lowest = values.copy()
        _receive(self._down, lowest, lowest, np.minimum)
        return lowest

    def above(self, values: npt.NDArray[Any], thresholds: FloatArray | np.float64) -> BoolArray:
        """Return which values are above the threshold, a single one or one per label (L)."""
        return values > np.reshape(thresholds, (-1, 1))

    def within(self, values: npt.NDArray[Any], chosen: BoolArray) -> npt.NDArray[Any]:
        """Return the values of chosen labels, 0 for the others."""
        return np.where(chosen, values, 0)

    def highest(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the highest value per document: (b)."""
        highest: npt.NDArray[Any] = values.max(axis=0, initial=0)
        return highest

    def of_documents(self, values: npt.NDArray[Any], selected: BoolArray) -> npt.NDArray[Any]:
        """Return the values of selected documents (b), 0 for the others."""
        return values * selected

    def per_label(self, chosen: BoolArray) -> IntArray:
        """Count the documents per label: (L)."""
        counts: IntArray = np.count_nonzero(chosen, axis=1)
        return counts

    def per_document(self, chosen: BoolArray) -> IntArray:
        """Count the labels per document: (b)."""
        counts: IntArray = np.count_nonzero(chosen, axis=0)
        return counts


class SparseEdges:
    """The methods of `Edges` for sparse matrices, (b, L) to (b, L)."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy = taxonomy

    def enter(self, table: SparseMatrix) -> SparseMatrix:
        """Return the matrix: sparse values need no other layout."""
        return table

    def leave(self, values: SparseMatrix) -> SparseMatrix:
        """Return the matrix."""
        return values

    def close(self, values: SparseMatrix) -> SparseMatrix:
        """Return the highest value of each label and its descendants: the closure, for booleans."""
        if values.dtype == bool:
            return _sorted(values @ self._taxonomy.lineage)
        entry, label = expand_rows(self._taxonomy.lineage, values.indices)
        return merge_entries(row_indices(values)[entry], label, values.data[entry], values.shape, np.maximum)

    def with_child(self, chosen: SparseMatrix) -> SparseMatrix:
        """Return whether each label has a chosen child."""
        return _sorted(chosen @ self._taxonomy.parent_table)

    def least_above(self, values: SparseMatrix) -> SparseMatrix:
        """Return the lowest value of each label and its ancestors: whether all are chosen, for booleans."""
        entry, label = expand_rows(self._taxonomy.lineage, values.indices)
        ancestors = lookup(values, row_indices(values)[entry] * values.shape[1] + label)
        starts = np.searchsorted(entry, np.arange(values.nnz))
        lowest = np.minimum.reduceat(ancestors, starts) if values.nnz else ancestors
        return select_entries(with_values(values, lowest), lowest > 0)

    def above(self, values: SparseMatrix, thresholds: FloatArray | np.float64) -> SparseMatrix:
        """Return which values are above the threshold, a single one or one per label (L)."""
        limits = thresholds[values.indices] if isinstance(thresholds, np.ndarray) else thresholds
        selected: BoolArray = values.data > limits
        return select_entries(with_values(values, selected), selected)

    def within(self, values: SparseMatrix, chosen: SparseMatrix) -> SparseMatrix:
        """Return the values of chosen labels."""
        return values * chosen

    def highest(self, values: SparseMatrix) -> npt.NDArray[Any]:
        """Return the highest value per document: (b)."""
        highest = np.zeros(values.shape[0], dtype=values.dtype)
        np.maximum.at(highest, row_indices(values), values.data)
        return highest

    def of_documents(self, values: SparseMatrix, selected: BoolArray) -> SparseMatrix:
        """Return the values of selected documents (b)."""
        return select_entries(values, selected[row_indices(values)])

    def per_label(self, chosen: SparseMatrix) -> IntArray:
        """Count the documents per label: (L)."""
        return np.bincount(chosen.indices, minlength=chosen.shape[1])

    def per_document(self, chosen: SparseMatrix) -> IntArray:
        """Count the labels per document: (b)."""
        return np.diff(chosen.indptr).astype(np.int64)


class AnyEdges:
    """The edges of a taxonomy for dense and sparse matrices; each kind is built on first use."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy = taxonomy

    @cached_property
    def _dense(self) -> Edges:
        return Edges(self._taxonomy)

    @cached_property
    def _sparse(self) -> SparseEdges:
        return SparseEdges(self._taxonomy)

    def of(self, table: object) -> Any:
        """Return the `Edges` or `SparseEdges` for this matrix."""
        return self._sparse if isinstance(table, csr_array) else self._dense


def downward_rounds(taxonomy: Taxonomy) -> list[tuple[IntArray, IntArray]]:
    """Return the edges from the roots down, as (children, parents) per round.

    A round contains each child at most once; its parents are complete in earlier rounds.
    """
    children, parents = taxonomy.edge_array.T
    return [(targets, sources) for targets, sources, _ in _rounds(children, parents, taxonomy.depth[children])]


def lookup(values: SparseMatrix, positions: IntArray) -> npt.NDArray[Any]:
    """Return the values at these positions, document * L + label; missing entries are 0."""
    stored = flat_indices(values)
    index = np.searchsorted(stored, positions)
    present = np.append(stored, -1)[index] == positions
    zero = np.zeros(1, values.dtype)
    return np.where(present, np.append(values.data, zero)[index], zero)


def scores_at_labels(labels: SparseMatrix, scores: SparseMatrix) -> tuple[IntArray, npt.NDArray[Any]]:
    """Return the label and the score of every gold entry; the score is 0 if it is missing."""
    return labels.indices.astype(np.int64), lookup(scores, flat_indices(labels))


def _rounds(targets: IntArray, sources: IntArray, stages: IntArray, max_rounds: int | None = None) -> list[Round]:
    """Split edges into rounds by stage; within a stage, round i contains the i-th edge of every target.

    With `max_rounds`, the last round of a stage contains all remaining edges of each target, with starts.
    """
    order = np.lexsort((targets, stages))
    targets, sources, stages = targets[order], sources[order], stages[order]
    first = np.ones(len(targets), dtype=bool)
    first[1:] = (np.diff(targets) != 0) | (np.diff(stages) != 0)
    starts = np.flatnonzero(first)
    number = np.arange(len(targets)) - np.repeat(starts, np.diff(np.append(starts, len(targets))))
    if max_rounds is not None:
        number = np.minimum(number, max_rounds)
    order = np.lexsort((number, stages))
    borders = np.flatnonzero((np.diff(number[order]) != 0) | (np.diff(stages[order]) != 0)) + 1
    rounds: list[Round] = []
    for edges in np.split(order, borders) if len(order) else []:
        if number[edges[0]] == max_rounds:
            receivers, starts = np.unique(targets[edges], return_index=True)
            rounds.append((receivers, sources[edges], starts))
        else:
            rounds.append((targets[edges], sources[edges], None))
    return rounds


def _receive(rounds: list[Round], values: npt.NDArray[Any], sent: npt.NDArray[Any], join: np.ufunc) -> None:
    for targets, sources, starts in rounds:
        received = sent[sources] if starts is None else join.reduceat(sent[sources], starts, axis=0)
        values[targets] = join(values[targets], received)


def _sorted(matrix: SparseMatrix) -> SparseMatrix:
    matrix.sort_indices()
    return matrix
