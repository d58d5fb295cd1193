"""The best tree of limited height among those that keep only nodes of a taller one: exact, compiled.

Let x be the logarithm of the volume of the nearest kept ancestor. The least cost f(x) of all edges that meet at or
below a node v, if k more nodes may be kept on every way down, is concave, rising and piecewise linear: it is the
smaller of a sum of such functions (v is dropped, its own edges pay x) and a constant (v is kept). So v is kept if x is
above a threshold, which is also the last break point of f. Functions are passed up as sorted lists of break points,
with the line left of the first and the line right of the last. As x only grows on the way, break points are forgotten
from the left, and they are cut off on the right where the constant is smaller: each is added once and removed once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hill.tree._compile import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Volumes whose logarithms differ by less are the same volume.
TIE = 1e-12


class Lines(NamedTuple):
    """A piecewise linear function for every node; each node owns at most one break point, named after it."""

    low: Floats
    low_slope: Floats
    """Line before the first break point."""
    high: Floats
    high_slope: Floats
    """Line after the last."""
    first: Ints
    last: Ints
    """Ends of the list of break points, or -1."""
    after: Ints
    before: Ints
    at: Floats
    """Place of a node's break point; infinite where it has none."""
    drop: Floats
    """Slope lost at it."""


def _new_lines(size: int) -> Lines:
    zeros, ends = np.zeros((5, size)), np.full((4, size), -1)
    at = np.full(size, np.inf)
    return Lines(zeros[0], zeros[1], zeros[2], zeros[3], ends[0], ends[1], ends[2], ends[3], at, zeros[4])


@njit
def _forget_below(lines: Lines, node: int, x: float) -> None:
    point = lines.first[node]
    while point >= 0 and lines.at[point] <= x:
        lines.low[node] += lines.drop[point] * lines.at[point]
        lines.low_slope[node] -= lines.drop[point]
        point = lines.after[point]
    lines.first[node] = point
    if point >= 0:
        lines.before[point] = -1
    else:
        lines.last[node] = -1
        lines.high[node], lines.high_slope[node] = lines.low[node], lines.low_slope[node]


@njit
def _cap(lines: Lines, node: int, constant: float, x: float) -> None:
    """Replace the function by `constant` where it is larger, with a break point of the node's own."""
    steep = TIE * lines.low_slope[node]
    while True:
        point, slope = lines.last[node], lines.high_slope[node]
        start = lines.high[node] + slope * lines.at[point] if point >= 0 else -np.inf
        if start <= constant:
            break
        lines.high[node] -= lines.drop[point] * lines.at[point]
        lines.high_slope[node] += lines.drop[point]
        lines.last[node] = lines.before[point]
    if slope <= steep:
        return
    lines.at[node] = max((constant - lines.high[node]) / slope, x)
    lines.drop[node] = slope
    lines.before[node], lines.after[node] = point, -1
    if point >= 0:
        lines.after[point] = node
    else:
        lines.first[node] = node
    lines.last[node] = node
    lines.high[node], lines.high_slope[node] = constant, 0.0


@njit
def _add_points(lines: Lines, node: int, parent: int) -> None:
    """Merge the break points of a node into those of its parent."""
    a, b, last = lines.first[parent], lines.first[node], -1
    if a < 0 or b < 0:
        lines.first[parent], lines.last[parent] = max(a, b), max(lines.last[parent], lines.last[node])
        return
    while a >= 0 or b >= 0:
        if b < 0 or (a >= 0 and lines.at[a] <= lines.at[b]):
            point, a = a, lines.after[a]
        else:
            point, b = b, lines.after[b]
        lines.before[point] = last
        if last >= 0:
            lines.after[last] = point
        else:
            lines.first[parent] = point
        last = point
    lines.after[last], lines.last[parent] = -1, last


@njit
def _pass_up(parents: Ints, logs: Floats, cuts: Floats, kept: Floats, lines: Lines) -> Floats:
    """Find every node's threshold from its cost if kept; return that cost with one more node to keep below."""
    deeper = np.empty(len(parents))
    for node in range(len(parents)):
        lines.low_slope[node] += cuts[node]
        lines.high_slope[node] += cuts[node]
        deeper[node] = lines.low[node] + lines.low_slope[node] * logs[node]
        parent = parents[node]
        if parent < 0:
            continue
        if lines.low_slope[node] > 0.0:
            _cap(lines, node, kept[node], logs[node])
        # Before the lists are merged: a hub would carry the points of all its small neighbours along.
        _forget_below(lines, node, logs[parent])
        lines.low[parent] += lines.low[node]
        lines.low_slope[parent] += lines.low_slope[node]
        lines.high[parent] += lines.high[node]
        lines.high_slope[parent] += lines.high_slope[node]
        _add_points(lines, node, parent)
    return deeper


@njit
def _pass_down(parents: Ints, logs: Floats, thresholds: Floats) -> tuple[Ints, Ints]:
    size = len(parents)
    nearest, left = np.empty(size, np.int64), np.empty(size, np.int64)
    nearest[size - 1], left[size - 1] = size - 1, len(thresholds)
    for node in range(size - 2, -1, -1):
        above, k = nearest[parents[node]], left[parents[node]]
        keep = k > 0 and logs[above] > thresholds[k - 1, node] + TIE
        nearest[node], left[node] = (node, k - 1) if keep else (above, k)
    return nearest, left


@njit
def _sum_up(parents: Ints, values: Floats) -> Floats:
    sums = values.copy()
    for node in range(len(parents) - 1):
        sums[parents[node]] += sums[node]
    return sums


def choose(parents: Ints, logs: Floats, cuts: Floats, height: int) -> tuple[Ints, Ints]:
    """Choose which nodes of a tree to keep: each node's nearest kept ancestor or self, and the levels left below that.

    Nodes come before their parents, the root last with parent -1. `logs` are the logarithms of the volumes, `cuts` the
    weights of the edges that meet at each node.
    """
    thresholds = np.empty((height - 1, len(parents)))
    kept = _sum_up(parents, cuts) * logs
    for row in thresholds:
        lines = _new_lines(len(parents))
        kept = _pass_up(parents, logs, cuts, kept, lines)
        row[:] = lines.at
    return _pass_down(parents, logs, thresholds)
