"""The tables and figures of an experiment: statistics over seeds, Markdown, HTML and plots."""

import base64
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
from hill.research.rows import ExperimentRow, reference_row, rows_folder, share_trees, table_rows
from hill.research.runs import NO_EXTRA, Extra, RunPlan, read_seeds, read_source, run_missing
from hill.types import FloatArray

LEVEL = 0.05


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
    common = [seed for seed in values if seed in reference]
    differences = np.array([values[seed] - reference[seed] for seed in common])
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


Records = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Records of runs by row and seed."""


def summaries(
    records: Records, read: Callable[[Any], float | None], reference: str | None, rows: Iterable[str]
) -> dict[str, Summary | None]:
    """Summarise a number of each run per row and test it against the reference row."""
    found = {
        row: {seed: value for seed, run in records[row].items() if (value := read(run)) is not None} for row in rows
    }
    against = found.get(reference) if reference else None
    return {row: summarise(values, against) for row, values in found.items()}


_WOS = {
    "textrcnn": (83.55, 76.99),
    "hiagm-rcnn": (85.82, 80.28),
    "htcinfomax-rcnn": (85.58, 80.05),
    "himatch-rcnn": (86.20, 80.53),
    "flat": (85.63, 79.07),
    "hiagm": (86.04, 80.19),
    "htcinfomax": (86.30, 79.97),
    "himatch": (86.70, 81.06),
    "hgclr": (87.11, 81.20),
    "hill": (87.28, 81.77),
    "hill-gin": (86.67, 80.53),
    "hill-gat": (86.58, 80.41),
    "hill-gcn": (86.40, 80.47),
    "hill-no-contrast": (86.96, 81.37),
    "hill-height-1": (86.21, 79.88),
}
_RCV1 = {
    "textrcnn": (81.57, 59.25),
    "hiagm-rcnn": (83.96, 63.35),
    "htcinfomax-rcnn": (83.51, 62.71),
    "himatch-rcnn": (84.73, 64.11),
    "flat": (85.65, 67.02),
    "hiagm": (85.58, 67.93),
    "htcinfomax": (85.53, 67.09),
    "himatch": (86.33, 68.66),
    "hgclr": (86.49, 68.31),
    "hill": (87.31, 70.12),
    "hill-gin": (86.48, 69.30),
    "hill-gat": (86.51, 68.12),
    "hill-gcn": (86.24, 68.71),
    "hill-no-contrast": (86.51, 68.60),
    "hill-height-1": (86.67, 67.92),
}
_NYT = {
    "textrcnn": (70.83, 56.18),
    "hiagm-rcnn": (74.97, 60.83),
    "flat": (78.24, 65.62),
    "hiagm": (78.64, 66.76),
    "htcinfomax": (78.75, 67.31),
    "hgclr": (78.86, 67.96),
    "hill": (80.47, 69.96),
    "hill-gin": (79.43, 68.53),
    "hill-gat": (79.46, 69.11),
    "hill-gcn": (79.42, 69.33),
    "hill-no-contrast": (79.64, 68.90),
    "hill-height-1": (79.63, 68.74),
}
PAPER: dict[str, dict[str, tuple[float, float]]] = {"wos": _WOS, "rcv1": _RCV1, "nyt": _NYT}
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


@dataclass(frozen=True)
class Section:
    """A section of a page: title, note and a table."""

    title: str
    note: str
    header: list[str]
    lines: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class Results:
    """The runs of the rows of a table, and the row that the others are tested against."""

    table: str
    data: str
    rows: Sequence[ExperimentRow]
    records: Records
    reference: str | None

    def summaries(self, read: Callable[[Any], float | None]) -> dict[str, Summary | None]:
        """Summarise a number of each run per row."""
        return summaries(self.records, read, self.reference, [row.name for row in self.rows])

    def runs(self) -> list[Mapping[str, Any]]:
        """All finished runs."""
        return [run for by_seed in self.records.values() for run in by_seed.values()]

    def sections(self) -> list[Section]:
        """All sections of the page."""
        shown = [self._results(decoding) for decoding in DECODINGS]
        whole = [self._every_metric(decoding) for decoding in DECODINGS]
        cost = self._cost()
        return [cost, *shown, *whole] if self.table == "cost" else [*shown, cost, *whole]

    def _results(self, decoding: str) -> Section:
        columns = [self.summaries(partial(metric, decoding, name)) for name in HEADLINES]
        header = ["", "runs", *HEADLINES.values()]
        published = PAPER.get(self.data, {}) if decoding == "raw" else {}
        if decoding == "tuned":
            header.append("threshold")
            thresholds = self.summaries(lambda run: run["threshold"])
        elif published:
            header += ["paper: micro", "paper: macro"]
        lines = []
        for row in self.rows:
            cells = [percent(column[row.name]) for column in columns]
            line = [row.title, str(len(self.records[row.name])), *cells]
            if decoding == "tuned":
                line.append(plain(thresholds[row.name], 3))
            elif published:
                line += [f"{value:.2f}" for value in published[row.name]] if row.name in published else [NONE, NONE]
            lines.append(line)
        return Section(DECODINGS[decoding], "Test, in percent: mean ± standard deviation over seeds.", header, lines)

    def _cost(self) -> Section:
        header = [
            "",
            "training, s",
            "epoch, s",
            "epochs",
            "test, s",
            "weights of text",
            "other weights",
            "GPU memory, MiB",
        ]
        reads: list[tuple[Callable[[Any], float | None], int]] = [
            (lambda run: run["seconds"]["training"], 1),
            (lambda run: run["seconds"]["epoch"], 2),
            (lambda run: len(run["dev_curve"]), 1),
            (lambda run: run["seconds"]["test"], 2),
            (lambda run: run["parameters"]["text"], 0),
            (lambda run: run["parameters"]["rest"], 0),
            (memory, 0),
        ]
        columns = [(self.summaries(read), digits) for read, digits in reads]
        lines = [[row.title, *(plain(column[row.name], digits) for column, digits in columns)] for row in self.rows]
        note = (
            "The time per epoch excludes evaluation; training includes everything. All weights count, trained or not."
        )
        return Section("Cost", note, header, lines)

    def _every_metric(self, decoding: str) -> Section:
        names = metric_names(self.runs(), decoding)
        lines = []
        for name in names:
            found = self.summaries(partial(metric, decoding, name))
            lines.append([name, *(percent(found[row.name]) for row in self.rows)])
        title = f"Every metric: {DECODINGS[decoding][0].lower()}{DECODINGS[decoding][1:]}"
        return Section(title, "Test, in percent.", ["", *(row.title for row in self.rows)], lines)


def memory(run: Any) -> float | None:
    """The peak GPU memory of a run in MiB."""
    return None if run["peak_memory"] is None else run["peak_memory"] / 2**20


def metric(decoding: str, name: str, run: Any) -> float | None:
    """A metric of a run on test; metrics per level are named `level 1 micro_f1`."""
    found = run["test"][decoding]
    if name.startswith("level "):
        _, level, name = name.split(" ", 2)
        found = found["levels"][int(level) - 1]
    value: float | None = found.get(name)
    return value


def metric_names(runs: Iterable[Mapping[str, Any]], decoding: str) -> list[str]:
    """The names of all metrics, those per level last."""
    for run in runs:
        found = run["test"][decoding]
        whole = [name for name, value in found.items() if isinstance(value, float)]
        levels = [
            f"level {level['level']} {name}"
            for level in found["levels"]
            for name, value in level.items()
            if isinstance(value, float)
        ]
        return whole + levels
    return []


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


INK, SOFT = "#1f4e79", "#b9cfe4"
SHOWN = ("micro_f1", "macro_f1", "hierarchical_f1")
FORMATS = ("svg", "png")


def need_figures() -> Any:
    """matplotlib.figure; called early, so that a missing package is reported before long work."""
    return need("matplotlib.figure", "plot", "drawing the figures of an experiment")


def draw(results: Results, folder: Path) -> dict[str, list[Path]]:
    """Draw the figures of a table, with both decodings, or the cost; returns the files of each."""
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
    """One line per row: a point per seed, mean and standard deviation."""
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
    _style_axes(axes, "x")


def _heights(axes: Any, results: Results, found: Sequence[Summary | None], names: bool) -> None:
    """Metric against the height of the coding tree."""
    known = [(place + 1, summary) for place, summary in enumerate(found) if summary]
    for height, summary in known:
        axes.scatter([height] * len(summary.values), 100 * np.array(summary.values), s=14, color=SOFT)
    means, spreads = (
        ([100 * value for value in part] for part in zip(*_means(known), strict=True)) if known else ([], [])
    )
    axes.errorbar([height for height, _ in known], means, yerr=spreads, fmt="o-", ms=4, color=INK)
    axes.set_xticks(range(1, len(found) + 1))
    axes.set_xlabel("height K of the coding tree", fontsize=8)
    _style_axes(axes, "y")


def _means(known: Sequence[tuple[int, Summary]]) -> list[tuple[float, float]]:
    return [(summary.mean, summary.deviation or 0.0) for _, summary in known]


def _cost(results: Results) -> Any:
    reads: dict[str, Callable[[Any], float | None]] = {
        "weights outside the text encoder, millions": lambda run: run["parameters"]["rest"] / 1e6,
        "seconds per epoch": lambda run: run["seconds"]["epoch"],
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
        _style_axes(axes, "x")
    return figure


def _style_axes(axes: Any, grid: str) -> None:
    axes.grid(axis=grid, color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, length=0)
    axes.spines[:].set_visible(False)


def _save(figure: Any, stem: Path) -> list[Path]:
    """Save as SVG and PNG. The same runs give the same bytes, and text stays text."""
    files = [stem.with_suffix(f".{suffix}") for suffix in FORMATS]
    settings = {"svg.fonttype": "none", "svg.hashsalt": "hill"}
    with need("matplotlib", "plot", "drawing the figures of an experiment").rc_context(settings):
        for file in files:
            with atomic_file(file) as draft:
                figure.savefig(draft, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


FOOTNOTE = (
    "† differs from {reference} at 95 % by the paper's test, a one-sample t-test of the row's seeds against the mean "
    "of {reference}. ‡ differs at 95 % by a t-test of the differences over common seeds. Neither is corrected for the "
    "number of rows."
)


def write_page(results: Results, folder: Path) -> list[Path]:
    """Write `table.md`, `report.html` and the figures; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    title, words, sections = f"{results.table} on {results.data}", _words(results), results.sections()
    figures = draw(results, folder)
    pages = {
        folder / "table.md": markdown(title, words, sections),
        folder / "report.html": html(title, words, sections, figures),
    }
    for file, text in pages.items():
        write_text(file, text)
    return [*pages, *(file for files in figures.values() for file in files)]


