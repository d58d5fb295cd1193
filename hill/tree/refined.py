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

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from hill.tree._loops import Floats, Ints, check_height, find, njit
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

MIN_MERGED_SHARE = 0.05
"""If a round merges a smaller share of the nodes, the tolerance of the next round is doubled."""

LOG_TOLERANCE = 1e-12
"""Volumes whose logarithms differ by less are equal."""

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
            reordered = [candidate[0][search.order], *candidate[1:]]
            taller, _ = search.descend(reordered, k + 1, min_gain)
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


# Levels


class Level(NamedTuple):
    """The nodes of one tree level as a graph, in CSR form."""

    indptr: Ints
    indices: Ints
    weights: Floats
    volumes: Floats
    """Sum of the degrees below each node."""
    inner: Floats
    """Weight of the edges between children of each node."""

    def reordered(self, order: Ints) -> Level:
        """Return the level with its nodes in another order."""
        size = len(order)
        matrix: Any = csr_array((self.weights, self.indices, self.indptr), shape=(size, size))[order][:, order]
        matrix.sort_indices()
        arrays = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data
        # Sum the volumes again: the last bit of a sum depends on the order of its terms.
        return Level(*arrays, np.asarray(matrix.sum(axis=1), dtype=np.float64), self.inner[order])


@njit
def contract(level: Level, parents: Ints, size: int) -> Level:
    """Return the next level, of the `size` parents."""
    first, members, volumes = np.zeros(size + 2, np.int64), np.empty(len(parents), np.int64), np.zeros(size)
    for node in range(len(parents)):
        first[parents[node] + 2] += 1
        volumes[parents[node]] += level.volumes[node]
    for parent in range(size):
        first[parent + 2] += first[parent + 1]
    for node in range(len(parents)):
        members[first[parents[node] + 1]] = node
        first[parents[node] + 1] += 1
    edges = len(level.indices)
    rows, columns, values = np.zeros(size + 1, np.int64), np.empty(edges, np.int64), np.empty(edges)
    slots, inner, filled = np.full(size, -1, np.int64), np.zeros(size), 0
    for parent in range(size):
        for node in members[first[parent] : first[parent + 1]]:
            for edge in range(level.indptr[node], level.indptr[node + 1]):
                other = parents[level.indices[edge]]
                if other == parent:
                    inner[parent] += level.weights[edge] / 2.0
                elif slots[other] < rows[parent]:
                    slots[other], columns[filled], values[filled] = filled, other, level.weights[edge]
                    filled += 1
                else:
                    values[slots[other]] += level.weights[edge]
        rows[parent + 1] = filled
    return Level(rows, columns[:filled].copy(), values[:filled].copy(), volumes, inner)


def upper_levels(level: Level, parents: Parents) -> list[Level]:
    """Return the levels of a tree above its leaves."""
    levels = []
    for array, size in zip(parents, [*map(len, parents[1:]), 1], strict=True):
        level = contract(level, array, size)
        levels.append(level)
    return levels


def cost(level: Level, parents: Parents) -> float:
    """Return the entropy times half the volume of the graph, up to a constant.

    This is the sum over all nodes of the weight inside the node, but not inside its children, times the logarithm of
    its volume.
    """
    return sum(float((each.inner * _logs(each.volumes)).sum()) for each in upper_levels(level, parents))


def _logs(volumes: Floats) -> Floats:
    return np.log2(np.where(volumes > 0.0, volumes, 1.0))


# Step 1: split


class MergeForest(NamedTuple):
    """Binary trees: first the nodes to merge, then a node per merged pair."""

    parents: Ints
    """-1 for roots and for unused nodes."""
    groups: Ints
    """The tree node above each node; only nodes of one group are merged."""
    volumes: Floats
    cuts: Floats
    """Weight between the two nodes of a pair."""


