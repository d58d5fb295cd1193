"""The hierarchical F1 at every threshold, so that models compare whatever threshold suits each."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.metrics.flat import (
    Counts,
    accumulate,
    as_float,
    check_labels,
    check_scores,
    grades,
    mean,
    named,
    share,
    steps_below,
)
from hill.sparse import Matrix
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import AnyEdges, scores_at_labels
from hill.types import FloatArray


class HierarchicalMetrics:
    """Counts on closed sets, consistent hits, whole paths and lowest common ancestors."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._edges = AnyEdges(taxonomy)
        self._consistent = Counts(len(taxonomy))
        self._paths = Counts(len(taxonomy))
        self._closed = np.zeros(3, dtype=np.int64)
        self._common = np.zeros(3, dtype=np.int64)
        self._each_document = np.zeros(3)
        self._documents = 0
        self._violating = 0

    def update(self, labels: Matrix, predicted: Matrix, /) -> None:
        """Count these documents, (B, L) each."""
        edges = self._edges.of(labels)
        gold, chosen = edges.enter(labels), edges.enter(predicted)
        closed_gold, closed = edges.close(gold), edges.close(chosen)
        rooted = edges.least_above(chosen)
        self._documents += labels.shape[0]
        self._violating += int(np.count_nonzero(edges.highest(closed > chosen)))
        self._add_closed(edges, closed_gold, closed)
        self._add(edges, self._consistent, edges.least_above(gold) * rooted, chosen, gold)
        self._add_paths(edges, closed_gold, chosen, rooted)
        self._add_common(edges, closed_gold, closed)

    def _add(self, edges: Any, counts: Counts, *masks: Any) -> None:
        """Count hits, predicted and gold."""
        counts.add(*(edges.per_label(mask) for mask in masks))

    def _add_closed(self, edges: Any, gold: Any, predicted: Any) -> None:
        counts = np.stack([edges.per_document(mask) for mask in (gold * predicted, predicted, gold)])
        self._closed += counts.sum(axis=1)
        self._each_document += grades(*counts).sum(axis=1)

    def _add_paths(self, edges: Any, gold: Any, chosen: Any, rooted: Any) -> None:
        gold_ends, ends = gold > edges.with_child(gold), chosen > edges.with_child(chosen)
        self._add(edges, self._paths, gold_ends * ends * rooted, ends, gold_ends)

    def _add_common(self, edges: Any, gold: Any, predicted: Any) -> None:
        """Labels in both sets below which each of the two sets ends or goes its own way, and what only one set has."""
        missed, extra = gold > predicted, predicted > gold
        lowest = (gold * predicted) > self._goes_on(edges, gold, missed)
        lowest = lowest > self._goes_on(edges, predicted, extra)
        met, more, less = (_count(mask) for mask in (lowest, extra, missed))
        self._common += (met, met + more, met + less)

    def _goes_on(self, edges: Any, whole: Any, own: Any) -> Any:
        """Where a set has labels below, none of which the other set lacks."""
        return edges.with_child(whole) > edges.with_child(own)

    def result(self) -> dict[str, float]:
        """All that the update counts, as fractions of 1."""
        met, predicted, gold = self._common
        lca_precision, lca_recall = share(met, predicted), share(met, gold)
        ended = np.flatnonzero(self._paths.predicted + self._paths.gold)
        return {
            **named("hierarchical", grades(*self._closed)),
            **named("hierarchical", self._each_document / max(self._documents, 1), "_documents"),
            "consistent_micro_f1": float(self._consistent.micro()[2]),
            "consistent_macro_f1": mean(self._consistent.each()[2]),
            "path_micro_f1": float(self._paths.micro()[2]),
            "path_macro_f1": mean(self._paths.each()[2, ended]),
            "lca_precision": lca_precision,
            "lca_recall": lca_recall,
            "lca_f1": share(2 * lca_precision * lca_recall, lca_precision + lca_recall),
            "violations": share(self._violating, self._documents),
        }


def _count(mask: Any) -> int:
    return mask.nnz if isinstance(mask, csr_array) else int(np.count_nonzero(mask))


def hierarchical_scores(labels: npt.ArrayLike, predicted: npt.ArrayLike, taxonomy: Taxonomy) -> dict[str, float]:
    """Measures on closed sets, of consistent hits, of whole paths, of lowest common ancestors, and of violations.

    A sibling of the gold label shares its parent, which is half of what was asked:

    >>> from hill.taxonomy import Label
    >>> taxonomy = Taxonomy([Label("a", "A"), Label("b", "B", ("a",)), Label("c", "C", ("a",))])
    >>> hierarchical_scores([[1, 1, 0]], [[1, 0, 1]], taxonomy)["hierarchical_f1"]
    0.5
    """
    gold = check_labels(labels, "labels", len(taxonomy))
    return accumulate(HierarchicalMetrics(taxonomy), gold, check_labels(predicted, "predicted", gold))


STEPS = 100


class ThresholdCurve:
    """Counts on closed sets at the thresholds 0, 0.01, ..., 1.

    A label is in the closure of the labels that score above t if the highest score among it and its descendants is
    above t: one histogram of these highest scores serves all thresholds.
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
        """The hierarchical F1 at each threshold."""
        hits, predicted = (counts.sum() - np.cumsum(counts) for counts in (self._hits, self._predicted))
        f1: FloatArray = grades(hits, predicted, np.full(STEPS + 1, self._hits.sum()))[2]
        return f1

    def result(self) -> dict[str, float]:
        """The area under the curve by trapezoids; nothing scores above 1, so that it is 0.995 at most."""
        return {"hierarchical_f1_auc": float(np.trapezoid(self.f1(), dx=1 / STEPS))}


def curve_scores(labels: npt.ArrayLike, scores: npt.ArrayLike, taxonomy: Taxonomy) -> dict[str, float]:
    """The area under the hierarchical F1 over thresholds.

    >>> from hill.taxonomy import Label
    >>> curve_scores([[1]], [[0.5]], Taxonomy([Label("a", "A")]))
    {'hierarchical_f1_auc': 0.495}
    """
    gold = check_labels(labels, "labels", len(taxonomy))
    return accumulate(ThresholdCurve(taxonomy), gold, check_scores(scores, gold))
