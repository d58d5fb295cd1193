"""Coding trees of label graphs: structural entropy, the operations of the paper, and the builders."""

from hill.tree.authors import build_authors
from hill.tree.build import CONTROLS, METHODS, BuiltTree, build_tree
from hill.tree.coding_tree import CodingTree
from hill.tree.entropy import entropy_by_definition, entropy_by_level, structural_entropy
from hill.tree.graph import Graph
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
    "entropy_by_definition",
    "entropy_by_level",
    "structural_entropy",
]