def split(level: Level, parents: Parents, tolerance: float) -> tuple[Ints, Floats, Floats]:
    """Insert a binary tree between each node and its children; return the parents, volumes and cuts of all nodes.

    Children come before their parents; the leaves are first and the root is last.
    """
    nodes: list[tuple[Ints, Floats, Floats]] = []
    offset, cuts = 0, np.zeros(len(level.volumes))
    for array, upper in zip(parents, upper_levels(level, parents), strict=True):
        unused = np.zeros(len(array))
        groups = np.concatenate([array, np.zeros_like(array)])
        volumes, forest_cuts = np.concatenate([level.volumes, unused]), np.concatenate([cuts, unused])
        forest = MergeForest(np.full(len(groups), -1), groups, volumes, forest_cuts)
        cuts = merge_children(level, upper.volumes, forest, tolerance)
        size = max(len(array), int(forest.parents.max()) + 1)
        forest_parents = np.where(forest.parents < 0, size + forest.groups, forest.parents) + offset
        nodes.append((forest_parents[:size], forest.volumes[:size], forest.cuts[:size]))
        offset, level = offset + size, upper
    nodes.append((np.array([-1]), level.volumes, cuts))
    all_parents, volumes, all_cuts = (np.concatenate(arrays) for arrays in zip(*nodes, strict=True))
    return all_parents, volumes, all_cuts


@njit
def merge_children(level: Level, group_volumes: Floats, forest: MergeForest, tolerance: float) -> Floats:
    """Merge neighbours within each group and add them to a forest; return the weight left between roots per group.

    A pair that would be its complete group is not merged. A round merges pairs that cost at most 1 + `tolerance` times
    the cheapest one; the tolerance grows while rounds merge few pairs.
    """
    new = len(level.volumes)
    # Nodes of the forest and their volumes, per node of the current, contracted level.
    nodes, volumes, current = np.arange(new), level.volumes.copy(), tolerance
    while True:
        lowest = np.inf
        for node in range(len(volumes)):
            group = forest.groups[nodes[node]]
            for edge in range(level.indptr[node], level.indptr[node + 1]):
                other = level.indices[edge]
                if node < other and forest.groups[nodes[other]] == group:
                    price = _merge_cost(level.weights[edge], volumes[node], volumes[other], group_volumes[group])
                    lowest = min(lowest, price)
        if lowest == np.inf:
            break
        roots = _merge_round(level, volumes, nodes, group_volumes, lowest * (1.0 + current), forest, new)
        places, left = np.empty(len(roots), np.int64), 0  # the roots are numbered without gaps
        for node in range(len(roots)):
            if roots[node] == node:
                places[node], volumes[left], nodes[left] = left, volumes[node], nodes[node]
                left += 1
        for node in range(len(roots)):
            places[node] = places[find(roots, node)]
        merged = len(roots) - left
        current = tolerance if merged > MIN_MERGED_SHARE * len(roots) else 2.0 * current
        new, volumes, nodes = new + merged, volumes[:left], nodes[:left]
        level = contract(level, places, left)
    rest = np.zeros(len(group_volumes))
    for node in range(len(volumes)):
        for edge in range(level.indptr[node], level.indptr[node + 1]):
            if node < level.indices[edge] and forest.groups[nodes[node]] == forest.groups[nodes[level.indices[edge]]]:
                rest[forest.groups[nodes[node]]] += level.weights[edge]
    return rest


@njit
def _merge_cost(weight: float, volume: float, other: float, group_volume: float) -> float:
    """Return the cost of merging two neighbours: low for a large weight relative to their volumes."""
    if volume + other > 0.999999999 * group_volume:
        return np.inf
    return math.sqrt(volume * other) / weight


