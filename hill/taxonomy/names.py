"""What people write for a label: its id, its name, or its path; and the nearest one when they mistype."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import cached_property

import numpy as np

from hill.taxonomy.csr import Adjacency
from hill.taxonomy.label import Label
from hill.types import IntArray

LONGEST = 200
"""Characters of what was written that are compared with what is known."""
CANDIDATES = 20
LIKENESS = 0.6


class Names:
    """Looks labels up by anything that names them."""

    def __init__(self, labels: Sequence[Label], rows: dict[str, int], up: Adjacency) -> None:
        self._labels = labels
        self._rows = rows
        self._up = up

    @cached_property
    def _named(self) -> dict[str, list[int]]:
        named = defaultdict(list)
        for row, label in enumerate(self._labels):
            named[label.name].append(row)
        return dict(named)

    def find(self, label: str) -> list[int]:
        """Rows with this id, else with this name, else at the end of this path from a root."""
        label = label.strip()
        if label in self._rows:
            return [self._rows[label]]
        if label in self._named:
            return list(self._named[label])
        steps = [step.strip() for step in label.split(">")]
        return self._at_end(steps) if len(steps) > 1 else []

    def _at_end(self, steps: list[str]) -> list[int]:
        """Rows reached from a root by these names or ids, one step down each."""
        here = [row for row in self._called(steps[0]) if not len(self._up[row])]
        for step in steps[1:]:
            if not here:
                break
            above = set(here)
            here = [row for row in self._called(step) if not above.isdisjoint(self._up[row].tolist())]
        return here

    def _called(self, step: str) -> list[int]:
        by_id = [self._rows[step]] if step in self._rows else []
        return by_id + [row for row in self._named.get(step, ()) if row not in by_id]

    def nearest(self, label: str) -> str | None:
        """The known id or name most like this one: shortlisted by shared letter triples, chosen by matching runs."""
        label = label[:LONGEST]
        known, lengths, by_triple = self._index
        hits = [by_triple[triple] for triple in set(_triples(label)) if triple in by_triple]
        if not hits:
            return None
        shared = np.bincount(np.concatenate(hits), minlength=len(known))
        likeness = shared / np.sqrt(lengths)
        shortlist = [known[i] for i in np.argsort(-likeness, kind="stable")[:CANDIDATES] if shared[i]]
        wanted = label.casefold()
        score, best = max((_likeness(wanted, text), text) for text in shortlist)
        return best if score >= LIKENESS else None

    @cached_property
    def _index(self) -> tuple[list[str], IntArray, dict[str, IntArray]]:
        known = list(dict.fromkeys([label.id for label in self._labels] + [label.name for label in self._labels]))
        by_triple = defaultdict(list)
        for i, text in enumerate(known):
            for triple in set(_triples(text)):
                by_triple[triple].append(i)
        lengths = np.array([len(text) for text in known])
        return known, lengths, {triple: np.array(places) for triple, places in by_triple.items()}


def _triples(text: str) -> Iterator[str]:
    padded = f"  {text.casefold().strip()} "
    return (padded[i : i + 3] for i in range(len(padded) - 2))


def _likeness(wanted: str, text: str) -> float:
    return SequenceMatcher(None, wanted, text[:LONGEST].casefold()).ratio()
