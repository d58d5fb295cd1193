"""Create a report: evaluate a model, count its errors, and explain the most confident ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hill.data import Documents, read_data
from hill.errors import ConfigError, DataError
from hill.io import write_text
from hill.predictor import Predictor, ScoredBatch
from hill.report.collect import KINDS, Error, ErrorCounts, describe_label, label_rows, path_names, worst_labels
from hill.report.page import make_page
from hill.settings import check_at_least

FORMATS = (".html", ".json")


@dataclass(frozen=True)
class ErrorReport:
    """The content of a report, as plain values by section."""

    sections: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return self.sections

    def html(self) -> str:
        """Return an HTML page that needs no network."""
        return make_page(self.sections)

    def write(self, file: Path) -> None:
        """Write an HTML page or JSON, depending on the suffix of the file."""
        check_target(file)
        text = self.html() if file.suffix == ".html" else json.dumps(self.sections, ensure_ascii=False) + "\n"
        write_text(file, text)


def check_target(file: Path) -> None:
    """Raise if a report cannot be written to this file; called before the evaluation starts."""
    if file.suffix not in FORMATS:
        raise ConfigError(f"the report file is '{file}'; expected a name that ends in {' or '.join(FORMATS)}")
    if not file.parent.is_dir():
        raise DataError(f"cannot write '{file}': there is no folder '{file.parent}'; create it first")


MAX_ERRORS = 10
"""Number of errors of each kind."""

EXCERPT = 700
"""Maximum number of characters of a text in the report."""

MAX_WORDS = 8
"""Number of words that raise or lower a logit most."""

Explain = Callable[..., Any]
"""`hill.explain.explain`: passed as an argument, since it needs torch and a report does not."""


def make_report(
    predictor: Predictor,
    data: Documents | str | os.PathLike[str],
    explain: Explain | None = None,
    explained: int = 4,
    tick: Callable[[int], None] = lambda count: None,
) -> ErrorReport:
    """Report the errors of a model on these documents; for a folder, on its test split.

    Args:
        predictor: a trained or an exported model.
        data: the documents, with their labels.
        explain: `hill.explain.explain`, to explain errors; exported models cannot be explained.
        explained: number of errors of each kind that are explained.
        tick: called with the number of documents of each finished batch.
    """
    check_at_least(explained, 0, "explained")
    if not isinstance(data, Documents):
        splits = read_data(data, predictor.taxonomy)
        data = splits.get("test") or next(iter(splits.values()))
    if not len(data):
        raise DataError("there are no documents to report on; expected at least one")
    counts = ErrorCounts(predictor, data.labels, max(MAX_ERRORS, explained))
    scored = _with_progress(counts.update(predictor.scores(data.texts)), tick)
    metrics = predictor.measure(scored, data.labels)
    labels = label_rows(predictor.taxonomy, counts.counts)
    return ErrorReport(
        {
            "model": _facts(predictor),
            "metrics": metrics,
            "labels": labels,
            "paths": _paths(counts),
            "worst": worst_labels(labels, predictor.taxonomy, counts.siblings.counts),
            "errors": {
                "wrong": _describe(counts.errors.wrong, predictor, data, explain, explained),
                "missed": _describe(counts.errors.missed, predictor, data, explain, explained),
                "explained": explain is not None and explained > 0,
            },
            "reliability": {"before": counts.before.to_dict(), "after": counts.after.to_dict()},
            "thresholds": counts.thresholds.to_dict(),
            "sizes": counts.sizes.to_dict(),
        }
    )


def _with_progress(scored: Iterator[ScoredBatch], tick: Callable[[int], None]) -> Iterator[ScoredBatch]:
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


def _paths(counts: ErrorCounts) -> dict[str, Any]:
    """Count documents by first wrong level (0 for none), and gold and predicted paths by kind and first wrong level."""
    sides = {"gold": counts.paths.gold, "predicted": counts.paths.predicted}
    return {"documents": counts.paths.documents.tolist()} | {
        side: dict(zip(KINDS, table.tolist(), strict=True)) for side, table in sides.items()
    }


def _describe(
    errors: Sequence[Error], predictor: Predictor, data: Documents, explain: Explain | None, explained: int
) -> list[dict[str, Any]]:
    """Describe errors as plain values: text, paths and, for the first of them, an explanation."""
    taxonomy, described = predictor.taxonomy, []
    for number, error in enumerate(errors[: max(MAX_ERRORS, explained)]):
        text = data.texts[error.document]
        gold = data.labels[[error.document]].indices.astype(np.int64)
        values: dict[str, Any] = {
            "document": data.ids[error.document],
            "label": describe_label(taxonomy, error.row),
            "score": error.score,
            "gold": path_names(taxonomy, np.sort(gold)),
            "predicted": path_names(taxonomy, np.array(error.predicted, dtype=np.int64)),
            "text": text[:EXCERPT],
            "cut": len(text) > EXCERPT,
        }
        if number < explained and explain is not None:
            explanation = explain(predictor, text, labels=[taxonomy[error.row].id])
            label = explanation.labels[0]
            raising, lowering = label.strongest(explanation.words, MAX_WORDS)
            values["explanation"] = {
                "method": explanation.method,
                "strongest": max(map(abs, label.values), default=0.0),
                "for": [term._asdict() for term in raising],
                "against": [term._asdict() for term in lowering],
                "words": [list(word) for word in explanation.word_values(label) if word[1] <= EXCERPT],
            }
        described.append(values)
    return described
