"""Coding trees that nothing was optimised for: controls for experiments on what the other builders are worth."""

from itertools import pairwise

import numpy as np

from hill.taxonomy import Taxonomy
from hill.tree._common_levels import Ints, check_height
from hill.tree.coding_tree import CodingTree
from hill.tree.graph import Graph
from hill.tree.refined import build_refined


def build_random(taxonomy: Taxonomy, height: int) -> CodingTree:
    """Build a tree with as many nodes on each level as the refined one, every parent drawn at random.

    Each node gets one child first, then each other child a parent, all equally likely. The seed is fixed, so that the
    same number of labels and level sizes give the same tree.
    """
    refined = build_refined(Graph.from_adjacency(taxonomy.graph()), height)
    draw = np.random.default_rng(0)
    parents = []
    for size, above in pairwise(refined.sizes):
        others = draw.integers(0, max(above, 1), max(size - above, 0))
        parents.append(draw.permutation(np.concatenate([np.arange(above), others])[:size]))
    return CodingTree(parents).canonical()


def build_taxonomy(taxonomy: Taxonomy, height: int) -> CodingTree:
    """Build the tree that the taxonomy itself is: below the root its roots, below these their children, and so on.

    A label is a leaf below its own node, beside its children's nodes; of several parents the first counts. The height
    cuts what is deeper, which then are leaves of the deepest node kept; nodes with one child fill up what ends earlier.
    """
    check_height(height)
    above = _first_parents(taxonomy)
    depth = _depths(above)
    nodes = np.arange(len(taxonomy))
    levels = []
    for level in range(max(height - 1, int(depth.max(initial=0))), 0, -1):
        nodes = np.where(depth[nodes] > level, above[nodes], nodes)
        if level < height:
            levels.append(nodes)
    return _from_levels([*levels, np.zeros_like(nodes)])


def _first_parents(taxonomy: Taxonomy) -> Ints:
    """The first parent of every label, itself for roots."""
    above = np.arange(len(taxonomy))
    child, first = np.unique(taxonomy.edge_array[:, 0], return_index=True)
    above[child] = taxonomy.edge_array[first, 1]
    return above


def _depths(above: Ints) -> Ints:
    """Labels on the way from a root down to each label by first parents, itself included."""
    depth, nodes = np.ones_like(above), np.arange(len(above))
    while (moving := above[nodes] != nodes).any():
        depth += moving
        nodes = above[nodes]
    return depth


def _from_levels(levels: list[Ints]) -> CodingTree:
    """The tree in which the leaves of equal number on a level are below one node there."""
    members = [np.arange(len(levels[0])), *(np.unique(level, return_inverse=True)[1] for level in levels)]
    parents = []
    for below, above in pairwise(members):
        parents.append(np.zeros(int(below.max(initial=-1)) + 1, dtype=np.int64))
        parents[-1][below] = above
    return CodingTree(parents).canonical()
