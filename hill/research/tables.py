"""The tables and figures of an experiment: statistics over seeds, Markdown, HTML and plots."""

import base64
import csv
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from hill.errors import need
from hill.html import render
from hill.io import atomic_file, write_text
from hill.research.rows import PUBLISHED, ExperimentRow, reference_row, rows_folder, share_trees, table_rows
from hill.research.runs import NO_EXTRA, Extra, RunPlan, read_seeds, read_source, run_missing
from hill.types import FloatArray

# Statistics

LEVEL = 0.05
"""Significance level of both tests."""


@dataclass(frozen=True)
class Summary:
    """A metric of a row over its seeds."""

    values: tuple[float, ...]
    one_sample: float | None = None
    """p of the paper's test: a one-sample t-test of the values against the mean of the reference."""
    paired: float | None = None
    """p of a paired t-test against the reference over common seeds."""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds (n - 1); None for a single seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def marks(self) -> str:
        """† if the one-sample test and ‡ if the paired test finds a difference at 95 %."""
        tests = ((self.one_sample, "†"), (self.paired, "‡"))
        return "".join(mark for p, mark in tests if p is not None and p < LEVEL)


def summarise(values: Mapping[int, float], reference: Mapping[int, float] | None = None) -> Summary | None:
    """Summarise the values of a row by seed and test them against the reference; None without values."""
    if not values:
        return None
    own = np.array(list(values.values()), dtype=np.float64)
    if not reference:
        return Summary(tuple(own.tolist()))
    differences = np.array([values[seed] - reference[seed] for seed in values if seed in reference])
    mean = float(np.mean(list(reference.values())))
    return Summary(tuple(own.tolist()), _p_value(own - mean), _p_value(differences))


def _p_value(values: FloatArray) -> float | None:
    """Two-sided p of a t-test against 0; 0 or 1 if all values are equal."""
    if len(values) < 2:
        return None
    if np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())):
        return 1.0 if abs(float(values.mean())) <= 1e-12 else 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # values that are nearly the same
        return float(stats.ttest_1samp(values, 0.0).pvalue)


# Tables

Reader = Callable[[Any], float | None]
"""Reads a number from the record of a run."""
HEADLINES = {
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "macro_f1_supported": "macro F1, supported",
    "hierarchical_f1": "hierarchical F1",
    "path_micro_f1": "path F1",
    "violations": "violations",
}
DECODINGS = {
    "raw": "Threshold 0.5, as in the paper",
    "tuned": "One threshold tuned on dev, consistent label sets",
}
NONE = "–"


def memory(run: Any) -> float | None:
    """The peak GPU memory of a run in MiB."""
    return None if run["peak_memory"] is None else run["peak_memory"] / 2**20


COST: dict[str, tuple[Reader, int]] = {
    "training, s": (lambda run: run["seconds"]["training"], 1),
    "epoch, s": (lambda run: run["seconds"]["epoch"], 2),
    "epochs": (lambda run: len(run["dev_curve"]), 1),
    "test, s": (lambda run: run["seconds"]["test"], 2),
    "weights of text": (lambda run: run["parameters"]["text"], 0),
    "other weights": (lambda run: run["parameters"]["rest"], 0),
    "GPU memory, MiB": (memory, 0),
}
"""Columns of the section on cost: what they show, and with how many digits."""


