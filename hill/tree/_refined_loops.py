"""The compiled steps of the builder `refined`: contract levels, merge children, choose nodes, and move nodes.

The cost of a tree is its entropy times half the volume of the graph, up to a constant. It is the sum over its nodes of
the cut (weight of the edges whose lowest common ancestor is the node) times the logarithm of the volume.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from hill.tree._loops import Floats, Ints, find, njit

MIN_MERGED_SHARE = 0.05
"""If a round merges a smaller share of the nodes, the tolerance of the next round is doubled."""

LOG_TOLERANCE = 1e-12
"""Volumes whose logarithms differ by less are equal."""


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

    def contracted(self, parents: Ints, size: int) -> Level:
        """Return the next level, of the `size` parents."""
        arrays = contract(self.indptr, self.indices, self.weights, parents, size)
        return Level(*arrays[:3], np.bincount(parents, self.volumes, size).astype(np.float64), arrays[3])

    def reordered(self, order: Ints) -> Level:
        """Return the level with its nodes in another order."""
        size = len(order)
        matrix: Any = sp.csr_array((self.weights, self.indices, self.indptr), shape=(size, size))[order][:, order]
        matrix.sort_indices()
        arrays = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data
        # Sum the volumes again: the last bit of a sum depends on the order of its terms.
        return Level(*arrays, np.asarray(matrix.sum(axis=1), dtype=np.float64), self.inner[order])


@njit
def contract(
    indptr: Ints, indices: Ints, weights: Floats, parents: Ints, size: int
) -> tuple[Ints, Ints, Floats, Floats]:
    """Return the graph of the `size` parents in CSR form and, for each, the weight of the edges inside it."""
    first, members = np.zeros(size + 2, np.int64), np.empty(len(parents), np.int64)
    for node in range(len(parents)):
        first[parents[node] + 2] += 1
    for parent in range(size):
        first[parent + 2] += first[parent + 1]
    for node in range(len(parents)):
        members[first[parents[node] + 1]] = node
        first[parents[node] + 1] += 1
    rows, columns, values = np.zeros(size + 1, np.int64), np.empty(len(indices), np.int64), np.empty(len(indices))
    slots, inner, filled = np.full(size, -1, np.int64), np.zeros(size), 0
    for parent in range(size):
        for member in range(first[parent], first[parent + 1]):
            node = members[member]
            for edge in range(indptr[node], indptr[node + 1]):
                other = parents[indices[edge]]
                if other == parent:
                    inner[parent] += weights[edge] / 2.0
                elif slots[other] < rows[parent]:
                    slots[other], columns[filled], values[filled] = filled, other, weights[edge]
                    filled += 1
                else:
                    values[slots[other]] += weights[edge]
        rows[parent + 1] = filled
    return rows, columns[:filled].copy(), values[:filled].copy(), inner


@njit
def renumber(up: Ints) -> Ints:
    """Renumber the nodes of every row in the order of their first child, without gaps; return the row sizes."""
    rows, size = up.shape
    sizes, moved = np.empty(rows, np.int64), np.empty(size, np.int64)
    sizes[0] = size
    for j in range(rows):
        names, count = np.full(size, -1, np.int64), 0
        for node in range(sizes[j]):
            parent = up[j, node]
            if names[parent] < 0:
                names[parent] = count
                if j + 1 < rows:
                    moved[count] = up[j + 1, parent]
                count += 1
            up[j, node] = names[parent]
        if j + 1 < rows:
            sizes[j + 1] = count
            for node in range(count):
                up[j + 1, node] = moved[node]
    return sizes


# Merging children


class MergeForest(NamedTuple):
    """Binary trees: first the nodes to merge, then a node per merged pair."""

    parents: Ints
    """-1 for roots and for unused nodes."""
    groups: Ints
    """The tree node above each node; only nodes of one group are merged."""
    volumes: Floats
    cuts: Floats
    """Weight between the two nodes of a pair."""


def new_forest(volumes: Floats, groups: Ints) -> MergeForest:
    """Return a forest of single nodes, with memory for all pairs."""
    unused = np.zeros(len(volumes))
    all_groups, all_volumes = np.concatenate([groups, unused.astype(np.int64)]), np.concatenate([volumes, unused])
    return MergeForest(np.full(len(all_groups), -1), all_groups, all_volumes, np.zeros(len(all_groups)))


@njit
def _merge_cost(weight: float, volume: float, other: float, group_volume: float) -> float:
    """Return the cost of merging two neighbours: low for a large weight relative to their volumes."""
    if volume + other > 0.999999999 * group_volume:
        return np.inf
    return math.sqrt(volume * other) / weight


@njit
def _lowest_cost(
    indptr: Ints,
    indices: Ints,
    weights: Floats,
    volumes: Floats,
    nodes: Ints,
    group_volumes: Floats,
    forest: MergeForest,
) -> float:
    best = np.inf
    for node in range(len(volumes)):
        group = forest.groups[nodes[node]]
        for edge in range(indptr[node], indptr[node + 1]):
            other = indices[edge]
            if node < other and forest.groups[nodes[other]] == group:
                best = min(best, _merge_cost(weights[edge], volumes[node], volumes[other], group_volumes[group]))
    return best


@njit
def _weight_to(indptr: Ints, indices: Ints, weights: Floats, roots: Ints, node: int, root: int) -> float:
    total = 0.0
    for edge in range(indptr[node], indptr[node + 1]):
        if find(roots, indices[edge]) == root:
            total += weights[edge]
    return total


@njit
def _number_roots(roots: Ints) -> tuple[Ints, int]:
    """Number the roots without gaps; return the number of each node's root, and how many roots there are."""
    places, count = np.empty(len(roots), np.int64), 0
    for node in range(len(roots)):
        if roots[node] == node:
            places[node], count = count, count + 1
    for node in range(len(roots)):
        places[node] = places[find(roots, node)]
    return places, count


