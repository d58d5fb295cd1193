"""The HTML page of a report: its SVG charts, and what the template `report.html` needs."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from math import log10
from typing import Any

from markupsafe import Markup

from hill.html import render, source

MAX_ROWS = 5_000
"""Maximum number of labels that the page lists; the JSON has all of them."""

PATH_KINDS = {
    "gold": {
        "right": ("correct", "predicted down to its end"),
        "early": ("stopped too early", "the prediction ends at one of its ancestors"),
        "deep": ("too deep", "predicted, together with labels below its end"),
        "sibling": ("sibling", "missed, and a wrong label has the same parent"),
        "cousin": ("cousin", "missed, and a wrong label is elsewhere below the last correct label"),
        "far": ("far", "not even its root is predicted, but something wrong is"),
        "nothing": ("left out", "missed, and nothing wrong is predicted instead"),
    },
    "predicted": {
        "right": ("correct", "gold down to its end"),
        "early": ("stopped too early", "gold, but the gold path continues"),
        "deep": ("too deep", "the gold path ends at one of its ancestors"),
        "sibling": ("sibling", "wrong, and a missed label has the same parent"),
        "cousin": ("cousin", "wrong, and a missed label is elsewhere below the last correct label"),
        "far": ("far", "not even its root is gold, and something is missed"),
        "nothing": ("one too many", "wrong, and nothing is missed instead"),
    },
}
"""Name and meaning of each kind of path (`hill.report.collect.KINDS`)."""


def make_page(report: dict[str, Any]) -> str:
    """Render the page of a report, given as plain values."""
    labels = report["labels"]
    if len(labels) > MAX_ROWS:
        labels = sorted(labels, key=lambda label: (-label["gold"], -label["predicted"]))[:MAX_ROWS]
    script = source("report.js")
    return render(
        "report.html",
        report=report,
        labels=labels,
        path_kinds=PATH_KINDS,
        charts={
            "levels": _level_chart(report),
            "thresholds": _threshold_chart(report),
            "precision": _precision_chart(report),
            "reliability": _reliability_chart(report),
            "label_counts": _size_chart(report, "labels", "Labels, with ancestors"),
            "path_counts": _size_chart(report, "paths", "Paths"),
        },
        script=script,
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
    )


# The charts of a report

MAX_BARS = 16
MAX_LEVELS = 4


def _level_chart(report: dict[str, Any]) -> Markup:
    """Number of documents per first wrong level."""
    counts = report["paths"]["documents"]
    names = ["none", *map(str, range(1, len(counts)))]
    return bar_chart(names, [("", counts)], "First wrong level of a document", ("first wrong level", "documents"))


def _threshold_chart(report: dict[str, Any]) -> Markup:
    """F1 over a threshold that all labels share."""
    curves, model = report["thresholds"], report["model"]
    same = " (the same here)" if curves["hierarchical_f1"] == curves["micro_f1"] else ""
    names = {"micro_f1": "micro F1", "hierarchical_f1": f"hierarchical F1{same}", "macro_f1": "macro F1"}
    lines = [Line(name, curves["threshold"], curves[key], style) for style, (key, name) in enumerate(names.items())]
    single = model["strategy"] != "path" and not model["threshold_of_each_label"]
    mark = (model["threshold"], f"in use: {model['threshold']:.3f}") if single else None
    return line_chart(lines, "F1 if all labels share a threshold", ("threshold", "F1"), mark=mark)


def _precision_chart(report: dict[str, Any]) -> Markup:
    """Precision over recall, for all labels and per level."""
    curves = {"all labels": report["thresholds"]}
    curves |= {f"level {n}": level for n, level in enumerate(report["thresholds"]["levels"][:MAX_LEVELS], start=1)}
    lines = []
    for style, (name, curve) in enumerate(curves.items()):
        # thresholds at which nothing is predicted have no precision
        points = [(x, y) for x, y in zip(curve["recall"], curve["precision"], strict=True) if x or y]
        lines.append(Line(name, [x for x, _ in points], [y for _, y in points], style))
    return line_chart(lines, "Precision and recall at every threshold", ("recall", "precision"))


def _reliability_chart(report: dict[str, Any]) -> Markup:
    """Share of gold pairs over the score, before and after decoding."""
    calibration = report["model"]["calibrated"]
    suffix = "" if calibration == "off" else f", calibrated ({calibration})"
    lines = []
    for style, (key, name) in enumerate({"before": "the model's own scores", "after": f"as predicted{suffix}"}.items()):
        bins = report["reliability"][key]
        x, y, sizes = ([values[name] for values in bins] for name in ("score", "gold", "pairs"))
        lines.append(Line(name, x, y, style, sizes))
    return line_chart(lines, "Are scores probabilities?", ("score", "share of gold"), diagonal=True)


def _size_chart(report: dict[str, Any], key: str, title: str) -> Markup:
    """Number of documents per number of labels or paths; the last bar stands for all larger numbers."""
    sizes = report["sizes"][key]
    names = [str(size) for size in range(len(sizes["gold"]))]
    bars = [(side, sizes[side]) for side in ("gold", "predicted")]
    if len(names) > MAX_BARS:
        names = [*names[: MAX_BARS - 1], f"{MAX_BARS - 1}+"]
        bars = [(side, [*counts[: MAX_BARS - 1], sum(counts[MAX_BARS - 1 :])]) for side, counts in bars]
    return bar_chart(names, bars, title, (f"{key} per document", "documents"))


# Drawing

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 12, 48
INNER_WIDTH, INNER_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


@dataclass(frozen=True)
class Line:
    """A line of a chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: int = 0
    """Number of the colour and dash pattern."""
    sizes: Sequence[int] = ()
    """Draws a dot per point, larger for larger sizes; its tooltip shows the size."""