@dataclass(frozen=True)
class Section:
    """A section of a page: title, note and a table."""

    title: str
    note: str
    header: list[str]
    lines: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class Results:
    """The records of runs by row and seed, and the row that the others are tested against."""

    table: str
    data: str
    rows: Sequence[ExperimentRow]
    records: Mapping[str, Mapping[int, Mapping[str, Any]]]
    reference: str | None

    def summaries(self, read: Reader) -> dict[str, Summary | None]:
        """Summarise a number of each run per row and test it against the reference row."""
        values = {
            row.name: {seed: value for seed, run in self.records[row.name].items() if (value := read(run)) is not None}
            for row in self.rows
        }
        reference = values.get(self.reference) if self.reference else None
        return {row: summarise(by_seed, reference) for row, by_seed in values.items()}

    def runs(self) -> list[Mapping[str, Any]]:
        """All finished runs."""
        return [run for by_seed in self.records.values() for run in by_seed.values()]

    def sections(self) -> list[Section]:
        """All sections of the page."""
        main = [self._results(decoding) for decoding in DECODINGS]
        every_metric = [self._every_metric(decoding) for decoding in DECODINGS]
        cost = self._cost()
        return [cost, *main, *every_metric] if self.table == "cost" else [*main, cost, *every_metric]

    def _results(self, decoding: str) -> Section:
        columns: dict[str, dict[str, str]] = {}
        for name, title in HEADLINES.items():
            summaries = self.summaries(partial(metric, decoding, name))
            columns[title] = {row: percent(summary) for row, summary in summaries.items()}
        if decoding == "tuned":
            thresholds = self.summaries(lambda run: run["threshold"])
            columns["threshold"] = {row: plain(summary, 3) for row, summary in thresholds.items()}
        elif scores := paper_scores(self.data):
            for place, average in enumerate(("micro", "macro")):
                columns[f"paper: {average}"] = {row: values[place] for row, values in scores.items()}
        lines = []
        for row in self.rows:
            cells = [column.get(row.name, NONE) for column in columns.values()]
            lines.append([row.title, str(len(self.records[row.name])), *cells])
        note = "Test, in percent: mean ± standard deviation over seeds."
        return Section(DECODINGS[decoding], note, ["", "runs", *columns], lines)

    def _cost(self) -> Section:
        columns = [(self.summaries(read), digits) for read, digits in COST.values()]
        lines = [[row.title, *(plain(column[row.name], digits) for column, digits in columns)] for row in self.rows]
        note = (
            "The time per epoch excludes evaluation; training includes everything. All weights count, trained or not."
        )
        return Section("Cost", note, ["", *COST], lines)

    def _every_metric(self, decoding: str) -> Section:
        names = []
        for run in self.runs()[:1]:
            test = run["test"][decoding]
            names += [name for name, value in test.items() if isinstance(value, float)]
            for level in test["levels"]:
                metrics = [name for name, value in level.items() if isinstance(value, float)]
                names += [f"level {level['level']} {name}" for name in metrics]
        lines = []
        for name in names:
            summaries = self.summaries(partial(metric, decoding, name))
            lines.append([name, *(percent(summaries[row.name]) for row in self.rows)])
        title = f"Every metric: {DECODINGS[decoding][0].lower()}{DECODINGS[decoding][1:]}"
        return Section(title, "Test, in percent.", ["", *(row.title for row in self.rows)], lines)


def paper_scores(data: str) -> dict[str, tuple[str, str]]:
    """Micro and macro F1 of each row in the paper, in percent; empty for other data sets."""
    with (PUBLISHED / "paper.csv").open(encoding="utf-8", newline="") as file:
        names = f"{data} micro", f"{data} macro"
        return {row["row"]: (row[names[0]], row[names[1]]) for row in csv.DictReader(file) if row.get(names[0])}


def metric(decoding: str, name: str, run: Any) -> float | None:
    """A metric of a run on test; metrics per level are named `level 1 micro_f1`."""
    metrics = run["test"][decoding]
    if name.startswith("level "):
        _, level, name = name.split(" ", 2)
        metrics = metrics["levels"][int(level) - 1]
    value: float | None = metrics.get(name)
    return value


def percent(summary: Summary | None) -> str:
    """Mean ± standard deviation in percent, with the marks of the tests."""
    if summary is None:
        return NONE
    around = "" if summary.deviation is None else f" ± {100 * summary.deviation:.2f}"
    return f"{100 * summary.mean:.2f}{around}{summary.marks}"


def plain(summary: Summary | None, digits: int) -> str:
    """Mean, and ± standard deviation if the seeds differ."""
    if summary is None:
        return NONE
    around = f" ± {summary.deviation:,.{digits}f}" if summary.deviation else ""
    return f"{summary.mean:,.{digits}f}{around}"


# Figures

DARK, LIGHT = "#1f4e79", "#b9cfe4"
SHOWN = ("micro_f1", "macro_f1", "hierarchical_f1")


def need_figures() -> Any:
    """matplotlib.figure; called early, so that a missing package is reported before long work."""
    return need("matplotlib.figure", "plot", "drawing the figures of an experiment")


