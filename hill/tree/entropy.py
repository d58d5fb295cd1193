"""Structural entropy of a graph under a coding tree, in bits: by its definition and by the edges' lowest ancestors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hill.errors import TaxonomyError

if TYPE_CHECKING:
    from hill.tree.coding_tree import CodingTree
    from hill.tree.graph import Graph


def structural_entropy(graph: Graph, tree: CodingTree) -> float:
    """Return the entropy in O(m · height): each edge pays the volume of the lowest node above both its ends.

    The definition telescopes along the tree's paths to Σ_edges (2w / VOL) log2 vol(LCA) - Σ_i (d_i / VOL) log2 d_i;
    volumes are taken as shares of VOL, which changes nothing. A graph without edges has entropy 0.
    """
    _check_sizes(graph, tree)
    if graph.volume == 0:
        return 0.0
    sources, targets, weights = graph.edges()
    shares = graph.degrees / graph.volume
    entropy = -float(_times_log(shares).sum())
    for members, size in zip(tree.levels[1:], tree.sizes[1:], strict=True):
        volumes = np.bincount(members, weights=shares, minlength=size)
        meet = members[sources] == members[targets]
        entropy += float((2 * weights[meet] / graph.volume * np.log2(volumes[members[sources[meet]]])).sum())
        sources, targets, weights = sources[~meet], targets[~meet], weights[~meet]
    return max(entropy, 0.0)


def entropy_by_definition(graph: Graph, tree: CodingTree) -> float:
    """Return the entropy as the paper defines it: -Σ (g / VOL) log2(vol / vol of the parent), the root left out."""
    return float(entropy_by_level(graph, tree).sum())


def entropy_by_level(graph: Graph, tree: CodingTree) -> NDArray[np.float64]:
    """Return the entropy spent on the nodes of each level, from the leaves to the level below the root."""
    _check_sizes(graph, tree)
    terms = np.zeros(tree.height)
    if graph.volume == 0:
        return terms
    volumes = [np.bincount(members, graph.degrees, size) for members, size in zip(tree.levels, tree.sizes, strict=True)]
    for level, parents in enumerate(tree.parents):
        cuts = _cuts(graph, tree.levels[level], tree.sizes[level])
        cut = np.flatnonzero(cuts)
        ratios = volumes[level][cut] / volumes[level + 1][parents[cut]]
        terms[level] = -float((cuts[cut] / graph.volume * np.log2(ratios)).sum())
    return terms


def _cuts(graph: Graph, members: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    sources, targets, weights = graph.edges()
    ends = members[sources], members[targets]
    apart = ends[0] != ends[1]
    cuts = np.bincount(ends[0][apart], weights[apart], size) + np.bincount(ends[1][apart], weights[apart], size)
    return cuts.astype(np.float64)


def _times_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    above = values[values > 0]
    return above * np.log2(above)


def _check_sizes(graph: Graph, tree: CodingTree) -> None:
    if tree.sizes[0] != len(graph):
        raise TaxonomyError(f"the tree has {tree.sizes[0]} leaves but the graph has {len(graph)} vertices")
