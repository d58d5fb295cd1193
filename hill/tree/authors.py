"""The coding tree of the code released with HILL, which departs from the paper (https://github.com/Rooooyy/HILL)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hill.tree._authors_merge import merge_pairs
from hill.tree._common_delete import delete_until_two
from hill.tree._common_levels import (
    Floats,
    Ints,
    Stars,
    align,
    check_height,
    insert_level,
    saved,
    star_at_root,
    stars_at_leaves,
)
from hill.tree.coding_tree import CodingTree
from hill.tree.graph import Graph

SMOOTHING = 1.0


class Growth(NamedTuple):
    """A level that could be put into a tree: the new parent of each child, and the gain as the released code has it."""

    middle: Ints
    gain: float


def build_authors(graph: Graph, height: int) -> CodingTree:
    """Build the tree the released code builds, for comparison with published results.

    Against the paper: pairs are merged by the change of entropy of merging two *communities*; 1 is added to volumes in
    logarithms; only nodes on paths that are too long are deleted; clusters are split as graphs of their own; and a
    level goes below the root where its gain divided by the root's children exceeds the gain near the leaves divided by
    the vertices. One vertex, or no edge, where the released code fails, gives nodes with one child.

    >>> path = Graph.from_adjacency(np.eye(6, k=1) + np.eye(6, k=-1))
    >>> build_authors(path, 3).nested()
    [[[0, 1], [2, 3]], [[4, 5]]]
    """
    check_height(height)
    tree = CodingTree([np.zeros(len(graph), dtype=np.int64)])
    if height > 1:
        tree = insert_level(tree, 0, split(stars_at_leaves(graph, tree)))
    root: Growth | None = None
    leaves: Growth | None = None
    while tree.height < height:
        root = root or root_down(graph, tree)
        leaves = leaves or leaf_up(graph, tree)
        if leaves.gain < root.gain:
            tree, root = insert_level(tree, tree.height - 1, root.middle), None
        else:
            tree, leaves = insert_level(tree, 0, leaves.middle), None
    return tree.canonical()


def leaf_up(graph: Graph, tree: CodingTree) -> Growth:
    """Split each node of level 1 as if its inside were the whole graph."""
    stars = stars_at_leaves(graph, tree)
    inner = star_degrees(stars)
    roots = len(stars.group_volumes)
    alone = replace(stars, volumes=inner, group_volumes=np.bincount(stars.groups, inner, roots).astype(np.float64))
    middle = split(alone)
    gain = saved(stars, middle, stars.group_volumes + SMOOTHING, SMOOTHING)
    return Growth(middle, gain / (graph.volume * len(graph)) if graph.volume else 0.0)


def root_down(graph: Graph, tree: CodingTree) -> Growth:
    """Split the root; the released code smooths the root's volume after the split but not before."""
    stars = star_at_root(graph, tree)
    middle = split(stars)
    children = len(middle)
    if children < 3 or graph.volume == 0:
        return Growth(middle, 0.0)
    inside = middle[stars.sources] == middle[stars.targets]
    crossing = 2 * float(stars.weights[~inside].sum())
    gain = saved(stars, middle, stars.group_volumes, SMOOTHING)
    gain -= crossing * float(np.log2(1 + SMOOTHING / graph.volume))
    return Growth(middle, gain / (graph.volume * children))


def split(stars: Stars) -> Ints:
    """Merge pairs to a binary tree, squeeze it to height 2, and return the new parent of each child."""
    children, roots = len(stars.volumes), len(stars.group_volumes)
    forest = merge_pairs(stars, star_degrees(stars), SMOOTHING)
    hangs = delete_until_two(
        forest.parents, forest.groups, forest.volumes, forest.cuts, children, roots, SMOOTHING, True
    )
    return align(hangs, children + roots)


def star_degrees(stars: Stars) -> Floats:
    """Return the weight of the edges from each child to the others of its node."""
    ends = np.concatenate([stars.sources, stars.targets])
    return np.bincount(ends, np.tile(stars.weights, 2), len(stars.volumes)).astype(np.float64)
