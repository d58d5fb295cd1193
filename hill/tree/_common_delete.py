"""The second loop of Algorithm 2 on many nodes at once: delete the cheapest node while a tree is higher than 2."""

import math

import numpy as np
from numpy.typing import NDArray

from hill.tree._compile import njit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@njit
def find(above: Ints, node: int) -> int:
    """Return the lowest ancestor that is not deleted; a node that stands is its own `above`."""
    top = node
    while above[top] != top:
        top = above[top]
    while above[node] != top:
        above[node], node = top, above[node]
    return top


@njit
def sift_down(costs: Floats, nodes: Ints, size: int, place: int) -> None:
    """Restore a binary heap ordered by (cost, node) after the entry at `place` has grown."""
    cost, node = costs[place], nodes[place]
    while 2 * place + 1 < size:
        low = 2 * place + 1
        right = low + 1
        if right < size and (costs[right] < costs[low] or (costs[right] == costs[low] and nodes[right] < nodes[low])):
            low = right
        if cost < costs[low] or (cost == costs[low] and node < nodes[low]):
            break
        costs[place], nodes[place] = costs[low], nodes[low]
        place = low
    costs[place], nodes[place] = cost, node


@njit
def delete_cost(node: int, parent: int, volumes: Floats, cuts: Floats, smoothing: float) -> float:
    """Return the entropy a deletion adds, times VOL / 2."""
    return float(cuts[node] * math.log2((volumes[parent] + smoothing) / (volumes[node] + smoothing)))


@njit
def delete_until_two(
    parents: Ints, groups: Ints, volumes: Floats, cuts: Floats, leaves: int, roots: int, smoothing: float, spare: bool
) -> Ints:
    """Delete nodes until each tree of a forest has height 2 or less; return for every leaf what it then hangs from.

    Nodes are numbered leaves, then roots, then the rest. `cuts[v]` is the weight of the edges between different
    children of v, kept up to date. With `spare`, a child of the root with only leaves below it is never deleted.
    """
    first, last = leaves + roots, len(parents)
    above = np.arange(last)
    inner = np.zeros(last, np.int64)
    deep = np.zeros(roots, np.int64)
    for node in range(first, last):
        inner[parents[node]] += 1
        deep[groups[node]] += parents[node] >= first
    size = last - first
    nodes = np.arange(first, last)
    costs = np.empty(size)
    for place in range(size):
        costs[place] = delete_cost(nodes[place], parents[nodes[place]], volumes, cuts, smoothing)
    for place in range(size // 2 - 1, -1, -1):
        sift_down(costs, nodes, size, place)
    while size > 0:
        node = nodes[0]
        parent = find(above, parents[node])
        # Parents only gain volume and cut, so a cost in the heap is at most the true one: correct it when it comes up.
        cost = delete_cost(node, parent, volumes, cuts, smoothing)
        if cost > costs[0]:
            costs[0] = cost
            sift_down(costs, nodes, size, 0)
            continue
        size -= 1
        costs[0], nodes[0] = costs[size], nodes[size]
        sift_down(costs, nodes, size, 0)
        top = parent < first
        if deep[groups[node]] == 0 or (spare and top and inner[node] == 0):
            continue
        above[node] = parent
        cuts[parent] += cuts[node]
        inner[parent] += inner[node] - 1
        deep[groups[node]] -= inner[node] if top else 1
    hangs = np.empty(leaves, np.int64)
    for leaf in range(leaves):
        hangs[leaf] = find(above, parents[leaf])
    return hangs
