"""Graphs, coding trees, and the structural entropy of a graph under a coding tree, in bits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from hill.errors import TaxonomyError

ROUNDING = 1e-9
"""Relative difference up to which two weights are equal: sums depend on the order of their terms."""


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected weighted graph without self loops, in CSR form.

    >>> graph = Graph.from_adjacency([[0, 1, 0], [1, 0, 2], [0, 2, 0]])
    >>> len(graph), graph.degrees.tolist(), graph.volume
    (3, [1.0, 3.0, 2.0], 6.0)
    """

    indptr: NDArray[np.int64]
    """The neighbours of vertex i are indices[indptr[i]:indptr[i + 1]]."""
    indices: NDArray[np.int64]
    """Neighbours, ascending per vertex."""
    weights: NDArray[np.float64]
    """Weight of the edge to each neighbour, above 0."""
    degrees: NDArray[np.float64]
    """Sum of the weights per vertex."""
    volume: float
    """Sum of the degrees."""

    @classmethod
    def from_adjacency(cls, adjacency: Any) -> Graph:
        """Build the graph of a symmetric matrix (scipy sparse or array-like). The diagonal is ignored."""
        if not sp.issparse(adjacency):
            adjacency = np.asarray(adjacency, dtype=np.float64)
        if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
            raise TaxonomyError(f"adjacency has shape {adjacency.shape}; expected a square matrix, one row per label")
        entries = sp.coo_array(adjacency).astype(np.float64)
        wrong = np.flatnonzero(~(np.isfinite(entries.data) & (entries.data >= 0)))
        if wrong.size:
            row, column, weight = entries.row[wrong[0]], entries.col[wrong[0]], float(entries.data[wrong[0]])
            raise TaxonomyError(f"edge ({row}, {column}) has weight {weight}; expected a finite number of at least 0")
        keep = entries.row != entries.col
        ends = (entries.row[keep], entries.col[keep])
        given: Any = sp.coo_array((entries.data[keep], ends), shape=entries.shape).tocsr()
        excess = (abs(given - given.T) - ROUNDING * (given + given.T)).tocoo()
        wrong = np.flatnonzero(excess.data > 0)
        if wrong.size:
            row, column = excess.row[wrong[0]], excess.col[wrong[0]]
            raise TaxonomyError(
                f"edge ({row}, {column}) has weight {given[row, column]} but ({column}, {row}) has "
                f"{given[column, row]}; expected a symmetric matrix: add it to its transpose"
            )
        matrix: Any = ((given + given.T) / 2).tocsr()
        indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
        weights = matrix.data.astype(np.float64)
        with np.errstate(over="ignore"):
            degrees = np.bincount(_rows(indptr), weights, len(indptr) - 1).astype(np.float64)
            volume = float(degrees.sum())
        if not np.isfinite(volume):
            raise TaxonomyError(
                "the weights of the graph add up to more than a float can store; divide them by a constant"
            )
        return cls(indptr, indices, weights, degrees, volume)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __repr__(self) -> str:
        return f"Graph({len(self)} vertices, {len(self.indices) // 2} edges, volume {self.volume:g})"

    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return each edge once, as smaller vertex, larger vertex and weight, sorted."""
        rows = _rows(self.indptr)
        once = rows < self.indices
        return rows[once], self.indices[once], self.weights[once]


class CodingTree:
    """A tree over the vertices of a graph. Level 0 contains the vertices in order, the last level only the root.

    `parents[k][i]` is the index on level k + 1 of the parent of node i on level k. With one vertex, every level has one
    node; without vertices, all levels except the root are empty.

    >>> tree = CodingTree([[0, 0, 1, 1], [0, 0]])
    >>> tree.height, tree.sizes, tree.nested()
    (2, (4, 2, 1), [[0, 1], [2, 3]])
    """

    def __init__(self, parents: Sequence[ArrayLike]):
        if not isinstance(parents, Iterable):
            raise TaxonomyError(f"parents is {parents!r}; expected a list of arrays, one per level from the leaves up")
        arrays = []
        for level, array in enumerate(parents):
            values = np.asarray(array)
            if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
                raise TaxonomyError(
                    f"parents of level {level} are {values.dtype} of shape {values.shape}; "
                    "expected one integer per node"
                )
            arrays.append(_frozen(values.astype(np.int64)))
        if not arrays:
            raise TaxonomyError("a coding tree has no level under its root; expected at least one parent array")
        self.parents: tuple[NDArray[np.int64], ...] = tuple(arrays)
        sizes = self.sizes
        for level, values in enumerate(arrays):
            outside = np.flatnonzero((values < 0) | (values >= sizes[level + 1]))
            if outside.size:
                raise TaxonomyError(
                    f"node {outside[0]} on level {level} has parent {values[outside[0]]}; "
                    f"expected 0 to {sizes[level + 1] - 1}, the nodes on level {level + 1}"
                )
            childless = np.flatnonzero(np.bincount(values, minlength=sizes[level + 1]) == 0)
            if childless.size and sizes[0]:
                raise TaxonomyError(f"node {childless[0]} on level {level + 1} has no child; leaves belong on level 0")
        if not sizes[0] and any(sizes[:-1]):
            raise TaxonomyError(f"levels have {sizes} nodes but there is no leaf; expected only the root")

    @property
    def height(self) -> int:
        """Edges from the root to any leaf."""
        return len(self.parents)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of nodes per level, from the leaves to the root."""
        return (*(len(array) for array in self.parents), 1)

    @cached_property
    def levels(self) -> tuple[NDArray[np.int64], ...]:
        """For each level from the leaves to the root, the node above every vertex: a partition of the vertices."""
        nodes = [np.arange(len(self.parents[0]), dtype=np.int64)]
        for array in self.parents:
            nodes.append(array[nodes[-1]])
        return tuple(_frozen(array) for array in nodes)

    def subset(self, level: int, node: int) -> NDArray[np.int64]:
        """Return the vertices below a node, ascending."""
        return np.flatnonzero(self.levels[level] == node)

    def entropy(self, graph: Graph) -> float:
        """Return the structural entropy of a graph under this tree, in bits."""
        return structural_entropy(graph, self)

    def canonical(self) -> CodingTree:
        """Renumber the nodes per level by their smallest vertex, so that trees with equal subsets are equal."""
        parents: list[NDArray[np.int64]] = []
        order = np.arange(len(self.parents[0]), dtype=np.int64)
        for array, members in zip(self.parents, self.levels[1:], strict=True):
            nodes, first = np.unique(members, return_index=True)
            above = nodes[np.argsort(first)]
            rank = np.empty_like(above)
            rank[above] = np.arange(len(above))
            parents.append(rank[array[order]])
            order = above
        return CodingTree(parents)

    def nested(self) -> list[Any]:
        """Return the root's children as nested lists of vertices."""
        nodes: list[Any] = list(range(len(self.parents[0])))
        for array, size in zip(self.parents, self.sizes[1:], strict=True):
            above: list[Any] = [[] for _ in range(size)]
            for node, parent in zip(nodes, array.tolist(), strict=True):
                above[parent].append(node)
            nodes = above
        return list(nodes[0])

    def to_json(self) -> str:
        """Return a JSON document; `from_json` restores an equal tree."""
        return json.dumps({"parents": [array.tolist() for array in self.parents]})

    @classmethod
    def from_json(cls, document: str) -> CodingTree:
        """Restore a tree from the document of `to_json`."""
        try:
            parents = json.loads(document)["parents"]
        except (ValueError, KeyError, TypeError) as error:
            raise TaxonomyError(f"not a coding tree: {document[:40]!r}; expected JSON with a key 'parents'") from error
        return cls(parents)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CodingTree):
            return NotImplemented
        return self.sizes == other.sizes and all(map(np.array_equal, self.parents, other.parents))

    def __hash__(self) -> int:
        return hash((self.sizes, self.parents[0].tobytes()))

    def __repr__(self) -> str:
        return f"CodingTree(height={self.height}, sizes={self.sizes})"


