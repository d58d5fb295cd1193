"""`hill check`: count the documents and labels of a data set, and report everything that is wrong with it."""

import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hill.data.documents import LabelLookup
from hill.data.readers import (
    DEFAULT_COLUMNS,
    MAX_EXAMPLES,
    ColumnNames,
    Problem,
    Problems,
    Record,
    find_splits,
    read_records,
)
from hill.errors import printable
from hill.taxonomy import Label, Taxonomy
from hill.types import IntArray

PERCENTILES = (0, 25, 50, 75, 90, 95, 99, 100)
RARE = 10
"""Labels with fewer training documents are rare."""
HISTOGRAM = (0, 1, 10, 100, 1_000, 10_000, 100_000)
"""Lower bounds of the bins of training documents per label."""
MIN_KNOWN_LABELS = 0.05
"""If a smaller share of the labels is in the taxonomy, it is probably the wrong taxonomy."""
MIN_LABELS = 5
"""With fewer labels, nothing is said about the taxonomy as a whole."""
FEW_EXAMPLES = 3
"""Examples of unknown labels if the taxonomy is wrong."""
BAR_WIDTH = 40
MAX_LEVELS = 100
"""Maximum number of levels to print; a chain has as many levels as labels."""


def check(
    path: str | os.PathLike[str],
    taxonomy: Taxonomy,
    tick: Callable[[int], None] = lambda documents: None,
    columns: ColumnNames = DEFAULT_COLUMNS,
) -> "Check":
    """Read a data set and report on it; `tick` is called with the number of documents read since its last call."""
    problems, lookup = Problems(), LabelLookup(taxonomy)
    splits: dict[str, SplitCounts] = {}
    for name, files in find_splits(path).items():
        split = splits[name] = SplitCounts(taxonomy)
        for record in read_records(files, problems.add, columns):
            split.add(record, *lookup.rows(record, problems.add))
            if len(split) % 1_000 == 0:
                tick(1_000)
        tick(len(split) % 1_000)
        if problems.counts["missing-column"]:  # the other splits very likely lack it too
            break
        if not len(split):
            problems.add(Problem("no-documents", str(path), 0, f"the split {name} has no usable document"))
    if next(iter(splits)) not in ("train", "data"):
        problems.add(Problem("no-train", str(path), 0, f"only {', '.join(splits)}; expected a train file"))
    _add_wrong_taxonomy(lookup, taxonomy, problems)
    _add_repeats(splits, problems)
    result = Check(taxonomy, splits, problems)
    if len(splits) > 1:
        counts, train_counts = result.label_counts()
        for row in np.flatnonzero((counts > 0) & (train_counts == 0)).tolist():
            message = f"label {_quoted(taxonomy[row])} has no training document"
            problems.add(Problem("untrained-label", "", 0, message))
    return result


