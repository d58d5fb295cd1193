"""Create a report: evaluate a model, count its errors, explain the most confident ones, and render the page."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from math import log10
from pathlib import Path
from typing import Any

import numpy as np

from hill.data import Documents
from hill.errors import ConfigError, DataError
from hill.html import render, source
from hill.io import write_text
from hill.predictor import Predictor, ScoredBatch
from hill.report.counts import KINDS, Error, ErrorCounts, describe_label, label_rows, path_names, worst_labels
from hill.settings import check_at_least

FORMATS = (".html", ".json")
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
    warning: str = "",
) -> ErrorReport:
    """Report the errors of a model on these documents; for a folder, on its test split.

    Args:
        predictor: a trained or an exported model.
        data: the documents, with their labels.
        explain: `hill.explain.explain`, to explain errors; exported models cannot be explained.
        explained: number of errors of each kind that are explained.
        tick: called with the number of documents of each finished batch.
        warning: a sentence that the report shows first, such as that the documents were in the training data.
    """
    check_at_least(explained, 0, "explained")
    if not isinstance(data, Documents):
        data, found = predictor.evaluation_documents(data, include_seen=True)
        warning = warning or found
    if not len(data):
        raise DataError("there are no documents to report on; expected at least one")
    lowest, highest = predictor.threshold_range
    config, taxonomy, texts = predictor.decode_config, predictor.taxonomy, data.texts
    counts = ErrorCounts(predictor, data.labels, max(MAX_ERRORS, explained))

    def scored() -> Iterator[ScoredBatch]:
        for documents, scores in predictor.scores(texts):
            counts.update(documents, scores)
            tick(len(documents))
            yield documents, scores

    metrics = predictor.measure(scored(), data.labels)
    labels = label_rows(taxonomy, counts.labels)
    return ErrorReport(
        {
            "warning": warning,
            "model": {
                "name": getattr(predictor, "name", type(predictor).__name__),
                "labels": len(taxonomy),
                "levels": len(taxonomy.levels),
                "strategy": config.strategy,
                "threshold": lowest if lowest == highest else config.threshold,
                "threshold_range": [lowest, highest],
                "calibrated": config.calibrate if predictor.calibrator is not None else "off",
                "decoding": predictor.decode_note,
            },
            "metrics": metrics,
            "labels": labels,
            "paths": {
                "documents": counts.paths.documents.tolist(),
                "gold": dict(zip(KINDS, counts.paths.gold.tolist(), strict=True)),
                "predicted": dict(zip(KINDS, counts.paths.predicted.tolist(), strict=True)),
            },
            "worst": worst_labels(labels, taxonomy, counts.siblings.counts),
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


def _describe(
    errors: Sequence[Error], predictor: Predictor, data: Documents, explain: Explain | None, explained: int
) -> list[dict[str, Any]]:
    """Describe errors as plain values: text, paths and, for the first of them, an explanation."""
    taxonomy, described = predictor.taxonomy, []
    for number, error in enumerate(errors):
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


def check_target(file: Path) -> None:
    """Raise if a report cannot be written to this file; called before the evaluation starts."""
    if file.suffix not in FORMATS:
        raise ConfigError(f"the report file is '{file}'; expected a name that ends in {' or '.join(FORMATS)}")
    if not file.parent.is_dir():
        raise DataError(f"cannot write '{file}': there is no folder '{file.parent}'; create it first")


# The page

MAX_ROWS = 5_000
"""Maximum number of labels that the page lists; the JSON has all of them."""
MAX_BARS = 16
MAX_LEVELS = 4


@dataclass(frozen=True)
class ErrorReport:
    """The content of a report, as plain values by section."""

    sections: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return self.sections

    def html(self) -> str:
        """Return an HTML page that needs no network."""
        labels, script = self.sections["labels"], source("report.js")
        if len(labels) > MAX_ROWS:
            labels = sorted(labels, key=lambda label: (-label["gold"], -label["predicted"]))[:MAX_ROWS]
        script_hash = b64encode(sha256(script.encode()).digest()).decode()
        charts = _charts(self.sections)
        return render(
            "report.html", report=self.sections, labels=labels, charts=charts, script=script, script_hash=script_hash
        )

    def write(self, file: Path) -> None:
        """Write an HTML page or JSON, depending on the suffix of the file."""
        check_target(file)
        text = self.html() if file.suffix == ".html" else json.dumps(self.sections, ensure_ascii=False) + "\n"
        write_text(file, text)


def _charts(report: dict[str, Any]) -> dict[str, Any]:
    """Return the lines and bars that `charts.html` draws."""
    curves, model, documents = report["thresholds"], report["model"], report["paths"]["documents"]
    same = " (the same here)" if curves["hierarchical_f1"] == curves["micro_f1"] else ""
    f1 = {"micro_f1": "micro F1", "hierarchical_f1": f"hierarchical F1{same}", "macro_f1": "macro F1"}
    one_threshold = model["strategy"] != "path" and len({*model["threshold_range"]}) == 1
    precision = {"all labels": curves}
    precision |= {f"level {n}": level for n, level in enumerate(curves["levels"][:MAX_LEVELS], start=1)}
    calibration = "" if model["calibrated"] == "off" else f", calibrated ({model['calibrated']})"
    reliability = {"before": "the model's own scores", "after": f"as predicted{calibration}"}
    return {
        "levels": _bars(["none", *map(str, range(1, len(documents)))], {"": documents}),
        "f1": [
            {"name": name, "points": list(zip(curves["threshold"], curves[key], strict=True))}
            for key, name in f1.items()
        ],
        "threshold": (model["threshold"], f"in use: {model['threshold']:.3f}") if one_threshold else None,
        "precision": [
            # thresholds at which nothing is predicted have no precision
            {"name": name, "points": [p for p in zip(curve["recall"], curve["precision"], strict=True) if any(p)]}
            for name, curve in precision.items()
        ],
        "reliability": [_reliability_line(name, report["reliability"][key]) for key, name in reliability.items()],
        **{key: _size_bars(report["sizes"][key]) for key in ("labels", "paths")},
    }


def _reliability_line(name: str, bins: list[dict[str, float]]) -> dict[str, Any]:
    """Share of gold pairs over the score, with a larger dot for more pairs."""
    points = [(values["score"], values["gold"]) for values in bins]
    dots = [
        (x, y, 2 + 0.8 * log10(values["pairs"]), f"{values['pairs']:,} at {x:.3f}")
        for (x, y), values in zip(points, bins, strict=True)
    ]
    return {"name": name, "points": points, "dots": dots}


def _size_bars(sizes: dict[str, list[int]]) -> dict[str, Any]:
    """Number of documents per number of labels or paths; the last bar stands for all larger numbers."""
    names, last = [str(size) for size in range(len(sizes["gold"]))], MAX_BARS - 1
    if len(names) > MAX_BARS:
        names = [*names[:last], f"{last}+"]
        sizes = {side: [*counts[:last], sum(counts[last:])] for side, counts in sizes.items()}
    return _bars(names, sizes)


def _bars(groups: list[str], bars: dict[str, list[int]]) -> dict[str, Any]:
    """Choose ticks for the y axis: at most five steps of 1, 2, 5, 10, 20, ... up to the highest bar or above it."""
    highest = max(map(max, bars.values()))
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(step for step in steps if step >= highest / 4)
    end = step * max(1, -(-highest // step))
    return {"groups": groups, "bars": bars, "ticks": range(0, end + 1, step)}
