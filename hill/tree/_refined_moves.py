"""Moves of tree nodes between parents, each with its exact change of entropy: compiled.

The cost of a tree is its entropy times half the volume of the graph, up to a constant: the sum over its nodes of the
cut (weight of the edges whose lowest common ancestor is the node) times the logarithm of the volume. A node that moves
changes only its ancestors and its new ancestors, up to the lowest that is both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hill.tree._compile import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Upper(NamedTuple):
    """The tree from the nodes that move (row 0) to the root (last row); no row has more nodes than row 0."""

    up: Ints
    """Parent, on the next row."""
    volumes: Floats
    logs: Floats
    """Logarithms of the volumes, which cost more to compute than to look up; 0 for unused nodes."""
    cuts: Floats
    kids: Ints
    """Number of children."""
    free: Ints
    """A stack of unused numbers for every row."""
    n_free: Ints


class Links(NamedTuple):
    """How the node at hand is tied to the tree."""

    weights: Floats
    """Weight of its edges into each node of the tree."""
    touched: Ints
    """The nodes with such weight, for every row."""
    n_touched: Ints
    own: Ints
    """Its ancestors."""
    left: Floats
    """left[j]: change of the cost once it has left its ancestors below row j."""


def new_state(up: Ints, volumes: Floats) -> tuple[Upper, Links]:
    """Return the tree given by rows of parents, with the volumes of row 0, and room to weigh a node in."""
    rows, size = up.shape
    floats, ints = np.zeros((4, rows + 1, size)), np.zeros((3, rows + 1, size), np.int64)
    counts = np.zeros((3, rows + 1), np.int64)
    floats[0, 0] = volumes
    # The root, node 0 of its row, is open to every node.
    counts[1, rows] = 1
    upper = Upper(up, floats[0], floats[1], floats[2], ints[0], ints[1], counts[0])
    return upper, Links(floats[3], ints[2], counts[1], counts[2], np.zeros(rows + 1))


@njit
def _log(volume: float) -> float:
    return math.log2(volume) if volume > 0.0 else 0.0


@njit
def _fill(indptr: Ints, indices: Ints, weights: Floats, inner: Floats, upper: Upper) -> None:
    """Compute volumes, cuts, children and free numbers of the rows above row 0."""
    up, (rows, size) = upper.up, upper.up.shape
    for node in range(size):
        upper.cuts[1, up[0, node]] += inner[node]
        for edge in range(indptr[node], indptr[node + 1]):
            if indices[edge] > node:
                a, b, j = up[0, node], up[0, indices[edge]], 1
                while a != b:
                    a, b, j = up[j, a], up[j, b], j + 1
                upper.cuts[j, a] += weights[edge]
    for j in range(rows):
        for node in range(size - 1, -1, -1):
            if j == 0 or upper.kids[j, node] > 0:
                upper.volumes[j + 1, up[j, node]] += upper.volumes[j, node]
                upper.kids[j + 1, up[j, node]] += 1
            else:
                upper.free[j, upper.n_free[j]] = node
                upper.n_free[j] += 1
    for j in range(1, rows + 1):
        for node in range(size):
            upper.logs[j, node] = _log(upper.volumes[j, node])


@njit
def _gather(node: int, indptr: Ints, indices: Ints, weights: Floats, upper: Upper, links: Links) -> None:
    """Weigh the edges of a node into the tree."""
    rows = upper.up.shape[0]
    for j in range(1, rows):
        for t in range(links.n_touched[j]):
            links.weights[j, links.touched[j, t]] = 0.0
        links.n_touched[j] = 0
    for edge in range(indptr[node], indptr[node + 1]):
        a = indices[edge]
        for j in range(1, rows):
            a = upper.up[j - 1, a]
            if links.weights[j, a] == 0.0:
                links.touched[j, links.n_touched[j]] = a
                links.n_touched[j] += 1
            links.weights[j, a] += weights[edge]


@njit
def _leave(node: int, inner: float, upper: Upper, links: Links) -> None:
    """Note the ancestors of a node and what changes when it leaves them."""
    rows = upper.up.shape[0]
    a, below = upper.up[0, node], -inner
    links.left[1] = 0.0
    for j in range(1, rows):
        weight, cut = links.weights[j, a], upper.cuts[j, a]
        without = (cut - weight + below) * _log(upper.volumes[j, a] - upper.volumes[0, node])
        links.own[j], links.left[j + 1] = a, links.left[j] + without - cut * upper.logs[j, a]
        a, below = upper.up[j, a], weight
    links.own[rows] = a


@njit
def _change(node: int, inner: float, row: int, target: int, upper: Upper, links: Links) -> float:
    """Return the change of the cost if the node goes below `target`, with new nodes on the rows between."""
    volume = upper.volumes[0, node]
    change, below = (0.0, -inner) if row == 1 else (inner * _log(volume), 0.0)
    while target != links.own[row]:
        weight, cut = links.weights[row, target], upper.cuts[row, target]
        change += (cut + weight - below) * _log(upper.volumes[row, target] + volume) - cut * upper.logs[row, target]
        target, row, below = upper.up[row, target], row + 1, weight
    moved = links.weights[row - 1, links.own[row - 1]] - below
    return float(links.left[row] + change + moved * upper.logs[row, target])


@njit
def _best(node: int, inner: float, upper: Upper, links: Links, slack: float) -> tuple[float, int, int]:
    """Return the best change of the cost and where to go for it; a later candidate must be better by `slack`."""
    best, row, target = np.inf, 0, 0
    for j in range(1, upper.up.shape[0] + 1):
        for t in range(links.n_touched[j]):
            candidate = links.touched[j, t]
            if j > 1 or candidate != links.own[1]:
                change = _change(node, inner, j, candidate, upper, links)
                if change < best - slack:
                    best, row, target = change, j, candidate
    return best, row, target


@njit
def _join(node: int, inner: float, row: int, target: int, upper: Upper, links: Links) -> int:
    """Count the node in at `target` and above, up to the first that holds it already; return the row of that."""
    upper.kids[row, target] += 1
    below = -inner if row == 1 else 0.0
    while target != links.own[row]:
        weight = links.weights[row, target]
        upper.cuts[row, target] += weight - below
        upper.volumes[row, target] += upper.volumes[0, node]
        upper.logs[row, target] = _log(upper.volumes[row, target])
        target, row, below = upper.up[row, target], row + 1, weight
    upper.cuts[row, target] -= below
    return row


@njit
def _quit(node: int, inner: float, top: int, upper: Upper, links: Links) -> None:
    """Count the node out of its ancestors below row `top`; those left without children become free."""
    below, empty = -inner, True
    for j in range(1, top):
        a = links.own[j]
        upper.cuts[j, a] -= links.weights[j, a] - below
        upper.volumes[j, a] -= upper.volumes[0, node]
        upper.logs[j, a] = _log(upper.volumes[j, a])
        below = links.weights[j, a]
        upper.kids[j, a] -= empty
        empty = upper.kids[j, a] == 0
        if empty:
            upper.cuts[j, a], upper.volumes[j, a], upper.logs[j, a] = 0.0, 0.0, 0.0
            upper.free[j, upper.n_free[j]] = a
            upper.n_free[j] += 1
    upper.cuts[top, links.own[top]] += below
    upper.kids[top, links.own[top]] -= empty


@njit
def _hang(node: int, inner: float, row: int, target: int, upper: Upper) -> None:
    """Make `target` an ancestor of the node, with new nodes between."""
    for j in range(row - 1, 0, -1):
        upper.n_free[j] -= 1
        a = upper.free[j, upper.n_free[j]]
        upper.up[j, a], upper.kids[j, a], upper.volumes[j, a] = target, 1, upper.volumes[0, node]
        upper.cuts[j, a], upper.logs[j, a] = inner if j == 1 else 0.0, _log(upper.volumes[0, node])
        target = a
    upper.up[0, node] = target


@njit
def move_nodes(
    indptr: Ints, indices: Ints, weights: Floats, inner: Floats, upper: Upper, links: Links, slack: float, passes: int
) -> float:
    """Move nodes where that lowers the cost most, until no move does; change `upper` and return the change of the cost.

    `inner` is weight that a node charges to its parent: zero for a node that is to stay one, its cut for a node that is
    to melt into its parent. No node is looked at more than `passes` times on average.
    """
    up, size = upper.up, upper.up.shape[1]
    _fill(indptr, indices, weights, inner, upper)
    queue, queued = np.arange(size), np.ones(size, np.bool_)
    head, waiting, seen, total = 0, size, 0, 0.0
    while waiting > 0 and seen < passes * size:
        node = queue[head]
        head, waiting, seen = (head + 1) % size, waiting - 1, seen + 1
        queued[node] = False
        _gather(node, indptr, indices, weights, upper, links)
        _leave(node, inner[node], upper, links)
        change, row, target = _best(node, inner[node], upper, links, slack)
        if change >= -slack:
            continue
        total += change
        top = _join(node, inner[node], row, target, upper, links)
        _quit(node, inner[node], top, upper, links)
        _hang(node, inner[node], row, target, upper)
        for edge in range(indptr[node], indptr[node + 1]):
            other = indices[edge]
            if not queued[other] and up[0, other] != up[0, node]:
                queue[(head + waiting) % size] = other
                waiting, queued[other] = waiting + 1, True
    return total
