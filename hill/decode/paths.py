"""The best paths from a root to a leaf, for a block of documents at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack

from hill.metrics.edges import Edges
from hill.taxonomy import Taxonomy
from hill.types import BoolArray, IntArray

FEW = 16
PARENT_WEIGHT = 0.5
FLOOR = 1e-12

Columns = npt.NDArray[np.floating]


class Paths:
    """Finds the leaves whose paths have the highest weighted mean of log scores.

    In the mean a label weighs twice as much as its parent: it knows more (measured on ICD-10-CM dev). The path of a
    label with several parents continues the path of the parent that makes its mean highest.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._edges = Edges(taxonomy)
        self._leaves = taxonomy.leaves
        self._below = np.flatnonzero(taxonomy.depth > 1)
        self._rounds = list(_rounds(taxonomy))

    def best(self, values: Any, k: int) -> Any:
        """The labels on the k best paths, with all their ancestors: (L, b) to (L, b), or in a sparse table (b, L).

        Of a sparse table the best path may end at any leaf, whether its score was kept or not: it is read dense, few
        documents at a time.
        """
        if not isinstance(values, csr_array):
            return self._best(values, k)
        parts = (values[start : start + FEW].toarray().T for start in range(0, values.shape[0], FEW))
        none: csr_array[Any] = csr_array((0, values.shape[1]), dtype=bool)
        return csr_array(vstack([none, *(csr_array(self._best(part, k).T) for part in parts)]))

    def _best(self, columns: Columns, k: int) -> BoolArray:
        means = self._means(columns)[self._leaves]
        k = min(k, len(means))
        ends = means.argmax(axis=0)[None] if k == 1 else np.argpartition(-means, k - 1, axis=0)[:k]  # (k, b)
        chosen = np.zeros(columns.shape, dtype=bool)
        chosen[self._leaves[ends], np.arange(columns.shape[1])] = True
        return self._edges.close(chosen)

    def _means(self, columns: Columns) -> Columns:
        """The mean of the best path to each label: (L, b) to (L, b)."""
        logs = np.log(np.maximum(columns, FLOOR))
        sums, weights, means = logs.copy(), np.ones_like(logs), logs.copy()
        means[self._below] = -np.inf
        for children, parents in self._rounds:
            total, weight = logs[children] + PARENT_WEIGHT * sums[parents], 1 + PARENT_WEIGHT * weights[parents]
            better = total / weight > means[children]
            for values, found in ((sums, total), (weights, weight), (means, total / weight)):
                values[children] = np.where(better, found, values[children])
        return means


def _rounds(taxonomy: Taxonomy) -> Iterator[tuple[IntArray, IntArray]]:
    """Edges level by level; within one, first the first edge of every child, then the second, and so on."""
    children, parents = taxonomy.edge_array.T
    turn = np.arange(len(children)) - np.searchsorted(children, children)
    depth = taxonomy.depth[children]
    order = np.lexsort((turn, depth))
    borders = np.flatnonzero((np.diff(turn[order]) != 0) | (np.diff(depth[order]) != 0)) + 1
    for part in np.split(order, borders) if len(order) else []:
        yield children[part], parents[part]
