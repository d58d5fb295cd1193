"""The released code's greedy merging: a heap of adjacent pairs by the change of entropy of merging two communities."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import log2
from typing import NamedTuple

import numpy as np

from hill.tree._common_levels import Floats, Ints, Stars


class Forest(NamedTuple):
    """A binary tree for each group: leaves, then roots, then nodes in the order they were made."""

    parents: Ints
    groups: Ints
    volumes: Floats
    cuts: Floats
    """Weight between the two children of a node."""


class Merging:
    """Communities while they merge: nodes as in Forest, lists that grow by one at each merge."""

    def __init__(self, stars: Stars, cuts: Floats, smoothing: float):
        children, roots = len(stars.volumes), len(stars.group_volumes)
        self.children, self.smoothing = children, smoothing
        self.totals: list[float] = stars.group_volumes.tolist()
        self.left = np.bincount(stars.groups, minlength=roots).tolist()
        self.groups = [*stars.groups.tolist(), *range(roots)]
        self.parents = [children + group for group in self.groups]
        self.volumes: list[float] = [*stars.volumes.tolist(), *self.totals]
        self.outside = [*cuts.tolist(), *[0.0] * roots]
        self.cuts = [0.0] * (children + roots)
        self.near: list[dict[int, float]] = [{} for _ in range(children + roots)]
        for source, target, weight in zip(
            stars.sources.tolist(), stars.targets.tolist(), stars.weights.tolist(), strict=True
        ):
            self.near[source][target] = self.near[target][source] = weight

    def change(self, node: int, other: int) -> float:
        """Return the smoothed change of entropy when two communities become one: the less, the better."""
        volume, next_volume = self.volumes[node] + self.smoothing, self.volumes[other] + self.smoothing
        both, total = volume + next_volume, self.totals[self.groups[node]]
        within = (self.volumes[node] - self.outside[node]) * log2(both / volume)
        within += (self.volumes[other] - self.outside[other]) * log2(both / next_volume)
        change: float = (within - 2 * self.near[node][other] * log2(total / both)) / total
        return change

    def merge(self, node: int, other: int) -> int:
        """Make the parent of two nodes and return it."""
        new, cut, group = len(self.parents), self.near[node].pop(other), self.groups[node]
        self.left[group] -= 1
        self.parents[node] = self.parents[other] = new
        self.parents.append(self.children + group)
        self.groups.append(group)
        self.volumes.append(self.volumes[node] + self.volumes[other])
        self.outside.append(self.outside[node] + self.outside[other] - 2 * cut)
        self.cuts.append(cut)
        del self.near[other][node]
        self.near.append(self._joined(node, other, new))
        return new

    def _joined(self, node: int, other: int, new: int) -> dict[int, float]:
        """Hand the neighbours of two nodes to a new one; the larger dict is kept, the smaller moved into it."""
        if len(self.near[node]) < len(self.near[other]):
            node, other = other, node
        near, smaller = self.near[node], self.near[other]
        self.near[node] = self.near[other] = {}
        for neighbour, weight in smaller.items():
            near[neighbour] = near.get(neighbour, 0.0) + weight
            del self.near[neighbour][other]
        for neighbour, weight in near.items():
            self.near[neighbour].pop(node, None)  # absent where only the smaller side touched it
            self.near[neighbour][new] = weight
        return near


def merge_pairs(stars: Stars, cuts: Floats, smoothing: float) -> Forest:
    """Merge the best adjacent pair while a group has more than two children; ties go to smaller nodes.

    `cuts` is the weight of the edges from each child to other children.
    """
    state = Merging(stars, cuts, smoothing)
    pairs = zip(stars.sources.tolist(), stars.targets.tolist(), strict=True)
    heap = [(state.change(node, other), node, other) for node, other in pairs]
    heapify(heap)
    while heap:
        _, node, other = heappop(heap)
        if other not in state.near[node] or state.left[state.groups[node]] <= 2:
            continue
        new = state.merge(node, other)
        for neighbour in state.near[new]:
            heappush(heap, (state.change(neighbour, new), neighbour, new))
    return Forest(
        np.array(state.parents, dtype=np.int64),
        np.array(state.groups, dtype=np.int64),
        np.array(state.volumes, dtype=np.float64),
        np.array(state.cuts, dtype=np.float64),
    )