@njit
def _merge_round(
    indptr: Ints,
    indices: Ints,
    weights: Floats,
    volumes: Floats,
    nodes: Ints,
    group_volumes: Floats,
    bound: float,
    forest: MergeForest,
    new: int,
) -> Ints:
    """Merge pairs whose current cost is at most `bound`; return the union-find parent of each node."""
    # At least one node of a pair must be unmerged in this round: then the graph still has its current edges.
    roots, unmerged = np.arange(len(volumes)), np.ones(len(volumes), np.bool_)
    for node in range(len(volumes)):
        for edge in range(indptr[node], indptr[node + 1]):
            other, group = indices[edge], forest.groups[nodes[node]]
            if other < node or forest.groups[nodes[other]] != group or not (unmerged[node] or unmerged[other]):
                continue
            a, b = find(roots, node), find(roots, other)
            if a == b or _merge_cost(weights[edge], volumes[a], volumes[b], group_volumes[group]) > bound:
                continue
            single, root = (other, a) if unmerged[other] else (node, b)
            forest.cuts[new] = _weight_to(indptr, indices, weights, roots, single, root)
            forest.parents[nodes[a]] = forest.parents[nodes[b]] = new
            volumes[a] += volumes[b]
            forest.groups[new], forest.volumes[new] = group, volumes[a]
            unmerged[node] = unmerged[other] = False
            roots[b], nodes[a] = a, new
            new += 1
    return roots


@njit
def merge_children(
    indptr: Ints, indices: Ints, weights: Floats, group_volumes: Floats, forest: MergeForest, tolerance: float
) -> Floats:
    """Merge neighbours within each group and add them to a forest; return the weight left between roots per group.

    A pair that would be its complete group is not merged. A round merges pairs that cost at most 1 + `tolerance` times
    the cheapest one; the tolerance grows while rounds merge few pairs.
    """
    new = len(indptr) - 1
    nodes, volumes, current = np.arange(new), forest.volumes[:new].copy(), tolerance
    bound = _lowest_cost(indptr, indices, weights, volumes, nodes, group_volumes, forest) * (1.0 + current)
    while bound < np.inf:
        roots = _merge_round(indptr, indices, weights, volumes, nodes, group_volumes, bound, forest, new)
        places, left = _number_roots(roots)
        for node in range(len(roots)):
            if roots[node] == node:
                volumes[places[node]], nodes[places[node]] = volumes[node], nodes[node]
        current = tolerance if len(roots) - left > MIN_MERGED_SHARE * len(roots) else 2.0 * current
        new, volumes, nodes = new + len(roots) - left, volumes[:left], nodes[:left]
        indptr, indices, weights, _ = contract(indptr, indices, weights, places, left)
        bound = _lowest_cost(indptr, indices, weights, volumes, nodes, group_volumes, forest) * (1.0 + current)
    rest = np.zeros(len(group_volumes))
    for node in range(len(volumes)):
        for edge in range(indptr[node], indptr[node + 1]):
            if node < indices[edge] and forest.groups[nodes[node]] == forest.groups[nodes[indices[edge]]]:
                rest[forest.groups[nodes[node]]] += weights[edge]
    return rest


