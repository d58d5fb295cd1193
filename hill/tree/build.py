"""Building the coding tree of a taxonomy by any of the methods, with what a user wants to know of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hill.errors import ConfigError
from hill.taxonomy import Taxonomy
from hill.tree.authors import build_authors
from hill.tree.coding_tree import CodingTree
from hill.tree.controls import build_random, build_taxonomy
from hill.tree.entropy import entropy_by_level
from hill.tree.graph import Graph
from hill.tree.paper import build_paper
from hill.tree.refined import build_refined

METHODS: dict[str, Callable[[Graph, int], CodingTree]] = {
    "paper": build_paper,
    "authors": build_authors,
    "refined": build_refined,
}
CONTROLS: dict[str, Callable[[Taxonomy, int], CodingTree]] = {"random": build_random, "taxonomy": build_taxonomy}
"""Methods that look for no good tree, to compare the others with."""
TRIANGLE = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


@dataclass(frozen=True)
class BuiltTree:
    """A coding tree with the method that made it, the entropy of each level in bits, and the seconds it took."""

    method: str
    tree: CodingTree
    levels: tuple[float, ...]
    flat: float
    """Entropy of the tree of height 1: what there is to save."""
    seconds: float

    @property
    def entropy(self) -> float:
        """Structural entropy of the label graph under this tree, in bits."""
        return sum(self.levels)

    def document(self) -> dict[str, Any]:
        """The facts as plain values, for `--json`."""
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
    """The coding tree of a taxonomy's label graph, every label a leaf, in the taxonomy's order."""
    if method not in (*METHODS, *CONTROLS):
        raise ConfigError(f"unknown method '{method}'; expected {', '.join((*METHODS, *CONTROLS))}")
    if method in METHODS:
        METHODS[method](Graph.from_adjacency(TRIANGLE), 3)  # compiles, so that only building is timed
    graph = Graph.from_adjacency(taxonomy.graph())
    start = time.perf_counter()
    tree = METHODS[method](graph, height) if method in METHODS else CONTROLS[method](taxonomy, height)
    seconds = time.perf_counter() - start
    flat = float(entropy_by_level(graph, CodingTree([[0] * len(graph)])).sum())
    return BuiltTree(method, tree, tuple(entropy_by_level(graph, tree).tolist()), flat, seconds)
