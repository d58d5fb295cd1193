"""The operations of the paper's appendix B on a small dictionary-based tree, as a reference for the builders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log2

import numpy as np

from hill.errors import TaxonomyError
from hill.tree import CodingTree, Graph


@dataclass
class Draft:
    """An unfinished coding tree: leaves may have different depths.

    >>> draft = Draft.flat(Graph.from_adjacency(np.eye(4, k=1) + np.eye(4, k=-1)))
    >>> node = compress(draft, 0, 1)
    >>> align(draft)
    >>> draft.to_tree().nested()
    [[0, 1], [2], [3]]
    """

    graph: Graph
    root: int
    parents: dict[int, int]
    """Parent of every node but the root."""
    marks: dict[int, frozenset[int]]
    """The vertices below each node; nodes are never reused, so drafts of one tree may share this."""

    @classmethod
    def flat(cls, graph: Graph) -> Draft:
        """Return the root over all vertices; vertex i is node i, the root the node after the last vertex."""
        n = len(graph)
        marks = {vertex: frozenset([vertex]) for vertex in range(n)} | {n: frozenset(range(n))}
        return cls(graph, n, dict.fromkeys(range(n), n), marks)

    def subtree(self, node: int) -> Draft:
        """Return the draft of a node and its children, the input of Algorithm 2."""
        return Draft(self.graph, node, dict.fromkeys(self.children(node), node), self.marks)

    def copy(self) -> Draft:
        """Return a draft that can be changed without changing this one."""
        return Draft(self.graph, self.root, self.parents.copy(), self.marks.copy())

    def children(self, node: int) -> list[int]:
        """Return the children of a node, ascending."""
        return sorted(child for child, parent in self.parents.items() if parent == node)

    def leaves(self) -> list[int]:
        """Return the nodes without children, ascending; a root alone is not a leaf."""
        return sorted(self.parents.keys() - set(self.parents.values()))

    def depth(self, node: int) -> int:
        """Return the number of edges from the root to a node."""
        return 0 if node == self.root else 1 + self.depth(self.parents[node])

    @property
    def height(self) -> int:
        """The depth of the deepest leaf."""
        return max(map(self.depth, self.leaves()), default=0)

    def volume(self, node: int) -> float:
        """Return the summed degrees of a node's vertices."""
        return float(self.graph.degrees[list(self.marks[node])].sum())

    def between(self, nodes: Iterable[int]) -> float:
        """Return the weight of the edges between different nodes, which must be disjoint."""
        owner = {vertex: node for node in nodes for vertex in self.marks[node]}
        return sum(w for i, j, w in self._edges() if i in owner and j in owner and owner[i] != owner[j])

    def cut(self, node: int) -> float:
        """Return the weight of the edges that leave a node's vertices."""
        mark = self.marks[node]
        return sum(w for i, j, w in self._edges() if (i in mark) != (j in mark))

    def _edges(self) -> Iterator[tuple[int, int, float]]:
        sources, targets, weights = self.graph.edges()
        return zip(sources.tolist(), targets.tolist(), weights.tolist(), strict=True)

    def entropy(self) -> float:
        """Return the structural entropy of the draft by its definition, in bits."""
        terms = 0.0
        for node, parent in self.parents.items():
            if cut := self.cut(node):
                terms -= cut * log2(self.volume(node) / self.volume(parent))
        return terms / self.graph.volume if self.graph.volume else 0.0

    def insert(self, nodes: list[int], parent: int) -> int:
        """Insert a new node between a parent and some of its children, and return it."""
        new = max(self.marks) + 1
        self.marks[new] = frozenset().union(*(self.marks[node] for node in nodes))
        self.parents[new] = parent
        self.parents.update(dict.fromkeys(nodes, new))
        return new

    def to_tree(self) -> CodingTree:
        """Return the coding tree; every leaf must be a vertex at the same depth."""
        depths = Counter(map(self.depth, self.leaves()))
        if len(depths) > 1 or self.leaves() != list(range(len(self.graph))):
            raise TaxonomyError(
                f"leaves have the depths {sorted(depths)}; expected every vertex at one depth: align first"
            )
        parents, level = [], self.leaves()
        while level != [self.root] and level:
            above = sorted({self.parents[node] for node in level})
            parents.append(np.array([above.index(self.parents[node]) for node in level]))
            level = above
        return CodingTree(parents or [np.zeros(0, dtype=np.int64)])


def compress(draft: Draft, node: int, other: int) -> int:
    """Insert a new node between two siblings and their parent, and return it."""
    return draft.insert([node, other], _common_parent(draft, node, other))


def compress_gain(draft: Draft, node: int, other: int) -> float:
    """Return the entropy that compressing two siblings saves: (2 e / VOL) log2(vol of parent / vol of both)."""
    parent = _common_parent(draft, node, other)
    weight = draft.between([node, other])
    if not weight:
        return 0.0
    return 2 * weight / draft.graph.volume * log2(draft.volume(parent) / (draft.volume(node) + draft.volume(other)))


def delete(draft: Draft, node: int) -> None:
    """Remove a node and attach its children to its parent."""
    _check_inner(draft, node)
    parent = draft.parents.pop(node)
    draft.parents.update({child: parent for child, above in draft.parents.items() if above == node})


def delete_cost(draft: Draft, node: int) -> float:
    """Return the entropy that a deletion adds: (2 E / VOL) log2(vol of parent / vol), E between the node's children."""
    _check_inner(draft, node)
    weight = draft.between(draft.children(node))
    if not weight:
        return 0.0
    return 2 * weight / draft.graph.volume * log2(draft.volume(draft.parents[node]) / draft.volume(node))


def align(draft: Draft, height: int | None = None) -> None:
    """Insert nodes with one child above leaves until all have the same depth; the entropy does not change."""
    height = draft.height if height is None else height
    for leaf in draft.leaves():
        for _ in range(height - draft.depth(leaf)):
            draft.insert([leaf], draft.parents[leaf])


def merge(draft: Draft, part: Draft) -> None:
    """Replace the edges between a node and its children by a draft made from `draft.subtree(node)`."""
    draft.parents.update(part.parents)
    draft.marks.update(part.marks)


def _common_parent(draft: Draft, node: int, other: int) -> int:
    parents = {draft.parents.get(node), draft.parents.get(other)}
    parent = parents.pop()
    if parents or parent is None or node == other:
        raise TaxonomyError(f"nodes {node} and {other} are not two children of one node; compress takes siblings")
    return parent


def _check_inner(draft: Draft, node: int) -> None:
    if node not in draft.parents or node not in draft.parents.values():
        raise TaxonomyError(f"node {node} is the root, a leaf or not in the tree; only inner nodes can be deleted")