@njit
def _merge_round(
    level: Level, volumes: Floats, nodes: Ints, group_volumes: Floats, bound: float, forest: MergeForest, new: int
) -> Ints:
    """Merge pairs whose current cost is at most `bound`; return the union-find parent of each node."""
    # At least one node of a pair must be unmerged in this round: then the graph still has its current edges.
    roots, unmerged = np.arange(len(volumes)), np.ones(len(volumes), np.bool_)
    for node in range(len(volumes)):
        for edge in range(level.indptr[node], level.indptr[node + 1]):
            other, group = level.indices[edge], forest.groups[nodes[node]]
            if other < node or forest.groups[nodes[other]] != group or not (unmerged[node] or unmerged[other]):
                continue
            a, b = find(roots, node), find(roots, other)
            if a == b or _merge_cost(level.weights[edge], volumes[a], volumes[b], group_volumes[group]) > bound:
                continue
            single, root = (other, a) if unmerged[other] else (node, b)
            cut = 0.0
            for to_root in range(level.indptr[single], level.indptr[single + 1]):
                if find(roots, level.indices[to_root]) == root:
                    cut += level.weights[to_root]
            forest.parents[nodes[a]] = forest.parents[nodes[b]] = new
            volumes[a] += volumes[b]
            forest.groups[new], forest.volumes[new], forest.cuts[new] = group, volumes[a], cut
            unmerged[node] = unmerged[other] = False
            roots[b], nodes[a] = a, new
            new += 1
    return roots


# Step 2: cut
#
# A dynamic program over the tree. The lowest cost of a subtree is a piecewise linear, concave function of the logarithm
# of the volume of the nearest chosen ancestor; each node adds at most one break point, from which on it is chosen.


class Lines(NamedTuple):
    """A piecewise linear function per node. A node has at most one break point of its own, with the node's index."""

    low: Floats
    low_slope: Floats
    """Line before the first break point."""
    high: Floats
    high_slope: Floats
    """Line after the last."""
    first: Ints
    last: Ints
    """First and last break point of the function, or -1."""
    after: Ints
    before: Ints
    """Break points as a linked list, -1 at its ends."""
    at: Floats
    """Position of a node's break point; infinite if it has none."""
    drop: Floats
    """Decrease of the slope at the break point."""


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


def choose_nodes(parents: Ints, logs: Floats, cuts: Floats, height: int) -> tuple[Ints, Ints]:
    """Choose the nodes of the tree; return the nearest chosen ancestor of each node or itself, and the levels below it.

    Nodes come before their parents, the root last with parent -1. `logs` are the logarithms of the volumes, `cuts` the
    weights of the edges that meet at each node.
    """
    size = len(parents)
    thresholds = np.empty((height - 1, size))
    cost_if_chosen = _sum_up(parents, cuts) * logs
    for row in thresholds:
        zeros, ends = np.zeros((5, size)), np.full((4, size), -1)
        at = np.full(size, np.inf)
        lines = Lines(zeros[0], zeros[1], zeros[2], zeros[3], ends[0], ends[1], ends[2], ends[3], at, zeros[4])
        cost_if_chosen = _compute_lines(parents, logs, cuts, cost_if_chosen, lines)
        row[:] = lines.at
    return _apply_thresholds(parents, logs, thresholds)


@njit
def _sum_up(parents: Ints, values: Floats) -> Floats:
    sums = values.copy()
    for node in range(len(parents) - 1):
        sums[parents[node]] += sums[node]
    return sums


@njit
def _compute_lines(parents: Ints, logs: Floats, cuts: Floats, cost_if_chosen: Floats, lines: Lines) -> Floats:
    """Compute the function of every node; return its cost if it is chosen, with one more level to choose below."""
    deeper = np.empty(len(parents))
    for node in range(len(parents)):
        lines.low_slope[node] += cuts[node]
        lines.high_slope[node] += cuts[node]
        deeper[node] = lines.low[node] + lines.low_slope[node] * logs[node]
        parent = parents[node]
        if parent < 0:
            continue
        if lines.low_slope[node] > 0.0:
            _cap(lines, node, cost_if_chosen[node], logs[node])
        # Before the lists are merged: otherwise a hub would collect the points of all its small neighbours.
        _drop_points_below(lines, node, logs[parent])
        lines.low[parent] += lines.low[node]
        lines.low_slope[parent] += lines.low_slope[node]
        lines.high[parent] += lines.high[node]
        lines.high_slope[parent] += lines.high_slope[node]
        _add_points(lines, node, parent)
    return deeper