# Choosing the nodes to keep
#
# A dynamic program over the tree. The lowest cost of a subtree is a piecewise linear, concave function of the logarithm
# of the volume of the nearest kept ancestor; each node adds at most one break point, from which on it is kept.


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
    """First and last break point, or -1."""
    after: Ints
    before: Ints
    at: Floats
    """Position of a node's break point; infinite if it has none."""
    drop: Floats
    """Decrease of the slope at the break point."""


def _new_lines(size: int) -> Lines:
    zeros, ends = np.zeros((5, size)), np.full((4, size), -1)
    at = np.full(size, np.inf)
    return Lines(zeros[0], zeros[1], zeros[2], zeros[3], ends[0], ends[1], ends[2], ends[3], at, zeros[4])


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
def _pass_up(parents: Ints, logs: Floats, cuts: Floats, cost_if_kept: Floats, lines: Lines) -> Floats:
    """Compute every node's break point; return its cost if it is kept, with one more level to keep below."""
    deeper = np.empty(len(parents))
    for node in range(len(parents)):
        lines.low_slope[node] += cuts[node]
        lines.high_slope[node] += cuts[node]
        deeper[node] = lines.low[node] + lines.low_slope[node] * logs[node]
        parent = parents[node]
        if parent < 0:
            continue
        if lines.low_slope[node] > 0.0:
            _cap(lines, node, cost_if_kept[node], logs[node])
        # Before the lists are merged: otherwise a hub would collect the points of all its small neighbours.
        _drop_points_below(lines, node, logs[parent])
        lines.low[parent] += lines.low[node]
        lines.low_slope[parent] += lines.low_slope[node]
        lines.high[parent] += lines.high[node]
        lines.high_slope[parent] += lines.high_slope[node]
        _add_points(lines, node, parent)
    return deeper


@njit
def _pass_down(parents: Ints, logs: Floats, thresholds: Floats) -> tuple[Ints, Ints]:
    size = len(parents)
    nearest, left = np.empty(size, np.int64), np.empty(size, np.int64)
    nearest[size - 1], left[size - 1] = size - 1, len(thresholds)
    for node in range(size - 2, -1, -1):
        above, k = nearest[parents[node]], left[parents[node]]
        keep = k > 0 and logs[above] > thresholds[k - 1, node] + LOG_TOLERANCE
        nearest[node], left[node] = (node, k - 1) if keep else (above, k)
    return nearest, left


@njit
def _sum_up(parents: Ints, values: Floats) -> Floats:
    sums = values.copy()
    for node in range(len(parents) - 1):
        sums[parents[node]] += sums[node]
    return sums


def choose_nodes(parents: Ints, logs: Floats, cuts: Floats, height: int) -> tuple[Ints, Ints]:
    """Choose the nodes to keep; return each node's nearest kept ancestor or itself, and the levels left below that.

    Nodes come before their parents, the root last with parent -1. `logs` are the logarithms of the volumes, `cuts` the
    weights of the edges that meet at each node.
    """
    thresholds = np.empty((height - 1, len(parents)))
    cost_if_kept = _sum_up(parents, cuts) * logs
    for row in thresholds:
        lines = _new_lines(len(parents))
        cost_if_kept = _pass_up(parents, logs, cuts, cost_if_kept, lines)
        row[:] = lines.at
    return _pass_down(parents, logs, thresholds)


# Moving nodes
#
# A move changes only the old and the new ancestors of a node, up to their lowest common one.


class UpperTree(NamedTuple):
    """The tree from the nodes that move (row 0) to the root (last row); no row has more nodes than row 0."""

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


