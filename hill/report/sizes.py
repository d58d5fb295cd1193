"""How many labels and how many paths documents have."""

import numpy as np

from hill.report.block import Block
from hill.types import BoolArray


class Sizes:
    """Documents by how many labels, ancestors included, and how many paths are gold and are predicted."""

    def __init__(self, labels: int) -> None:
        self._labels, self._paths = np.zeros((2, 2, labels + 1), dtype=np.int64)

    def update(self, block: Block) -> None:
        """Count these documents."""
        for place, labels in enumerate((block.gold, block.chosen)):
            self._labels[place] += self._count(labels, axis=1)
        for place, closed in enumerate((block.closed_gold, block.closed)):
            self._paths[place] += self._count(block.ends(closed), axis=0)

    def _count(self, mask: BoolArray, axis: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        return np.bincount(np.count_nonzero(mask, axis=axis), minlength=self._labels.shape[1])

    def document(self) -> dict[str, dict[str, list[int]]]:
        """Documents with 0, 1, 2, ... labels and paths, up to the most that there are."""
        found = {}
        for name, counts in (("labels", self._labels), ("paths", self._paths)):
            most = np.flatnonzero(counts.any(axis=0)).max(initial=0) + 1
            found[name] = {"gold": counts[0, :most].tolist(), "predicted": counts[1, :most].tolist()}
        return found
