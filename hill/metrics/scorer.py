"""All metrics at once, computed batch by batch."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.errors import DataError
from hill.metrics.label_sets import (
    NAMES,
    FlatMetrics,
    HierarchicalMetrics,
    check_labels,
    check_scores,
    match_format,
    row_blocks,
    with_names,
)
from hill.metrics.scores import CalibrationMetrics, RankingMetrics, ThresholdCurve
from hill.taxonomy import Taxonomy
from hill.taxonomy.taxonomy import check_taxonomy
from hill.types import FloatArray, IntArray

MatrixLike = npt.ArrayLike | csr_array[Any]


class Scorer:
    """Computes all metrics batch by batch; the memory that it needs does not grow with the number of documents.

    Args:
        taxonomy: the labels.
        train_counts: the number of training documents per label (L), for the metrics of head, torso and tail: the
            thirds of the labels with the most, fewer and the fewest training documents.
        k: where rankings are cut off.
        bins: the number of bins of the expected calibration error.

    >>> from hill.taxonomy import Label
    >>> scorer = Scorer(Taxonomy([Label("a", "A"), Label("b", "B", ("a",))]))
    >>> scorer.update(labels=[[1, 1], [1, 0]], predicted=[[1, 1], [0, 1]])
    >>> scorer.update(labels=[[1, 0]], predicted=[[1, 0]])
    >>> result = scorer.result()
    >>> result["documents"], result["micro_f1"], result["hierarchical_recall"], result["levels"][1]["micro_precision"]
    (3, 0.75, 1.0, 0.5)
    """

    def __init__(
        self,
        taxonomy: Taxonomy,
        train_counts: npt.ArrayLike | None = None,
        k: Iterable[int] = (1, 3, 5),
        bins: int = 15,
    ) -> None:
        self._taxonomy = check_taxonomy(taxonomy)
        self._thirds = None if train_counts is None else _thirds(train_counts, len(taxonomy))
        self._flat = FlatMetrics(len(taxonomy))
        self._hierarchical = HierarchicalMetrics(taxonomy)
        self._calibration = CalibrationMetrics(taxonomy, bins)
        self._of_scores = (RankingMetrics(k), self._calibration, ThresholdCurve(taxonomy))
        self._has_scores: bool | None = None

    def update(self, labels: MatrixLike, predicted: MatrixLike, scores: MatrixLike | None = None) -> None:
        """Count these documents: labels, predicted and scores are (B, L); give scores with every batch or with none.

        Each may be a `csr_array`, in which missing scores are 0; the memory then depends on its entries, not on L.
        """
        gold = check_labels(labels, "labels", len(self._taxonomy))
        chosen = check_labels(predicted, "predicted", gold)
        has_scores = scores is not None
        checked = check_scores(scores, gold) if scores is not None else chosen
        if self._has_scores not in (None, has_scores):
            here, before = ("are given", "were not") if has_scores else ("are missing", "were given")
            raise DataError(f"scores {here} for this batch and {before} for earlier ones; give them always or never")
        self._has_scores = has_scores
        gold, chosen = match_format(gold, checked)[0], match_format(chosen, checked)[0]
        for start, stop in row_blocks(checked):
            self._flat.update(gold[start:stop], chosen[start:stop])
            self._hierarchical.update(gold[start:stop], chosen[start:stop])
            for metrics in self._of_scores if has_scores else ():
                metrics.update(gold[start:stop], checked[start:stop])

    def result(self) -> dict[str, Any]:
        """All metrics by name, between 0 and 1; under `levels` a list with those of each level, the roots first."""
        result: dict[str, Any] = {**self._flat.result(), **self._hierarchical.result()}
        for metrics in self._of_scores if self._has_scores is not False else ():
            result |= metrics.result()
        counts = self._flat.counts
        if self._thirds is not None:
            for name, rows in zip(("head", "torso", "tail"), self._thirds, strict=True):
                result[f"{name}_macro_f1"] = float(counts.macro(rows)[2])
        result["levels"] = []
        for rows, calibration in zip(self._taxonomy.levels, self._calibration.levels(), strict=True):
            level: dict[str, float] = {"level": len(result["levels"]) + 1, "labels": len(rows)}
            level |= with_names("micro", counts.micro(rows)) | with_names("macro", counts.macro(rows))
            result["levels"].append(level | (calibration if self._has_scores is not False else {}))
        return result

    def label_table(self) -> dict[str, IntArray | FloatArray]:
        """Hits, predicted, gold, precision, recall and f1, each an array (L) in the order of the taxonomy."""
        counts = self._flat.counts
        copies = {"hits": counts.hits.copy(), "predicted": counts.predicted.copy(), "gold": counts.gold.copy()}
        return {**copies, **dict(zip(NAMES, counts.each(), strict=True))}


def _thirds(train_counts: npt.ArrayLike, labels: int) -> list[IntArray]:
    """The labels in three parts by falling number of training documents; equal ones in the order of the taxonomy."""
    counts = np.asarray(train_counts)
    if counts.shape != (labels,) or counts.dtype.kind not in "biuf" or not np.isfinite(counts).all():
        raise DataError(
            f"train counts have the shape {counts.shape} and the dtype {counts.dtype}; expected one number for each of "
            f"the {labels} labels"
        )
    return np.array_split(np.argsort(-counts.astype(np.int64), kind="stable"), 3)


def score(
    labels: MatrixLike,
    predicted: MatrixLike,
    scores: MatrixLike | None,
    taxonomy: Taxonomy,
    train_counts: npt.ArrayLike | None = None,
    k: Iterable[int] = (1, 3, 5),
    bins: int = 15,
) -> dict[str, Any]:
    """All metrics of complete matrices (documents, L); see `Scorer`."""
    scorer = Scorer(taxonomy, train_counts, k, bins)
    scorer.update(labels, predicted, scores)
    return scorer.result()
