"""Measures that look at each label by itself: micro and macro precision, recall, F1, and subset accuracy."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.metrics.blocks import accumulate, check_labels
from hill.metrics.counts import Counts, mean, named, share
from hill.taxonomy.cells import Table
from hill.types import IntArray


class Flat:
    """Counts label by label and document by document."""

    def __init__(self, labels: int) -> None:
        self.counts = Counts(labels)
        self.documents = 0
        self._exact = 0

    def update(self, labels: Any, predicted: Any, /) -> None:
        """Count these documents, (B, L) each."""
        self.counts.add(*(_per_label(mask) for mask in (labels * predicted, predicted, labels)))
        self.documents += labels.shape[0]
        self._exact += _count_same(labels, predicted)

    def result(self) -> dict[str, float]:
        """Micro and macro over all labels, macro F1 over labels with gold, share of documents with no error at all."""
        return {
            "documents": self.documents,
            **named("micro", self.counts.micro()),
            **named("macro", self.counts.macro()),
            "macro_f1_supported": mean(self.counts.each()[2, self.counts.gold > 0]),
            "subset_accuracy": share(self._exact, self.documents),
        }


def _per_label(mask: Table) -> IntArray:
    if isinstance(mask, csr_array):
        return np.bincount(mask.indices, minlength=mask.shape[1])
    counts: IntArray = np.count_nonzero(mask, axis=0)
    return counts


def _count_same(labels: Any, predicted: Any) -> int:
    """Documents without an error."""
    if isinstance(labels, csr_array):
        return int(np.count_nonzero(np.diff((labels != predicted).indptr) == 0))
    return int(np.count_nonzero((labels == predicted).all(axis=1)))


def flat_scores(labels: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float]:
    """Micro and macro precision, recall and F1 as scikit-learn counts them, and subset accuracy.

    >>> flat_scores([[1, 0], [1, 1]], [[1, 0], [1, 0]])["macro_f1"]
    0.5
    """
    gold = check_labels(labels, "labels")
    return accumulate(Flat(gold.shape[1]), gold, check_labels(predicted, "predicted", gold))
