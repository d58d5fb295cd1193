"""Measures of the order that scores put labels in: precision at k, R-precision and nDCG at k."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.errors import ConfigError
from hill.metrics.flat import (
    BLOCK_CELLS,
    accumulate,
    as_float,
    check_labels,
    check_positive,
    check_scores,
    ratio,
    share,
)
from hill.sparse import Matrix, flat_indices, row_indices, select_entries
from hill.types import FloatArray, IntArray

MANY = 50
"""Gold labels a document from which sorting is faster."""


class RankingMetrics:
    """Sums of each document's measures. Labels of the same score are ranked in the taxonomy's order.

    Where gold labels are few, only their ranks are computed, which is faster than sorting all of a document's labels.
    """

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
            found = ranks < cut
            self._precision[cut] += np.count_nonzero(found) / cut
            gains = np.bincount(documents[found], 1 / np.log2(ranks[found] + 2), minlength=size)
            self._ndcg[cut] += ratio(gains, _best_gains(cut)[np.minimum(gold, cut)]).sum()

    def result(self) -> dict[str, float]:
        """The means over documents; one without gold labels counts 0."""
        return {
            **{f"precision_at_{cut}": share(total, self._documents) for cut, total in self._precision.items()},
            "r_precision": share(self._r_precision, self._documents),
            **{f"ndcg_at_{cut}": share(total, self._documents) for cut, total in self._ndcg.items()},
        }


def _gold_ranks(labels: Any, scores: Matrix) -> tuple[IntArray, IntArray]:
    """The document of each gold label, and how many labels of that document stand before it."""
    if isinstance(scores, csr_array):
        return row_indices(labels), _sparse_ranks(scores, labels)
    documents, places = np.divmod(np.flatnonzero(labels), max(labels.shape[1], 1))
    rank = _ranks_by_sorting if len(documents) > MANY * len(labels) else _ranks
    return documents, rank(scores, documents, places)


def _sparse_ranks(scores: csr_array[Any], labels: csr_array[Any]) -> IntArray:
    """The same for a table of some scores: those that are missing come behind it, in the taxonomy's order."""
    scores = select_entries(scores, scores.data > 0)
    order = np.lexsort((-scores.data, row_indices(scores)))  # stable, so that equal scores keep the taxonomy's order
    ranks = np.empty(scores.nnz + 1, dtype=np.int64)
    ranks[order] = np.arange(scores.nnz) - scores.indptr[row_indices(scores)]
    known, wanted, documents = flat_indices(scores), flat_indices(labels), row_indices(labels)
    at = np.searchsorted(known, wanted)
    behind = scores.indptr[documents + 1] + labels.indices - at  # those with a score, and missing ones before it
    return np.where(np.append(known, -1)[at] == wanted, ranks[at], behind)


def _ranks(scores: FloatArray, documents: IntArray, places: IntArray) -> IntArray:
    """How many labels of the same document stand before each of these: of higher score, or equal and earlier."""
    width = scores.shape[1]
    ranks = np.zeros(len(documents), dtype=np.int64)
    size = max(1, BLOCK_CELLS // max(width, 1))
    for start in range(0, len(documents), size):
        part = slice(start, start + size)
        others, place = scores[documents[part]], places[part, None]
        own = np.take_along_axis(others, place, axis=1)
        before = (others > own) | ((others == own) & (np.arange(width) < place))
        ranks[part] = np.count_nonzero(before, axis=1)
    return ranks


def _ranks_by_sorting(scores: FloatArray, documents: IntArray, places: IntArray) -> IntArray:
    """The same, from the order of all labels."""
    order = np.argsort(-scores, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(scores.shape[1])[None], axis=1)
    return ranks[documents, places]


def _best_gains(cut: int) -> FloatArray:
    """The gain of 0, 1, ..., `cut` gold labels all in front: the discount of rank r is 1 / log2(r + 2)."""
    return np.cumsum(np.append(0, 1 / np.log2(np.arange(cut) + 2)))


def ranking_scores(labels: npt.ArrayLike, scores: npt.ArrayLike, k: Iterable[int] = (1, 3, 5)) -> dict[str, float]:
    """Precision and nDCG among the k best labels of each document, and R-precision, k being its number of gold labels.

    >>> ranking_scores([[1, 0, 1]], [[0.9, 0.8, 0.1]], k=[1])
    {'precision_at_1': 1.0, 'r_precision': 0.5, 'ndcg_at_1': 1.0}
    """
    gold = check_labels(labels, "labels")
    return accumulate(RankingMetrics(k), gold, check_scores(scores, gold))
