"""Our coding tree: the lowest structural entropy found over all trees of at most a given height.

The entropy of a tree is, up to a constant, a sum over the edges of the graph: the cost of an edge is the logarithm of
the volume of the lowest tree node above both its ends. `refined` lowers this sum by repeating three steps:

1. Split. Insert a binary tree between each node and its children, by merging neighbours; pairs with a large weight
   relative to their volumes come first (`merge_children`).
2. Cut. Of all these nodes, keep those that form the best tree of the given height. This is exact and takes nearly
   linear time (`choose_nodes`). Since the nodes of the previous tree are among them, the entropy never increases.
3. Move. Move leaves and inner nodes to the existing or new parent that lowers the entropy most, and merge siblings, on
   every level until nothing helps; the change of entropy is computed exactly (`move_nodes`).

The search starts with the flat tree and allows one more level at a time, so that the entropy never increases with the
height. Small graphs are searched several times: with the vertices in other orders, from the flat tree, from the best
tree with one more level, and from the trees of the other builders. The vertices are first sorted in an order that
depends only on the graph (`leaf_level`). Thus renaming labels gives the same tree, up to an automorphism of the graph.
Memory is O(n + m) times the height.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from hill.tree._loops import Floats, Ints, check_height
from hill.tree._refined_loops import Level, choose_nodes, merge_children, move_nodes, new_forest, new_state, renumber
from hill.tree.authors import build_authors
from hill.tree.coding_tree import CodingTree, Graph
from hill.tree.paper import build_paper

Parents = list[Ints]
"""A tree: for each level from the leaves up, the parent of each node."""
Words = NDArray[np.uint64]

SEARCH_BUDGET = 2000
"""Graphs with more vertices and edges than half of this are searched once, smaller ones up to `MAX_SEARCHES` times."""
MAX_SEARCHES = 32

MAX_COMPARED_SIZE = 500
"""Vertices and edges up to which the search also starts from the other builders' trees, so that none is better."""

TOLERANCES = (0.1, 0.4, 1.6, 6.4)
"""Relative cost above the cheapest pair up to which pairs merge in one round: for the first search, then the others."""

MIN_MOVE_GAIN = 1e-11
"""Decrease of the cost, as a share of the volume, that a move needs."""

MIN_GAIN = 3e-5
MIN_GAIN_PER_VERTEX = 1e-9
"""The steps stop if they lower the cost by a smaller share than the lower of these, the second times the vertices."""

MAX_STEPS = 20
"""Repetitions of the three steps; most graphs need only a few."""

MAX_PASSES = 20
MAX_ROUNDS = 10
"""Visits per node and rounds over all levels in a move step. Only long paths with growing weights reach them."""

MAX_REFINEMENTS = 200
"""Rounds of colour refinement: vertices that differ only at a larger distance are equal. Limits the time on paths."""

MAX_SPLITS = 8
"""Rounds of individualising vertices of one colour; three were enough for Gene Ontology and WordNet."""


def build_refined(graph: Graph, height: int) -> CodingTree:
    """Build a coding tree of low structural entropy. Levels without a gain have nodes with one child, near the leaves.

    >>> edges = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]
    >>> matrix = np.zeros((6, 6))
    >>> for i, j in edges:
    ...     matrix[i, j] = matrix[j, i] = 1
    >>> build_refined(Graph.from_adjacency(matrix), 2).nested()
    [[0, 1, 2], [3, 4, 5]]
    """
    check_height(height)
    parents: Parents = [np.zeros(len(graph), np.int64)]
    if len(graph.weights):
        level, order = leaf_level(graph)
        compared_graph = None
        if len(graph) + len(graph.weights) // 2 <= MAX_COMPARED_SIZE:
            matrix = csr_array((graph.weights, graph.indices, graph.indptr), shape=(len(graph), len(graph)))
            compared_graph = Graph.from_adjacency(matrix[order][:, order])
        parents = Search(level, order, TOLERANCES[0]).restore(_best_tree(level, height, compared_graph))
    unary = [np.arange(len(graph))] * (height - len(parents))
    return CodingTree([*unary, *parents]).canonical()


