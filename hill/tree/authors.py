"""The coding tree of the code released with HILL, which differs from the paper (https://github.com/Rooooyy/HILL)."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from math import log2
from typing import NamedTuple

import numpy as np

from hill.tree._loops import (
    Floats,
    Forest,
    Ints,
    Siblings,
    align,
    check_height,
    delete_to_height_2,
    entropy_saved,
    insert_level,
    leaf_siblings,
    root_siblings,
)
from hill.tree.coding_tree import CodingTree, Graph

SMOOTHING = 1.0
"""Added to volumes inside logarithms."""

LARGE = 32
"""Number of neighbours from which a community is large (see `Communities`)."""


def build_authors(graph: Graph, height: int) -> CodingTree:
    """Build the tree that the released code builds, for comparison with published results.

    Differences from the paper: pairs are ranked by the entropy change of merging two *communities*; 1 is added to
    volumes inside logarithms; only nodes on paths that are too long are deleted; clusters are split as separate graphs;
    and a level is inserted below the root if its gain divided by the number of the root's children exceeds the gain
    near the leaves divided by the number of vertices. For one vertex or no edges, where the released code fails, nodes
    have one child.

    >>> path = Graph.from_adjacency(np.eye(6, k=1) + np.eye(6, k=-1))
    >>> build_authors(path, 3).nested()
    [[[0, 1], [2, 3]], [[4, 5]]]
    """
    check_height(height)
    tree = CodingTree([np.zeros(len(graph), dtype=np.int64)])
    if height > 1:
        tree = insert_level(tree, 0, split(leaf_siblings(graph, tree)))
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


class Growth(NamedTuple):
    """A level that can be inserted into a tree: the new parent of each child, and the gain of the released code."""

    middle: Ints
    gain: float


def leaf_up(graph: Graph, tree: CodingTree) -> Growth:
    """Split each node of level 1 as a separate graph."""
    siblings = leaf_siblings(graph, tree)
    degrees = sibling_degrees(siblings)
    group_volumes = np.bincount(siblings.groups, degrees, len(siblings.group_volumes)).astype(np.float64)
    middle = split(siblings._replace(volumes=degrees, group_volumes=group_volumes))
    gain = entropy_saved(siblings, middle, siblings.group_volumes + SMOOTHING, SMOOTHING)
    return Growth(middle, gain / (graph.volume * len(graph)) if graph.volume else 0.0)


def root_down(graph: Graph, tree: CodingTree) -> Growth:
    """Split the root; the released code smooths the root's volume after the split but not before."""
    siblings = root_siblings(graph, tree)
    middle = split(siblings)
    children = len(middle)
    if children < 3 or graph.volume == 0:
        return Growth(middle, 0.0)
    inside = middle[siblings.sources] == middle[siblings.targets]
    crossing = 2 * float(siblings.weights[~inside].sum())
    gain = entropy_saved(siblings, middle, siblings.group_volumes, SMOOTHING)
    gain -= crossing * float(np.log2(1 + SMOOTHING / graph.volume))
    return Growth(middle, gain / (graph.volume * children))


def split(siblings: Siblings) -> Ints:
    """Merge pairs to a binary tree, reduce it to height 2, and return the new parent of each child."""
    children, roots = len(siblings.volumes), len(siblings.group_volumes)
    return align(delete_to_height_2(merge_pairs(siblings), children, roots, SMOOTHING, True), children + roots)


def sibling_degrees(siblings: Siblings) -> Floats:
    """Return the weight of the edges from each child to the other children of its node."""
    ends = np.concatenate([siblings.sources, siblings.targets])
    return np.bincount(ends, np.tile(siblings.weights, 2), len(siblings.volumes)).astype(np.float64)


# Merging


def merge_pairs(siblings: Siblings) -> Forest:
    """Merge the best adjacent pair while a group has more than two children; ties go to smaller nodes."""
    communities = Communities(siblings)
    sizes = np.bincount(siblings.groups, minlength=len(siblings.group_volumes)).tolist()
    while communities.heap:
        _, node, other = heappop(communities.heap)
        group = communities.groups[node]
        if sizes[group] > 2 and communities.is_current(node) and communities.is_current(other):
            sizes[group] -= 1
            communities.merge(node, other)
    return Forest(
        np.array(communities.parents, dtype=np.int64),
        np.array(communities.groups, dtype=np.int64),
        np.array(communities.volumes, dtype=np.float64),
        np.array(communities.cuts, dtype=np.float64),
    )


Kind = tuple[float, float, float]
"""Properties of a neighbour: its volume, the weight of the edges that leave it, and the weight of the connection."""