# Entropy


def structural_entropy(graph: Graph, tree: CodingTree) -> float:
    """Return the entropy in bits, computed in O(m · height) from the lowest common ancestor (LCA) of each edge.

    The definition telescopes along paths to Σ_edges (2w / VOL) log2 vol(LCA) - Σ_i (d_i / VOL) log2 d_i. Volumes are
    divided by VOL, which does not change the result. A graph without edges has entropy 0.
    """
    _check_sizes(graph, tree)
    if graph.volume == 0:
        return 0.0
    sources, targets, weights = graph.edges()
    shares = graph.degrees / graph.volume
    positive = shares[shares > 0]
    entropy = -float((positive * np.log2(positive)).sum())
    for members, size in zip(tree.levels[1:], tree.sizes[1:], strict=True):
        volumes = np.bincount(members, weights=shares, minlength=size)
        inside = members[sources] == members[targets]
        entropy += float((2 * weights[inside] / graph.volume * np.log2(volumes[members[sources[inside]]])).sum())
        sources, targets, weights = sources[~inside], targets[~inside], weights[~inside]
    return max(entropy, 0.0)


def entropy_by_level(graph: Graph, tree: CodingTree) -> NDArray[np.float64]:
    """Return the entropy of the nodes per level, from the leaves to the level below the root.

    This is the definition: -Σ (g / VOL) log2(vol / vol of the parent), with g the weight of the edges that leave it.
    """
    _check_sizes(graph, tree)
    terms = np.zeros(tree.height)
    if graph.volume == 0:
        return terms
    sources, targets, weights = graph.edges()
    volumes = [np.bincount(members, graph.degrees, size) for members, size in zip(tree.levels, tree.sizes, strict=True)]
    for level, parents in enumerate(tree.parents):
        a, b, size = tree.levels[level][sources], tree.levels[level][targets], tree.sizes[level]
        crossing = a != b
        cuts = np.bincount(a[crossing], weights[crossing], size) + np.bincount(b[crossing], weights[crossing], size)
        nodes = np.flatnonzero(cuts)
        ratios = volumes[level][nodes] / volumes[level + 1][parents[nodes]]
        terms[level] = -float((cuts[nodes] / graph.volume * np.log2(ratios)).sum())
    return terms


def _check_sizes(graph: Graph, tree: CodingTree) -> None:
    if tree.sizes[0] != len(graph):
        raise TaxonomyError(f"the tree has {tree.sizes[0]} leaves but the graph has {len(graph)} vertices")


def _rows(indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(indptr) - 1, dtype=np.int64), np.diff(indptr))


def _frozen(array: NDArray[np.int64]) -> NDArray[np.int64]:
    array.flags.writeable = False
    return array