def markdown(title: str, words: Sequence[str], sections: Sequence[Section]) -> str:
    """The page as Markdown."""
    parts = [f"# {_cell(title)}", *map(_cell, words)]
    for section in sections:
        rule = "|".join(["---", *["--:"] * (len(section.header) - 1)])
        table = [" | ".join(map(_cell, line)) for line in (section.header, *section.lines)]
        lines = [f"| {table[0]} |", f"|{rule}|", *(f"| {line} |" for line in table[1:])]
        parts += [f"## {_cell(section.title)}", _cell(section.note), "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def html(title: str, words: Sequence[str], sections: Sequence[Section], figures: Mapping[str, Sequence[Path]]) -> str:
    """The page as HTML, with style and figures inside."""
    pictures = {name: base64.b64encode(files[0].read_bytes()).decode() for name, files in figures.items()}
    return render("experiment.html", title=title, notes=words, sections=sections, figures=pictures)


def _words(results: Results) -> list[str]:
    """Sentences on the data, encoder, seeds and device of the runs, and on the marks."""
    runs = results.runs()
    if not runs:
        return ["There is no run yet."]
    sizes = ", ".join(f"{count:,} {split}" for split, count in runs[0]["data"]["documents"].items())
    encoders, devices, torches = (
        ", ".join(sorted({str(value) for value in values}))
        for values in (
            (run["config"]["model"]["encoder"] for run in runs if run["config"]["model"]["text"] == "transformer"),
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


def _cell(text: str) -> str:
    """Escape text for a Markdown table."""
    kept = " ".join(text.split())
    for sign in "\\`*_|<>[]":
        kept = kept.replace(sign, f"\\{sign}")
    return kept


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
    """Execute the missing runs of a table, then write it. Errors in the request are raised before the first run."""
    need_figures()
    folder = rows_folder(data, rows)
    plan = RunPlan(table_rows(table, folder, encoder, assignments), read_seeds(seeds), out)
    plan.runs(only)
    source = read_source(data, taxonomy)
    plan = replace(plan, rows=share_trees(plan.rows, source.taxonomy))
    ended = list(run_missing(plan, source, only, extra, workers))
    failed = [run.folder.name for run, problem, _ in ended if problem]
    results = Results(table, source.name, plan.rows, plan.records(source), reference_row(table, plan.rows))
    files = write_page(results, out / table)
    return Page(markdown(table, [], results.sections()[:2]), files, failed)
