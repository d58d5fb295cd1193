"""The labels of a taxonomy as the server lists, finds and shows them."""

from functools import cached_property
from itertools import islice
from typing import Any

from hill.taxonomy import Taxonomy
from hill.types import IntArray

MOST_PATHS = 100
"""Paths of a label that are shown; in a DAG there may be very many."""


class Labels:
    """What is asked about labels, as plain values."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy = taxonomy

    @cached_property
    def _words(self) -> list[tuple[str, str]]:
        """Id and name of each label as they are searched."""
        return [(label.id.casefold(), label.name.casefold()) for label in self._taxonomy]

    def below(self, parent: str | None) -> IntArray:
        """Rows of the children of a label, or of the roots."""
        return self._taxonomy.roots if parent is None else self._taxonomy.children(self._taxonomy.row(parent))

    def search(self, asked: str) -> list[int]:
        """Rows whose id or name has all these words in it, best first.

        Best is what is asked for itself, then what begins with it, then names in which a word begins with it, then the
        rest; among equals short names first.
        """
        whole = asked.casefold().strip()
        words = whole.split()
        found = [row for row, own in enumerate(self._words) if all(w in own[0] or w in own[1] for w in words)]
        return sorted(found, key=lambda row: (_distance(whole, *self._words[row]), len(self._words[row][1]), row))

    def document(self, row: int) -> dict[str, Any]:
        """A label in a list."""
        taxonomy, label = self._taxonomy, self._taxonomy[row]
        return {
            "id": label.id,
            "name": label.name,
            "description": label.description,
            "level": int(taxonomy.depth[row]),
            "children": len(taxonomy.children(row)),
            "parents": taxonomy.decode(taxonomy.parents(row)),
        }

    def whole(self, label_id: str) -> dict[str, Any]:
        """A label with its paths."""
        taxonomy, row = self._taxonomy, self._taxonomy.row(label_id)
        paths = [taxonomy.decode(path) for path in islice(taxonomy.paths(row), MOST_PATHS)]
        return {**self.document(row), "paths": paths}


def _distance(asked: str, label_id: str, name: str) -> int:
    if asked in (label_id, name):
        return 0
    if label_id.startswith(asked) or name.startswith(asked):
        return 1
    return 2 if f" {asked}" in name else 3
