"""Moving values along the edges of a taxonomy, for documents of which few labels are known."""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.metrics.edges import Edges
from hill.taxonomy import Taxonomy
from hill.taxonomy.cells import documents_of, expand, merge_cells, only, places_of, with_values
from hill.types import BoolArray, FloatArray, IntArray

Cells = csr_array[Any]


class SparseEdges:
    """Does what `Edges` does, for values that have a row a document and hold some cells only: (b, L) to (b, L).

    As there, `a * b` are the cells that two label sets both have, and `a > b` those that only the first has.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy = taxonomy

    def enter(self, table: Cells) -> Cells:
        """Values as they are moved."""
        return table

    def leave(self, values: Cells) -> Cells:
        """Values as they came."""
        return values

    def close(self, values: Cells) -> Cells:
        """The highest value of each label and its descendants: closure for booleans."""
        if values.dtype == bool:
            return _sorted(values @ self._taxonomy.lineage)
        cell, label = expand(self._taxonomy.lineage, values.indices)
        return merge_cells(documents_of(values)[cell], label, values.data[cell], values.shape, np.maximum)

    def with_child(self, chosen: Cells) -> Cells:
        """Where a label has a chosen child."""
        return _sorted(chosen @ self._taxonomy.parent_table)

    def least_above(self, values: Cells) -> Cells:
        """The lowest value of each label and its ancestors: for booleans, where all are chosen."""
        cell, label = expand(self._taxonomy.lineage, values.indices)
        found = look_up(values, documents_of(values)[cell] * values.shape[1] + label)
        starts = np.searchsorted(cell, np.arange(values.nnz))
        least = np.minimum.reduceat(found, starts) if values.nnz else found
        return only(with_values(values, least), least > 0)

    def above(self, values: Cells, thresholds: FloatArray | np.float64) -> Cells:
        """Where values are above a threshold, or each label's own (L)."""
        own = thresholds[values.indices] if isinstance(thresholds, np.ndarray) else thresholds
        passing: BoolArray = values.data > own
        return only(with_values(values, passing), passing)

    def within(self, values: Cells, chosen: Cells) -> Cells:
        """The values of chosen cells."""
        return values * chosen

    def highest(self, values: Cells) -> npt.NDArray[Any]:
        """The highest value of each document: (b)."""
        found = np.zeros(values.shape[0], dtype=values.dtype)
        np.maximum.at(found, documents_of(values), values.data)
        return found

    def of_documents(self, values: Cells, kept: BoolArray) -> Cells:
        """The values of these documents (b)."""
        return only(values, kept[documents_of(values)])

    def per_label(self, chosen: Cells) -> IntArray:
        """How often each label is chosen: (L)."""
        return np.bincount(chosen.indices, minlength=chosen.shape[1])

    def per_document(self, chosen: Cells) -> IntArray:
        """How many labels of each document are chosen: (b)."""
        return np.diff(chosen.indptr).astype(np.int64)


class AnyEdges:
    """The edges of a taxonomy for tables of either kind; each is made when it is first asked for."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy = taxonomy

    @cached_property
    def _dense(self) -> Edges:
        return Edges(self._taxonomy)

    @cached_property
    def _sparse(self) -> SparseEdges:
        return SparseEdges(self._taxonomy)

    def of(self, table: object) -> Any:
        """Those that move the values of such a table: `Edges`, or `SparseEdges`."""
        return self._sparse if isinstance(table, csr_array) else self._dense


def look_up(values: Cells, places: IntArray) -> npt.NDArray[Any]:
    """The values at these places, document * L + label; 0 where there is none."""
    known = places_of(values)
    at = np.searchsorted(known, places)
    found = np.append(known, -1)[at] == places
    return np.where(found, np.append(values.data, np.zeros(1, values.dtype))[at], np.zeros(1, values.dtype))


def gold_scores(labels: Cells, scores: Cells) -> tuple[IntArray, npt.NDArray[Any]]:
    """The label and the score of every gold cell, 0 where it is missing."""
    return labels.indices.astype(np.int64), look_up(scores, places_of(labels))


def _sorted(table: Cells) -> Cells:
    table.sort_indices()
    return table
