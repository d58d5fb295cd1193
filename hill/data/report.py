"""The report of `hill check`, for people."""

from itertools import pairwise
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hill.data.check import RARE, Check
from hill.guard import shown

BAR = 40
MOST_LEVELS = 100
"""Levels that are listed; those of a chain are as many as its labels."""


def print_check(found: Check, console: Console) -> None:
    """Print what was found: splits, lengths, labels, problems, verdict."""
    document = found.document()
    console.print(Text(repr(found.taxonomy), style="bold"))
    console.print(_splits(document["splits"]))
    console.print(_levels(document["labels"]["levels"]))
    console.print(_histogram(document["labels"]["histogram"]))
    _print_labels(document["labels"], console)
    for problem in document["problems"]:
        _print_problem(problem, console)
    verdict = (
        ("fit to train on", "bold green") if found.fit else ("not fit to train on: correct the errors", "bold red")
    )
    console.print(Text(verdict[0], style=verdict[1]))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _splits(splits: dict[str, Any]) -> Table:
    title = "documents, labels a document, ancestors added to them, words a text"
    table = _table(title, "split", "documents", "labels", "added", "fewest", "median", "95 %", "most")
    for name, split in splits.items():
        words = [f"{split['words'][percentile]:,.0f}" for percentile in ("p0", "p50", "p95", "p100")]
        labels = f"{split['labels_per_document']:.2f}"
        table.add_row(name, f"{split['documents']:,}", labels, f"{split['ancestors_added']:,}", *words)
    return table


def _levels(levels: list[dict[str, Any]]) -> Table:
    table = _table("levels", "level", "labels", "used", "documents")
    for level in levels[:MOST_LEVELS]:
        table.add_row(str(level["level"]), *(f"{level[key]:,}" for key in ("labels", "used", "documents")))
    if len(levels) > MOST_LEVELS:
        table.add_row(f"… {len(levels):,}")
    return table


def _histogram(bins: list[dict[str, int]]) -> Table:
    """Labels by their number of training documents."""
    table = Table(title="labels by training documents", title_justify="left", title_style="bold", box=None)
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    longest = max(bar["labels"] for bar in bins) or 1
    for bar, following in pairwise([*bins, {"from": 0, "labels": 0}]):
        last = following["from"] - 1
        span = (
            f"{bar['from']:,}"
            if last == bar["from"]
            else f"{bar['from']:,}–{last:,}"
            if last > 0
            else f"{bar['from']:,}+"
        )
        table.add_row(span, f"{bar['labels']:,}", Text("█" * -(-bar["labels"] * BAR // longest), style="cyan"))
    return table


def _span(start: int, end: int) -> str:
    return f"{start:,}" if end == start else f"{start:,}–{end:,}" if end > start else f"{start:,} or more"


def _print_labels(labels: dict[str, Any], console: Console) -> None:
    console.print(f"\n{labels['used']:,} of {labels['total']:,} labels are used")
    for key, sentence in (("unused", "never used"), ("rare", f"with fewer than {RARE} training documents")):
        if labels[key]["count"]:
            examples = ", ".join(labels[key]["examples"])
            more = ", …" if labels[key]["count"] > len(labels[key]["examples"]) else ""
            console.print(Text(shown(f"{labels[key]['count']:,} {sentence}: {examples}{more}")))
    console.print()


def _print_problem(problem: dict[str, Any], console: Console) -> None:
    style = "bold red" if problem["severity"] == "error" else "bold yellow"
    console.print(Text(f"{problem['severity']}: {problem['count']:,} {problem['title']}", style=style))
    for example in problem["examples"]:
        place = f"{example['file']}:{example['line']}: " if example["line"] else ""
        console.print(Text(shown(f"  {place}{example['message']}")), soft_wrap=True)
    if (more := problem["count"] - len(problem["examples"])) > 0:
        console.print(f"  … and {more:,} more")
