"""The page of a report: one HTML file, in light and dark, for screen and print, that needs no network."""

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Any

from hill.report.charts import level_chart, precision_chart, reliability_chart, size_chart, threshold_chart
from hill.report.excerpts import error_list
from hill.report.style import SCRIPT, STYLE
from hill.report.tables import kind_table, label_table, level_table, percent, worst_table

SECTIONS = {
    "levels": "Levels",
    "paths": "Where paths go wrong",
    "worst": "Worst labels",
    "errors": "Surest errors",
    "scores": "Scores and thresholds",
    "sizes": "Labels of a document",
    "labels": "All labels",
}


def make_page(report: dict[str, Any]) -> str:
    """The page as one string. Only the page's own script may run, whatever the texts hold."""
    script = b64encode(sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'"
    links = "".join(f'<a href="#{key}">{title}</a> ' for key, title in SECTIONS.items())
    bodies = (_levels, _paths, _worst, error_list, _scores, _sizes, _labels)
    sections = "".join(
        f'<section id="{key}">\n<h2>{title}</h2>\n{body(report)}</section>\n'
        for (key, title), body in zip(SECTIONS.items(), bodies, strict=True)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Report of an evaluation</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"{_head(report)}<nav>{links}</nav>\n{_cards(report['metrics'])}{sections}"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _head(report: dict[str, Any]) -> str:
    model, documents = report["model"], report["metrics"]["documents"]
    threshold = (
        "a threshold for each label" if model["threshold_of_each_label"] else f"threshold {model['threshold']:.3f}"
    )
    rule = "the best paths" if model["strategy"] == "path" else threshold
    return (
        f"<h1>Evaluation on {documents:,} document{'s' * (documents != 1)}</h1>\n"
        f'<p class="faint">Model {escape(model["name"])}, {model["labels"]:,} labels on {model["levels"]} levels; '
        f"decoding {escape(model['strategy'])}, {rule}, calibration {escape(model['calibrated'])}.</p>\n"
    )


def _cards(metrics: dict[str, Any]) -> str:
    shares = {
        "micro_f1": ("micro F1", "all decisions together"),
        "macro_f1": (
            "macro F1",
            f"labels count the same; over those with gold {percent(metrics['macro_f1_supported'])}&nbsp;%",
        ),
        "hierarchical_f1": ("hierarchical F1", "shared ancestors count; micro F1 where predictions are consistent"),
        "path_micro_f1": ("path F1", "whole paths only"),
        "subset_accuracy": ("all right", "documents without any error"),
        "violations": ("violations", "documents with a label but not its parent"),
    }
    cards = [
        _card(f"{percent(metrics[key])} %", name, told, _own(metrics, key)) for key, (name, told) in shares.items()
    ]
    own = f"own scores: {metrics['raw_ece']:.4f}"
    cards.append(_card(f"{metrics['ece']:.4f}", "calibration error", "ECE; 0 is best", own))
    return f'<div class="cards">{"".join(cards)}</div>\n'


def _own(metrics: dict[str, Any], key: str) -> str:
    """What the model's own scores give, where that is known."""
    return f"own scores at 0.5: {percent(metrics[f'raw_{key}'])}&nbsp;%" if f"raw_{key}" in metrics else ""


def _card(value: str, name: str, told: str, own: str) -> str:
    return f'<div class="card"><span>{name}</span><b>{value}</b>{f"<i>{own}</i>" if own else ""}<i>{told}</i></div>\n'


def _levels(report: dict[str, Any]) -> str:
    return level_table(report["metrics"]["levels"])


def _paths(report: dict[str, Any]) -> str:
    found = report["paths"]
    return (
        "<p>A path is a most specific label with all above it.</p>\n"
        f'<div class="charts">{level_chart(report)}</div>\n'
        f"<h3>What became of gold paths</h3>\n{kind_table(found['gold'], 'gold')}"
        f"<h3>What predicted paths are</h3>\n{kind_table(found['predicted'], 'predicted')}"
    )


def _worst(report: dict[str, Any]) -> str:
    return (
        "<p>Lowest F1 first, of labels with at least 10 gold documents where there are enough. Beside each the "
        "siblings that are wrong in the same documents, and in how many.</p>\n" + worst_table(report["worst"])
    )


def _scores(report: dict[str, Any]) -> str:
    metrics = report["metrics"]
    return (
        "<p>Scores can be read as probabilities where their line lies on the diagonal; larger dots stand for more "
        "pairs of a document and a label. Expected calibration error: "
        f"{metrics['raw_ece']:.4f} for the model's own scores, {metrics['ece']:.4f} as predicted; the mean over levels "
        f"{metrics['raw_ece_levels']:.4f} and {metrics['ece_levels']:.4f}.</p>\n"
        f'<div class="charts">{threshold_chart(report)}{precision_chart(report)}{reliability_chart(report)}</div>\n'
    )


def _sizes(report: dict[str, Any]) -> str:
    labels = size_chart(report, "labels", "Labels, ancestors included")
    return f'<div class="charts">{labels}{size_chart(report, "paths", "Paths")}</div>\n'


def _labels(report: dict[str, Any]) -> str:
    told = "<p>Gold, predicted and right are numbers of documents; – where there is nothing to measure.</p>\n"
    return told + label_table(report["labels"])
