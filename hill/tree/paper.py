"""The coding tree of the HILL paper (NAACL 2024): its Algorithms 1 and 2 as written."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hill.tree._common_delete import delete_until_two
from hill.tree._common_levels import (
    Ints,
    Stars,
    align,
    check_height,
    insert_level,
    saved,
    star_at_root,
    stars_at_leaves,
)
from hill.tree._paper_compress import compress
from hill.tree._paper_state import NODES, new_state
from hill.tree.coding_tree import CodingTree
from hill.tree.graph import Graph

# Bits that count as none: equal savings summed in another order must tie.
ROUNDING = 1e-12


class Split(NamedTuple):
    """What Algorithm 2 makes of some nodes: the new parent of each child, and the entropy saved, times VOL."""

    middle: Ints
    saved: float


def build_paper(graph: Graph, height: int) -> CodingTree:
    """Build a coding tree by the paper's text: binary by `compress`, squeezed by `delete`, grown at leaves or root.

    Children that share no edge are never compressed, as that would save nothing: the parts of a disconnected graph are
    children of the root side by side. Any node but root and leaves may be deleted. A level goes below the root only
    where this leaves strictly less entropy than a level above the leaves. Ties go to smaller nodes, the earlier made.
    Levels with nothing left to split hold nodes with one child.

    >>> edges = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]
    >>> matrix = np.zeros((6, 6))
    >>> for i, j in edges:
    ...     matrix[i, j] = matrix[j, i] = 1
    >>> build_paper(Graph.from_adjacency(matrix), 2).nested()
    [[0, 1, 2], [3, 4, 5]]
    """
    check_height(height)
    tree = CodingTree([np.zeros(len(graph), dtype=np.int64)])
    if height > 1:
        tree = insert_level(tree, 0, algorithm_2(stars_at_leaves(graph, tree)).middle)
    root: Split | None = None
    leaves: Split | None = None
    while tree.height < height:
        # A level near the root leaves the nodes near the leaves as they were, and the other way round.
        root = root or algorithm_2(star_at_root(graph, tree))
        leaves = leaves or algorithm_2(stars_at_leaves(graph, tree))
        if root.saved - leaves.saved > ROUNDING * graph.volume:
            tree, root = insert_level(tree, tree.height - 1, root.middle), None
        else:
            tree, leaves = insert_level(tree, 0, leaves.middle), None
    return tree.canonical()


def algorithm_2(stars: Stars) -> Split:
    """Split nodes: compress their children to binary trees, delete down to height 2, align."""
    children, roots = len(stars.volumes), len(stars.group_volumes)
    parents = np.concatenate([children + stars.groups, np.zeros(roots + children, dtype=np.int64)])
    volumes = np.concatenate([stars.volumes, stars.group_volumes, np.zeros(children)])
    cuts = np.zeros(len(volumes))
    groups = np.zeros(len(volumes), dtype=np.int64)
    state = new_state(stars.volumes, stars.groups, stars.group_volumes, len(stars.weights))
    left = np.bincount(stars.groups, minlength=roots)
    compress(state, stars.sources, stars.targets, stars.weights, left, parents, volumes, cuts, groups)
    nodes = int(state.counts[NODES])
    hangs = delete_until_two(
        parents[:nodes], groups[:nodes], volumes[:nodes], cuts[:nodes], children, roots, 0.0, False
    )
    middle = align(hangs, children + roots)
    return Split(middle, saved(stars, middle, stars.group_volumes, 0.0))