def line_chart(
    lines: Sequence[Line],
    title: str,
    axes: tuple[str, str],
    diagonal: bool = False,
    mark: tuple[float, str] | None = None,
) -> Markup:
    """Draw lines over axes from 0 to 1, optionally with the diagonal, and with a mark at a position on the x axis."""
    ticks = {place / 5: f"{place / 5:.1f}" for place in range(6)}
    parts = [*_y_ticks(ticks), *_x_ticks(ticks)]
    if diagonal:
        parts.append(f'<line class="guide" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>')
    if mark:
        x, anchor, shift = _x(mark[0]), *(("end", -5) if mark[0] > 0.6 else ("start", 5))
        parts.append(f'<line class="guide" x1="{x}" y1="{_y(0)}" x2="{x}" y2="{_y(1)}"/>')
        parts.append(_text(x + shift, _y(1) + 12, mark[1], anchor))
    for line in lines:
        points = [(_x(x), _y(y)) for x, y in zip(line.x, line.y, strict=True)]
        parts.append(f'<polyline class="l{line.style}" points="{" ".join(f"{x},{y}" for x, y in points)}"/>')
        for (x, y), value, size in zip(points, line.x, line.sizes, strict=False):
            dot = f'<circle class="f{line.style}" cx="{x}" cy="{y}" r="{2 + 0.8 * log10(max(size, 1)):.1f}">'
            parts.append(f"{dot}<title>{size:,} at {value:.3f}</title></circle>")
    swatch = '<path class="l{}" d="M0 5H22"/>'
    return _figure(parts, title, axes, [(line.name, swatch.format(line.style)) for line in lines])


def bar_chart(
    names: Sequence[str], bars: Sequence[tuple[str, Sequence[int]]], title: str, axes: tuple[str, str]
) -> Markup:
    """Draw groups of bars, one group per name; the y axis starts at 0."""
    highest = max(max(values) for _, values in bars)
    step = _tick_step(highest / 4)
    end = step * max(1, -(-highest // step))
    parts = list(_y_ticks({tick / end: f"{tick:,}" for tick in range(0, end + 1, step)}))
    group_width = INNER_WIDTH / len(names)
    width = 0.8 * group_width / len(bars)
    for style, (name, values) in enumerate(bars):
        for group, value in enumerate(values):
            left, top = LEFT + group_width * (group + 0.1) + width * style, _y(value / end)
            bar = f'<rect class="f{style}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_y(0) - top:.1f}">'
            parts.append(f"{bar}<title>{escape(f'{name} {names[group]}: {value:,}'.strip())}</title></rect>")
    parts += _x_ticks({(group + 0.5) / len(names): name for group, name in enumerate(names)})
    swatch = '<rect class="f{}" width="22" height="10"/>'
    return _figure(parts, title, axes, [(name, swatch.format(style)) for style, (name, _) in enumerate(bars)])


def _x(value: float) -> float:
    return round(LEFT + value * INNER_WIDTH, 1)


def _y(value: float) -> float:
    return round(TOP + (1 - value) * INNER_HEIGHT, 1)


def _tick_step(minimum: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, ... that is not below the minimum."""
    step = 1
    while step < minimum:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return step


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _y_ticks(ticks: dict[float, str]) -> Iterator[str]:
    """Horizontal grid lines with their names, at positions from 0 to 1."""
    for tick, name in ticks.items():
        yield f'<line class="grid" x1="{LEFT}" y1="{_y(tick)}" x2="{WIDTH - RIGHT}" y2="{_y(tick)}"/>'
        yield _text(LEFT - 6, _y(tick) + 4, name, "end")


def _x_ticks(ticks: dict[float, str]) -> Iterator[str]:
    return (_text(_x(tick), _y(0) + 16, name, "middle") for tick, name in ticks.items())


def _figure(parts: Iterable[str], title: str, axes: tuple[str, str], legend: Iterable[tuple[str, str]]) -> Markup:
    """A figure with these SVG elements; the legend has names with their swatches."""
    items = "".join(
        f'<li><svg width="22" height="10" aria-hidden="true">{swatch}</svg> {escape(name)}</li>'
        for name, swatch in legend
        if name
    )
    x_name = _text(LEFT + INNER_WIDTH / 2, HEIGHT - 8, axes[0], "middle")
    turn = f"translate(13 {TOP + INNER_HEIGHT / 2}) rotate(-90)"
    y_name = f'<text transform="{turn}" text-anchor="middle">{escape(axes[1])}</text>'
    return Markup(
        f'<figure><figcaption>{escape(title)}</figcaption>\n<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}{x_name}{y_name}</svg>\n'
        f'<ul class="legend">{items}</ul></figure>\n'
    )
