"""The taxonomy: labels and their parents, a forest or a directed acyclic graph (DAG), and its JSON document.

A saved model contains this document. The other formats of taxonomies are in `readers`.
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import islice
from typing import Any
from unicodedata import category, normalize

import numpy as np
from scipy.sparse import csr_array, eye_array

from hill.errors import TaxonomyError
from hill.sparse import expand_rows
from hill.types import IntArray

SEPARATOR = " > "
"""Between the names of a path."""

MAX_NAME = 1_000
"""Characters of an id or a name."""

MAX_DESCRIPTION = 100_000

TAXONOMY_FORMAT = "hill-taxonomy"
TAXONOMY_VERSION = 1

MAX_CYCLE_LABELS = 20
"""Labels of a cycle that an error message lists."""

MAX_COMPARED = 200
"""Characters of a string that `nearest` compares."""

MAX_CANDIDATES = 20
"""Ids and names that `nearest` compares in full."""

MIN_SIMILARITY = 0.6

THREE_LETTERS = re.compile(r"[^\W\d_]{3}")

Location = Callable[[int], str]
"""Returns for a row where it was read, for example ` (line 14 of tax.tsv)`, or an empty string."""


@dataclass(frozen=True, slots=True)
class Label:
    """A label. The id identifies it; the name is for display and need not be unique."""

    id: str
    name: str
    parents: tuple[str, ...] = ()
    description: str = ""

    @property
    def has_words(self) -> bool:
        """Whether its name or its description has words, so that it can be compared with texts."""
        return has_words(self.name) or has_words(self.description)


def has_words(text: str) -> bool:
    """Whether a text has words, unlike the code A00.1: three letters in a row, or a letter of a script without case.

    >>> [text for text in ("A00.1", "cs.AI", "Cholera", "数学", "7") if has_words(text)]
    ['Cholera', '数学']
    """
    return THREE_LETTERS.search(text) is not None or any(category(character) == "Lo" for character in text)


class Taxonomy:
    """Labels and their parents. The row of a label is its index in the given order.

    >>> taxonomy = Taxonomy([Label("cs", "Computing"), Label("cs.CL", "Language", ("cs",)), Label("math", "Numbers")])
    >>> taxonomy.encode(["Computing > Language"])
    array([1])
    >>> taxonomy.decode(taxonomy.closure([1]))
    ['cs', 'cs.CL']
    """

    def __init__(self, labels: Iterable[Label], location: Location = lambda row: "") -> None:
        if isinstance(labels, str | Set | Mapping) or not isinstance(labels, Iterable):
            raise TaxonomyError(f"labels is {reprlib.repr(labels)}; expected a list of Label: rows are in its order")
        self.labels = tuple(labels)
        self._rows = _check_labels(self.labels, location)
        edges = [
            (row, self._rows[parent])
            for row, label in enumerate(self.labels)
            for parent in dict.fromkeys(label.parents)
        ]
        children, parents = np.array(edges, dtype=np.int64).reshape(-1, 2).T
        self.parent_table = _adjacency(children, parents, len(self))
        """True if the label of the column is a parent of the label of the row: (L, L). Parents are in given order."""
        self._child_table = _adjacency(parents, children, len(self))
        self.depth = _depths(self.parent_table, self._child_table)
        """Labels on the longest path from a root to each label, including itself: 1 for roots."""
        if (unreachable := np.flatnonzero(self.depth == 0)).size:
            raise _cycle_error(self.labels, self._rows, unreachable.tolist(), location)

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Label]:
        return iter(self.labels)

    def __getitem__(self, row: int) -> Label:
        return self.labels[row]

    def __contains__(self, label_id: object) -> bool:
        return isinstance(label_id, str) and label_id in self._rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Taxonomy) and self.labels == other.labels

    def __hash__(self) -> int:
        return hash(self.labels)

    def __repr__(self) -> str:
        kind = "DAG" if self.is_dag else "forest"
        return f"Taxonomy({kind} of {len(self):,} labels, {self.edges:,} edges, depth {len(self.levels)})"

    def sha256(self) -> str:
        """Return a hash of the labels in their order: ids, names, parents and descriptions."""
        labels = [(label.id, label.name, label.parents, label.description) for label in self]
        return hashlib.sha256(json.dumps(labels).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the taxonomy as a JSON document; `from_dict` restores an equal one."""
        labels = []
        for label in self:
            entry: dict[str, Any] = {"id": label.id, "name": label.name, "parents": list(label.parents)}
            labels.append(entry | ({"description": label.description} if label.description else {}))
        return {"format": TAXONOMY_FORMAT, "version": TAXONOMY_VERSION, "labels": labels}

    @classmethod
    def from_dict(cls, document: Any, file: str = "taxonomy.json") -> Taxonomy:
        """Restore a taxonomy from the document of `to_dict`; errors name the file and the position in it."""
        if not isinstance(document, dict) or document.get("format") != TAXONOMY_FORMAT:
            raise TaxonomyError(f"'{file}' is not a taxonomy that hill wrote: it has no format '{TAXONOMY_FORMAT}'")
        if document.get("version") != TAXONOMY_VERSION:
            raise TaxonomyError(
                f"'{file}' is a taxonomy of version {document.get('version')!r}; this program reads {TAXONOMY_VERSION}"
            )
        entries = document.get("labels")
        if not isinstance(entries, list):
            raise unexpected_value("a list of labels", entries, f" (at labels of {file})")
        if not entries:
            raise TaxonomyError(f"taxonomy file '{file}' contains no labels")

        def location(row: int) -> str:
            return f" (at labels[{row}] of {file})"

        return cls([parse_label(entry, location(row)) for row, entry in enumerate(entries)], location)

    # Structure

    @property
    def ids(self) -> list[str]:
        """The id of each row."""
        return [label.id for label in self.labels]

    @property
    def edges(self) -> int:
        """The number of (parent, child) pairs."""
        return int(self.parent_table.nnz)

    @property
    def is_dag(self) -> bool:
        """Whether a label has several parents."""
        return bool((np.diff(self.parent_table.indptr) > 1).any())

    @cached_property
    def levels(self) -> list[IntArray]:
        """The rows of each depth; `levels[0]` are the roots."""
        order = np.argsort(self.depth, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.depth)[1:-1])) if len(self) else []

    @cached_property
    def roots(self) -> IntArray:
        """Rows without a parent."""
        return np.flatnonzero(np.diff(self.parent_table.indptr) == 0)

    @cached_property
    def leaves(self) -> IntArray:
        """Rows without a child."""
        return np.flatnonzero(np.diff(self._child_table.indptr) == 0)

    @cached_property
    def edge_array(self) -> IntArray:
        """All edges as (child, parent), sorted by child: shape (edges, 2)."""
        return np.stack(expand_rows(self.parent_table, np.arange(len(self))), axis=1)

    @cached_property
    def first_parents(self) -> IntArray:
        """The first parent of each row, the one on the first of `paths`; -1 for roots."""
        first_parents = np.full(len(self), -1)
        children, index = np.unique(self.edge_array[:, 0], return_index=True)
        first_parents[children] = self.edge_array[index, 1]
        return first_parents

    @cached_property
    def lineage(self) -> csr_array[Any]:
        """True if the label of the column is the label of the row or one of its ancestors: (L, L)."""
        return self.closures(csr_array(eye_array(len(self), dtype=bool)))

    def parents(self, row: int) -> IntArray:
        """Return the rows of the parents."""
        return _neighbours(self.parent_table, row)

    def children(self, row: int) -> IntArray:
        """Return the rows of the children."""
        return _neighbours(self._child_table, row)

    def ancestors(self, row: int) -> IntArray:
        """Return the rows of all ancestors, sorted, without the row itself."""
        return _reachable(self.parent_table, self.parents(row))

    def descendants(self, row: int) -> IntArray:
        """Return the rows of all descendants, sorted, without the row itself."""
        return _reachable(self._child_table, self.children(row))

    def paths(self, row: int) -> Iterator[tuple[int, ...]]:
        """Yield every path from a root to the row. A DAG may have very many: take only as many as you need."""
        # Paths are linked lists from the top down, so that they share their common lower part.
        unfinished: list[tuple[int, Any]] = [(row, None)]
        while unfinished:
            path = unfinished.pop()
            parents = self.parents(path[0]).tolist()
            if not parents:
                rows, lower = [path[0]], path[1]
                while lower:
                    rows.append(lower[0])
                    lower = lower[1]
                yield tuple(rows)
            unfinished.extend((parent, path) for parent in reversed(parents))

    def path_name(self, row: int) -> str:
        """Return the first path to the row as names: `Animals > Birds > Parrots`."""
        return SEPARATOR.join(self.labels[step].name for step in next(self.paths(row)))

    def path_names(self) -> list[str]:
        """Return the first path to each row as names."""
        names, first_parents = [label.name for label in self], self.first_parents.tolist()
        for row in np.argsort(self.depth, kind="stable")[len(self.roots) :].tolist():
            names[row] = f"{names[first_parents[row]]}{SEPARATOR}{names[row]}"
        return names

    def closure(self, rows: Iterable[int]) -> IntArray:
        """Return these rows and all their ancestors, sorted."""
        return _reachable(self.parent_table, np.fromiter(rows, dtype=np.int64))

    def closures(self, labels: csr_array[Any]) -> csr_array[Any]:
        """Add all ancestors to each label set: boolean (documents, L) to boolean (documents, L).

        Works from the deepest level up: all descendants of a level are complete before the level is.
        """
        # A key is document * L + label.
        keys_by_depth: list[list[IntArray]] = [[] for _ in range(len(self.levels) + 1)]

        def add(documents: IntArray, rows: IntArray) -> None:
            order = np.argsort(self.depth[rows], kind="stable")
            documents, rows = documents[order], rows[order]
            for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(self.depth[rows])) + 1):
                if len(part):
                    keys_by_depth[self.depth[rows[part[0]]]].append(documents[part] * len(self) + rows[part])

        empty, n = np.empty(0, dtype=np.int64), max(len(self), 1)
        add(*(indices.astype(np.int64) for indices in labels.tocoo().coords))
        closed = [empty]
        while len(keys_by_depth) > 1:
            closed.append(np.unique(np.concatenate([empty, *keys_by_depth.pop()])))
            entries, parents = expand_rows(self.parent_table, closed[-1] % n)
            add((closed[-1] // n)[entries], parents)
        documents, rows = np.divmod(np.sort(np.concatenate(closed)), n)
        indptr = np.searchsorted(documents, np.arange(labels.shape[0] + 1))
        return csr_array((np.ones(len(rows), dtype=bool), rows, indptr), shape=labels.shape)

    def graph(self) -> csr_array[Any]:
        """Return the label graph as a symmetric sparse matrix (L, L): undirected, every edge has weight 1."""
        children, parents = self.edge_array.T
        ends = np.concatenate([children, parents]), np.concatenate([parents, children])
        return csr_array((np.ones(len(ends[0])), ends), shape=(len(self), len(self)))

    # Lookup by id, name or path

    def row(self, label_id: str) -> int:
        """Return the row of the label with this id."""
        if not isinstance(label_id, str) or label_id not in self._rows:
            raise self._unknown(label_id)
        return self._rows[label_id]

    def find(self, label: str) -> list[int]:
        """Return the rows with this id, else with this name, else at the end of this path (`Animals > Birds`).

        Letters with accents are found in both forms that Unicode has for them.
        """
        label = label.strip() if isinstance(label, str) else ""
        if label in self._rows:
            return [self._rows[label]]
        label = normalize("NFC", label)
        if label in self._rows_by_name:
            return list(self._rows_by_name[label])
        first, *steps = (step.strip() for step in label.split(">"))
        matches = [row for row in self._named(first) if not len(self.parents(row))] if steps else []
        for step in steps:
            parents = set(matches)
            matches = [row for row in self._named(step) if not parents.isdisjoint(self.parents(row).tolist())]
        return matches

    def most_specific(self, rows: Iterable[int]) -> list[int]:
        """Return these rows once each, in order, without ancestors of the others."""
        rows = list(dict.fromkeys(rows))
        above = {ancestor for row in rows for ancestor in self.ancestors(row).tolist()}
        return [row for row in rows if row not in above]

    def nearest(self, label: str) -> str | None:
        """Return the id or name most similar to this string, if one is similar enough.

        Candidates are ranked by shared character trigrams; the best of them are compared by matching blocks.
        """
        texts, lengths, texts_by_trigram = self._trigram_index
        query = label[:MAX_COMPARED] if isinstance(label, str) else ""
        hits = [texts_by_trigram[trigram] for trigram in _trigrams(query) if trigram in texts_by_trigram]
        if not hits:
            return None
        shared = np.bincount(np.concatenate(hits), minlength=len(texts))
        order = np.argsort(-shared / np.sqrt(lengths), kind="stable")
        candidates = [texts[i] for i in order[:MAX_CANDIDATES] if shared[i]]

        def similarity(text: str) -> float:
            return SequenceMatcher(None, query.casefold(), text[:MAX_COMPARED].casefold()).ratio()

        score, best = max((similarity(text), text) for text in candidates)
        return best if score >= MIN_SIMILARITY else None

    def encode(self, labels: Iterable[str]) -> IntArray:
        """Return the rows of labels given by id, name or path: sorted, without duplicates, no ancestors added."""
        rows: set[int] = set()
        if isinstance(labels, str) or not isinstance(labels, Iterable):
            raise TaxonomyError(f"labels is {reprlib.repr(labels)}; expected a list of labels")
        for label in labels:
            matches = self.find(label)
            if not matches:
                raise self._unknown(label)
            if len(matches) > 1:
                ids = ", ".join(f"'{self.labels[row].id}'" for row in matches[:5])
                raise TaxonomyError(f"the name '{label}' belongs to {len(matches)} labels; use an id ({ids}) or a path")
            rows.update(matches)
        return np.array(sorted(rows), dtype=np.int64)

    def decode(self, rows: Iterable[int]) -> list[str]:
        """Return the ids of these rows."""
        return [self.labels[row].id for row in rows]

    @cached_property
    def _rows_by_name(self) -> dict[str, list[int]]:
        rows = defaultdict(list)
        for row, label in enumerate(self.labels):
            rows[normalize("NFC", label.name)].append(row)
        return dict(rows)

    @cached_property
    def _trigram_index(self) -> tuple[list[str], IntArray, dict[str, IntArray]]:
        """All ids and names, their lengths, and the indices of those with each trigram."""
        texts = list(dict.fromkeys([*self.ids, *(label.name for label in self.labels)]))
        by_trigram = defaultdict(list)
        for i, text in enumerate(texts):
            for trigram in _trigrams(text):
                by_trigram[trigram].append(i)
        lengths = np.array([len(text) for text in texts])
        return texts, lengths, {trigram: np.array(indices) for trigram, indices in by_trigram.items()}

    def _named(self, step: str) -> list[int]:
        """Return the rows with this id or name."""
        matches = [self._rows[step]] if step in self._rows else []
        return matches + [row for row in self._rows_by_name.get(normalize("NFC", step), ()) if row not in matches]

    def _unknown(self, label: Any) -> TaxonomyError:
        if not isinstance(label, str):
            return TaxonomyError(
                f"label {reprlib.repr(label)} is not a string; expected the id, name or path of a label"
            )
        nearest = self.nearest(label)
        hint = f"; did you mean '{nearest}'?" if nearest else ""
        return TaxonomyError(f"label '{label}' is not in the taxonomy{hint}")


def check_taxonomy(given: Any) -> Taxonomy:
    """Return the argument if it is a taxonomy; raise a `TaxonomyError` otherwise."""
    if not isinstance(given, Taxonomy):
        raise TaxonomyError(f"taxonomy is {reprlib.repr(given)}; expected a Taxonomy, as `read_taxonomy` returns it")
    return given


def check_siblings(labels: Sequence[Label], location: Location) -> None:
    """Refuse two roots, or two children of one parent, with the same name: users could not distinguish them."""
    seen: dict[tuple[str, str], int] = {}
    for row, label in enumerate(labels):
        for parent in label.parents or ("",):
            first = seen.setdefault((parent, label.name), row)
            if first != row:
                group = f"under '{parent}'" if parent else "among the roots"
                raise TaxonomyError(
                    f"the name '{label.name}' occurs twice {group}: '{labels[first].id}'{location(first)} and "
                    f"'{label.id}'{location(row)}; rename one of them"
                )


# Labels in JSON


def parse_label(entry: Any, location: str) -> Label:
    """Build a label from a JSON object with id, name, parents and description; the name defaults to the id."""
    if not isinstance(entry, dict):
        raise unexpected_value("an object with id, name and parents", entry, location)
    label_id, parents = text_field(entry, "id", location), entry.get("parents") or []
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise unexpected_value("a list of ids as parents", parents, location)
    name = text_field(entry, "name", location) if "name" in entry else label_id
    return Label(label_id, name, tuple(parents), text_field(entry, "description", location))


def text_field(entry: dict[str, Any], key: str, location: str) -> str:
    """Return the text of a field, also if it is a whole number; an empty string if it is missing."""
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise unexpected_value(f"text as {key}", value, location)
    return "" if value is None else str(value)


def unexpected_value(expected: str, value: Any, location: str) -> TaxonomyError:
    """Return the error for a JSON value of the wrong type."""
    shown = "".join(islice(json.JSONEncoder().iterencode(value), 20))[:60]
    return TaxonomyError(f"expected {expected}, got {shown}{location}")


# Checks of labels


def _check_labels(labels: Sequence[Label], location: Location) -> dict[str, int]:
    """Check all fields and return the row of each id; cycles are found later."""
    rows: dict[str, int] = {}
    for row, label in enumerate(labels):
        if not isinstance(label, Label):
            raise TaxonomyError(
                f"labels[{row}] is {reprlib.repr(label)}; expected a Label, for example Label('a', 'A')"
            )
        _check_text("id", label.id, MAX_NAME, label, row, location)
        _check_text("name", label.name, MAX_NAME, label, row, location)
        if label.description:
            _check_text("description", label.description, MAX_DESCRIPTION, label, row, location)
        if not isinstance(label.parents, tuple | list):
            raise TaxonomyError(
                f"label '{label.id}' has the parents {reprlib.repr(label.parents)}; expected a tuple of ids, for "
                "example ('a',)"
            )
        if (first := rows.setdefault(label.id, row)) != row:
            raise TaxonomyError(
                f"label id '{label.id}' occurs twice{location(row)}, first{location(first) or f' as labels[{first}]'}"
                "; ids must be unique: rename one, or list both parents in one entry"
            )
    for row, label in enumerate(labels):
        for parent in label.parents:
            if parent == label.id:
                raise TaxonomyError(
                    f"label '{label.id}' is its own parent{location(row)}; leave the parent empty to make it a root"
                )
            if not isinstance(parent, str) or parent not in rows:
                raise TaxonomyError(
                    f"label '{label.id}' has parent '{parent}', which is not in the taxonomy{location(row)}; "
                    "add it as a label or correct the parent"
                )
    return rows


def _check_text(field: str, text: Any, max_length: int, label: Label, row: int, location: Location) -> None:
    place = location(row) or f" (labels[{row}])"
    if not isinstance(text, str):
        raise TaxonomyError(f"the {field} is {reprlib.repr(text)}{place}; expected a string")
    if len(text) > max_length:
        raise TaxonomyError(
            f"the {field} '{text[:40]}…' is {len(text):,} characters long{place}; "
            f"at most {max_length:,} are allowed: is this a taxonomy?"
        )
    if not text.strip():
        label_id = f" of label '{label.id}'" if field != "id" else ""
        raise TaxonomyError(f"the {field}{label_id} is empty{place}; every label needs an id and a name")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TaxonomyError(
            f"the {field} {text[: error.start + 1]!a} contains a lone surrogate{place}; text must be valid Unicode"
        ) from None


def _cycle_error(
    labels: Sequence[Label], rows: dict[str, int], unreachable: Sequence[int], location: Location
) -> TaxonomyError:
    """Name one cycle among rows that no path from a root reaches completely, parents first."""
    candidates = set(unreachable)
    row, visited = unreachable[0], dict[int, None]()
    while row not in visited:
        visited[row] = None
        row = next(rows[parent] for parent in labels[row].parents if rows[parent] in candidates)
    upward = list(visited)[list(visited).index(row) :]
    start = upward.index(min(upward))
    downward = (upward[start:] + upward[:start] + [upward[start]])[::-1]
    ids = [f"'{labels[i].id}'" for i in downward]
    if len(ids) > MAX_CYCLE_LABELS:
        ids[MAX_CYCLE_LABELS - 1 : -1] = [f"… {len(ids) - MAX_CYCLE_LABELS:,} more …"]
    return TaxonomyError(
        f"labels form a cycle, each the parent of the next: {' > '.join(ids)}{location(downward[0])}; "
        "remove one of these parents"
    )


# Graph algorithms


def _adjacency(sources: IntArray, targets: IntArray, n: int) -> csr_array[Any]:
    """Return the boolean matrix (n, n) of these edges; the columns of a row keep the order of the edges."""
    indptr = np.append(0, np.cumsum(np.bincount(sources, minlength=n)))
    indices = targets[np.argsort(sources, kind="stable")]
    return csr_array((np.ones(len(indices), dtype=bool), indices, indptr), shape=(n, n))


def _neighbours(adjacency: csr_array[Any], row: int) -> IntArray:
    start, end = adjacency.indptr[row : row + 2]
    return adjacency.indices[start:end].astype(np.int64)


def _depths(parent_table: csr_array[Any], child_table: csr_array[Any]) -> IntArray:
    """Return the depth of each row by topological sorting, and 0 for rows on or below a cycle."""
    depths = np.zeros(parent_table.shape[0], dtype=np.int64)
    missing_parents = np.diff(parent_table.indptr)
    rows, depth = np.flatnonzero(missing_parents == 0), 1
    while len(rows):
        depths[rows] = depth
        children, counts = np.unique(expand_rows(child_table, rows)[1], return_counts=True)
        missing_parents[children] -= counts
        rows, depth = children[missing_parents[children] == 0], depth + 1
    return depths


def _reachable(adjacency: csr_array[Any], rows: IntArray) -> IntArray:
    """Return these rows and all that can be reached from them, sorted."""
    seen = np.zeros(adjacency.shape[0], dtype=bool)
    frontier = np.unique(rows)
    while len(frontier):
        seen[frontier] = True
        neighbours = expand_rows(adjacency, frontier)[1]
        frontier = np.unique(neighbours[~seen[neighbours]])
    return np.flatnonzero(seen)


def _trigrams(text: str) -> set[str]:
    padded = f"  {text.casefold().strip()} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)}