@dataclass(frozen=True)
class Check:
    """The result of a check: the counts of each split, and the problems."""

    taxonomy: Taxonomy
    splits: dict[str, "SplitCounts"]
    problems: Problems

    @property
    def fit(self) -> bool:
        """Whether a model can be trained on this data."""
        return self.problems.fit

    def label_counts(self) -> tuple[IntArray, IntArray]:
        """Documents per label (L) over all splits, and training documents per label (L)."""
        counts = np.array([split.label_counts for split in self.splits.values()], dtype=np.int64)
        return counts.sum(axis=0), counts[0]

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values, for `--json`."""
        counts, train_counts = self.label_counts()
        bins = np.searchsorted(HISTOGRAM, train_counts, side="right") - 1
        unused, rare = np.flatnonzero(counts == 0), np.flatnonzero(train_counts < RARE)
        labels = {
            "total": len(self.taxonomy),
            "used": int((counts > 0).sum()),
            "unused": {"count": len(unused), "examples": self.taxonomy.decode(unused[:MAX_EXAMPLES])},
            "rare": {"count": len(rare), "examples": self.taxonomy.decode(rare[:MAX_EXAMPLES])},
            "histogram": [
                {"from": start, "labels": int(count)}
                for start, count in zip(HISTOGRAM, np.bincount(bins, minlength=len(HISTOGRAM)), strict=True)
            ],
            "levels": [
                {
                    "level": level,
                    "labels": len(rows),
                    "used": int((counts[rows] > 0).sum()),
                    "documents": sum(split.level_counts[level - 1] for split in self.splits.values()),
                }
                for level, rows in enumerate(self.taxonomy.levels, start=1)
            ],
        }
        return {
            "fit": self.fit,
            "splits": {name: split.to_dict() for name, split in self.splits.items()},
            "labels": labels,
            "problems": self.problems.to_dict(),
        }


# Counts


class SplitCounts:
    """The counts of one split, and a fingerprint of every text and id to find repeats."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._depth: list[int] = taxonomy.depth.tolist()
        self.label_counts = [0] * len(taxonomy)
        self.level_counts = [0] * len(taxonomy.levels)
        self.n_labels = self.n_added = 0
        self.words, self.characters, self.texts, self.ids, self._lines = (array("Q") for _ in range(5))
        self._files: list[str] = []
        self._file_indices = array("L")

    def __len__(self) -> int:
        return len(self.texts)

    def add(self, record: Record, rows: set[int], added: int) -> None:
        """Count a document with the rows of its labels, of which some were added as ancestors."""
        words = record.text.split()
        self.words.append(len(words))
        self.characters.append(len(record.text))
        self.texts.append(_fingerprint(" ".join(words)))
        self.ids.append(_fingerprint(record.id) if record.id else 0)
        self._lines.append(record.line)
        if not self._files or self._files[-1] != record.file:
            self._files.append(record.file)
        self._file_indices.append(len(self._files) - 1)
        self.n_labels += len(rows)
        self.n_added += added
        for row in rows:
            self.label_counts[row] += 1
        for depth in {self._depth[row] for row in rows}:
            self.level_counts[depth - 1] += 1

    def place(self, document: int) -> tuple[str, int]:
        """The file and line of a document."""
        return self._files[self._file_indices[document]], self._lines[document]

    def to_dict(self) -> dict[str, Any]:
        """The counts as plain values."""
        return {
            "documents": len(self),
            "labels_per_document": self.n_labels / max(len(self), 1),
            "ancestors_added": self.n_added,
            "levels": self.level_counts,
            "words": _percentiles(self.words),
            "characters": _percentiles(self.characters),
        }


def _percentiles(lengths: "array[int]") -> dict[str, float]:
    values = np.percentile(np.asarray(lengths), PERCENTILES) if lengths else np.zeros(len(PERCENTILES))
    return {f"p{percentile}": float(value) for percentile, value in zip(PERCENTILES, values, strict=True)}


# Problems of the whole data set


def _add_wrong_taxonomy(lookup: LabelLookup, taxonomy: Taxonomy, problems: Problems) -> None:
    """Report if almost no label is in the taxonomy; a few examples of unknown labels are enough then."""
    n_known = lookup.n_labels - lookup.n_unknown
    if lookup.n_labels < MIN_LABELS or n_known >= MIN_KNOWN_LABELS * lookup.n_labels or not len(taxonomy):
        return
    share = f"only {n_known:,} of {lookup.n_labels:,}" if n_known else f"none of {lookup.n_labels:,}"
    message = (
        f"{share} labels of the documents are in the taxonomy: the documents have labels such as "
        f"'{lookup.first_unknown[:80]}', the taxonomy has labels such as {_quoted(taxonomy[0])}; give the taxonomy of "
        "this data"
    )
    problems.add(Problem("wrong-taxonomy", "", 0, message))
    del problems.examples["unknown-label"][FEW_EXAMPLES:]


def _add_repeats(splits: dict[str, SplitCounts], problems: Problems) -> None:
    """Report texts and ids that occurred before, in the same split or in an earlier one."""
    names = list(splits)
    texts = np.concatenate([np.asarray(split.texts, dtype=np.uint64) for split in splits.values()])
    ids = np.concatenate([np.asarray(split.ids, dtype=np.uint64) for split in splits.values()])
    split_of = np.repeat(np.arange(len(names)), [len(split) for split in splits.values()])
    starts = np.searchsorted(split_of, np.arange(len(names)))

    def place(document: int) -> tuple[str, int]:
        split = split_of[document]
        return splits[names[split]].place(document - int(starts[split]))

    for document, first in _repeats(texts):
        file, line = place(first)
        same_split = split_of[document] == split_of[first]
        other_split = "" if same_split else f" of the split {names[split_of[first]]}"
        message = f"the same text as line {line} of {file}{other_split}"
        problems.add(Problem("duplicate-text" if same_split else "shared-text", *place(document), message))
    for document, first in _repeats(ids):
        file, line = place(first)
        problems.add(Problem("duplicate-id", *place(document), f"the same id as line {line} of {file}"))


