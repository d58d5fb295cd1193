"""What an experiment found, as sections of a page: results at both thresholds, cost, and every metric."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hill.experiment.paper import PAPER
from hill.experiment.rows import Row
from hill.experiment.stats import Records, Summary, summaries

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
    """A part of a page: a title, a sentence, and a table whose first column names its lines."""

    title: str
    note: str
    header: list[str]
    lines: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class Results:
    """The runs of a table's rows, and the row that the others are tested against."""

    table: str
    data: str
    rows: Sequence[Row]
    records: Records
    reference: str | None

    def summaries(self, read: Callable[[Any], float | None]) -> dict[str, Summary | None]:
        """A number of each run, row by row."""
        return summaries(self.records, read, self.reference, [row.name for row in self.rows])

    def runs(self) -> list[Mapping[str, Any]]:
        """All runs there are."""
        return [run for by_seed in self.records.values() for run in by_seed.values()]

    def sections(self) -> list[Section]:
        """The whole page."""
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
            "Time of an epoch is without evaluation; training is all of it. Weights are counted whether trained or not."
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
    """The peak of a run on a GPU, in MiB."""
    return None if run["peak_memory"] is None else run["peak_memory"] / 2**20


def metric(decoding: str, name: str, run: Any) -> float | None:
    """A metric of a run on test; those of a level are called `level 1 micro_f1`."""
    found = run["test"][decoding]
    if name.startswith("level "):
        _, level, name = name.split(" ", 2)
        found = found["levels"][int(level) - 1]
    value: float | None = found.get(name)
    return value


def metric_names(runs: Iterable[Mapping[str, Any]], decoding: str) -> list[str]:
    """The name of every metric, those of the levels last."""
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
    """A share as percent: mean ± standard deviation, with the marks of the tests."""
    if summary is None:
        return NONE
    around = "" if summary.deviation is None else f" ± {100 * summary.deviation:.2f}"
    return f"{100 * summary.mean:.2f}{around}{summary.marks}"


def plain(summary: Summary | None, digits: int) -> str:
    """A number: mean ± standard deviation where seeds differ."""
    if summary is None:
        return NONE
    around = f" ± {summary.deviation:,.{digits}f}" if summary.deviation else ""
    return f"{summary.mean:,.{digits}f}{around}"
