"""The vertices of a graph in an order that does not depend on their names, as the leaf level of a tree."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order, connected_components

from hill.tree._refined_graph import Level
from hill.tree.graph import Graph

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

# Vertices whose surroundings differ only farther away than this count as alike; it bounds the work on long paths.
SIGHT = 200
# Rounds of telling apart vertices that look alike; three were enough for Gene Ontology and WordNet.
SPLITS = 8


def leaf_level(graph: Graph) -> tuple[Level, Ints]:
    """Return the vertices as a level in an order that the graph decides, and that order.

    Vertices that look alike from any distance are told apart by the order they came in. In a forest such vertices can
    be exchanged without changing it, so that renaming vertices gives the same level. So it is in other graphs, but for
    some where all vertices have the same surroundings though no exchange is possible (regular graphs).
    """
    # A power of two, so that scaling loses no bit.
    scale = 2.0 ** np.floor(np.log2(graph.volume / len(graph.weights)))
    level = Level(graph.indptr, graph.indices, graph.weights / scale, graph.degrees, np.zeros(len(graph)))
    by_colour = np.argsort(_colours(level), kind="stable")
    level = level.reordered(by_colour)
    by_distance = _walk(level)
    return level.reordered(by_distance), by_colour[by_distance]


def _mix(words: Words) -> Words:
    """Scramble 64-bit words, so that sums of them tell multisets apart (the constants are those of splitmix64)."""
    words = (words + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _colours(level: Level) -> Words:
    """Colour the vertices by their surroundings; with cycles, go on until no two that can be told apart are alike."""
    colours = _refined(level, np.zeros(len(level.volumes), np.uint64))
    if len(level.weights) // 2 + _parts(level, np.ones(len(colours), np.bool_))[0] == len(colours):
        return colours  # in a forest, walking from each vertex to its neighbours tells the rest apart
    for _ in range(SPLITS):
        _, classes, sizes = np.unique(colours, return_inverse=True, return_counts=True)
        alike = sizes[classes] > 1
        if not alike.any():
            break
        colours = _refined(level, _split(level, colours, alike))
    return colours


def _refined(level: Level, colours: Words) -> Words:
    """Colour refinement: vertices of one colour stay so while they have neighbours of the same colours."""
    labels, classes = _mix(level.weights.view(np.uint64)), 0
    for step in range(SIGHT):
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mix(colours[level.indices] ^ labels))])
        colours = _mix(colours * np.uint64(3) + sums[level.indptr[1:]] - sums[level.indptr[:-1]])
        if step % 4 == 3:
            found = len(np.unique(colours))
            if found == classes:
                break
            classes = found
    return colours


def _split(level: Level, colours: Words, alike: NDArray[np.bool_]) -> Words:
    """Give one vertex in each part of the graph of vertices that look alike a colour of its own.

    The parts hang together only through vertices that are told apart already, so the choices do not touch each other.
    """
    _, parts = _parts(level, alike)
    order = np.argsort(colours, kind="stable")
    order = order[alike[order]]
    _, first = np.unique(parts[order], return_index=True)
    chosen = order[np.sort(first)]
    _, start, place = np.unique(colours[chosen], return_index=True, return_inverse=True)
    ranks = np.arange(len(chosen)) - start[place] + 1
    colours = colours.copy()
    colours[chosen] = _mix(colours[chosen] ^ _mix(ranks.astype(np.uint64)))
    return colours


def _parts(level: Level, chosen: NDArray[np.bool_]) -> tuple[int, Ints]:
    """Return the number of connected parts of the graph between chosen vertices, and the part of every vertex."""
    rows = np.repeat(np.arange(len(chosen)), np.diff(level.indptr))
    edges = chosen[rows] & chosen[level.indices]
    shape = (len(chosen), len(chosen))
    count, parts = connected_components(sp.coo_array((edges[edges], (rows[edges], level.indices[edges])), shape=shape))
    return int(count), parts.astype(np.int64)


def _walk(level: Level) -> Ints:
    """Return the vertices breadth first, from the first of each component."""
    size = len(level.volumes)
    _, parts = _parts(level, np.ones(size, np.bool_))
    starts = np.sort(np.unique(parts, return_index=True)[1])
    # One more vertex, with an edge to every start, lets one walk reach them all.
    indptr = np.append(level.indptr, len(level.indices) + len(starts))
    indices = np.append(level.indices, starts)
    shape = (size + 1, size + 1)
    matrix = sp.csr_array((np.ones(len(indices)), indices, indptr), shape=shape)
    order = breadth_first_order(matrix, size, return_predecessors=False)
    return order[1:].astype(np.int64)
