"""The hierarchical F1 at every threshold, so that models compare whatever threshold suits each."""

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.metrics.blocks import accumulate, as_float, check_labels, check_scores
from hill.metrics.counts import grades
from hill.metrics.grid import steps_below
from hill.metrics.sparse import AnyEdges, gold_scores
from hill.taxonomy import Taxonomy
from hill.taxonomy.cells import Table
from hill.types import FloatArray

STEPS = 100


class Curve:
    """Counts on closed sets at the thresholds 0, 0.01, ..., 1.

    A label is in the closure of the labels that score above t if the highest score among it and its descendants is
    above t: one histogram of these highest scores serves all thresholds.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._edges = AnyEdges(taxonomy)
        self._predicted, self._hits = np.zeros((2, STEPS + 1), dtype=np.int64)

    def update(self, labels: Table, scores: Table, /) -> None:
        """Count these documents, (B, L) each."""
        edges = self._edges.of(scores)
        gold, highest = edges.close(edges.enter(labels)), edges.close(edges.enter(as_float(scores)))
        if isinstance(highest, csr_array):
            steps, hits = (steps_below(values, STEPS) for values in (highest.data, gold_scores(gold, highest)[1]))
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
    return accumulate(Curve(taxonomy), gold, check_scores(scores, gold))