def draw(results: Results, folder: Path) -> dict[str, list[Path]]:
    """Draw the figures of a table, with both decodings, or the cost; returns the files of each."""
    if results.table == "cost":
        return {"cost": _save(_draw_cost(results), folder / "cost")}
    if results.table != "heights":
        results = replace(results, rows=[row for row in results.rows if results.records[row.name]] or results.rows)
    figures = {}
    for decoding, title in (("raw", "threshold 0.5"), ("tuned", "tuned threshold")):
        height = 3.2 if results.table == "heights" else max(1.0 + 0.32 * len(results.rows), 2.2)
        figure = need_figures().Figure(figsize=(12, height), layout="constrained")
        figure.get_layout_engine().set(wspace=0.06)
        figure.suptitle(f"{results.table} on {results.data}: test, {title}", fontsize=11, parse_math=False)
        for place, (axes, name) in enumerate(zip(figure.subplots(1, len(SHOWN)), SHOWN, strict=True)):
            by_row = results.summaries(partial(metric, decoding, name))
            summaries = [by_row[row.name] for row in results.rows]
            if results.table == "heights":
                _draw_heights(axes, summaries)
            else:
                _draw_rows(axes, summaries, [row.title if place == 0 else "" for row in results.rows])
            axes.set_title(f"{HEADLINES[name]}, %", fontsize=10, loc="left")
        figures[title] = _save(figure, folder / f"results-{decoding}")
    return figures


def _draw_rows(axes: Any, summaries: Sequence[Summary | None], titles: list[str]) -> None:
    """One line per row: a point per seed, mean and standard deviation."""
    for place, summary in enumerate(summaries):
        if summary:
            axes.scatter(100 * np.array(summary.values), [place] * len(summary.values), s=14, color=LIGHT)
            axes.errorbar(100 * summary.mean, place, xerr=100 * (summary.deviation or 0), fmt="o", ms=4, color=DARK)
    axes.set_yticks(range(len(titles)), titles, fontsize=8, parse_math=False)
    axes.set_ylim(len(summaries) - 0.5, -0.5)
    axes.set_xlim(left=max(0, axes.get_xlim()[0]))
    _style_axes(axes, "x")


def _draw_heights(axes: Any, summaries: Sequence[Summary | None]) -> None:
    """A metric against the height of the coding tree."""
    finished = {height: summary for height, summary in enumerate(summaries, 1) if summary}
    for height, summary in finished.items():
        axes.scatter([height] * len(summary.values), 100 * np.array(summary.values), s=14, color=LIGHT)
    means = [100 * summary.mean for summary in finished.values()]
    deviations = [100 * (summary.deviation or 0.0) for summary in finished.values()]
    axes.errorbar(list(finished), means, yerr=deviations, fmt="o-", ms=4, color=DARK)
    axes.set_xticks(range(1, len(summaries) + 1))
    axes.set_xlabel("height K of the coding tree", fontsize=8)
    _style_axes(axes, "y")


def _draw_cost(results: Results) -> Any:
    reads: dict[str, Reader] = {
        "weights outside the text encoder, millions": lambda run: run["parameters"]["rest"] / 1e6,
        "seconds per epoch": lambda run: run["seconds"]["epoch"],
    }
    if any(memory(run) is not None for run in results.runs()):
        reads["GPU memory, MiB"] = memory
    figure = need_figures().Figure(figsize=(4 * len(reads), 2.6), layout="constrained")
    for axes, (title, read) in zip(figure.subplots(1, len(reads)), reads.items(), strict=True):
        summaries = results.summaries(read)
        means = [summary.mean if (summary := summaries[row.name]) else 0 for row in results.rows]
        axes.barh(range(len(means)), means, color=DARK, height=0.6)
        axes.set_yticks(range(len(means)), [row.title for row in results.rows], fontsize=8, parse_math=False)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=10, loc="left")
        _style_axes(axes, "x")
    return figure


def _style_axes(axes: Any, grid: str) -> None:
    axes.grid(axis=grid, color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, length=0)
    axes.spines[:].set_visible(False)


