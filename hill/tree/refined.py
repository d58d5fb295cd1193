"""Our coding tree: the lowest structural entropy found over all trees of at most a given height.

The entropy of a tree is, up to a constant, a sum over the edges of the graph: each pays the logarithm of the volume of
the lowest tree node above both its ends. `refined` lowers this sum by repeating three steps until they gain nothing:

1. Split. A binary tree is put between each node and its children, by merging neighbours, those with much weight
   between them for their volumes first (`_refined_merge`).
2. Cut. Of all nodes there are now, those are kept that make the best tree of the height asked for. This is exact and
   nearly linear in time (`_refined_cut`); as the nodes of the tree before are among them, it never loses.
3. Move. Leaves and inner nodes go to the parent, or to a new parent, that lowers the entropy most, and siblings merge,
   on every level until nothing helps; each move is priced exactly (`_refined_moves`).

The search starts with the root over all vertices and allows one level more at a time, so that entropy never increases
with height. Small graphs are searched again with the vertices in other orders, from the start, from the best tree with
a level too many and from the trees of the other builders, and the best tree counts. Vertices are first put in an order
that depends on the graph alone (`_refined_order`), so the names of the labels do not matter: renaming gives the same
tree, up to an exchange of vertices that leaves the graph as it is. Memory is O(n + m) times the height.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hill.errors import ConfigError
from hill.tree._refined_graph import Level
from hill.tree._refined_order import leaf_level
from hill.tree._refined_steps import Parents, cost, cut, move
from hill.tree.authors import build_authors
from hill.tree.coding_tree import CodingTree
from hill.tree.graph import Graph
from hill.tree.paper import build_paper

Ints = NDArray[np.int64]

# Graphs with more vertices and edges than half of WORK are searched once, smaller ones up to TRIES times.
WORK = 2000
TRIES = 32
# Graphs up to this size are also searched from the trees of the other builders, so that none of them is ever better.
RIVALS = 500
# How much dearer than the cheapest pair a pair may be to merge with it in one round: the first search, then the others.
HASTES = (0.1, 0.4, 1.6, 6.4)
# A move that lowers the cost by less than this share of the volume is none.
SLACK = 1e-11
# A round of steps that lowers the cost by less than these shares, the second for each vertex, is the last.
GAIN = 3e-5
GAIN_EACH = 1e-9
# Most graphs stop gaining after a few rounds of steps; this many are allowed.
STEPS = 20


class Try(NamedTuple):
    """One way to search: the leaves in some order and the haste of merging."""

    level: Level
    order: Ints
    haste: float

    def enter(self, parents: Parents) -> Parents:
        """Put the leaves of a tree in this order."""
        return [parents[0][self.order], *parents[1:]]

    def leave(self, parents: Parents) -> Parents:
        """Put them back."""
        first = np.empty_like(parents[0])
        first[self.order] = parents[0]
        return [first, *parents[1:]]


def build_refined(graph: Graph, height: int) -> CodingTree:
    """Build a coding tree of low structural entropy; levels that gain nothing hold nodes of one child, near the leaves.

    >>> edges = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]
    >>> matrix = np.zeros((6, 6))
    >>> for i, j in edges:
    ...     matrix[i, j] = matrix[j, i] = 1
    >>> build_refined(Graph.from_adjacency(matrix), 2).nested()
    [[0, 1, 2], [3, 4, 5]]
    """
    if height < 1:
        raise ConfigError(f"height is {height}; expected at least 1, the root directly over the labels")
    parents: Parents = [np.zeros(len(graph), np.int64)]
    if len(graph.weights):
        level, order = leaf_level(graph)
        rivals = _relabelled(graph, order) if len(graph) + len(graph.weights) // 2 <= RIVALS else None
        parents = Try(level, order, HASTES[0]).leave(_search(level, height, rivals))
    unary = [np.arange(len(graph))] * (height - len(parents))
    return CodingTree([*unary, *parents]).canonical()


def _relabelled(graph: Graph, order: Ints) -> Graph:
    """The graph with its vertices numbered in an order."""
    matrix = csr_array((graph.weights, graph.indices, graph.indptr), shape=(len(graph), len(graph)))
    return Graph.from_adjacency(matrix[order][:, order])


def _rival_trees(graph: Graph | None, height: int) -> list[Parents]:
    """The other builders' trees of a graph, if it is given."""
    return [list(build(graph, height).parents) for build in (build_paper, build_authors)] if graph else []


def _search(leaves: Level, height: int, rivals: Graph | None) -> Parents:
    """Return the best tree of at most a height, not higher than pays; no other builder finds a better for `rivals`."""
    slack = SLACK * float(leaves.volumes.sum())
    flat = best = [np.zeros(len(leaves.volumes), np.int64)]
    lowest = cost(leaves, flat)
    tries = _tries(leaves)
    for k in range(2, height + 1):
        found, least = _descend(tries[0], best, k, slack)
        for each in tries[1:]:
            taller, _ = _descend(each, each.enter(found), k + 1, slack)
            for start in (flat, taller):
                tree, price = _descend(each, start, k, slack)
                if price < least - slack:
                    found, least = each.leave(tree), price
        for rival in _rival_trees(rivals, k):
            tree, price = _descend(tries[0], rival, k, slack)
            if price < least - slack:
                found, least = tree, price
        if least > lowest - slack:
            break
        best, lowest = found, least
    return best


def _tries(leaves: Level) -> list[Try]:
    size = len(leaves.volumes)
    count = min(TRIES, max(1, WORK // (size + len(leaves.weights) // 2)))
    random = np.random.default_rng(0)
    orders = [np.arange(size), *(random.permutation(size) for _ in range(1, count))]
    return [Try(leaves.reordered(order), order, HASTES[i % len(HASTES)]) for i, order in enumerate(orders)]


def _descend(each: Try, parents: Parents, height: int, slack: float) -> tuple[Parents, float]:
    """Repeat the steps from a tree of any height while they gain; return the best tree of `height` and its cost."""
    lowest, size = np.inf, len(each.level.volumes)
    for _ in range(STEPS):
        parents = move(each.level, cut(each.level, parents, height, each.haste), slack)
        before, lowest = lowest, cost(each.level, parents)
        if lowest > before - max(slack, min(GAIN, GAIN_EACH * size) * abs(before)):
            break
    return parents, lowest