# Search


class Search(NamedTuple):
    """A search from one order of the leaves, with one tolerance of merging."""

    level: Level
    order: Ints
    tolerance: float

    def reorder(self, parents: Parents) -> Parents:
        """Put the leaves of a tree into the order of this search."""
        return [parents[0][self.order], *parents[1:]]

    def restore(self, parents: Parents) -> Parents:
        """Put the leaves of a tree back into the original order."""
        leaves = np.empty_like(parents[0])
        leaves[self.order] = parents[0]
        return [leaves, *parents[1:]]

    def descend(self, parents: Parents, height: int, min_gain: float) -> tuple[Parents, float]:
        """Repeat the steps from a tree of any height while they help; return the tree of `height` and its cost."""
        lowest, size = np.inf, len(self.level.volumes)
        for _ in range(MAX_STEPS):
            parents = move(self.level, cut(self.level, parents, height, self.tolerance), min_gain)
            previous, lowest = lowest, cost(self.level, parents)
            if lowest > previous - max(min_gain, min(MIN_GAIN, MIN_GAIN_PER_VERTEX * size) * abs(previous)):
                break
        return parents, lowest


def _best_tree(leaves: Level, height: int, compared_graph: Graph | None) -> Parents:
    """Return the best tree of at most this height; if `compared_graph` is given, no other builder finds a better one.

    Heights that do not lower the entropy are not used.
    """
    size = len(leaves.volumes)
    min_gain = MIN_MOVE_GAIN * float(leaves.volumes.sum())
    n_searches = min(MAX_SEARCHES, max(1, SEARCH_BUDGET // (size + len(leaves.weights) // 2)))
    rng = np.random.default_rng(0)
    orders = [np.arange(size), *(rng.permutation(size) for _ in range(1, n_searches))]
    first, *others = [
        Search(leaves.reordered(order), order, TOLERANCES[i % len(TOLERANCES)]) for i, order in enumerate(orders)
    ]
    flat = best = [np.zeros(size, np.int64)]
    lowest = cost(leaves, flat)
    for k in range(2, height + 1):
        candidate, candidate_cost = first.descend(best, k, min_gain)
        for search in others:
            taller, _ = search.descend(search.reorder(candidate), k + 1, min_gain)
            for start in (flat, taller):
                tree, tree_cost = search.descend(start, k, min_gain)
                if tree_cost < candidate_cost - min_gain:
                    candidate, candidate_cost = search.restore(tree), tree_cost
        other_trees = [build(compared_graph, k) for build in (build_paper, build_authors)] if compared_graph else []
        for other in other_trees:
            tree, tree_cost = first.descend(list(other.parents), k, min_gain)
            if tree_cost < candidate_cost - min_gain:
                candidate, candidate_cost = tree, tree_cost
        if candidate_cost > lowest - min_gain:
            break
        best, lowest = candidate, candidate_cost
    return best


# Steps


def cost(level: Level, parents: Parents) -> float:
    """Return the entropy times half the volume of the graph, up to a constant."""
    return sum(float((each.inner * _logs(each.volumes)).sum()) for each in upper_levels(level, parents))


def upper_levels(level: Level, parents: Parents) -> list[Level]:
    """Return the levels of a tree above its leaves."""
    levels = []
    for array, size in zip(parents, [*map(len, parents[1:]), 1], strict=True):
        level = level.contracted(array, size)
        levels.append(level)
    return levels


def split(level: Level, parents: Parents, tolerance: float) -> tuple[Ints, Floats, Floats]:
    """Insert a binary tree between each node and its children; return the parents, volumes and cuts of all nodes.

    Children come before their parents; the leaves are first and the root is last.
    """
    nodes: list[tuple[Ints, Floats, Floats]] = []
    offset, cuts = 0, np.zeros(len(level.volumes))
    for array, upper in zip(parents, upper_levels(level, parents), strict=True):
        forest = new_forest(level.volumes, array)
        upper_cuts = merge_children(*level[:3], upper.volumes, forest, tolerance)
        size = max(len(array), int(forest.parents.max()) + 1)
        forest_parents = np.where(forest.parents < 0, size + forest.groups, forest.parents) + offset
        forest.cuts[: len(array)] = cuts
        nodes.append((forest_parents[:size], forest.volumes[:size], forest.cuts[:size]))
        offset, cuts, level = offset + size, upper_cuts, upper
    nodes.append((np.array([-1]), level.volumes, cuts))
    all_parents, volumes, all_cuts = (np.concatenate(arrays) for arrays in zip(*nodes, strict=True))
    return all_parents, volumes, all_cuts


def cut(level: Level, parents: Parents, height: int, tolerance: float) -> Parents:
    """Return the best tree of a height with nodes of the tree or its `split`; it never costs more than the tree."""
    ups, volumes, cuts = split(level, parents, tolerance)
    nearest, left = choose_nodes(ups, _logs(volumes), cuts, height)
    leaves = np.arange(len(level.volumes))
    below, node, size = leaves, nearest[leaves], len(leaves)
    levels: Parents = []
    for k in range(height - 1):
        here = left[node] == k
        members = np.where(here, node, leaves)
        used = np.zeros(len(ups), np.bool_)
        used[members] = True
        members = (np.cumsum(used) - 1)[members]
        level_parents = np.empty(size, np.int64)
        level_parents[below] = members
        levels.append(level_parents)
        below, size = members, int(used.sum())
        node = np.where(here, nearest[ups[node]], node)
    return [*levels, np.zeros(size, np.int64)]


def move(level: Level, parents: Parents, min_gain: float) -> Parents:
    """Move the nodes of all levels to better parents and merge siblings, until nothing lowers the cost."""
    parents, leaves = list(parents), level
    for _ in range(MAX_ROUNDS):
        total, level = 0.0, leaves
        for h in range(len(parents) - 1):
            parents[h:], change = move_level(level, np.zeros(len(level.volumes)), parents[h:], min_gain)
            upper = level.contracted(parents[h], len(parents[h + 1]))
            unmerged = [np.arange(len(upper.volumes)), *parents[h + 1 :]]
            (merged, *others), merge_change = move_level(upper, upper.inner, unmerged, min_gain)
            if merge_change < 0.0:
                parents[h:] = [merged[parents[h]], *others]
                upper = level.contracted(parents[h], len(parents[h + 1]))
            total, level = total + change + merge_change, upper
        if total > -min_gain:
            break
    return parents


def move_level(level: Level, inner: Floats, parents: Parents, min_gain: float) -> tuple[Parents, float]:
    """Move the nodes of one level; return the new parents and the change of the cost."""
    up = np.zeros((len(parents), len(parents[0])), np.int64)
    for row, array in zip(up, parents, strict=True):
        row[: len(array)] = array
    change = move_nodes(*level[:3], inner, *new_state(up, level.volumes), min_gain, MAX_PASSES)
    return [row[:size] for row, size in zip(up, renumber(up), strict=True)], change


def _logs(volumes: Floats) -> Floats:
    return np.log2(np.where(volumes > 0.0, volumes, 1.0))


# Canonical order of the vertices


def leaf_level(graph: Graph) -> tuple[Level, Ints]:
    """Return the vertices as a level in an order that depends only on the graph, and that order.

    Vertices with equal surroundings keep their given order. In a forest, such vertices can be exchanged without
    changing the graph, so that renaming vertices gives the same level. The same holds for other graphs, except some in
    which all vertices have equal surroundings but cannot be exchanged (regular graphs).
    """
    # The scale is a power of two, so that scaling is exact.
    scale = 2.0 ** np.floor(np.log2(graph.volume / len(graph.weights)))
    level = Level(graph.indptr, graph.indices, graph.weights / scale, graph.degrees, np.zeros(len(graph)))
    by_colour = np.argsort(_colours(level), kind="stable")
    level = level.reordered(by_colour)
    by_distance = _breadth_first(level)
    return level.reordered(by_distance), by_colour[by_distance]


def _colours(level: Level) -> Words:
    """Colour the vertices by their surroundings; with cycles, individualise vertices until all colours differ."""
    colours = _refine_colours(level, np.zeros(len(level.volumes), np.uint64))
    if len(level.weights) // 2 + _components(level, np.ones(len(colours), np.bool_))[0] == len(colours):
        return colours  # in a forest, breadth-first order distinguishes the others
    for _ in range(MAX_SPLITS):
        _, classes, sizes = np.unique(colours, return_inverse=True, return_counts=True)
        ambiguous = sizes[classes] > 1
        if not ambiguous.any():
            break
        colours = _refine_colours(level, _individualise(level, colours, ambiguous))
    return colours


def _refine_colours(level: Level, colours: Words) -> Words:
    """Colour refinement: vertices keep a common colour while their neighbours have the same colours."""
    labels, n_colours = _hash(level.weights.view(np.uint64)), 0
    for step in range(MAX_REFINEMENTS):
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_hash(colours[level.indices] ^ labels))])
        colours = _hash(colours * np.uint64(3) + sums[level.indptr[1:]] - sums[level.indptr[:-1]])
        if step % 4 == 3:
            previous, n_colours = n_colours, len(np.unique(colours))
            if n_colours == previous:
                break
    return colours


