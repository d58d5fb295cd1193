"""CodingTree: the tree that encodes a graph, one parent array a level, every leaf at the same depth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hill.errors import TaxonomyError
from hill.tree.entropy import structural_entropy

if TYPE_CHECKING:
    from hill.tree.graph import Graph


class CodingTree:
    """A tree over the vertices of a graph: level 0 is the vertices in order, the last level the root alone.

    `parents[k][i]` is the index on level k + 1 of the parent of node i on level k. One vertex gives a chain of single
    nodes; no vertex gives empty levels under a root, the only tree with a childless node.

    >>> tree = CodingTree([[0, 0, 1, 1], [0, 0]])
    >>> tree.height, tree.sizes, tree.nested()
    (2, (4, 2, 1), [[0, 1], [2, 3]])
    """

    def __init__(self, parents: Sequence[ArrayLike]):
        self.parents: tuple[NDArray[np.int64], ...] = tuple(
            _indices(level, array) for level, array in enumerate(parents)
        )
        _check_levels(self.parents)

    @property
    def height(self) -> int:
        """Edges from the root to any leaf."""
        return len(self.parents)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Nodes on each level, from the leaves to the root."""
        return (*(len(array) for array in self.parents), 1)

    @cached_property
    def levels(self) -> tuple[NDArray[np.int64], ...]:
        """For each level from leaves to root, the node above every vertex: each level splits the vertices into sets."""
        nodes = [np.arange(len(self.parents[0]), dtype=np.int64)]
        for array in self.parents:
            nodes.append(array[nodes[-1]])
        return tuple(_frozen(array) for array in nodes)

    def membership(self, level: int) -> NDArray[np.int64]:
        """Return the node on a level above every vertex."""
        if not 0 <= level <= self.height:
            raise TaxonomyError(f"level {level} is not in the tree; expected 0 (leaves) to {self.height} (root)")
        return self.levels[level]

    def subset(self, level: int, node: int) -> NDArray[np.int64]:
        """Return the vertices below a node, ascending."""
        members = self.membership(level)
        if not 0 <= node < self.sizes[level]:
            raise TaxonomyError(f"level {level} has no node {node}; expected 0 to {self.sizes[level] - 1}")
        return np.flatnonzero(members == node)

    def entropy(self, graph: Graph) -> float:
        """Return the structural entropy of a graph under this tree, in bits."""
        return structural_entropy(graph, self)

    def canonical(self) -> CodingTree:
        """Number the nodes of every level by their smallest vertex, so that trees with equal sets compare equal."""
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
        """Return the root's children as nested lists of vertices, for trees small enough to read."""
        nodes: list[Any] = list(range(len(self.parents[0])))
        for array, size in zip(self.parents, self.sizes[1:], strict=True):
            above: list[Any] = [[] for _ in range(size)]
            for node, parent in zip(nodes, array.tolist(), strict=True):
                above[parent].append(node)
            nodes = above
        return list(nodes[0])

    def to_json(self) -> str:
        """Return a JSON document from which `from_json` makes an equal tree."""
        return json.dumps({"parents": [array.tolist() for array in self.parents]})

    @classmethod
    def from_json(cls, document: str) -> CodingTree:
        """Read what `to_json` wrote."""
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


def _indices(level: int, array: ArrayLike) -> NDArray[np.int64]:
    values = np.asarray(array)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise TaxonomyError(
            f"parents of level {level} are {values.dtype} of shape {values.shape}; expected one integer a node"
        )
    return _frozen(values.astype(np.int64))


def _frozen(array: NDArray[np.int64]) -> NDArray[np.int64]:
    array.flags.writeable = False
    return array


def _check_levels(parents: tuple[NDArray[np.int64], ...]) -> None:
    if not parents:
        raise TaxonomyError("a coding tree has no level under its root; expected at least one parent array")
    sizes = (*(len(array) for array in parents), 1)
    for level, array in enumerate(parents):
        outside = np.flatnonzero((array < 0) | (array >= sizes[level + 1]))
        if outside.size:
            node = int(outside[0])
            raise TaxonomyError(
                f"node {node} on level {level} has parent {array[node]};"
                f" expected 0 to {sizes[level + 1] - 1}, the nodes on level {level + 1}"
            )
        childless = np.flatnonzero(np.bincount(array, minlength=sizes[level + 1]) == 0)
        if childless.size and sizes[0]:
            raise TaxonomyError(f"node {childless[0]} on level {level + 1} has no child; leaves belong on level 0")
    if not sizes[0] and any(sizes[:-1]):
        raise TaxonomyError(f"levels of {sizes} nodes stand over no leaf; expected no node but the root")