def _repeats(fingerprints: npt.NDArray[np.uint64]) -> list[tuple[int, int]]:
    """The index of each non-zero fingerprint that occurred before, with the index of its first occurrence."""
    _, first, inverse = np.unique(fingerprints, return_index=True, return_inverse=True)
    firsts = first[inverse]
    repeats = np.flatnonzero((firsts != np.arange(len(fingerprints))) & (fingerprints != 0))
    return list(zip(repeats.tolist(), firsts[repeats].tolist(), strict=True))


def _fingerprint(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()) or 1


def _quoted(label: Label) -> str:
    return f"'{label.id}'" if label.name == label.id else f"'{label.id}' ({label.name})"


# Printing


def print_check(result: Check, console: Console) -> None:
    """Print splits, text lengths and labels, if there are documents; then problems and the verdict."""
    document = result.to_dict()
    console.print(Text(repr(result.taxonomy), style="bold"))
    if any(split["documents"] for split in document["splits"].values()):
        _print_documents(document, result.taxonomy, console)
    for problem in document["problems"]:
        style = "bold red" if problem["severity"] == "error" else "bold yellow"
        console.print(Text(f"{problem['severity']}: {problem['title']}: {problem['count']:,}", style=style))
        for example in problem["examples"]:
            place = f"{example['file']}:{example['line']}: " if example["line"] else ""
            console.print(Text(printable(f"  {place}{example['message']}")), soft_wrap=True)
        if (rest := problem["count"] - len(problem["examples"])) > 0:
            console.print(f"  … and {rest:,} more")
    if result.fit:
        console.print(Text("fit to train on", style="bold green"))
    else:
        console.print(Text("not fit to train on: correct the errors", style="bold red"))


def _print_documents(document: dict[str, Any], taxonomy: Taxonomy, console: Console) -> None:
    labels = document["labels"]
    title = "documents, labels per document, ancestors added, words per text"
    table = _table(title, "split", "documents", "labels", "added", "min", "median", "95 %", "max")
    for name, split in document["splits"].items():
        words = [f"{split['words'][percentile]:,.0f}" for percentile in ("p0", "p50", "p95", "p100")]
        per_document = f"{split['labels_per_document']:.2f}"
        table.add_row(name, f"{split['documents']:,}", per_document, f"{split['ancestors_added']:,}", *words)
    console.print(table)
    table = _table("levels", "level", "labels", "used", "documents")
    for level in labels["levels"][:MAX_LEVELS]:
        table.add_row(str(level["level"]), *(f"{level[key]:,}" for key in ("labels", "used", "documents")))
    if len(labels["levels"]) > MAX_LEVELS:
        table.add_row(f"… {len(labels['levels']):,}")
    console.print(table)
    console.print(_histogram(labels["histogram"]))
    console.print(f"\n{labels['used']:,} of {labels['total']:,} labels are used")
    for kind, description in (("unused", "never used"), ("rare", f"with fewer than {RARE} training documents")):
        if count := labels[kind]["count"]:
            examples = [taxonomy[taxonomy.row(label)] for label in labels[kind]["examples"]]
            names = [label.id if label.name == label.id else f"{label.id} ({label.name})" for label in examples]
            more = ", …" if count > len(names) else ""
            console.print(Text(printable(f"{count:,} {description}: {', '.join(names)}{more}")), soft_wrap=True)
    console.print()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _histogram(bins: list[dict[str, int]]) -> Table:
    """Labels by their number of training documents."""
    table = Table(title="labels by training documents", title_justify="left", title_style="bold", box=None)
    for justify in ("right", "right", "left"):
        table.add_column(justify=justify)
    largest = max(entry["labels"] for entry in bins) or 1
    for entry, following in pairwise([*bins, None]):
        assert entry is not None
        start, end = entry["from"], following["from"] - 1 if following else None
        interval = f"{start:,}+" if end is None else f"{start:,}" if end == start else f"{start:,}–{end:,}"
        bar = "█" * -(-entry["labels"] * BAR_WIDTH // largest)
        table.add_row(interval, f"{entry['labels']:,}", Text(bar, style="cyan"))
    return table
