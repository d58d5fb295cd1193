"""Measures that know the taxonomy: what is right about a wrong label, and whether predictions respect the taxonomy."""

import numpy as np
import numpy.typing as npt

from hill.metrics.blocks import accumulate, check_labels
from hill.metrics.counts import Counts, grades, mean, named, share
from hill.metrics.edges import Edges
from hill.taxonomy import Taxonomy
from hill.types import BoolArray


class Hierarchical:
    """Counts on closed sets, consistent hits, whole paths and lowest common ancestors."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._edges = Edges(taxonomy)
        self._consistent = Counts(len(taxonomy))
        self._paths = Counts(len(taxonomy))
        self._closed = np.zeros(3, dtype=np.int64)
        self._common = np.zeros(3, dtype=np.int64)
        self._each_document = np.zeros(3)
        self._documents = 0
        self._violating = 0

    def update(self, labels: BoolArray, predicted: BoolArray, /) -> None:
        """Count these documents, (B, L) each."""
        gold, chosen = np.ascontiguousarray(labels.T), np.ascontiguousarray(predicted.T)  # (L, b)
        closed_gold, closed = self._edges.close(gold), self._edges.close(chosen)
        rooted = self._edges.least_above(chosen)
        self._documents += len(labels)
        self._violating += int(np.count_nonzero((closed != chosen).any(axis=0)))
        self._add_closed(closed_gold, closed)
        self._add(self._consistent, self._edges.least_above(gold) & rooted, chosen, gold)
        self._add_paths(closed_gold, chosen, rooted)
        self._add_common(closed_gold, closed)

    def _add(self, counts: Counts, hits: BoolArray, predicted: BoolArray, gold: BoolArray) -> None:
        counts.add(*(np.count_nonzero(mask, axis=1) for mask in (hits, predicted, gold)))

    def _add_closed(self, gold: BoolArray, predicted: BoolArray) -> None:
        counts = np.stack([np.count_nonzero(mask, axis=0) for mask in (gold & predicted, predicted, gold)])
        self._closed += counts.sum(axis=1)
        self._each_document += grades(*counts).sum(axis=1)

    def _add_paths(self, gold: BoolArray, chosen: BoolArray, rooted: BoolArray) -> None:
        gold_ends = gold & ~self._edges.with_child(gold)
        ends = chosen & ~self._edges.with_child(chosen)
        self._add(self._paths, gold_ends & ends & rooted, ends, gold_ends)

    def _add_common(self, gold: BoolArray, predicted: BoolArray) -> None:
        """Labels in both sets below which each of the two sets ends or goes its own way, and what only one set has."""
        common, missed, extra = gold & predicted, gold & ~predicted, predicted & ~gold
        lowest = common & self._ends_or_parts(gold, missed) & self._ends_or_parts(predicted, extra)
        met, more, less = (np.count_nonzero(mask) for mask in (lowest, extra, missed))
        self._common += (met, met + more, met + less)

    def _ends_or_parts(self, whole: BoolArray, own: BoolArray) -> BoolArray:
        return ~self._edges.with_child(whole) | self._edges.with_child(own)

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


def hierarchical_scores(labels: npt.ArrayLike, predicted: npt.ArrayLike, taxonomy: Taxonomy) -> dict[str, float]:
    """Measures on closed sets, of consistent hits, of whole paths, of lowest common ancestors, and of violations.

    A sibling of the gold label shares its parent, which is half of what was asked:

    >>> from hill.taxonomy import Label
    >>> taxonomy = Taxonomy([Label("a", "A"), Label("b", "B", ("a",)), Label("c", "C", ("a",))])
    >>> hierarchical_scores([[1, 1, 0]], [[1, 0, 1]], taxonomy)["hierarchical_f1"]
    0.5
    """
    gold = check_labels(labels, "labels", len(taxonomy))
    return accumulate(Hierarchical(taxonomy), gold, check_labels(predicted, "predicted", gold))
