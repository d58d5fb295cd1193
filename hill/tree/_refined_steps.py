"""The three steps of `refined` on whole trees, as lists of parent arrays from the leaves up: split, cut, move."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hill.tree._refined_cut import choose
from hill.tree._refined_graph import Level, renumber
from hill.tree._refined_merge import merge_children, new_forest
from hill.tree._refined_moves import move_nodes, new_state

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Parents = list[Ints]

# Moves stop after this many looks at each node, and after this many rounds over all levels. Few graphs come that far:
# long paths whose weights grow, along which borders creep.
PASSES = 20
ROUNDS = 10


def levels_above(level: Level, parents: Parents) -> list[Level]:
    """Return the levels of a tree above its leaves."""
    levels = []
    for array, size in zip(parents, [*map(len, parents[1:]), 1], strict=True):
        level = level.above(array, size)
        levels.append(level)
    return levels


def cost(level: Level, parents: Parents) -> float:
    """Return the entropy times half the volume of the graph, up to a constant."""
    return sum(float((each.inner * _logs(each.volumes)).sum()) for each in levels_above(level, parents))


def split(level: Level, parents: Parents, haste: float) -> tuple[Ints, Floats, Floats]:
    """Put a binary tree between each node of a tree and its children; return all nodes' parents, volumes and cuts.

    Children come before their parents, the leaves are the first nodes and the root is the last.
    """
    nodes: list[tuple[Ints, Floats, Floats]] = []
    offset, rest = 0, np.zeros(len(level.volumes))
    for array, above in zip(parents, levels_above(level, parents), strict=True):
        forest = new_forest(level.volumes, array)
        left = merge_children(*level[:3], above.volumes, forest, haste)
        size = max(len(array), int(forest.parents.max()) + 1)
        tops = np.where(forest.parents < 0, size + forest.groups, forest.parents) + offset
        forest.cuts[: len(array)] = rest
        nodes.append((tops[:size], forest.volumes[:size], forest.cuts[:size]))
        offset, rest, level = offset + size, left, above
    nodes.append((np.array([-1]), level.volumes, rest))
    ups, volumes, cuts = (np.concatenate(arrays) for arrays in zip(*nodes, strict=True))
    return ups, volumes, cuts


def cut(level: Level, parents: Parents, height: int, haste: float) -> Parents:
    """Return the best tree of a height that keeps nodes of a tree or of its `split`; it costs no more than the tree."""
    ups, volumes, cuts = split(level, parents, haste)
    nearest, left = choose(ups, _logs(volumes), cuts, height)
    own = np.arange(len(level.volumes))
    below, node, size = own, nearest[own], len(own)
    levels: Parents = []
    for k in range(height - 1):
        here = left[node] == k
        members = np.where(here, node, own)
        used = np.zeros(len(ups), np.bool_)
        used[members] = True
        members = (np.cumsum(used) - 1)[members]
        levels.append(_parents(below, members, size))
        below, size = members, int(used.sum())
        node = np.where(here, nearest[ups[node]], node)
    return [*levels, np.zeros(size, np.int64)]


def move(level: Level, parents: Parents, slack: float) -> Parents:
    """Move the nodes of all levels to better parents and merge siblings, until nothing lowers the cost."""
    parents, leaves = list(parents), level
    for _ in range(ROUNDS):
        total, level = 0.0, leaves
        for h in range(len(parents) - 1):
            parents[h:], change = _move(level, np.zeros(len(level.volumes)), parents[h:], slack)
            above = level.above(parents[h], len(parents[h + 1]))
            (merged, *upper), gain = _move(
                above, above.inner, [np.arange(len(above.volumes)), *parents[h + 1 :]], slack
            )
            if gain < 0.0:
                parents[h:] = [merged[parents[h]], *upper]
                above = level.above(parents[h], len(parents[h + 1]))
            total, level = total + change + gain, above
        if total > -slack:
            break
    return parents


def _move(level: Level, inner: Floats, parents: Parents, slack: float) -> tuple[Parents, float]:
    up = np.zeros((len(parents), len(parents[0])), np.int64)
    for row, array in zip(up, parents, strict=True):
        row[: len(array)] = array
    change = move_nodes(*level[:3], inner, *new_state(up, level.volumes), slack, PASSES)
    return [row[:size] for row, size in zip(up, renumber(up), strict=True)], change


def _parents(below: Ints, members: Ints, size: int) -> Ints:
    parents = np.empty(size, np.int64)
    parents[below] = members
    return parents


def _logs(volumes: Floats) -> Floats:
    return np.log2(np.where(volumes > 0.0, volumes, 1.0))
