"""How far paths are right: where they part from the gold ones, and how far from those they end."""

import numpy as np

from hill.metrics.sparse import look_up
from hill.report.block import Block, Cells
from hill.taxonomy import Taxonomy
from hill.taxonomy.cells import documents_of, expand, places_of, with_values
from hill.types import BoolArray, IntArray

KINDS = ("right", "early", "deep", "sibling", "cousin", "far", "nothing")
RIGHT, EARLY, DEEP, SIBLING, COUSIN, FAR, NOTHING = range(len(KINDS))
SWAPPED = [RIGHT, DEEP, EARLY, SIBLING, COUSIN, FAR, NOTHING]
"""Seen from the prediction, what ends before the gold path does is too early, and what goes on after it too deep."""
NEVER = np.int64(2**40)
"""Deeper than any label."""


class Paths:
    """Counts paths by kind and by the level where they are first wrong, 0 where they are right.

    A path is a most specific label with all above it. Of a gold path, the prediction has it (right), has it and more
    below it (deep), or lacks its end. Then there is a wrong label under the same parent (sibling), a wrong label below
    the last label that both share (cousin), or no wrong label there, and the prediction ends at that label (early).
    Where they share no label, something wrong is predicted (far) or not (nothing); nothing, too, where the prediction
    only goes on to other right labels. The same for predicted paths, gold and predicted being exchanged.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._depth = taxonomy.depth
        self._lineage, self._parents = taxonomy.lineage, taxonomy.parent_table
        levels = len(taxonomy.levels) + 1
        self.gold, self.predicted = np.zeros((2, len(KINDS), levels), dtype=np.int64)
        self.documents: IntArray = np.zeros(levels, dtype=np.int64)
        """Documents by the first level at which any label is wrong or missed."""

    def update(self, block: Block) -> None:
        """Count these documents."""
        differing = (block.closed > block.closed_gold) + (block.closed_gold > block.closed)
        first = np.full(len(block.documents), NEVER)
        np.minimum.at(first, documents_of(differing), self._depth[differing.indices])
        self.documents += np.bincount(np.where(first < NEVER, first, 0), minlength=len(self.documents))
        gold, predicted = (block.closed_gold, block.gold_ends), (block.closed, block.chosen_ends)
        self.gold += self._compare(gold, predicted, block)
        self.predicted += self._compare(predicted, gold, block)[SWAPPED]

    def _compare(self, mine: tuple[Cells, Cells], theirs: tuple[Cells, Cells], block: Block) -> IntArray:
        """What became of each path of a label set, given with its ends, in another: kinds by levels."""
        (own, own_ends), (other, other_ends) = mine, theirs
        edges, strange = block.moving, other > own
        rows, documents = own_ends.indices, documents_of(own_ends)  # P paths
        below = edges.close(with_values(strange, NEVER - self._depth[strange.indices]))
        path, step = expand(self._lineage, rows)
        place, depth = documents[path] * own.shape[1] + step, self._depth[step]
        found = look_up(other, place)
        reach, first = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), NEVER)
        np.maximum.at(reach, path[found], depth[found])
        np.minimum.at(first, path[~found], depth[~found])
        last = found & (depth == reach[path])
        astray = _any(last & (look_up(below, place) > 0), path, len(rows))
        stops = _any(last & look_up(other_ends, place), path, len(rows))
        path, parent = expand(self._parents, rows)
        beside = look_up(edges.with_child(strange), documents[path] * own.shape[1] + parent)
        sibling = _any(beside, path, len(rows))
        end = places_of(own_ends)
        hit, ended = look_up(other, end), look_up(other_ends, end)
        lost = (reach == 0) & (np.diff(strange.indptr) > 0)[documents]
        kind = np.select(
            [hit & ended, hit, sibling, astray, stops, lost], [RIGHT, DEEP, SIBLING, COUSIN, EARLY, FAR], NOTHING
        )
        level = np.where(hit, np.where(ended, 0, NEVER - look_up(below, end)), first)
        width = self.gold.shape[1]
        return np.bincount(kind * width + level, minlength=self.gold.size).reshape(-1, width)


def _any(mask: BoolArray, group: IntArray, groups: int) -> BoolArray:
    """Whether any of the masks of each group is true."""
    return np.bincount(group[mask], minlength=groups) > 0
