"""The charts of a report, from its values."""

from collections.abc import Sequence
from typing import Any

from hill.report.svg import Line, bar_chart, line_chart

MOST_BARS = 16
MOST_LEVELS = 4


def threshold_chart(report: dict[str, Any]) -> str:
    """F1 over the threshold that all labels share."""
    found = report["thresholds"]
    same = " (the same here)" if found["hierarchical_f1"] == found["micro_f1"] else ""
    names = {"micro_f1": "micro F1", "hierarchical_f1": f"hierarchical F1{same}", "macro_f1": "macro F1"}
    lines = [Line(name, found["threshold"], found[key], number) for number, (key, name) in enumerate(names.items())]
    return line_chart(lines, "F1 if all labels had one threshold", ("threshold", "F1"), mark=_mark(report["model"]))


def _mark(model: dict[str, Any]) -> tuple[float, str] | None:
    """Where the threshold in use stands, if there is a single one."""
    if model["strategy"] == "path" or model["threshold_of_each_label"]:
        return None
    return model["threshold"], f"in use: {model['threshold']:.3f}"


def precision_chart(report: dict[str, Any]) -> str:
    """Precision over recall, of all labels and of each level."""
    found = report["thresholds"]
    lines = [_curve("all labels", found, 0)]
    lines += [
        _curve(f"level {place}", level, place) for place, level in enumerate(found["levels"][:MOST_LEVELS], start=1)
    ]
    return line_chart(lines, "Precision and recall at every threshold", ("recall", "precision"))


def _curve(name: str, found: dict[str, Any], number: int) -> Line:
    """Without the ends at which nothing is predicted: there is no precision then."""
    pairs = [(x, y) for x, y in zip(found["recall"], found["precision"], strict=True) if x or y]
    return Line(name, [x for x, _ in pairs], [y for _, y in pairs], number)


def reliability_chart(report: dict[str, Any]) -> str:
    """The share of gold over the score, before and after decoding."""
    names = {"before": "the model's own scores", "after": "as predicted"}
    if report["model"]["calibrated"] != "off":
        names["after"] += f", calibrated ({report['model']['calibrated']})"
    lines = [
        Line(
            name,
            [found["score"] for found in report["reliability"][key]],
            [found["gold"] for found in report["reliability"][key]],
            number,
            sizes=[found["pairs"] for found in report["reliability"][key]],
        )
        for number, (key, name) in enumerate(names.items())
    ]
    return line_chart(
        lines, "Do scores tell how often a label is right?", ("score", "share that is gold"), diagonal=True
    )


def size_chart(report: dict[str, Any], what: str, title: str) -> str:
    """Documents by their number of labels or paths; what is beyond the last bar is in it."""
    sizes = report["sizes"][what]
    gold, predicted = _fold(sizes["gold"]), _fold(sizes["predicted"])
    names = [str(place) for place in range(len(gold))]
    if len(sizes["gold"]) > MOST_BARS:
        names[-1] += "+"
    return bar_chart(names, [("gold", gold), ("predicted", predicted)], title, (f"{what} of a document", "documents"))


def level_chart(report: dict[str, Any]) -> str:
    """Documents by the level that is wrong first."""
    counts = report["paths"]["documents"]
    names = ["none", *map(str, range(1, len(counts)))]
    return bar_chart(names, [("", counts)], "Where documents first go wrong", ("first wrong level", "documents"))


def _fold(counts: Sequence[int]) -> list[int]:
    return [*counts] if len(counts) <= MOST_BARS else [*counts[: MOST_BARS - 1], sum(counts[MOST_BARS - 1 :])]
