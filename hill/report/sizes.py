"""How many labels and how many paths documents have."""

import numpy as np

from hill.report.block import Block, Cells
from hill.types import IntArray


class Sizes:
    """Documents by how many labels, ancestors included, and how many paths are gold and are predicted."""

    def __init__(self, labels: int) -> None:
        self._labels, self._paths = np.zeros((2, 2, labels + 1), dtype=np.int64)

    def update(self, block: Block) -> None:
        """Count these documents."""
        for place, (labels, ends) in enumerate(((block.gold, block.gold_ends), (block.chosen, block.chosen_ends))):
            self._labels[place] += self._count(labels)
            self._paths[place] += self._count(ends)

    def _count(self, labels: Cells) -> IntArray:
        return np.bincount(np.diff(labels.indptr), minlength=self._labels.shape[1])

    def document(self) -> dict[str, dict[str, list[int]]]:
        """Documents with 0, 1, 2, ... labels and paths, up to the most that there are."""
        found = {}
        for name, counts in (("labels", self._labels), ("paths", self._paths)):
            most = np.flatnonzero(counts.any(axis=0)).max(initial=0) + 1
            found[name] = {"gold": counts[0, :most].tolist(), "predicted": counts[1, :most].tolist()}
        return found