def _save(figure: Any, stem: Path) -> list[Path]:
    """Save as SVG and PNG. The same runs give the same bytes, and text stays text."""
    files = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
    settings = {"svg.fonttype": "none", "svg.hashsalt": "hill"}
    with need("matplotlib", "plot", "drawing the figures of an experiment").rc_context(settings):
        for file in files:
            with atomic_file(file) as draft:
                figure.savefig(draft, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


# Pages

FOOTNOTE = (
    "† differs from {reference} at 95 % by the paper's test, a one-sample t-test of the row's seeds against the mean "
    "of {reference}. ‡ differs at 95 % by a t-test of the differences over common seeds. Neither is corrected for the "
    "number of rows."
)


def markdown(title: str, notes: Sequence[str], sections: Sequence[Section]) -> str:
    """The page as Markdown."""
    parts = [f"# {_escape(title)}", *map(_escape, notes)]
    for section in sections:
        rule = "|".join(["---", *["--:"] * (len(section.header) - 1)])
        table = [" | ".join(map(_escape, line)) for line in (section.header, *section.lines)]
        lines = [f"| {table[0]} |", f"|{rule}|", *(f"| {line} |" for line in table[1:])]
        parts += [f"## {_escape(section.title)}", _escape(section.note), "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    """Escape text for a Markdown table."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(text.split()))


def html(title: str, notes: Sequence[str], sections: Sequence[Section], figures: Mapping[str, Sequence[Path]]) -> str:
    """The page as HTML, with style and figures inside."""
    pictures = {name: base64.b64encode(files[0].read_bytes()).decode() for name, files in figures.items()}
    return render("experiment.html", title=title, notes=notes, sections=sections, figures=pictures)


def _notes(results: Results) -> list[str]:
    """Sentences on the data, encoder, seeds and device of the runs, and on the marks."""
    runs = results.runs()
    if not runs:
        return ["There is no run yet."]
    sizes = ", ".join(f"{count:,} {split}" for split, count in runs[0]["data"]["documents"].items())
    models = [run["config"]["model"] for run in runs]
    encoders, devices, torches = (
        ", ".join(sorted({str(value) for value in values}))
        for values in (
            (model["encoder"] for model in models if model["text"] == "transformer"),
            (run["versions"]["device"] for run in runs),
            (run["versions"]["torch"] for run in runs),
        )
    )
    seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
    facts = (
        f"Documents: {sizes}; {runs[0]['data']['labels']:,} labels. Encoder: {encoders or 'none'}, also for rows "
        f"called BERT. Seeds: {seeds}. Device: {devices}, torch {torches}. Epochs and thresholds were chosen on dev; "
        "test was read once per run."
    )
    title = next((row.title for row in results.rows if row.name == results.reference), None)
    return [facts, FOOTNOTE.format(reference=title)] if title else [facts]


@dataclass(frozen=True)
class Page:
    """The result of an experiment: the text of the main results, the files, and the names of failed runs."""

    text: str
    files: list[Path]
    failed: list[str]


def run_experiment(
    table: str,
    data: Path,
    out: Path,
    *,
    taxonomy: Path | None = None,
    encoder: str | None = None,
    seeds: str = "5",
    rows: Path | None = None,
    only: Iterable[str] = (),
    assignments: Iterable[str] = (),
    extra: Extra = NO_EXTRA,
    workers: int = 1,
) -> Page:
    """Execute the missing runs of a table, then write `table.md`, `report.html` and the figures.

    Errors in the request are raised before the first run.
    """
    need_figures()
    plan = RunPlan(table_rows(table, rows_folder(data, rows), encoder, assignments), read_seeds(seeds), out)
    plan.runs(only)
    source = read_source(data, taxonomy)
    plan = replace(plan, rows=share_trees(plan.rows, source.taxonomy))
    failed = [run.folder.name for run, problem, _ in run_missing(plan, source, only, extra, workers) if problem]
    results = Results(table, source.name, plan.rows, plan.records(source), reference_row(table, plan.rows))
    folder, sections = out / table, results.sections()
    folder.mkdir(parents=True, exist_ok=True)
    figures = draw(results, folder)
    title, notes = f"{table} on {source.name}", _notes(results)
    write_text(folder / "table.md", markdown(title, notes, sections))
    write_text(folder / "report.html", html(title, notes, sections, figures))
    files = [folder / "table.md", folder / "report.html", *(file for files in figures.values() for file in files)]
    return Page(markdown(table, [], sections[:2]), files, failed)
