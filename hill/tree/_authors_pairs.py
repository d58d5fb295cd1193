"""The pairs of communities that the released code's merging chooses from, the best of them always on a heap."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from math import log2

from hill.tree._common_levels import Floats, Stars

LARGE = 32
"""Neighbours from which a community is large."""

Kind = tuple[float, float, float]
"""Of a neighbour: its volume, the weight that leaves it, and the weight between the two."""


class Pairs:
    """Communities while they merge: nodes as in `Forest`, lists that grow by one at each merge.

    A community that grows changes what all its pairs are worth, and a label may have a million children. So a large
    community keeps small neighbours by kind: pairs with neighbours of one kind are worth the same, of which the
    smallest node comes first, and only that one is on the heap. Neighbours know a community by its body, which is
    the same after it has grown, so that they need not be told.
    """

    def __init__(self, stars: Stars, cuts: Floats, smoothing: float):
        children, roots = len(stars.volumes), len(stars.group_volumes)
        self._smoothing, self._roots, self._first = smoothing, children, children + roots
        self._totals: list[float] = stars.group_volumes.tolist()
        self.groups: list[int] = [*stars.groups.tolist(), *range(roots)]
        self.parents: list[int] = [children + group for group in self.groups]
        self.volumes: list[float] = [*stars.volumes.tolist(), *self._totals]
        self.cuts = [0.0] * self._first
        self.heap: list[tuple[float, int, int]] = []
        self._outside = [*cuts.tolist(), *[0.0] * roots]
        self._bodies = list(range(self._first))  # of each node
        self._nodes = list(range(self._first))  # of each body
        self._near: list[dict[int, float]] = [{} for _ in range(children)]
        edges = list(zip(stars.sources.tolist(), stars.targets.tolist(), stars.weights.tolist(), strict=True))
        for source, target, weight in edges:
            self._near[source][target] = self._near[target][source] = weight
        large = [body for body, near in enumerate(self._near) if len(near) >= LARGE]
        self._kinds: dict[int, dict[Kind, list[int]]] = {body: {} for body in large}
        self._large: dict[int, set[int]] = {body: set() for body in large}  # large neighbours of large bodies
        for source, target, _ in edges:
            if source not in self._kinds and target not in self._kinds:
                self._push(source, target)
        for body in large:
            self._file(body, self._near[body])
            self._offer_all(body)

    def stands(self, node: int) -> bool:
        """Whether a node is not merged yet."""
        return self.parents[node] < self._first

    def merge(self, node: int, other: int) -> None:
        """Make the parent of two nodes, and offer its pairs."""
        keep, gone = self._bodies[node], self._bodies[other]
        if (keep in self._kinds, len(self._near[keep])) < (gone in self._kinds, len(self._near[gone])):
            keep, gone = gone, keep
        cut = self._near[keep].pop(gone)
        del self._near[gone][keep]
        left = [found for body in (keep, gone) for found in self._filed(body)]
        self._add(node, other, cut)
        self._nodes[keep] = len(self._bodies)
        self._bodies.append(keep)
        moved: Iterable[int] = self._move(keep, gone)
        if keep not in self._kinds and len(self._near[keep]) >= LARGE:
            self._kinds[keep], self._large[keep], moved = {}, set(), self._near[keep]
        if keep in self._kinds:
            self._file(keep, moved)
            self._offer_all(keep)
        else:
            self._enter(keep)
        for body, kind in left:
            self._offer(body, kind)

    def _add(self, node: int, other: int, cut: float) -> None:
        new, group = len(self.parents), self.groups[node]
        self.parents[node] = self.parents[other] = new
        self.parents.append(self._roots + group)
        self.groups.append(group)
        self.volumes.append(self.volumes[node] + self.volumes[other])
        self._outside.append(self._outside[node] + self._outside[other] - 2 * cut)
        self.cuts.append(cut)

    def _move(self, keep: int, gone: int) -> dict[int, float]:
        """Hand the neighbours of one body to another."""
        near, moved = self._near[keep], self._near[gone]
        for body, weight in moved.items():
            near[body] = self._near[body][keep] = near.get(body, 0.0) + weight
            del self._near[body][gone]
        for body in self._large.pop(gone, ()):
            self._large[body].discard(gone)
        self._kinds.pop(gone, None)
        return moved

    def _kind(self, body: int, other: int) -> Kind:
        node = self._nodes[other]
        return self.volumes[node], self._outside[node], self._near[body][other]

    def _filed(self, body: int) -> list[tuple[int, Kind]]:
        """Where large neighbours of a small body keep it."""
        if body in self._kinds:
            return []
        return [(other, self._kind(other, body)) for other in self._near[body] if other in self._kinds]

    def _file(self, body: int, others: Iterable[int]) -> None:
        """Let a large body keep these neighbours."""
        for other in others:
            if other in self._kinds:
                self._large[body].add(other)
                self._large[other].add(body)
            else:
                heappush(self._kinds[body].setdefault(self._kind(body, other), []), self._nodes[other])

    def _enter(self, body: int) -> None:
        """Offer the pairs of a small body."""
        for other in self._near[body]:
            if other in self._kinds:
                self._file(other, [body])
                self._offer(other, self._kind(other, body))
            else:
                self._push(body, other)

    def _offer_all(self, body: int) -> None:
        """Offer the pairs of a large body."""
        for other in self._large[body]:
            self._push(body, other)
        for kind in list(self._kinds[body]):
            self._offer(body, kind)

    def _offer(self, body: int, kind: Kind) -> None:
        """Offer the first pair of a large body with a neighbour of a kind, if any is left."""
        waiting, near = self._kinds[body].get(kind, []), self._near[body]
        while waiting and not (self.stands(waiting[0]) and near.get(self._bodies[waiting[0]]) == kind[2]):
            heappop(waiting)
        if waiting:
            self._push(body, self._bodies[waiting[0]])
        else:
            self._kinds[body].pop(kind, None)

    def _push(self, body: int, other: int) -> None:
        node, next_node = sorted((self._nodes[body], self._nodes[other]))
        heappush(self.heap, (self._change(node, next_node, self._near[body][other]), node, next_node))

    def _change(self, node: int, other: int, weight: float) -> float:
        """Return the smoothed change of entropy when two communities become one: the less, the better."""
        volume, next_volume = self.volumes[node] + self._smoothing, self.volumes[other] + self._smoothing
        both, total = volume + next_volume, self._totals[self.groups[node]]
        within = (self.volumes[node] - self._outside[node]) * log2(both / volume)
        within += (self.volumes[other] - self._outside[other]) * log2(both / next_volume)
        change: float = (within - 2 * weight * log2(total / both)) / total
        return change
