"""Building the coding tree of a taxonomy with any method, with its entropy and build time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hill.errors import ConfigError
from hill.taxonomy import Taxonomy
from hill.taxonomy.taxonomy import check_taxonomy
from hill.tree._loops import check_height
from hill.tree.authors import build_authors
from hill.tree.coding_tree import CodingTree, Graph, entropy_by_level
from hill.tree.paper import build_paper
from hill.tree.refined import build_refined


@dataclass(frozen=True)
class BuiltTree:
    """A coding tree with its method, the entropy of each level in bits, and the build time in seconds."""

    method: str
    tree: CodingTree
    levels: tuple[float, ...]
    flat: float
    """Entropy of the flat tree (height 1), the upper bound."""
    seconds: float

    @property
    def entropy(self) -> float:
        """Structural entropy of the label graph under this tree, in bits."""
        return sum(self.levels)

    def to_dict(self) -> dict[str, Any]:
        """Return the properties as plain values, for `--json`."""
        return {
            "method": self.method,
            "height": self.tree.height,
            "sizes": list(self.tree.sizes),
            "entropy": self.entropy,
            "entropy_by_level": list(self.levels),
            "flat_entropy": self.flat,
            "seconds": self.seconds,
        }


def build_tree(taxonomy: Taxonomy, height: int, method: str = "refined") -> BuiltTree:
    """Build the coding tree of a taxonomy's label graph. Every label is a leaf, in the order of the taxonomy."""
    check_taxonomy(taxonomy)
    if method not in (*METHODS, *CONTROLS):
        raise ConfigError(f"unknown method '{method}'; expected {', '.join((*METHODS, *CONTROLS))}")
    if method in METHODS:
        METHODS[method](Graph.from_adjacency(TRIANGLE), 3)  # compile first: compilation is not part of the build time
    graph = Graph.from_adjacency(taxonomy.graph())
    start = time.perf_counter()
    tree = METHODS[method](graph, height) if method in METHODS else CONTROLS[method](taxonomy, height)
    seconds = time.perf_counter() - start
    flat = float(entropy_by_level(graph, CodingTree([[0] * len(graph)])).sum())
    return BuiltTree(method, tree, tuple(entropy_by_level(graph, tree).tolist()), flat, seconds)


# Control trees, which do not minimise the entropy


def build_random(taxonomy: Taxonomy, height: int) -> CodingTree:
    """Build a random tree with the level sizes of the refined tree.

    Each node gets one child first; the remaining children get a parent uniformly at random. The seed is fixed, so that
    equal level sizes give the same tree.
    """
    refined = build_refined(Graph.from_adjacency(taxonomy.graph()), height)
    rng = np.random.default_rng(0)
    parents = []
    for size, n_parents in pairwise(refined.sizes):
        others = rng.integers(0, max(n_parents, 1), max(size - n_parents, 0))
        parents.append(rng.permutation(np.concatenate([np.arange(n_parents), others])[:size]))
    return CodingTree(parents).canonical()


def build_taxonomy(taxonomy: Taxonomy, height: int) -> CodingTree:
    """Build the tree that the taxonomy itself defines by first parents.

    Every label gets a node, which contains the label as a leaf and the nodes of its children. Deeper labels become
    leaves of the deepest node within the height; nodes with one child extend shorter branches to the full height.
    """
    check_height(height)
    labels = np.arange(len(taxonomy))
    parents = np.where(taxonomy.first_parents < 0, labels, taxonomy.first_parents)  # roots are their own parents
    depth, ancestors = np.ones_like(labels), labels
    while (below_root := parents[ancestors] != ancestors).any():
        depth += below_root
        ancestors = parents[ancestors]
    nodes = labels
    levels = [labels]
    for level in range(max(height - 1, int(depth.max(initial=0))), 0, -1):
        nodes = np.where(depth[nodes] > level, parents[nodes], nodes)
        if level < height:
            levels.append(np.unique(nodes, return_inverse=True)[1])
    levels.append(np.zeros_like(labels))
    tree_parents = []
    for children, above in pairwise(levels):
        tree_parents.append(np.zeros(int(children.max(initial=-1)) + 1, dtype=np.int64))
        tree_parents[-1][children] = above
    return CodingTree(tree_parents).canonical()


METHODS: dict[str, Callable[[Graph, int], CodingTree]] = {
    "paper": build_paper,
    "authors": build_authors,
    "refined": build_refined,
}

CONTROLS: dict[str, Callable[[Taxonomy, int], CodingTree]] = {"random": build_random, "taxonomy": build_taxonomy}
"""Baselines for comparison."""

TRIANGLE = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
