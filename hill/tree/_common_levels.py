"""What the faithful builders share: the request checked, and levels put into a tree from below or from above."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hill.errors import ConfigError
from hill.tree.coding_tree import CodingTree
from hill.tree.graph import Graph

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Stars:
    """Nodes to split, each with its children: the input of Algorithm 2, for as many nodes as there are groups."""

    groups: Ints
    """The node each child belongs to."""
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


def check_height(height: int) -> None:
    """Refuse a height that no coding tree has."""
    if height < 1:
        raise ConfigError(f"height is {height}; expected at least 1, the root directly over the labels")


def stars_at_leaves(graph: Graph, tree: CodingTree) -> Stars:
    """Return the nodes of level 1, with vertices as children and the edges inside them."""
    groups = tree.parents[0]
    sources, targets, weights = graph.edges()
    inside = groups[sources] == groups[targets]
    volumes = np.bincount(groups, graph.degrees, tree.sizes[1]).astype(np.float64)
    return Stars(groups, graph.degrees, volumes, sources[inside], targets[inside], weights[inside])


def star_at_root(graph: Graph, tree: CodingTree) -> Stars:
    """Return the root, with its children and the summed edges between them."""
    members, size = tree.levels[-2], tree.sizes[-2]
    sources, targets, weights = graph.edges()
    low, high = np.minimum(members[sources], members[targets]), np.maximum(members[sources], members[targets])
    keys, places = np.unique((low * size + high)[low < high], return_inverse=True)
    summed = np.bincount(places, weights[low < high], len(keys)).astype(np.float64)
    volumes = np.bincount(members, graph.degrees, size).astype(np.float64)
    return Stars(tree.parents[-1], volumes, np.array([graph.volume]), keys // size, keys % size, summed)


def align(hangs: Ints, first: int) -> Ints:
    """Number the nodes that children hang from, then a node of its own for each child that hangs from a root.

    Nodes below `first` are roots.
    """
    lone = hangs.max(initial=first) + 1 + np.arange(len(hangs))
    return np.unique(np.where(hangs < first, lone, hangs), return_inverse=True)[1].astype(np.int64)


def insert_level(tree: CodingTree, level: int, middle: Ints) -> CodingTree:
    """Put nodes between a level and the one above; `middle` is the new parent of every node on the level."""
    above = np.empty(int(middle.max(initial=-1)) + 1, dtype=np.int64)
    above[middle] = tree.parents[level]
    return CodingTree([*tree.parents[:level], middle, above, *tree.parents[level + 1 :]])


def saved(stars: Stars, middle: Ints, group_volumes: Floats, smoothing: float) -> float:
    """Return the entropy that nodes between the stars and their children save, times VOL, for volumes of the stars."""
    inside = middle[stars.sources] == middle[stars.targets]
    sources, weights = stars.sources[inside], stars.weights[inside]
    volumes = np.bincount(middle, stars.volumes) + smoothing
    return float((2 * weights * np.log2(group_volumes[stars.groups[sources]] / volumes[middle[sources]])).sum())
