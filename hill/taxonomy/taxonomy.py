"""The given labels: a forest or a directed acyclic graph, in the order they were given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array, eye_array

from hill.errors import TaxonomyError
from hill.taxonomy.checks import Where, check_labels, check_parents, raise_cycle
from hill.taxonomy.csr import Adjacency, waves
from hill.taxonomy.label import Label
from hill.taxonomy.names import Names
from hill.types import IntArray

SEPARATOR = " > "


class Taxonomy:
    """Labels and their parents. A label is known by its row, which is its place in the order given.

    >>> taxonomy = Taxonomy([Label("cs", "Computing"), Label("cs.CL", "Language", ("cs",)), Label("math", "Numbers")])
    >>> taxonomy.encode(["Computing > Language"])
    array([1])
    >>> taxonomy.decode(taxonomy.closure([1]))
    ['cs', 'cs.CL']
    """

    def __init__(self, labels: Iterable[Label], where: Where = lambda row: "") -> None:
        self.labels = tuple(labels)
        self._rows = check_labels(self.labels, where)
        check_parents(self.labels, self._rows, where)
        pairs = [
            (row, self._rows[parent])
            for row, label in enumerate(self.labels)
            for parent in dict.fromkeys(label.parents)
        ]
        children, parents = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        self._up = Adjacency(children, parents, len(self))
        self._down = Adjacency(parents, children, len(self))
        self.depth: IntArray = np.zeros(len(self), dtype=np.int64)
        """Labels on the longest path from a root down to each label, itself included: 1 for roots."""
        for depth, wave in enumerate(waves(self._up, self._down, len(self)), start=1):
            self.depth[wave] = depth
        if stuck := np.flatnonzero(self.depth == 0).tolist():
            raise_cycle(self.labels, self._rows, stuck, where)

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Label]:
        return iter(self.labels)

    def __getitem__(self, row: int) -> Label:
        return self.labels[row]

    def __contains__(self, label_id: object) -> bool:
        return label_id in self._rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Taxonomy) and self.labels == other.labels

    def __hash__(self) -> int:
        return hash(self.labels)

    def __repr__(self) -> str:
        kind = "DAG" if self.is_dag else "forest"
        return f"Taxonomy({kind} of {len(self):,} labels, {self.edges:,} edges, depth {len(self.levels)})"

    @property
    def ids(self) -> list[str]:
        """The id of each row."""
        return [label.id for label in self.labels]

    @property
    def edges(self) -> int:
        """How many (parent, child) pairs there are."""
        return len(self._up.targets)

    @property
    def is_dag(self) -> bool:
        """Whether some label has several parents."""
        return bool((np.diff(self._up.starts) > 1).any())

    @cached_property
    def levels(self) -> list[IntArray]:
        """The rows of each depth; `levels[0]` are the roots."""
        order = np.argsort(self.depth, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.depth)[1:-1])) if len(self) else []

    @cached_property
    def roots(self) -> IntArray:
        """Rows without a parent."""
        return np.flatnonzero(np.diff(self._up.starts) == 0)

    @cached_property
    def leaves(self) -> IntArray:
        """Rows without a child."""
        return np.flatnonzero(np.diff(self._down.starts) == 0)

    @cached_property
    def edge_array(self) -> IntArray:
        """All edges as rows (child, parent), children in order: shape (edges, 2)."""
        children = np.repeat(np.arange(len(self)), np.diff(self._up.starts))
        return np.stack([children, self._up.targets], axis=1)

    @cached_property
    def first_parents(self) -> IntArray:
        """The first parent of each row, on the first of `paths`; -1 for roots."""
        starts = self._up.starts
        return np.append(self._up.targets, -1)[np.where(np.diff(starts) > 0, starts[:-1], -1)]

    def row(self, label_id: str) -> int:
        """The row of the label with this id."""
        if label_id not in self._rows:
            raise self._unknown(label_id)
        return self._rows[label_id]

    def parents(self, row: int) -> IntArray:
        """Rows directly above."""
        return self._up[row]

    def children(self, row: int) -> IntArray:
        """Rows directly below."""
        return self._down[row]

    def ancestors(self, row: int) -> IntArray:
        """All rows above, sorted, without the row itself."""
        return self._up.reach(self._up[row])

    def descendants(self, row: int) -> IntArray:
        """All rows below, sorted, without the row itself."""
        return self._down.reach(self._down[row])

    def paths(self, row: int) -> Iterator[tuple[int, ...]]:
        """Every way from a root down to the row. A DAG may have very many: take what you need."""
        unfinished: list[tuple[int, Any]] = [(row, None)]
        while unfinished:
            path = unfinished.pop()
            above = self._up[path[0]].tolist()
            if not above:
                yield tuple(_steps(path))
            unfinished.extend((parent, path) for parent in reversed(above))

    def path_name(self, row: int) -> str:
        """The first path to the row, in names: `Animals > Birds > Parrots`."""
        return SEPARATOR.join(self.labels[step].name for step in next(self.paths(row)))

    def path_names(self) -> list[str]:
        """The first path to each row, in names."""
        names, above = [label.name for label in self.labels], self.first_parents.tolist()
        for row in np.argsort(self.depth, kind="stable")[len(self.roots) :].tolist():
            names[row] = f"{names[above[row]]}{SEPARATOR}{names[row]}"
        return names

    def closure(self, rows: Iterable[int]) -> IntArray:
        """These rows and all their ancestors, sorted."""
        return self._up.reach(np.fromiter(rows, dtype=np.int64))

    def closures(self, labels: csr_array[Any]) -> csr_array[Any]:
        """The closure of many label sets at once: (documents, L) to (documents, L), true where a label is in the set.

        Works depth by depth from the deepest: by the time a depth is reached, all that it receives has arrived.
        """
        documents, rows = (places.astype(np.int64) for places in labels.tocoo().coords)
        at_depth: list[list[IntArray]] = [[] for _ in range(len(self.levels) + 1)]
        self._file_by_depth(documents * len(self) + rows, at_depth)
        closed: list[IntArray] = []
        while len(at_depth) > 1:
            keys = np.unique(np.concatenate(at_depth.pop() or [np.empty(0, dtype=np.int64)]))
            closed.append(keys)
            documents, rows = np.divmod(keys, max(len(self), 1))
            above = np.repeat(documents, self._up.counts(rows)) * len(self) + self._up.expand(rows)
            self._file_by_depth(above, at_depth)
        keys = np.sort(np.concatenate([*closed, np.empty(0, dtype=np.int64)]))
        documents, rows = np.divmod(keys, max(len(self), 1))
        starts = np.searchsorted(documents, np.arange(labels.shape[0] + 1))
        return csr_array((np.ones(len(keys), dtype=bool), rows, starts), shape=labels.shape)

    def _file_by_depth(self, keys: IntArray, at_depth: list[list[IntArray]]) -> None:
        depth = self.depth[keys % max(len(self), 1)]
        order = np.argsort(depth, kind="stable")
        depth, keys = depth[order], keys[order]
        borders = np.flatnonzero(np.diff(depth)) + 1
        for part in np.split(keys, borders) if len(keys) else []:
            at_depth[self.depth[part[0] % len(self)]].append(part)

    @cached_property
    def lineage(self) -> csr_array[Any]:
        """True where the label of a column is that of the row or above it: (L, L)."""
        return self.closures(csr_array(eye_array(len(self), dtype=bool)))

    @cached_property
    def parent_table(self) -> csr_array[Any]:
        """True where the label of a column is a parent of that of the row: (L, L)."""
        targets = self._up.targets
        return csr_array((np.ones(len(targets), dtype=bool), targets, self._up.starts), shape=(len(self), len(self)))

    def graph(self, root: bool = False) -> csr_array[Any]:
        """The label graph: undirected, every edge of weight 1, as a symmetric sparse matrix (L, L).

        With `root`, one more vertex at the end is joined to every root.
        """
        children, parents = self.edge_array.T
        n = len(self)
        if root:
            children = np.concatenate([children, self.roots])
            parents = np.concatenate([parents, np.full(len(self.roots), n)])
            n += 1
        ends = np.concatenate([children, parents]), np.concatenate([parents, children])
        return csr_array((np.ones(len(ends[0])), ends), shape=(n, n))

    @cached_property
    def _names(self) -> Names:
        return Names(self.labels, self._rows, self._up)

    def find(self, label: str) -> list[int]:
        """The rows that an id, a name or a path (`Animals > Birds`) may mean: none, one, or several of one name."""
        return self._names.find(label)

    def nearest(self, label: str) -> str | None:
        """The known id or name most like this one, if any is alike."""
        return self._names.nearest(label)

    def encode(self, labels: Iterable[str]) -> IntArray:
        """The rows of these labels, each given by id, name or path; sorted, without repeats, no ancestors added."""
        rows: set[int] = set()
        for label in labels:
            found = self.find(label)
            if not found:
                raise self._unknown(label)
            if len(found) > 1:
                ids = ", ".join(f"'{self.labels[row].id}'" for row in found[:5])
                raise TaxonomyError(f"the name '{label}' belongs to {len(found)} labels; use an id ({ids}) or a path")
            rows.update(found)
        return np.array(sorted(rows), dtype=np.int64)

    def decode(self, rows: Iterable[int]) -> list[str]:
        """The ids of these rows."""
        return [self.labels[row].id for row in rows]

    def _unknown(self, label: str) -> TaxonomyError:
        nearest = self.nearest(label)
        hint = f"; did you mean '{nearest}'?" if nearest else ""
        return TaxonomyError(f"label '{label}' is not in the taxonomy{hint}")


def _steps(path: Any) -> Iterator[int]:
    """The rows of a path that is linked from the top down, so that paths share what they have below in common."""
    while path:
        row, path = path
        yield row
