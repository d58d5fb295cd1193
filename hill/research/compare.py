"""Significance tests between two runs on the same documents: paired bootstrap and approximate randomisation."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, hstack, vstack

from hill.errors import DataError
from hill.metrics.label_sets import ratio
from hill.research.predictions import DECODINGS, Predictions
from hill.settings import check_one_of, within
from hill.taxonomy.propagate import Edges
from hill.types import FloatArray

MEASURES = ("micro_f1", "macro_f1", "hierarchical_f1")
CLOSURE_BLOCK = 2**22


class Pair:
    """The predictions of two runs as counts per document; the counts of a resample are a weighted sum of them.

    Columns of the counts of a run: per label, if it is a hit (L) and if it is predicted (L); then the number of hits
    and of predicted labels after ancestors are added.
    """

    def __init__(self, a: Predictions, b: Predictions, decoding: str) -> None:
        check_one_of(decoding, DECODINGS, "decoding")
        _check_same(a, b)
        edges = Edges(a.taxonomy)
        self.labels = len(a.taxonomy)
        closed = _close(a.gold, edges)
        self.gold = _columns([a.gold, _totals(closed)])
        self.counts = [_counts(run.predicted[decoding], a.gold, closed, edges) for run in (a, b)]

    def __len__(self) -> int:
        return int(self.gold.shape[0])

    def scores(self, counts: npt.NDArray[Any], gold: npt.NDArray[Any]) -> FloatArray:
        """The metrics (3, n) for summed counts of a run (2 L + 2, n) and of the gold labels (L + 1, n)."""
        hits, predicted = counts[: self.labels], counts[self.labels : -2]
        own = gold[:-1]
        micro = ratio(2 * hits.sum(axis=0), predicted.sum(axis=0) + own.sum(axis=0))
        macro = ratio(2 * hits, predicted + own).mean(axis=0)
        return np.stack([micro, macro, ratio(2 * counts[-2], counts[-1] + gold[-1])])

    def weighted(self, weights: npt.NDArray[np.int64]) -> FloatArray:
        """B - A of the metrics (3, n) if documents occur with these multiplicities (documents, n)."""
        gold = self.gold.T @ weights
        a, b = (self.scores(counts.T @ weights, gold) for counts in self.counts)
        return b - a

    def swapped(self, swaps: npt.NDArray[np.int64]) -> FloatArray:
        """B - A of the metrics (3, n) if the runs are swapped in some documents (documents, n)."""
        change = (self.counts[1] - self.counts[0]).T @ swaps
        gold, (a, b) = self.gold.sum(axis=0)[:, None], (counts.sum(axis=0)[:, None] for counts in self.counts)
        return self.scores(b - change, gold) - self.scores(a + change, gold)

    def observed(self) -> FloatArray:
        """The metrics of both runs: (2, 3)."""
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
    """The labels of each document, independent of data types."""
    ordered = table.sorted_indices()
    return ordered.indptr, ordered.indices


def _counts(chosen: csr_array[Any], gold: csr_array[Any], closed_gold: csr_array[Any], edges: Edges) -> csr_array[Any]:
    closed = _close(chosen, edges)
    return _columns([chosen.multiply(gold), chosen, _totals(closed.multiply(closed_gold)), _totals(closed)])


def _columns(parts: list[csr_array[Any]]) -> csr_array[Any]:
    return csr_array(hstack([part.astype(np.int64) for part in parts]))


def _totals(table: csr_array[Any]) -> csr_array[Any]:
    """The number of labels per document: (documents, 1)."""
    return csr_array(table.sum(axis=1, dtype=np.int64)[:, None])


def _close(table: csr_array[Any], edges: Edges) -> csr_array[Any]:
    """Label sets with all ancestors, computed in blocks of documents."""
    size = max(1, CLOSURE_BLOCK // max(table.shape[1], 1))
    parts = [table[start : start + size].toarray() for start in range(0, table.shape[0], size)]
    return csr_array(vstack([csr_array(edges.close(np.ascontiguousarray(part.T)).T) for part in parts]))


DRAW_BLOCK = 2**22
"""Largest number of documents times resamples that is drawn at once."""
MAX_RESAMPLES = 10_000_000
EQUAL = 1e-12
"""Differences up to this size come from rounding."""


@dataclass(frozen=True)
class MetricDifference:
    """A metric of two runs, the difference B - A with its 95 % interval, and the two-sided p-values of both tests."""

    measure: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_bootstrap: float
    p_randomisation: float

    def to_dict(self) -> dict[str, Any]:
        """The values as a dictionary."""
        return asdict(self)


def compare(
    a: Predictions, b: Predictions, decoding: str = "tuned", resamples: int = 10_000, seed: int = 0
) -> list[MetricDifference]:
    """Run both tests for every metric. The same seed gives the same result.

    Bootstrap: documents are drawn with replacement; p is the share of resamples whose difference is at least as far
    from the observed one as that is from 0. Randomisation: in each document the runs are swapped at random; p is the
    share of draws with a difference at least as large as the observed one.
    """
    within(resamples, 1, MAX_RESAMPLES, "--resamples")
    within(seed, 0, 2**63 - 1, "--seed")
    pair = Pair(a, b, decoding)
    scores = pair.observed()
    observed = scores[1] - scores[0]
    drawn = np.concatenate([pair.weighted(weights) for weights in _draws(pair, resamples, seed)], axis=1)
    random = np.concatenate([pair.swapped(swaps) for swaps in _swaps(pair, resamples, seed)], axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=1)
    p_bootstrap = _share(np.abs(drawn - observed[:, None]), observed)
    p_random = _share(np.abs(random), observed)
    columns = (*scores, observed, low, high, p_bootstrap, p_random)
    return [MetricDifference(name, *(float(column[i]) for column in columns)) for i, name in enumerate(MEASURES)]


def compare_runs(a: Path, b: Path, decoding: str, resamples: int, seed: int) -> list[MetricDifference]:
    """Compare two runs, given their folders or files of predictions."""
    return compare(Predictions.read(a), Predictions.read(b), decoding, resamples, seed)


def _share(distances: FloatArray, observed: FloatArray) -> FloatArray:
    """The share of distances that reach the observed difference. The observation counts as one draw: p is never 0."""
    reached = distances >= np.abs(observed)[:, None] - EQUAL
    share: FloatArray = (1 + reached.sum(axis=1)) / (1 + distances.shape[1])
    return share


def _draws(pair: Pair, resamples: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Multiplicities of documents in bootstrap resamples, in blocks of shape (documents, n)."""
    random, documents = np.random.default_rng([seed, 0]), len(pair)
    for size in _sizes(documents, resamples):
        places = random.integers(0, documents, size=(size, documents)) + documents * np.arange(size)[:, None]
        weights = np.bincount(places.ravel(), minlength=size * documents)
        yield np.ascontiguousarray(weights.reshape(size, documents).T)


def _swaps(pair: Pair, resamples: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Random swaps of the runs per document, in blocks of shape (documents, n)."""
    random, documents = np.random.default_rng([seed, 1]), len(pair)
    for size in _sizes(documents, resamples):
        yield np.ascontiguousarray(random.integers(0, 2, size=(size, documents)).T)


def _sizes(documents: int, resamples: int) -> Iterator[int]:
    size = max(1, DRAW_BLOCK // max(documents, 1))
    for start in range(0, resamples, size):
        yield min(size, resamples - start)
