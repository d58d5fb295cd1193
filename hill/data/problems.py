"""What can be wrong with documents: errors stop a training, warnings do not."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from hill.errors import DataError, one_line

EXAMPLES = 20

ERRORS = {
    "unreadable": "records that cannot be read",
    "missing-field": "records without a text or labels field",
    "wrong-type": "records whose text or labels are of the wrong kind",
    "empty-text": "empty texts",
    "unknown-label": "labels that are not in the taxonomy",
    "ambiguous-label": "names that belong to several labels",
    "no-documents": "splits without documents",
    "no-train": "no split to train on",
}
WARNINGS = {
    "no-labels": "documents without labels",
    "duplicate-text": "texts that occur again in the same split",
    "shared-text": "texts that occur in another split too",
    "duplicate-id": "ids that occur again",
    "untrained-label": "labels used in dev or test but never in train",
}
TITLES = ERRORS | WARNINGS


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: its kind, the file and line, and a sentence."""

    kind: str
    file: str
    line: int
    message: str

    @property
    def severity(self) -> str:
        """`error` or `warning`."""
        return "error" if self.kind in ERRORS else "warning"

    def __str__(self) -> str:
        place = f" (line {self.line} of {self.file})" if self.line else f" ({self.file})" if self.file else ""
        return f"{self.message}{place}"


def refuse(problem: Problem) -> None:
    """Raise what makes a document unusable; let warnings pass."""
    if problem.severity == "error":
        raise DataError(str(problem))


class Problems:
    """Collects problems: counts all, keeps the first of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: defaultdict[str, list[Problem]] = defaultdict(list)

    def add(self, problem: Problem) -> None:
        """Count it, and keep it if it is among the first of its kind."""
        self.counts[problem.kind] += 1
        if len(self.examples[problem.kind]) < EXAMPLES:
            self.examples[problem.kind].append(problem)

    @property
    def fit(self) -> bool:
        """Whether no error was found."""
        return not any(kind in ERRORS for kind in self.counts)

    def document(self) -> list[dict[str, Any]]:
        """All of it as plain values, errors first."""
        return [
            {
                "kind": kind,
                "severity": "error" if kind in ERRORS else "warning",
                "title": title,
                "count": self.counts[kind],
                "examples": [
                    {"file": one_line(p.file), "line": p.line, "message": one_line(p.message)}
                    for p in self.examples[kind]
                ],
            }
            for kind, title in TITLES.items()
            if self.counts[kind]
        ]