class EdgeWeights(NamedTuple):
    """The edges of the current node, summed per node of the tree."""

    weights: Floats
    """Weight of its edges into each node of the tree."""
    touched: Ints
    """The nodes with a weight above 0, per row."""
    n_touched: Ints
    ancestors: Ints
    """The ancestors of the current node."""
    leaving: Floats
    """leaving[j]: change of the cost if the node is removed from its ancestors below row j."""


def new_state(up: Ints, volumes: Floats) -> tuple[UpperTree, EdgeWeights]:
    """Return the tree given by rows of parents and the volumes of row 0, and memory for the edges of a node."""
    rows, size = up.shape
    floats, ints = np.zeros((4, rows + 1, size)), np.zeros((3, rows + 1, size), np.int64)
    counts = np.zeros((3, rows + 1), np.int64)
    floats[0, 0] = volumes
    # The root, node 0 of its row, is a candidate for every node.
    counts[1, rows] = 1
    tree = UpperTree(up, floats[0], floats[1], floats[2], ints[0], ints[1], counts[0])
    return tree, EdgeWeights(floats[3], ints[2], counts[1], counts[2], np.zeros(rows + 1))


@njit
def _log(volume: float) -> float:
    return math.log2(volume) if volume > 0.0 else 0.0


@njit
def _fill(indptr: Ints, indices: Ints, weights: Floats, inner: Floats, tree: UpperTree) -> None:
    """Compute volumes, cuts, numbers of children and unused numbers of the rows above row 0."""
    up, (rows, size) = tree.up, tree.up.shape
    for node in range(size):
        tree.cuts[1, up[0, node]] += inner[node]
        for edge in range(indptr[node], indptr[node + 1]):
            if indices[edge] > node:
                a, b, j = up[0, node], up[0, indices[edge]], 1
                while a != b:
                    a, b, j = up[j, a], up[j, b], j + 1
                tree.cuts[j, a] += weights[edge]
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
def _weigh_edges(node: int, indptr: Ints, indices: Ints, weights: Floats, tree: UpperTree, edges: EdgeWeights) -> None:
    """Sum the edges of a node per node of the tree."""
    rows = tree.up.shape[0]
    for j in range(1, rows):
        for t in range(edges.n_touched[j]):
            edges.weights[j, edges.touched[j, t]] = 0.0
        edges.n_touched[j] = 0
    for edge in range(indptr[node], indptr[node + 1]):
        a = indices[edge]
        for j in range(1, rows):
            a = tree.up[j - 1, a]
            if edges.weights[j, a] == 0.0:
                edges.touched[j, edges.n_touched[j]] = a
                edges.n_touched[j] += 1
            edges.weights[j, a] += weights[edge]


@njit
def _compute_leaving(node: int, inner: float, tree: UpperTree, edges: EdgeWeights) -> None:
    """Store the ancestors of a node and the change of the cost if it is removed from them."""
    rows = tree.up.shape[0]
    a, below = tree.up[0, node], -inner
    edges.leaving[1] = 0.0
    for j in range(1, rows):
        weight, cut = edges.weights[j, a], tree.cuts[j, a]
        without = (cut - weight + below) * _log(tree.volumes[j, a] - tree.volumes[0, node])
        edges.ancestors[j], edges.leaving[j + 1] = a, edges.leaving[j] + without - cut * tree.logs[j, a]
        a, below = tree.up[j, a], weight
    edges.ancestors[rows] = a


@njit
def _cost_change(node: int, inner: float, row: int, target: int, tree: UpperTree, edges: EdgeWeights) -> float:
    """Return the change of the cost if the node moves below `target`, with new nodes on the rows between."""
    volume = tree.volumes[0, node]
    change, below = (0.0, -inner) if row == 1 else (inner * _log(volume), 0.0)
    while target != edges.ancestors[row]:
        weight, cut = edges.weights[row, target], tree.cuts[row, target]
        change += (cut + weight - below) * _log(tree.volumes[row, target] + volume) - cut * tree.logs[row, target]
        target, row, below = tree.up[row, target], row + 1, weight
    moved = edges.weights[row - 1, edges.ancestors[row - 1]] - below
    return float(edges.leaving[row] + change + moved * tree.logs[row, target])


