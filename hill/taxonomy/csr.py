"""Neighbour lists as flat arrays: who is below or above whom, for many labels at once."""

from collections.abc import Iterator

import numpy as np

from hill.types import IntArray


class Adjacency:
    """For each of n rows the rows it points to, as `targets[starts[i]:starts[i + 1]]`."""

    def __init__(self, sources: IntArray, targets: IntArray, n: int) -> None:
        order = np.argsort(sources, kind="stable")
        self.targets = targets[order]
        self.starts = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(np.bincount(sources, minlength=n), out=self.starts[1:])

    def __getitem__(self, row: int) -> IntArray:
        return self.targets[self.starts[row] : self.starts[row + 1]]

    def counts(self, rows: IntArray) -> IntArray:
        """How many rows each of these points to."""
        counts: IntArray = self.starts[rows + 1] - self.starts[rows]
        return counts

    def expand(self, rows: IntArray) -> IntArray:
        """All that these rows point to, one after the other, repeats kept."""
        counts = self.counts(rows)
        ends = np.cumsum(counts)
        offsets = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
        targets: IntArray = self.targets[np.repeat(self.starts[rows], counts) + offsets]
        return targets

    def reach(self, rows: IntArray) -> IntArray:
        """These rows and all that can be reached from them, sorted."""
        seen = np.zeros(len(self.starts) - 1, dtype=bool)
        frontier = np.unique(rows)
        while len(frontier):
            seen[frontier] = True
            following = self.expand(frontier)
            frontier = np.unique(following[~seen[following]])
        return np.flatnonzero(seen)


def waves(up: Adjacency, down: Adjacency, n: int) -> Iterator[IntArray]:
    """Rows in waves, each after all that stands above it; rows on or below a cycle never come."""
    waiting = up.counts(np.arange(n))
    wave = np.flatnonzero(waiting == 0)
    while len(wave):
        yield wave
        below, times = np.unique(down.expand(wave), return_counts=True)
        waiting[below] -= times
        wave = below[waiting[below] == 0]
