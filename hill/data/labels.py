"""Turning the labels of a record into rows of the taxonomy, ancestors included."""

import json

from hill.data.problems import EXAMPLES, Problem
from hill.data.records import Record, Report
from hill.taxonomy import Taxonomy

SEPARATORS = ("|", ";", ",")


class LabelReader:
    """Looks labels up once each: data sets repeat them."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy = taxonomy
        self._rows: dict[str, list[int]] = {}
        self._closures: dict[int, list[int]] = {}
        self._nearest: dict[str, str | None] = {}

    def read(self, record: Record, report: Report) -> tuple[set[int], int]:
        """The closed rows of a record's labels and how many of them were added as ancestors."""
        labels = record.labels if isinstance(record.labels, list) else self._split(record.labels)
        given: set[int] = set()
        for label in labels:
            rows = self._find(label)
            if len(rows) == 1:
                given.add(rows[0])
            else:
                report(self._wrong(label, rows, record))
        if not labels:
            report(Problem("no-labels", record.file, record.line, "the document has no labels"))
        closed = set[int]().union(*(self._closure(row) for row in given))
        return closed, len(closed) - len(given)

    def _find(self, label: str) -> list[int]:
        if label not in self._rows:
            self._rows[label] = self._taxonomy.find(label)
        return self._rows[label]

    def _closure(self, row: int) -> list[int]:
        if row not in self._closures:
            self._closures[row] = self._taxonomy.closure([row]).tolist()
        return self._closures[row]

    def _split(self, text: str) -> list[str]:
        """One string as labels: itself if it is one, a JSON list, or parts between separators of which one is known."""
        if not text.strip() or self._taxonomy.find(text):
            return [text] if text.strip() else []
        if text.lstrip().startswith("["):
            try:
                return [str(label) for label in json.loads(text)]
            except (ValueError, RecursionError):
                pass
        ways = [[part.strip() for part in text.split(mark) if part.strip()] for mark in SEPARATORS if mark in text]
        known = (parts for parts in ways if any(self._find(part) for part in parts))
        return next(known, ways[0] if ways else [text])

    def _wrong(self, label: str, rows: list[int], record: Record) -> Problem:
        if rows:
            ids = ", ".join(f"'{self._taxonomy[row].id}'" for row in rows[:3])
            message = f"the name '{label}' belongs to {len(rows)} labels; use an id ({ids}) or a path"
            return Problem("ambiguous-label", record.file, record.line, message)
        if label not in self._nearest and len(self._nearest) < EXAMPLES:
            self._nearest[label] = self._taxonomy.nearest(label)
        near = self._nearest.get(label)
        hint = f"; did you mean '{near}'?" if near else ""
        return Problem("unknown-label", record.file, record.line, f"label '{label[:80]}' is not in the taxonomy{hint}")