def _individualise(level: Level, colours: Words, ambiguous: NDArray[np.bool_]) -> Words:
    """Give one vertex per component of ambiguous vertices its own colour.

    The components are connected only through vertices with unique colours, so that the choices are independent.
    """
    _, components = _components(level, ambiguous)
    order = np.argsort(colours, kind="stable")
    order = order[ambiguous[order]]
    _, first = np.unique(components[order], return_index=True)
    chosen = order[np.sort(first)]
    _, start, index = np.unique(colours[chosen], return_index=True, return_inverse=True)
    ranks = np.arange(len(chosen)) - start[index] + 1
    colours = colours.copy()
    colours[chosen] = _hash(colours[chosen] ^ _hash(ranks.astype(np.uint64)))
    return colours


def _hash(words: Words) -> Words:
    """Hash 64-bit words, so that sums of hashes distinguish multisets (with the constants of splitmix64)."""
    words = (words + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _components(level: Level, selected: NDArray[np.bool_]) -> tuple[int, Ints]:
    """Return the number of connected components of the selected vertices, and the component of every vertex."""
    rows = np.repeat(np.arange(len(selected)), np.diff(level.indptr))
    edges = selected[rows] & selected[level.indices]
    shape = (len(selected), len(selected))
    count, components = connected_components(
        coo_array((edges[edges], (rows[edges], level.indices[edges])), shape=shape)
    )
    return int(count), components.astype(np.int64)


def _breadth_first(level: Level) -> Ints:
    """Return the vertices in breadth-first order, from the first vertex of each component."""
    size = len(level.volumes)
    _, components = _components(level, np.ones(size, np.bool_))
    starts = np.sort(np.unique(components, return_index=True)[1])
    # An additional vertex with an edge to every start connects the components.
    indptr = np.append(level.indptr, len(level.indices) + len(starts))
    indices = np.append(level.indices, starts)
    matrix = csr_array((np.ones(len(indices)), indices, indptr), shape=(size + 1, size + 1))
    order = breadth_first_order(matrix, size, return_predecessors=False)
    return order[1:].astype(np.int64)