@njit
def _cap(lines: Lines, node: int, constant: float, x: float) -> None:
    """Take the minimum of the function and `constant`, which adds the node's break point."""
    steep = LOG_TOLERANCE * lines.low_slope[node]
    while True:
        point, slope = lines.last[node], lines.high_slope[node]
        start = lines.high[node] + slope * lines.at[point] if point >= 0 else -np.inf
        if start <= constant:
            break
        lines.high[node] -= lines.drop[point] * lines.at[point]
        lines.high_slope[node] += lines.drop[point]
        lines.last[node] = lines.before[point]
    if slope <= steep:
        return
    lines.at[node] = max((constant - lines.high[node]) / slope, x)
    lines.drop[node] = slope
    lines.before[node], lines.after[node] = point, -1
    if point >= 0:
        lines.after[point] = node
    else:
        lines.first[node] = node
    lines.last[node] = node
    lines.high[node], lines.high_slope[node] = constant, 0.0


@njit
def _drop_points_below(lines: Lines, node: int, x: float) -> None:
    point = lines.first[node]
    while point >= 0 and lines.at[point] <= x:
        lines.low[node] += lines.drop[point] * lines.at[point]
        lines.low_slope[node] -= lines.drop[point]
        point = lines.after[point]
    lines.first[node] = point
    if point >= 0:
        lines.before[point] = -1
    else:
        lines.last[node] = -1
        lines.high[node], lines.high_slope[node] = lines.low[node], lines.low_slope[node]


@njit
def _add_points(lines: Lines, node: int, parent: int) -> None:
    """Merge the break points of a node into those of its parent."""
    a, b, last = lines.first[parent], lines.first[node], -1
    if a < 0 or b < 0:
        lines.first[parent], lines.last[parent] = max(a, b), max(lines.last[parent], lines.last[node])
        return
    while a >= 0 or b >= 0:
        if b < 0 or (a >= 0 and lines.at[a] <= lines.at[b]):
            point, a = a, lines.after[a]
        else:
            point, b = b, lines.after[b]
        lines.before[point] = last
        if last >= 0:
            lines.after[last] = point
        else:
            lines.first[parent] = point
        last = point
    lines.after[last], lines.last[parent] = -1, last


@njit
def _apply_thresholds(parents: Ints, logs: Floats, thresholds: Floats) -> tuple[Ints, Ints]:
    """Choose nodes from the root down: those whose nearest chosen ancestor is above their break point."""
    size = len(parents)
    nearest, left = np.empty(size, np.int64), np.empty(size, np.int64)
    nearest[size - 1], left[size - 1] = size - 1, len(thresholds)
    for node in range(size - 2, -1, -1):
        above, k = nearest[parents[node]], left[parents[node]]
        choose = k > 0 and logs[above] > thresholds[k - 1, node] + LOG_TOLERANCE
        nearest[node], left[node] = (node, k - 1) if choose else (above, k)
    return nearest, left


# Step 3: move
#
# A move changes only the old and the new ancestors of a node, up to their lowest common one.


class UpperTree(NamedTuple):
    """The tree from the nodes that move (row 0) to the root (last row), and the edges of the node that is visited.

    No row has more nodes than row 0.
    """

    up: Ints
    """Parent, on the next row."""
    volumes: Floats
    logs: Floats
    """Logarithms of the volumes, stored because they are expensive to compute; 0 for unused nodes."""
    cuts: Floats
    n_children: Ints
    free: Ints
    """A stack of unused node numbers per row."""
    n_free: Ints
    weights: Floats
    """Weight of the edges of the visited node into each node of the tree."""
    touched: Ints
    """The nodes with a weight above 0, per row."""
    n_touched: Ints
    ancestors: Ints
    """The ancestors of the visited node."""
    leaving: Floats
    """leaving[j]: change of the cost if the visited node is removed from its ancestors below row j."""


