"""Coding trees of label graphs: structural entropy, and the builders `paper`, `authors` and `refined`."""

from hill.tree.authors import build_authors
from hill.tree.build import CONTROLS, METHODS, BuiltTree, build_tree
from hill.tree.coding_tree import CodingTree, Graph, entropy_by_level, structural_entropy
from hill.tree.paper import build_paper
from hill.tree.refined import build_refined

__all__ = [
    "CONTROLS",
    "METHODS",
    "BuiltTree",
    "CodingTree",
    "Graph",
    "build_authors",
    "build_paper",
    "build_refined",
    "build_tree",
    "entropy_by_level",
    "structural_entropy",
]
