"""Figures of an experiment as SVG and PNG: a point a run, the mean, and the spread over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hill.experiment.stats import Summary
from hill.experiment.table import HEADLINES, Results, memory, metric
from hill.extras import need

INK, SOFT = "#1f4e79", "#b9cfe4"
SHOWN = ("micro_f1", "macro_f1", "hierarchical_f1")
FORMATS = ("svg", "png")


def need_figures() -> Any:
    """The package that draws, asked for before anything long begins."""
    return need("matplotlib.figure", "plot", "drawing the figures of an experiment")


def draw(results: Results, folder: Path) -> dict[str, list[Path]]:
    """The files of each figure of a table: the results of rows that are done, at both thresholds, or the cost."""
    if results.table == "cost":
        return {"cost": _save(_cost(results), folder / "cost")}
    panel = _heights if results.table == "heights" else _points
    if panel is _points:
        results = replace(results, rows=[row for row in results.rows if results.records[row.name]] or results.rows)
    titles = {"raw": "threshold 0.5", "tuned": "tuned threshold"}
    return {
        title: _save(_metrics(results, panel, decoding, title), folder / f"results-{decoding}")
        for decoding, title in titles.items()
    }


def _metrics(results: Results, panel: Callable[..., None], decoding: str, title: str) -> Any:
    tall = 3.2 if panel is _heights else 1.0 + 0.32 * len(results.rows)
    figure = need_figures().Figure(figsize=(12, max(tall, 2.2)), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)
    figure.suptitle(f"{results.table} on {results.data}: test, {title}", fontsize=11, parse_math=False)
    for place, (axes, name) in enumerate(zip(figure.subplots(1, len(SHOWN)), SHOWN, strict=True)):
        found = results.summaries(partial(metric, decoding, name))
        panel(axes, results, [found[row.name] for row in results.rows], place == 0)
        axes.set_title(f"{HEADLINES[name]}, %", fontsize=10, loc="left")
    return figure


def _points(axes: Any, results: Results, found: Sequence[Summary | None], names: bool) -> None:
    """Rows from top to bottom, values from left to right."""
    places = np.arange(len(found))
    for place, summary in zip(places, found, strict=True):
        if summary:
            axes.scatter(100 * np.array(summary.values), [place] * len(summary.values), s=14, color=SOFT)
            axes.errorbar(100 * summary.mean, place, xerr=100 * (summary.deviation or 0), fmt="o", ms=4, color=INK)
    axes.set_yticks(
        places, [row.title for row in results.rows] if names else [""] * len(places), fontsize=8, parse_math=False
    )
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlim(left=max(0, axes.get_xlim()[0]))
    _tidy(axes, "x")


def _heights(axes: Any, results: Results, found: Sequence[Summary | None], names: bool) -> None:
    """Heights from left to right, values from bottom to top."""
    known = [(place + 1, summary) for place, summary in enumerate(found) if summary]
    for height, summary in known:
        axes.scatter([height] * len(summary.values), 100 * np.array(summary.values), s=14, color=SOFT)
    means, spreads = (
        ([100 * value for value in part] for part in zip(*_means(known), strict=True)) if known else ([], [])
    )
    axes.errorbar([height for height, _ in known], means, yerr=spreads, fmt="o-", ms=4, color=INK)
    axes.set_xticks(range(1, len(found) + 1))
    axes.set_xlabel("height K of the coding tree", fontsize=8)
    _tidy(axes, "y")


def _means(known: Sequence[tuple[int, Summary]]) -> list[tuple[float, float]]:
    return [(summary.mean, summary.deviation or 0.0) for _, summary in known]


def _cost(results: Results) -> Any:
    reads: dict[str, Callable[[Any], float | None]] = {
        "weights outside the text encoder, millions": lambda run: run["parameters"]["rest"] / 1e6,
        "seconds an epoch": lambda run: run["seconds"]["epoch"],
    }
    if any(memory(run) is not None for run in results.runs()):
        reads["GPU memory, MiB"] = memory
    figure = need_figures().Figure(figsize=(4 * len(reads), 2.6), layout="constrained")
    for axes, (title, read) in zip(figure.subplots(1, len(reads)), reads.items(), strict=True):
        found = results.summaries(read)
        means = [summary.mean if (summary := found[row.name]) else 0 for row in results.rows]
        axes.barh(range(len(means)), means, color=INK, height=0.6)
        axes.set_yticks(range(len(means)), [row.title for row in results.rows], fontsize=8, parse_math=False)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=10, loc="left")
        _tidy(axes, "x")
    return figure


def _tidy(axes: Any, grid: str) -> None:
    axes.grid(axis=grid, color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, length=0)
    axes.spines[:].set_visible(False)


def _save(figure: Any, stem: Path) -> list[Path]:
    """The same picture each time it is drawn from the same runs, its text as text."""
    files = [stem.with_suffix(f".{suffix}") for suffix in FORMATS]
    settings = {"svg.fonttype": "none", "svg.hashsalt": "hill"}
    with need("matplotlib", "plot", "drawing the figures of an experiment").rc_context(settings):
        for file in files:
            figure.savefig(file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files
