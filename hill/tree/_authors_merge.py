"""The released code's greedy merging: a heap of adjacent pairs by the change of entropy of merging two communities."""

from __future__ import annotations

from heapq import heappop
from typing import NamedTuple

import numpy as np

from hill.tree._authors_pairs import Pairs
from hill.tree._common_levels import Floats, Ints, Stars


class Forest(NamedTuple):
    """A binary tree for each group: leaves, then roots, then nodes in the order they were made."""

    parents: Ints
    groups: Ints
    volumes: Floats
    cuts: Floats
    """Weight between the two children of a node."""


def merge_pairs(stars: Stars, cuts: Floats, smoothing: float) -> Forest:
    """Merge the best adjacent pair while a group has more than two children; ties go to smaller nodes.

    `cuts` is the weight of the edges from each child to other children.
    """
    pairs = Pairs(stars, cuts, smoothing)
    left = np.bincount(stars.groups, minlength=len(stars.group_volumes)).tolist()
    while pairs.heap:
        _, node, other = heappop(pairs.heap)
        group = pairs.groups[node]
        if left[group] > 2 and pairs.stands(node) and pairs.stands(other):
            left[group] -= 1
            pairs.merge(node, other)
    return Forest(
        np.array(pairs.parents, dtype=np.int64),
        np.array(pairs.groups, dtype=np.int64),
        np.array(pairs.volumes, dtype=np.float64),
        np.array(pairs.cuts, dtype=np.float64),
    )
