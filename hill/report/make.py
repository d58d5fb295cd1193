"""Make a report: evaluate, count what goes wrong on the way, and explain the surest errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hill.data import Documents, read_data
from hill.errors import DataError
from hill.predictor import Predictor, Scored
from hill.report.errors import Error
from hill.report.labels import about, label_rows, path_names, worst_labels
from hill.report.paths import KINDS
from hill.report.result import Report
from hill.report.tally import Tally
from hill.settings import at_least

if TYPE_CHECKING:
    from hill.explain import Explanation, LabelExplanation

SHOWN = 10
"""Errors of each kind."""
EXCERPT = 700
"""Characters of a text that are shown."""
WORDS = 8

Explain = Callable[..., "Explanation"]
"""`hill.explain.explain`, which needs torch, while a report does not."""


def make_report(
    predictor: Predictor,
    data: Documents | str | os.PathLike[str],
    explain: Explain | None = None,
    explained: int = 4,
    tick: Callable[[int], None] = lambda count: None,
) -> Report:
    """Where a model errs on these documents; of a folder, on its test split.

    Args:
        predictor: a trained or an exported model.
        data: the documents, with their labels.
        explain: `hill.explain.explain`, to explain errors with; an exported model cannot be explained.
        explained: how many of the surest errors of each kind are.
        tick: told how many more documents are done, as it goes.
    """
    at_least(explained, 0, "explained")
    documents = _read(data, predictor)
    tally = Tally(predictor, documents.labels, max(SHOWN, explained))
    scored = _ticking(tally.watch(predictor.scores(documents.texts)), tick)
    metrics = predictor.measure(scored, documents.labels)
    teller = _Teller(predictor, documents, explain)
    labels = label_rows(predictor.taxonomy, tally.counts)
    return Report(
        {
            "model": _facts(predictor),
            "metrics": metrics,
            "labels": labels,
            "paths": _paths(tally),
            "worst": worst_labels(labels, predictor.taxonomy, tally.siblings.counts),
            "errors": {
                "wrong": teller.tell(tally.errors.wrong, explained),
                "missed": teller.tell(tally.errors.missed, explained),
                "explained": explain is not None and explained > 0,
            },
            "reliability": {"before": tally.before.document(), "after": tally.after.document()},
            "thresholds": tally.thresholds.document(),
            "sizes": tally.sizes.document(),
        }
    )


def _read(data: Documents | str | os.PathLike[str], predictor: Predictor) -> Documents:
    if not isinstance(data, Documents):
        splits = read_data(data, predictor.taxonomy)
        data = splits.get("test") or next(iter(splits.values()))
    if not len(data):
        raise DataError("there are no documents to report on; expected at least one")
    return data


def _ticking(scored: Iterator[Scored], tick: Callable[[int], None]) -> Iterator[Scored]:
    for documents, scores in scored:
        tick(len(documents))
        yield documents, scores


def _facts(predictor: Predictor) -> dict[str, Any]:
    config, taxonomy = predictor.decode_config, predictor.taxonomy
    return {
        "name": getattr(predictor, "name", type(predictor).__name__),
        "labels": len(taxonomy),
        "levels": len(taxonomy.levels),
        "strategy": config.strategy,
        "threshold": config.threshold,
        "threshold_of_each_label": predictor.thresholds is not None,
        "calibrated": config.calibrate if predictor.calibrator is not None else "off",
    }


def _paths(tally: Tally) -> dict[str, Any]:
    """Documents by the first level that is wrong, 0 for none, and gold and predicted paths by kind and that level."""
    sides = {"gold": tally.paths.gold, "predicted": tally.paths.predicted}
    return {"documents": tally.paths.documents.tolist()} | {
        side: dict(zip(KINDS, counts.tolist(), strict=True)) for side, counts in sides.items()
    }


class _Teller:
    """Tells errors with their texts, their paths and, for the first of them, an explanation."""

    def __init__(self, predictor: Predictor, documents: Documents, explain: Explain | None) -> None:
        self._predictor, self._documents, self._explain = predictor, documents, explain

    def tell(self, errors: Sequence[Error], explained: int) -> list[dict[str, Any]]:
        """Errors as plain values."""
        return [self._tell(error, place < explained) for place, error in enumerate(errors[: max(SHOWN, explained)])]

    def _tell(self, error: Error, explained: bool) -> dict[str, Any]:
        taxonomy, text = self._predictor.taxonomy, self._documents.texts[error.document]
        gold = self._documents.labels[[error.document]].indices.astype(np.int64)
        found: dict[str, Any] = {
            "document": self._documents.ids[error.document],
            "label": about(taxonomy, error.row),
            "score": error.score,
            "gold": path_names(taxonomy, np.sort(gold)),
            "predicted": path_names(taxonomy, np.array(error.predicted, dtype=np.int64)),
            "text": text[:EXCERPT],
            "cut": len(text) > EXCERPT,
        }
        if explained and self._explain is not None:
            explanation = self._explain(self._predictor, text, labels=[taxonomy[error.row].id])
            found["explanation"] = _explanation(explanation, explanation.labels[0])
        return found


def _explanation(explanation: Explanation, label: LabelExplanation) -> dict[str, Any]:
    """The strongest words of an explanation, and what each word of the excerpt adds."""
    speaking = zip(("for", "against"), label.strongest(explanation.words, WORDS), strict=True)
    words = zip(explanation.words, label.values, strict=True)
    return {
        "method": explanation.method,
        "strongest": max(map(abs, label.values), default=0.0),
        **{side: [term._asdict() for term in terms] for side, terms in speaking},
        "words": [[word.start, word.end, value] for word, value in words if word.end <= EXCERPT],
    }
