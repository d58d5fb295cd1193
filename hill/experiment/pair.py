"""Two runs on the same documents, as counts a document from which any resample is scored at once."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, hstack, vstack

from hill.errors import DataError
from hill.experiment.predictions import DECODINGS, Predictions
from hill.metrics.counts import ratio
from hill.metrics.edges import Edges
from hill.settings import one_of
from hill.types import FloatArray

MEASURES = ("micro_f1", "macro_f1", "hierarchical_f1")
CLOSED_CELLS = 2**22


class Pair:
    """What two runs predicted for the same documents, as counts a document that any resample is a weighted sum of.

    Columns of the counts of a run: for each label whether it is a hit (L) and whether it is predicted (L), then how
    many labels of the closed sets are hits and are predicted.
    """

    def __init__(self, a: Predictions, b: Predictions, decoding: str) -> None:
        one_of(decoding, DECODINGS, "decoding")
        _check_same(a, b)
        edges = Edges(a.taxonomy)
        self.labels = len(a.taxonomy)
        closed = _close(a.gold, edges)
        self.gold = _columns([a.gold, _totals(closed)])
        self.counts = [_counts(run.predicted[decoding], a.gold, closed, edges) for run in (a, b)]

    def __len__(self) -> int:
        return int(self.gold.shape[0])

    def scores(self, counts: npt.NDArray[Any], gold: npt.NDArray[Any]) -> FloatArray:
        """Measures (3, n) of summed counts of a run (2 L + 2, n) and of gold (L + 1, n)."""
        hits, predicted = counts[: self.labels], counts[self.labels : -2]
        own = gold[:-1]
        micro = ratio(2 * hits.sum(axis=0), predicted.sum(axis=0) + own.sum(axis=0))
        macro = ratio(2 * hits, predicted + own).mean(axis=0)
        return np.stack([micro, macro, ratio(2 * counts[-2], counts[-1] + gold[-1])])

    def weighted(self, weights: npt.NDArray[np.int64]) -> FloatArray:
        """B - A of the measures (3, n) where documents occur as often as these weights say (documents, n)."""
        gold = self.gold.T @ weights
        a, b = (self.scores(counts.T @ weights, gold) for counts in self.counts)
        return b - a

    def swapped(self, swaps: npt.NDArray[np.int64]) -> FloatArray:
        """B - A of the measures (3, n) where the runs have changed places in some documents (documents, n)."""
        change = (self.counts[1] - self.counts[0]).T @ swaps
        gold, (a, b) = self.gold.sum(axis=0)[:, None], (counts.sum(axis=0)[:, None] for counts in self.counts)
        return self.scores(b - change, gold) - self.scores(a + change, gold)

    def observed(self) -> FloatArray:
        """The measures of both runs: (2, 3)."""
        gold = self.gold.sum(axis=0)[:, None]
        return np.stack([self.scores(counts.sum(axis=0)[:, None], gold)[:, 0] for counts in self.counts])


def _check_same(a: Predictions, b: Predictions) -> None:
    if a.taxonomy.ids != b.taxonomy.ids or not np.array_equal(a.taxonomy.edge_array, b.taxonomy.edge_array):
        raise DataError("the two runs have different taxonomies; compare runs on the same data")
    if a.ids != b.ids:
        place = next((i for i, ids in enumerate(zip(a.ids, b.ids, strict=False)) if ids[0] != ids[1]), None)
        what = (
            f"{len(a.ids)} and {len(b.ids)}"
            if place is None
            else f"number {place} is '{a.ids[place]}' or '{b.ids[place]}'"
        )
        raise DataError(f"the two runs have different test documents ({what}); compare runs on the same data")
    if not all(np.array_equal(x, y) for x, y in zip(_shape(a.gold), _shape(b.gold), strict=True)):
        raise DataError("the two runs have different gold labels for the same documents; compare runs on the same data")
    if not a.ids:
        raise DataError("the two runs have no test documents")


def _shape(table: csr_array[Any]) -> tuple[Any, Any]:
    """Which labels each document has, whatever the types of the numbers."""
    ordered = table.sorted_indices()
    return ordered.indptr, ordered.indices


def _counts(chosen: csr_array[Any], gold: csr_array[Any], closed_gold: csr_array[Any], edges: Edges) -> csr_array[Any]:
    closed = _close(chosen, edges)
    return _columns([chosen.multiply(gold), chosen, _totals(closed.multiply(closed_gold)), _totals(closed)])


def _columns(parts: list[csr_array[Any]]) -> csr_array[Any]:
    return csr_array(hstack([part.astype(np.int64) for part in parts]))


def _totals(table: csr_array[Any]) -> csr_array[Any]:
    """Labels of each document: (documents, 1)."""
    return csr_array(table.sum(axis=1, dtype=np.int64)[:, None])


def _close(table: csr_array[Any], edges: Edges) -> csr_array[Any]:
    """Label sets with all ancestors, some documents at a time."""
    size = max(1, CLOSED_CELLS // max(table.shape[1], 1))
    parts = [table[start : start + size].toarray() for start in range(0, table.shape[0], size)]
    return csr_array(vstack([csr_array(edges.close(np.ascontiguousarray(part.T)).T) for part in parts]))
