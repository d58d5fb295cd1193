"""Shared by the builders: compilation, the input of Algorithm 2, and its second loop, the deletion of nodes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hill.errors import ConfigError
from hill.tree.coding_tree import CodingTree, Graph

Function = TypeVar("Function", bound=Callable[..., object])
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_HEIGHT = 100
"""Maximum height of a coding tree. A few levels lower the entropy; build time is quadratic in the height."""

try:
    import numba
except ModuleNotFoundError:  # pragma: no cover
    COMPILED = False
else:
    COMPILED = os.environ.get("HILL_NO_NUMBA", "0") in ("", "0")


def njit(function: Function) -> Function:
    """Compile a function over arrays, without the GIL and cached on disk; HILL_NO_NUMBA=1 disables compilation."""
    if not COMPILED:
        return function
    # No fastmath: results must be bit-identical with and without compilation.
    return cast(Function, numba.njit(cache=True, nogil=True)(function))


def check_height(height: int) -> None:
    """Raise an error if the height is not valid."""
    if isinstance(height, bool) or not isinstance(height, int | np.integer) or not 1 <= height <= MOST_HEIGHT:
        raise ConfigError(
            f"height is {height!r}; expected a whole number from 1, the root directly over the labels, to {MOST_HEIGHT}"
        )


# Levels


def insert_level(tree: CodingTree, level: int, middle: Ints) -> CodingTree:
    """Insert nodes between a level and the one above; `middle` is the new parent of every node on the level."""
    parents = np.empty(int(middle.max(initial=-1)) + 1, dtype=np.int64)
    parents[middle] = tree.parents[level]
    return CodingTree([*tree.parents[:level], middle, parents, *tree.parents[level + 1 :]])


class Siblings(NamedTuple):
    """The children of one or more nodes and the edges between them: the input of Algorithm 2."""

    groups: Ints
    """The node of each child."""
    volumes: Floats
    """Volume of each child."""
    group_volumes: Floats
    """Volume of each node."""
    sources: Ints
    """Smaller end of each edge between children of one node."""
    targets: Ints
    """Larger end."""
    weights: Floats
    """Weight of the edge."""


def leaf_siblings(graph: Graph, tree: CodingTree) -> Siblings:
    """Return the vertices below each node of level 1, with the edges inside the node."""
    groups = tree.parents[0]
    sources, targets, weights = graph.edges()
    inside = groups[sources] == groups[targets]
    volumes = np.bincount(groups, graph.degrees, tree.sizes[1]).astype(np.float64)
    return Siblings(groups, graph.degrees, volumes, sources[inside], targets[inside], weights[inside])


def root_siblings(graph: Graph, tree: CodingTree) -> Siblings:
    """Return the children of the root, with the summed edges between them."""
    members, size = tree.levels[-2], tree.sizes[-2]
    sources, targets, weights = graph.edges()
    low, high = np.minimum(members[sources], members[targets]), np.maximum(members[sources], members[targets])
    keys, index = np.unique((low * size + high)[low < high], return_inverse=True)
    summed = np.bincount(index, weights[low < high], len(keys)).astype(np.float64)
    volumes = np.bincount(members, graph.degrees, size).astype(np.float64)
    return Siblings(tree.parents[-1], volumes, np.array([graph.volume]), keys // size, keys % size, summed)


def align(parents: Ints, first: int) -> Ints:
    """Number the new parents without gaps; children whose parent is a root (below `first`) get a node of their own."""
    single = parents.max(initial=first) + 1 + np.arange(len(parents))
    return np.unique(np.where(parents < first, single, parents), return_inverse=True)[1].astype(np.int64)


def entropy_saved(siblings: Siblings, middle: Ints, group_volumes: Floats, smoothing: float) -> float:
    """Return the entropy saved by inserting the nodes `middle` between groups and children, times VOL."""
    inside = middle[siblings.sources] == middle[siblings.targets]
    sources, weights = siblings.sources[inside], siblings.weights[inside]
    volumes = np.bincount(middle, siblings.volumes) + smoothing
    return float((2 * weights * np.log2(group_volumes[siblings.groups[sources]] / volumes[middle[sources]])).sum())


# Deletion


class Forest(NamedTuple):
    """A binary tree per group. Nodes are numbered leaves, then roots, then the others in the order of creation."""

    parents: Ints
    groups: Ints
    volumes: Floats
    cuts: Floats
    """Weight of the edges between different children of each node."""


@njit
def delete_to_height_2(forest: Forest, leaves: int, roots: int, smoothing: float, keep_leaf_parents: bool) -> Ints:
    """Delete the cheapest node until each tree of a forest has height 2 or less; return the parent of every leaf.

    The cuts are updated. With `keep_leaf_parents`, a child of the root with only leaves below is not deleted.
    """
    parents, groups, volumes, cuts = forest
    first, last = leaves + roots, len(parents)
    ancestors = np.arange(last)
    inner_children = np.zeros(last, np.int64)
    deep = np.zeros(roots, np.int64)  # per tree, inner nodes that are not children of the root
    for node in range(first, last):
        inner_children[parents[node]] += 1
        deep[groups[node]] += parents[node] >= first
    heap = [(delete_cost(node, parents[node], volumes, cuts, smoothing), node) for node in range(first, last)]
    heapify(heap)
    while len(heap) > 0:
        lower_bound, node = heap[0]
        parent = find(ancestors, parents[node])
        # Parents only gain volume and cut, so a cost in the heap is a lower bound: correct it when it is at the top.
        cost = delete_cost(node, parent, volumes, cuts, smoothing)
        if cost > lower_bound:
            heapreplace(heap, (cost, node))
            continue
        heappop(heap)
        below_root = parent < first
        if deep[groups[node]] == 0 or (keep_leaf_parents and below_root and inner_children[node] == 0):
            continue
        ancestors[node] = parent
        cuts[parent] += cuts[node]
        inner_children[parent] += inner_children[node] - 1
        deep[groups[node]] -= inner_children[node] if below_root else 1
    return np.array([find(ancestors, parents[leaf]) for leaf in range(leaves)], np.int64)


@njit
def delete_cost(node: int, parent: int, volumes: Floats, cuts: Floats, smoothing: float) -> float:
    """Return the entropy that a deletion adds, times VOL / 2."""
    return float(cuts[node] * math.log2((volumes[parent] + smoothing) / (volumes[node] + smoothing)))


@njit
def find(parents: Ints, node: int) -> int:
    """Return the root of a node in a union-find forest, with path compression; a root is its own parent."""
    root = node
    while parents[root] != root:
        root = parents[root]
    while parents[node] != root:
        parents[node], node = root, parents[node]
    return root