def move(level: Level, parents: Parents, min_gain: float) -> Parents:
    """Move the nodes of all levels to better parents and merge siblings, until nothing lowers the cost."""
    parents, leaves = list(parents), level
    for _ in range(MAX_ROUNDS):
        total, level = 0.0, leaves
        for h in range(len(parents) - 1):
            parents[h:], change = move_level(level, np.zeros(len(level.volumes)), parents[h:], min_gain)
            upper = contract(level, parents[h], len(parents[h + 1]))
            unmerged = [np.arange(len(upper.volumes)), *parents[h + 1 :]]
            (merged, *others), merge_change = move_level(upper, upper.inner, unmerged, min_gain)
            if merge_change < 0.0:
                parents[h:] = [merged[parents[h]], *others]
                upper = contract(level, parents[h], len(parents[h + 1]))
            total, level = total + change + merge_change, upper
        if total > -min_gain:
            break
    return parents


def move_level(level: Level, inner: Floats, parents: Parents, min_gain: float) -> tuple[Parents, float]:
    """Move the nodes of one level; return the new parents and the change of the cost.

    `inner` is the weight that a node adds to the cut of its parent: 0 for a node that remains, its cut for a node that
    is dissolved into its parent.
    """
    rows, size = len(parents), len(parents[0])
    up = np.zeros((rows, size), np.int64)
    for row, array in zip(up, parents, strict=True):
        row[: len(array)] = array
    volumes, logs, cuts, weights = np.zeros((4, rows + 1, size))
    n_children, free, touched = np.zeros((3, rows + 1, size), np.int64)
    n_free, n_touched, ancestors = np.zeros((3, rows + 1), np.int64)
    volumes[0] = level.volumes
    n_touched[rows] = 1  # the root, node 0 of its row, is a candidate for every node
    leaving = np.zeros(rows + 1)
    tree = UpperTree(up, volumes, logs, cuts, n_children, free, n_free, weights, touched, n_touched, ancestors, leaving)
    change = move_nodes(level, inner, tree, min_gain)
    return [row[:size] for row, size in zip(up, renumber(up), strict=True)], change


@njit
def renumber(up: Ints) -> Ints:
    """Renumber the nodes of every row in the order of their first child, without gaps; return the row sizes."""
    rows, size = up.shape
    sizes, moved = np.empty(rows, np.int64), np.empty(size, np.int64)
    sizes[0] = size
    for j in range(rows):
        numbers, count = np.full(size, -1, np.int64), 0
        for node in range(sizes[j]):
            parent = up[j, node]
            if numbers[parent] < 0:
                numbers[parent] = count
                if j + 1 < rows:
                    moved[count] = up[j + 1, parent]
                count += 1
            up[j, node] = numbers[parent]
        if j + 1 < rows:
            sizes[j + 1] = count
            up[j + 1, :count] = moved[:count]
    return sizes


@njit
def move_nodes(level: Level, inner: Floats, tree: UpperTree, min_gain: float) -> float:
    """Move nodes to the target with the lowest cost until no move helps; update `tree` and return the cost change."""
    size = tree.up.shape[1]
    _fill(level, inner, tree)
    queue, queued = np.arange(size), np.ones(size, np.bool_)
    head, waiting, seen, total = 0, size, 0, 0.0
    while waiting > 0 and seen < MAX_PASSES * size:
        node = queue[head]
        head, waiting, seen = (head + 1) % size, waiting - 1, seen + 1
        queued[node] = False
        _visit(node, level, inner[node], tree)
        change, row, target = np.inf, 0, 0
        for j in range(1, len(tree.up) + 1):
            for t in range(tree.n_touched[j]):
                candidate = tree.touched[j, t]
                if j > 1 or candidate != tree.ancestors[1]:
                    candidate_change = _cost_change(node, inner[node], j, candidate, tree)
                    if candidate_change < change - min_gain:
                        change, row, target = candidate_change, j, candidate
        if change >= -min_gain:
            continue
        total += change
        _move_node(node, inner[node], row, target, tree)
        for edge in range(level.indptr[node], level.indptr[node + 1]):
            other = level.indices[edge]
            if not queued[other] and tree.up[0, other] != tree.up[0, node]:
                queue[(head + waiting) % size] = other
                waiting, queued[other] = waiting + 1, True
    return total


