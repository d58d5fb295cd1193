"""Measures that look at each label by itself: micro and macro precision, recall, F1, and subset accuracy."""

import numpy as np
import numpy.typing as npt

from hill.metrics.blocks import accumulate, check_labels
from hill.metrics.counts import Counts, mean, named, share
from hill.types import BoolArray


class Flat:
    """Counts label by label and document by document."""

    def __init__(self, labels: int) -> None:
        self.counts = Counts(labels)
        self.documents = 0
        self._exact = 0

    def update(self, labels: BoolArray, predicted: BoolArray, /) -> None:
        """Count these documents, (B, L) each."""
        hits = labels & predicted
        self.counts.add(*(np.count_nonzero(mask, axis=0) for mask in (hits, predicted, labels)))
        self.documents += len(labels)
        self._exact += int(np.count_nonzero((labels == predicted).all(axis=1)))

    def result(self) -> dict[str, float]:
        """Micro and macro over all labels, macro F1 over labels with gold, share of documents with no error at all."""
        return {
            "documents": self.documents,
            **named("micro", self.counts.micro()),
            **named("macro", self.counts.macro()),
            "macro_f1_supported": mean(self.counts.each()[2, self.counts.gold > 0]),
            "subset_accuracy": share(self._exact, self.documents),
        }


def flat_scores(labels: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float]:
    """Micro and macro precision, recall and F1 as scikit-learn counts them, and subset accuracy.

    >>> flat_scores([[1, 0], [1, 1]], [[1, 0], [1, 0]])["macro_f1"]
    0.5
    """
    gold = check_labels(labels, "labels")
    return accumulate(Flat(gold.shape[1]), gold, check_labels(predicted, "predicted", gold))
