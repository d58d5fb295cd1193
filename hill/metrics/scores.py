"""Metrics of scores: ranking, calibration, and hierarchical F1 over all thresholds."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.errors import ConfigError
from hill.metrics.label_sets import (
    BLOCK_ENTRIES,
    accumulate,
    check_labels,
    check_positive,
    check_scores,
    mean,
    precision_recall_f1,
    ratio,
    steps_below,
)
from hill.sparse import Matrix, flat_indices, row_indices, select_entries
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import AnyEdges, scores_at_labels
from hill.types import FloatArray, IntArray


def as_float(scores: Any) -> Any:
    """Scores in double precision."""
    return scores.astype(np.float64, copy=False)


# Ranking

SORT_FROM = 50
"""Gold labels per document from which sorting all labels is faster than computing the rank of each gold label."""


class RankingMetrics:
    """Precision at k, R-precision and nDCG at k; labels with equal scores are ranked in the order of the taxonomy."""

    def __init__(self, k: Iterable[int] = (1, 3, 5)) -> None:
        if not isinstance(k, Iterable):
            raise ConfigError(f"k is {k!r}; expected a list of whole numbers, such as (1, 3, 5)")
        self._precision = {check_positive(cut, "k"): 0.0 for cut in k}
        self._ndcg = dict(self._precision)
        self._r_precision = 0.0
        self._documents = 0

    def update(self, labels: Matrix, scores: Matrix, /) -> None:
        """Count these documents, (B, L) each."""
        size = labels.shape[0]
        documents, ranks = _gold_ranks(labels, as_float(scores))
        gold = np.bincount(documents, minlength=size)
        self._documents += size
        self._r_precision += (1 / gold[documents])[ranks < gold[documents]].sum()
        for cut in self._precision:
            hit = ranks < cut
            self._precision[cut] += np.count_nonzero(hit) / cut
            gains = np.bincount(documents[hit], 1 / np.log2(ranks[hit] + 2), minlength=size)
            best_gains = np.cumsum(np.append(0, 1 / np.log2(np.arange(cut) + 2)))  # of 0, 1, ..., cut gold labels
            self._ndcg[cut] += ratio(gains, best_gains[np.minimum(gold, cut)]).sum()

    def result(self) -> dict[str, float]:
        """Means over all documents so far; a document without gold labels counts as 0.

        - precision_at_k: the number of gold labels among the k labels with the highest scores, divided by k.
        - r_precision: the same with k = the number of gold labels of the document.
        - ndcg_at_k: Σ 1 / log2(rank + 1) over gold labels with a rank of at most k, divided by its maximum.
        """
        sums = {f"precision_at_{cut}": total for cut, total in self._precision.items()}
        sums |= {"r_precision": self._r_precision}
        sums |= {f"ndcg_at_{cut}": total for cut, total in self._ndcg.items()}
        return {name: float(ratio(total, self._documents)) for name, total in sums.items()}


def _gold_ranks(labels: Any, scores: Any) -> tuple[IntArray, IntArray]:
    """The document of each gold label, and its rank from 0 among the labels of that document."""
    if isinstance(scores, csr_array):
        return row_indices(labels), _sparse_ranks(scores, labels)
    documents, columns = np.divmod(np.flatnonzero(labels), max(labels.shape[1], 1))
    if len(documents) <= SORT_FROM * len(labels):
        return documents, _dense_ranks(scores, documents, columns)
    order = np.argsort(-scores, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(scores.shape[1])[None], axis=1)
    return documents, ranks[documents, columns]


def _dense_ranks(scores: FloatArray, documents: IntArray, columns: IntArray) -> IntArray:
    """Count per gold label the labels of the document with a higher score, or with an equal score and before it."""
    width = scores.shape[1]
    ranks = np.zeros(len(documents), dtype=np.int64)
    size = max(1, BLOCK_ENTRIES // max(width, 1))
    for start in range(0, len(documents), size):
        part = slice(start, start + size)
        others, column = scores[documents[part]], columns[part, None]
        own = np.take_along_axis(others, column, axis=1)
        before = (others > own) | ((others == own) & (np.arange(width) < column))
        ranks[part] = np.count_nonzero(before, axis=1)
    return ranks


def _sparse_ranks(scores: csr_array[Any], labels: csr_array[Any]) -> IntArray:
    """Ranks of gold labels by sparse scores; missing scores come last, in the order of the taxonomy."""
    scores = select_entries(scores, scores.data > 0)
    order = np.lexsort((-scores.data, row_indices(scores)))  # stable: equal scores stay in the order of the taxonomy
    ranks = np.empty(scores.nnz + 1, dtype=np.int64)
    ranks[order] = np.arange(scores.nnz) - scores.indptr[row_indices(scores)]
    stored, gold, documents = flat_indices(scores), flat_indices(labels), row_indices(labels)
    index = np.searchsorted(stored, gold)
    ranks_if_missing = scores.indptr[documents + 1] + labels.indices - index  # after all scores and missing ones before
    return np.where(np.append(stored, -1)[index] == gold, ranks[index], ranks_if_missing)


def ranking_scores(labels: npt.ArrayLike, scores: npt.ArrayLike, k: Iterable[int] = (1, 3, 5)) -> dict[str, float]:
    """Precision at k, nDCG at k and R-precision; see `RankingMetrics`.

    >>> ranking_scores([[1, 0, 1]], [[0.9, 0.8, 0.1]], k=[1])
    {'precision_at_1': 1.0, 'r_precision': 0.5, 'ndcg_at_1': 1.0}
    """
    gold = check_labels(labels, "labels")
    return accumulate(RankingMetrics(k), gold, check_scores(scores, gold))


# Calibration


class CalibrationMetrics:
    """Expected calibration error (ECE) and Brier score, over all labels and per level.

    The bins of the ECE have equal width; a score on the border of two bins is in the lower one.
    """

    def __init__(self, taxonomy: Taxonomy, bins: int = 15) -> None:
        self._bins = check_positive(bins, "bins")
        self._level = taxonomy.depth - 1
        self._sizes = np.bincount(self._level)
        self._surplus = np.zeros(len(self._sizes) * bins)
        """Σ scores - gold labels, per level and bin."""
        self._squared = np.zeros(len(taxonomy))
        """Σ (score - gold)², per label."""
        self._documents = 0

    def update(self, labels: Any, scores: Matrix, /) -> None:
        """Count these documents, (B, L) each."""
        values: FloatArray = as_float(scores.data if isinstance(scores, csr_array) else scores)
        if isinstance(scores, csr_array):
            gold_labels, gold_scores = scores_at_labels(labels, scores)
            bins = self._bin(values, self._level[scores.indices])
            gold_bins = self._bin(as_float(gold_scores), self._level[gold_labels])
            difference = scores.astype(np.float64) - labels.astype(np.float64)
            self._squared += np.bincount(difference.indices, np.square(difference.data), minlength=len(self._squared))
        else:
            bins = self._bin(values, self._level)
            gold_bins = bins[labels]
            self._squared += np.square(values - labels).sum(axis=0)
        self._surplus += np.bincount(bins.ravel(), values.ravel(), minlength=len(self._surplus))
        self._surplus -= np.bincount(gold_bins, minlength=len(self._surplus))
        self._documents += labels.shape[0]

    def _bin(self, scores: FloatArray, level: IntArray) -> IntArray:
        """The bin of each score; the bins of all levels are numbered consecutively."""
        bins: IntArray = np.maximum(steps_below(scores, self._bins) - 1, 0) + level * self._bins
        return bins

    def result(self) -> dict[str, float]:
        """The metrics over all n pairs of a document and a label so far.

        - ece: Σ over bins |Σ scores - gold labels| / n (Guo et al., 2017).
        - brier: Σ (score - gold)² / n.
        """
        surplus = self._surplus.reshape(-1, self._bins).sum(axis=0)
        return self._scores(surplus, self._squared.sum(), len(self._level))

    def levels(self) -> list[dict[str, float]]:
        """The same per level."""
        squared = np.bincount(self._level, self._squared)
        surplus = self._surplus.reshape(-1, self._bins)
        return [self._scores(*level) for level in zip(surplus, squared, self._sizes, strict=True)]

    def ece(self) -> dict[str, float]:
        """The ECE over all labels, and the mean of the ECE of the levels."""
        return {"ece": self.result()["ece"], "ece_levels": mean_over_levels(self.levels())}

    def _scores(self, surplus: FloatArray, squared: float, labels: int) -> dict[str, float]:
        pairs = self._documents * labels
        return {"ece": float(ratio(np.abs(surplus).sum(), pairs)), "brier": float(ratio(squared, pairs))}


def mean_over_levels(levels: list[dict[str, float]]) -> float:
    """The mean of the ECE of each level: every level has the same weight, however few labels it has."""
    return mean(np.array([level["ece"] for level in levels]))


def calibration_scores(
    labels: npt.ArrayLike, scores: npt.ArrayLike, taxonomy: Taxonomy, bins: int = 15
) -> dict[str, float]:
    """Expected calibration error and Brier score over all documents and labels; see `CalibrationMetrics`.

    >>> from hill.taxonomy import Label
    >>> calibration_scores([[1], [0]], [[0.75], [0.75]], Taxonomy([Label("a", "A")]))
    {'ece': 0.25, 'brier': 0.3125}
    """
    gold = check_labels(labels, "labels", len(taxonomy))
    return accumulate(CalibrationMetrics(taxonomy, bins), gold, check_scores(scores, gold))


# Hierarchical F1 over thresholds

STEPS = 100


class ThresholdCurve:
    """Hierarchical F1 at the thresholds 0, 0.01, ..., 1, to compare models independently of a threshold.

    A label is in C({labels with a score above t}) if the highest score of it and its descendants is above t. One
    histogram of these highest scores is enough for all thresholds.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._edges = AnyEdges(taxonomy)
        self._predicted, self._hits = np.zeros((2, STEPS + 1), dtype=np.int64)

    def update(self, labels: Matrix, scores: Matrix, /) -> None:
        """Count these documents, (B, L) each."""
        edges = self._edges.of(scores)
        gold, highest = edges.close(edges.enter(labels)), edges.close(edges.enter(as_float(scores)))
        if isinstance(highest, csr_array):
            steps, hits = (steps_below(values, STEPS) for values in (highest.data, scores_at_labels(gold, highest)[1]))
        else:
            steps = steps_below(highest, STEPS)
            hits = steps[gold]
        self._predicted += np.bincount(steps.ravel(), minlength=STEPS + 1)
        self._hits += np.bincount(hits, minlength=STEPS + 1)

    def f1(self) -> FloatArray:
        """The hierarchical F1 at each threshold: (101)."""
        hits, predicted = (counts.sum() - np.cumsum(counts) for counts in (self._hits, self._predicted))
        f1: FloatArray = precision_recall_f1(hits, predicted, np.full(STEPS + 1, self._hits.sum()))[2]
        return f1

    def result(self) -> dict[str, float]:
        """The area under the curve by the trapezoidal rule; at most 0.995, as no score is above 1."""
        return {"hierarchical_f1_auc": float(np.trapezoid(self.f1(), dx=1 / STEPS))}


def curve_scores(labels: npt.ArrayLike, scores: npt.ArrayLike, taxonomy: Taxonomy) -> dict[str, float]:
    """The area under the curve of hierarchical F1 over thresholds; see `ThresholdCurve`.

    >>> from hill.taxonomy import Label
    >>> curve_scores([[1]], [[0.5]], Taxonomy([Label("a", "A")]))
    {'hierarchical_f1_auc': 0.495}
    """
    gold = check_labels(labels, "labels", len(taxonomy))
    return accumulate(ThresholdCurve(taxonomy), gold, check_scores(scores, gold))