@njit
def _fill(level: Level, inner: Floats, tree: UpperTree) -> None:
    """Compute volumes, cuts, numbers of children and unused numbers of the rows above row 0."""
    up, (rows, size) = tree.up, tree.up.shape
    for node in range(size):
        tree.cuts[1, up[0, node]] += inner[node]
        for edge in range(level.indptr[node], level.indptr[node + 1]):
            if level.indices[edge] > node:
                a, b, j = up[0, node], up[0, level.indices[edge]], 1
                while a != b:
                    a, b, j = up[j, a], up[j, b], j + 1
                tree.cuts[j, a] += level.weights[edge]
    for j in range(rows):
        for node in range(size - 1, -1, -1):
            if j == 0 or tree.n_children[j, node] > 0:
                tree.volumes[j + 1, up[j, node]] += tree.volumes[j, node]
                tree.n_children[j + 1, up[j, node]] += 1
            else:
                tree.free[j, tree.n_free[j]] = node
                tree.n_free[j] += 1
    for j in range(1, rows + 1):
        for node in range(size):
            tree.logs[j, node] = _log(tree.volumes[j, node])


@njit
def _log(volume: float) -> float:
    return math.log2(volume) if volume > 0.0 else 0.0


@njit
def _visit(node: int, level: Level, inner: float, tree: UpperTree) -> None:
    """Sum the edges of a node per node of the tree; compute the cost change if it is removed from its ancestors."""
    rows = len(tree.up)
    for j in range(1, rows):
        for t in range(tree.n_touched[j]):
            tree.weights[j, tree.touched[j, t]] = 0.0
        tree.n_touched[j] = 0
    for edge in range(level.indptr[node], level.indptr[node + 1]):
        a = level.indices[edge]
        for j in range(1, rows):
            a = tree.up[j - 1, a]
            if tree.weights[j, a] == 0.0:
                tree.touched[j, tree.n_touched[j]] = a
                tree.n_touched[j] += 1
            tree.weights[j, a] += level.weights[edge]
    a, below = tree.up[0, node], -inner
    tree.leaving[1] = 0.0
    for j in range(1, rows):
        weight, cut = tree.weights[j, a], tree.cuts[j, a]
        without = (cut - weight + below) * _log(tree.volumes[j, a] - tree.volumes[0, node])
        tree.ancestors[j], tree.leaving[j + 1] = a, tree.leaving[j] + without - cut * tree.logs[j, a]
        a, below = tree.up[j, a], weight
    tree.ancestors[rows] = a


@njit
def _cost_change(node: int, inner: float, row: int, target: int, tree: UpperTree) -> float:
    """Return the change of the cost if the node moves below `target`, with new nodes on the rows between."""
    volume = tree.volumes[0, node]
    change, below = (0.0, -inner) if row == 1 else (inner * _log(volume), 0.0)
    while target != tree.ancestors[row]:
        weight, cut = tree.weights[row, target], tree.cuts[row, target]
        change += (cut + weight - below) * _log(tree.volumes[row, target] + volume) - cut * tree.logs[row, target]
        target, row, below = tree.up[row, target], row + 1, weight
    moved = tree.weights[row - 1, tree.ancestors[row - 1]] - below
    return float(tree.leaving[row] + change + moved * tree.logs[row, target])


