"""Every metric at once, over batches that need not be kept."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.errors import DataError
from hill.metrics.calibration import CalibrationMetrics
from hill.metrics.flat import NAMES, FlatMetrics, alike, blocks_of, check_labels, check_scores, named
from hill.metrics.hierarchical import HierarchicalMetrics, ThresholdCurve
from hill.metrics.ranking import RankingMetrics
from hill.taxonomy import Taxonomy
from hill.taxonomy.taxonomy import check_taxonomy
from hill.types import FloatArray, IntArray

Given = npt.ArrayLike | csr_array[Any]


class Scorer:
    """Scores predictions batch by batch: every metric as a fraction of 1, in memory that does not grow.

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
        self._ranking = RankingMetrics(k)
        self._calibration = CalibrationMetrics(taxonomy, bins)
        self._curve = ThresholdCurve(taxonomy)
        self._scored: bool | None = None

    def update(self, labels: Given, predicted: Given, scores: Given | None = None) -> None:
        """Count these documents: labels, predicted and scores are (B, L); scores come with every batch or none.

        Each may be a `csr_array`, a missing score counting as 0; memory then goes with what is there, not with L.
        """
        gold = check_labels(labels, "labels", len(self._taxonomy))
        chosen = check_labels(predicted, "predicted", gold)
        given = None if scores is None else check_scores(scores, gold)
        self._check_scored(scores is not None)
        gold, chosen = alike(gold, chosen) if given is None else (alike(each, given)[0] for each in (gold, chosen))
        for start, stop in blocks_of(chosen if given is None else given):
            self._flat.update(gold[start:stop], chosen[start:stop])
            self._hierarchical.update(gold[start:stop], chosen[start:stop])
            if given is not None:
                for accumulator in (self._ranking, self._calibration, self._curve):
                    accumulator.update(gold[start:stop], given[start:stop])

    def _check_scored(self, scored: bool) -> None:
        if self._scored is not None and scored != self._scored:
            here, before = ("are given", "were not") if scored else ("are missing", "were given")
            raise DataError(f"scores {here} for this batch and {before} for earlier ones; give them always or never")
        self._scored = scored

    def result(self) -> dict[str, Any]:
        """Every metric by name, and under `levels` a list with those of each level, the roots first."""
        result: dict[str, Any] = {**self._flat.result(), **self._hierarchical.result()}
        if self._scored is not False:
            for accumulator in (self._ranking, self._calibration, self._curve):
                result |= accumulator.result()
        if self._thirds is not None:
            for name, rows in zip(("head", "torso", "tail"), self._thirds, strict=True):
                result[f"{name}_macro_f1"] = float(self._flat.counts.macro(rows)[2])
        return result | {"levels": self._levels()}

    def _levels(self) -> list[dict[str, float]]:
        counts = self._flat.counts
        levels = [
            {
                "level": level,
                "labels": len(rows),
                **named("micro", counts.micro(rows)),
                **named("macro", counts.macro(rows)),
            }
            for level, rows in enumerate(self._taxonomy.levels, start=1)
        ]
        if self._scored is False:
            return levels
        return [level | scores for level, scores in zip(levels, self._calibration.levels(), strict=True)]

    def label_table(self) -> dict[str, IntArray | FloatArray]:
        """For each label in the taxonomy's order: hits, predicted, gold, precision, recall and f1."""
        counts = self._flat.counts
        table: dict[str, IntArray | FloatArray] = {
            "hits": counts.hits.copy(),
            "predicted": counts.predicted.copy(),
            "gold": counts.gold.copy(),
        }
        return table | dict(zip(NAMES, counts.each(), strict=True))


def _thirds(train_counts: npt.ArrayLike, labels: int) -> list[IntArray]:
    """Rows of the labels that training saw most, in between, and least; equal counts in the taxonomy's order."""
    counts = np.asarray(train_counts)
    if counts.shape != (labels,) or counts.dtype.kind not in "biuf" or not np.isfinite(counts).all():
        raise DataError(
            f"train counts have the shape {counts.shape} and the dtype {counts.dtype}; expected one number for each of "
            f"the {labels} labels"
        )
    return np.array_split(np.argsort(-counts.astype(np.int64), kind="stable"), 3)


def score(
    labels: Given,
    predicted: Given,
    scores: Given | None,
    taxonomy: Taxonomy,
    train_counts: npt.ArrayLike | None = None,
    k: Iterable[int] = (1, 3, 5),
    bins: int = 15,
) -> dict[str, Any]:
    """Every metric of arrays that are all at hand, as `Scorer` gives them."""
    scorer = Scorer(taxonomy, train_counts, k, bins)
    scorer.update(labels, predicted, scores)
    return scorer.result()