class Communities:
    """The communities during merging. Every merge adds a node to `parents`, `groups`, `volumes` and `cuts`.

    A merge changes the gain of all pairs of a community, and a label may have a million children. Therefore a large
    community stores its small neighbours by kind: pairs with neighbours of one kind have the same gain and the smallest
    node is first, so only that pair is on the heap. A community keeps its slot when it grows, and its neighbours refer
    to the slot, so that they need no update.
    """

    def __init__(self, siblings: Siblings):
        children, roots = len(siblings.volumes), len(siblings.group_volumes)
        self._roots, self._first = children, children + roots
        self._group_volumes: list[float] = siblings.group_volumes.tolist()
        self.groups: list[int] = [*siblings.groups.tolist(), *range(roots)]
        self.parents: list[int] = [children + group for group in self.groups]
        self.volumes: list[float] = [*siblings.volumes.tolist(), *self._group_volumes]
        self.cuts = [0.0] * self._first
        self.heap: list[tuple[float, int, int]] = []
        self._degrees = [*sibling_degrees(siblings).tolist(), *[0.0] * roots]
        self._slots = list(range(self._first))  # of each node
        self._nodes = list(range(self._first))  # of each slot
        self._neighbours: list[dict[int, float]] = [{} for _ in range(children)]
        edges = list(zip(siblings.sources.tolist(), siblings.targets.tolist(), siblings.weights.tolist(), strict=True))
        for source, target, weight in edges:
            self._neighbours[source][target] = self._neighbours[target][source] = weight
        large = [slot for slot, neighbours in enumerate(self._neighbours) if len(neighbours) >= LARGE]
        self._kinds: dict[int, dict[Kind, list[int]]] = {slot: {} for slot in large}
        self._large: dict[int, set[int]] = {slot: set() for slot in large}  # large neighbours of large communities
        for source, target, _ in edges:
            if source not in self._kinds and target not in self._kinds:
                self._push(source, target)
        for slot in large:
            self._store(slot, self._neighbours[slot])
            self._push_all(slot)

    def is_current(self, node: int) -> bool:
        """Return whether a node has not been merged yet."""
        return self.parents[node] < self._first

    def merge(self, node: int, other: int) -> None:
        """Create the parent of two nodes and push its pairs."""
        slot, merged = self._slots[node], self._slots[other]
        if (slot in self._kinds, len(self._neighbours[slot])) < (merged in self._kinds, len(self._neighbours[merged])):
            slot, merged = merged, slot
        cut = self._neighbours[slot].pop(merged)
        del self._neighbours[merged][slot]
        # The lists of large neighbours that contain one of the two, if it is small.
        small = [each for each in (slot, merged) if each not in self._kinds]
        outdated = [
            (near, self._kind(near, each)) for each in small for near in self._neighbours[each] if near in self._kinds
        ]
        new, group = len(self.parents), self.groups[node]
        self.parents[node] = self.parents[other] = new
        self.parents.append(self._roots + group)
        self.groups.append(group)
        self.volumes.append(self.volumes[node] + self.volumes[other])
        self._degrees.append(self._degrees[node] + self._degrees[other] - 2 * cut)
        self.cuts.append(cut)
        self._slots.append(slot)
        self._nodes[slot] = new
        neighbours, moved = self._neighbours[slot], self._neighbours[merged]
        for each, weight in moved.items():
            neighbours[each] = self._neighbours[each][slot] = neighbours.get(each, 0.0) + weight
            del self._neighbours[each][merged]
        for each in self._large.pop(merged, ()):
            self._large[each].discard(merged)
        self._kinds.pop(merged, None)
        if slot not in self._kinds and len(neighbours) >= LARGE:
            self._kinds[slot], self._large[slot], moved = {}, set(), neighbours
        if slot in self._kinds:
            self._store(slot, moved)
            self._push_all(slot)
        else:
            for neighbour in neighbours:
                if neighbour in self._kinds:
                    self._store(neighbour, [slot])
                    self._push_kind(neighbour, self._kind(neighbour, slot))
                else:
                    self._push(slot, neighbour)
        for large, kind in outdated:
            self._push_kind(large, kind)

    def _kind(self, slot: int, neighbour: int) -> Kind:
        node = self._nodes[neighbour]
        return self.volumes[node], self._degrees[node], self._neighbours[slot][neighbour]

    def _store(self, slot: int, neighbours: Iterable[int]) -> None:
        """Add neighbours to the lists of a large community."""
        for other in neighbours:
            if other in self._kinds:
                self._large[slot].add(other)
                self._large[other].add(slot)
            else:
                heappush(self._kinds[slot].setdefault(self._kind(slot, other), []), self._nodes[other])

    def _push_all(self, slot: int) -> None:
        """Push the pairs of a large community."""
        for other in self._large[slot]:
            self._push(slot, other)
        for kind in list(self._kinds[slot]):
            self._push_kind(slot, kind)

    def _push_kind(self, slot: int, kind: Kind) -> None:
        """Push the first pair of a large community with a neighbour of this kind, if there is one."""
        nodes, neighbours = self._kinds[slot].get(kind, []), self._neighbours[slot]
        while nodes and not (self.is_current(nodes[0]) and neighbours.get(self._slots[nodes[0]]) == kind[2]):
            heappop(nodes)
        if nodes:
            self._push(slot, self._slots[nodes[0]])
        else:
            self._kinds[slot].pop(kind, None)

    def _push(self, slot: int, neighbour: int) -> None:
        """Push a pair with the smoothed change of entropy if the two communities are merged."""
        node, other = sorted((self._nodes[slot], self._nodes[neighbour]))
        volume, other_volume = self.volumes[node] + SMOOTHING, self.volumes[other] + SMOOTHING
        both, total = volume + other_volume, self._group_volumes[self.groups[node]]
        within = (self.volumes[node] - self._degrees[node]) * log2(both / volume)
        within += (self.volumes[other] - self._degrees[other]) * log2(both / other_volume)
        change = (within - 2 * self._neighbours[slot][neighbour] * log2(total / both)) / total
        heappush(self.heap, (change, node, other))