@njit
def _move_node(node: int, inner: float, row: int, target: int, tree: UpperTree) -> None:
    """Move a node below `target`, with new nodes on the rows between."""
    volume = tree.volumes[0, node]
    # Add it to the target and its ancestors, up to the first, on row `top`, that contains it already.
    tree.n_children[row, target] += 1
    top, a, below = row, target, -inner if row == 1 else 0.0
    while a != tree.ancestors[top]:
        weight = tree.weights[top, a]
        tree.cuts[top, a] += weight - below
        tree.volumes[top, a] += volume
        tree.logs[top, a] = _log(tree.volumes[top, a])
        a, top, below = tree.up[top, a], top + 1, weight
    tree.cuts[top, a] -= below
    # Remove it from its old ancestors below that row; those without children become unused.
    below, empty = -inner, True
    for j in range(1, top):
        a = tree.ancestors[j]
        tree.cuts[j, a] -= tree.weights[j, a] - below
        tree.volumes[j, a] -= volume
        tree.logs[j, a] = _log(tree.volumes[j, a])
        below = tree.weights[j, a]
        tree.n_children[j, a] -= empty
        empty = tree.n_children[j, a] == 0
        if empty:
            tree.cuts[j, a], tree.volumes[j, a], tree.logs[j, a] = 0.0, 0.0, 0.0
            tree.free[j, tree.n_free[j]] = a
            tree.n_free[j] += 1
    tree.cuts[top, tree.ancestors[top]] += below
    tree.n_children[top, tree.ancestors[top]] -= empty
    # Create the nodes between.
    for j in range(row - 1, 0, -1):
        tree.n_free[j] -= 1
        a = tree.free[j, tree.n_free[j]]
        tree.up[j, a], tree.n_children[j, a], tree.volumes[j, a] = target, 1, volume
        tree.cuts[j, a], tree.logs[j, a] = inner if j == 1 else 0.0, _log(volume)
        target = a
    tree.up[0, node] = target


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
    # Breadth-first order from the first vertex of each component. An additional vertex connects the components.
    size = len(graph)
    starts = np.sort(np.unique(_components(level, np.ones(size, np.bool_)), return_index=True)[1])
    indptr = np.append(level.indptr, len(level.indices) + len(starts))
    indices = np.append(level.indices, starts)
    matrix = csr_array((np.ones(len(indices)), indices, indptr), shape=(size + 1, size + 1))
    by_distance = breadth_first_order(matrix, size, return_predecessors=False)[1:].astype(np.int64)
    return level.reordered(by_distance), by_colour[by_distance]


def _colours(level: Level) -> Words:
    """Colour the vertices by their surroundings; with cycles, individualise vertices until all colours differ."""
    size = len(level.volumes)
    colours = _refine_colours(level, np.zeros(size, np.uint64))
    if len(level.weights) // 2 + _components(level, np.ones(size, np.bool_)).max() + 1 == size:
        return colours  # in a forest, breadth-first order distinguishes the others
    for _ in range(MAX_SPLITS):
        _, classes, sizes = np.unique(colours, return_inverse=True, return_counts=True)
        ambiguous = sizes[classes] > 1
        if not ambiguous.any():
            break
        # Give one vertex per component of ambiguous vertices its own colour. The components are connected only through
        # vertices with unique colours, so that the choices are independent.
        order = np.argsort(colours, kind="stable")
        order = order[ambiguous[order]]
        _, first = np.unique(_components(level, ambiguous)[order], return_index=True)
        chosen = order[np.sort(first)]
        _, start, index = np.unique(colours[chosen], return_index=True, return_inverse=True)
        ranks = np.arange(len(chosen)) - start[index] + 1
        colours[chosen] = _hash(colours[chosen] ^ _hash(ranks.astype(np.uint64)))
        colours = _refine_colours(level, colours)
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


def _hash(words: Words) -> Words:
    """Hash 64-bit words, so that sums of hashes distinguish multisets (with the constants of splitmix64)."""
    words = (words + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _components(level: Level, selected: NDArray[np.bool_]) -> Ints:
    """Return the connected component of every vertex, with the edges between selected vertices only."""
    rows = np.repeat(np.arange(len(selected)), np.diff(level.indptr))
    edges = selected[rows] & selected[level.indices]
    matrix: Any = coo_array((edges[edges], (rows[edges], level.indices[edges])), shape=(len(selected), len(selected)))
    return connected_components(matrix)[1].astype(np.int64)
