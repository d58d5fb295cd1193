"""Binary trees over the children of tree nodes, grown by merging neighbours: compiled."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hill.tree._compile import njit
from hill.tree._refined_graph import contract

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# A round that merges a smaller share of the nodes than this is followed by one that is twice as hasty.
FEW = 0.05


class Forest(NamedTuple):
    """Binary trees: first the nodes to merge, then a node for every pair."""

    parents: Ints
    """-1 for the tops, and for nodes not made."""
    groups: Ints
    """The tree node above each node; only nodes of one group merge."""
    volumes: Floats
    cuts: Floats
    """Weight between the two nodes of a pair."""


def new_forest(volumes: Floats, groups: Ints) -> Forest:
    """Return single nodes, with room for all pairs."""
    room = np.zeros(len(volumes))
    all_groups, all_volumes = np.concatenate([groups, room.astype(np.int64)]), np.concatenate([volumes, room])
    return Forest(np.full(len(all_groups), -1), all_groups, all_volumes, np.zeros(len(all_groups)))


@njit
def _price(weight: float, volume: float, other: float, whole: float) -> float:
    """Return how late two neighbours merge: the more weight between them for their volumes, the sooner."""
    if volume + other > 0.999999999 * whole:
        return np.inf
    return math.sqrt(volume * other) / weight


@njit
def _cheapest(
    indptr: Ints, indices: Ints, weights: Floats, volumes: Floats, nodes: Ints, wholes: Floats, forest: Forest
) -> float:
    best = np.inf
    for node in range(len(volumes)):
        group = forest.groups[nodes[node]]
        for edge in range(indptr[node], indptr[node + 1]):
            other = indices[edge]
            if node < other and forest.groups[nodes[other]] == group:
                best = min(best, _price(weights[edge], volumes[node], volumes[other], wholes[group]))
    return best


@njit
def _top(above: Ints, node: int) -> int:
    while above[node] != node:
        above[node] = above[above[node]]
        node = above[node]
    return node


@njit
def _weight_to(indptr: Ints, indices: Ints, weights: Floats, above: Ints, node: int, top: int) -> float:
    total = 0.0
    for edge in range(indptr[node], indptr[node + 1]):
        if _top(above, indices[edge]) == top:
            total += weights[edge]
    return total


@njit
def _survivors(above: Ints) -> tuple[Ints, int]:
    """Number the nodes that were not merged into others; return each node's, and how many there are."""
    places, count = np.empty(len(above), np.int64), 0
    for node in range(len(above)):
        if above[node] == node:
            places[node], count = count, count + 1
    for node in range(len(above)):
        places[node] = places[_top(above, node)]
    return places, count


@njit
def _merge_round(
    indptr: Ints,
    indices: Ints,
    weights: Floats,
    volumes: Floats,
    nodes: Ints,
    wholes: Floats,
    bound: float,
    forest: Forest,
    made: int,
) -> Ints:
    """Merge what costs at most `bound` at its turn; return what each node was merged into, itself if into none."""
    # A node is fresh until it merges in this round; its edges are then still as the graph of the round has them.
    above, fresh = np.arange(len(volumes)), np.ones(len(volumes), np.bool_)
    for node in range(len(volumes)):
        for edge in range(indptr[node], indptr[node + 1]):
            other, group = indices[edge], forest.groups[nodes[node]]
            if other < node or forest.groups[nodes[other]] != group or not (fresh[node] or fresh[other]):
                continue
            a, b = _top(above, node), _top(above, other)
            if a == b or _price(weights[edge], volumes[a], volumes[b], wholes[group]) > bound:
                continue
            one, top = (other, a) if fresh[other] else (node, b)
            forest.cuts[made] = _weight_to(indptr, indices, weights, above, one, top)
            forest.parents[nodes[a]] = forest.parents[nodes[b]] = made
            volumes[a] += volumes[b]
            forest.groups[made], forest.volumes[made] = group, volumes[a]
            fresh[node] = fresh[other] = False
            above[b], nodes[a] = a, made
            made += 1
    return above


@njit
def merge_children(
    indptr: Ints, indices: Ints, weights: Floats, wholes: Floats, forest: Forest, haste: float
) -> Floats:
    """Merge neighbours within each group of nodes, adding to a forest; return the weight left between tops of a group.

    `wholes` are the volumes of the groups: a pair that is the whole of its group is not merged. A round merges pairs at
    most 1 + `haste` times as dear as the cheapest, and rounds grow hastier while they find few.
    """
    made = len(indptr) - 1
    nodes, volumes, loose = np.arange(made), forest.volumes[:made].copy(), haste
    bound = _cheapest(indptr, indices, weights, volumes, nodes, wholes, forest) * (1.0 + loose)
    while bound < np.inf:
        above = _merge_round(indptr, indices, weights, volumes, nodes, wholes, bound, forest, made)
        places, left = _survivors(above)
        for node in range(len(above)):
            if above[node] == node:
                volumes[places[node]], nodes[places[node]] = volumes[node], nodes[node]
        loose = haste if len(above) - left > FEW * len(above) else 2.0 * loose
        made, volumes, nodes = made + len(above) - left, volumes[:left], nodes[:left]
        indptr, indices, weights, _ = contract(indptr, indices, weights, places, left)
        bound = _cheapest(indptr, indices, weights, volumes, nodes, wholes, forest) * (1.0 + loose)
    rest = np.zeros(len(wholes))
    for node in range(len(volumes)):
        for edge in range(indptr[node], indptr[node + 1]):
            if node < indices[edge] and forest.groups[nodes[node]] == forest.groups[nodes[indices[edge]]]:
                rest[forest.groups[nodes[node]]] += weights[edge]
    return rest