@njit
def _best_target(
    node: int, inner: float, tree: UpperTree, edges: EdgeWeights, min_gain: float
) -> tuple[float, int, int]:
    """Return the best change of the cost and its target; a later candidate must be better by `min_gain`."""
    best, row, target = np.inf, 0, 0
    for j in range(1, tree.up.shape[0] + 1):
        for t in range(edges.n_touched[j]):
            candidate = edges.touched[j, t]
            if j > 1 or candidate != edges.ancestors[1]:
                change = _cost_change(node, inner, j, candidate, tree, edges)
                if change < best - min_gain:
                    best, row, target = change, j, candidate
    return best, row, target


@njit
def _add_to_ancestors(node: int, inner: float, row: int, target: int, tree: UpperTree, edges: EdgeWeights) -> int:
    """Add the node to `target` and its ancestors up to the first that contains it already; return that row."""
    tree.n_children[row, target] += 1
    below = -inner if row == 1 else 0.0
    while target != edges.ancestors[row]:
        weight = edges.weights[row, target]
        tree.cuts[row, target] += weight - below
        tree.volumes[row, target] += tree.volumes[0, node]
        tree.logs[row, target] = _log(tree.volumes[row, target])
        target, row, below = tree.up[row, target], row + 1, weight
    tree.cuts[row, target] -= below
    return row


@njit
def _remove_from_ancestors(node: int, inner: float, top: int, tree: UpperTree, edges: EdgeWeights) -> None:
    """Remove the node from its ancestors below row `top`; those without children become unused."""
    below, empty = -inner, True
    for j in range(1, top):
        a = edges.ancestors[j]
        tree.cuts[j, a] -= edges.weights[j, a] - below
        tree.volumes[j, a] -= tree.volumes[0, node]
        tree.logs[j, a] = _log(tree.volumes[j, a])
        below = edges.weights[j, a]
        tree.n_children[j, a] -= empty
        empty = tree.n_children[j, a] == 0
        if empty:
            tree.cuts[j, a], tree.volumes[j, a], tree.logs[j, a] = 0.0, 0.0, 0.0
            tree.free[j, tree.n_free[j]] = a
            tree.n_free[j] += 1
    tree.cuts[top, edges.ancestors[top]] += below
    tree.n_children[top, edges.ancestors[top]] -= empty


@njit
def _attach(node: int, inner: float, row: int, target: int, tree: UpperTree) -> None:
    """Make `target` an ancestor of the node, with new nodes on the rows between."""
    for j in range(row - 1, 0, -1):
        tree.n_free[j] -= 1
        a = tree.free[j, tree.n_free[j]]
        tree.up[j, a], tree.n_children[j, a], tree.volumes[j, a] = target, 1, tree.volumes[0, node]
        tree.cuts[j, a], tree.logs[j, a] = inner if j == 1 else 0.0, _log(tree.volumes[0, node])
        target = a
    tree.up[0, node] = target


@njit
def move_nodes(
    indptr: Ints,
    indices: Ints,
    weights: Floats,
    inner: Floats,
    tree: UpperTree,
    edges: EdgeWeights,
    min_gain: float,
    max_passes: int,
) -> float:
    """Move nodes to the target with the lowest cost until no move helps; update `tree` and return the cost change.

    `inner` is the weight that a node adds to the cut of its parent: 0 for a node that remains, its cut for a node that
    is dissolved into its parent. A node is visited at most `max_passes` times on average.
    """
    up, size = tree.up, tree.up.shape[1]
    _fill(indptr, indices, weights, inner, tree)
    queue, queued = np.arange(size), np.ones(size, np.bool_)
    head, waiting, seen, total = 0, size, 0, 0.0
    while waiting > 0 and seen < max_passes * size:
        node = queue[head]
        head, waiting, seen = (head + 1) % size, waiting - 1, seen + 1
        queued[node] = False
        _weigh_edges(node, indptr, indices, weights, tree, edges)
        _compute_leaving(node, inner[node], tree, edges)
        change, row, target = _best_target(node, inner[node], tree, edges, min_gain)
        if change >= -min_gain:
            continue
        total += change
        top = _add_to_ancestors(node, inner[node], row, target, tree, edges)
        _remove_from_ancestors(node, inner[node], top, tree, edges)
        _attach(node, inner[node], row, target, tree)
        for edge in range(indptr[node], indptr[node + 1]):
            other = indices[edge]
            if not queued[other] and up[0, other] != up[0, node]:
                queue[(head + waiting) % size] = other
                waiting, queued[other] = waiting + 1, True
    return total
