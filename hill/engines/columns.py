"""Predictions as columns: labels, scores and paths of many texts at once, without a loop over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.engines.rows import Row
from hill.extras import need
from hill.predictor import Predictor, chosen_cells
from hill.types import BoolArray, IntArray

MOST_STEPS = 10_000
"""Label ids in the paths of a row: what many deep paths share is in each of them, while `labels` has it once."""
Chosen = tuple[IntArray, IntArray, npt.NDArray[np.float32], BoolArray]
"""Text, label, score, and whether the label is the end of a path, of every label that was chosen."""


class Columns:
    """Turns rows into tables with the columns id, labels, scores, paths and error."""

    def __init__(self, predictor: Predictor) -> None:
        self._arrow = need("pyarrow", "data", "writing Parquet")
        taxonomy = predictor.taxonomy
        self._predictor = predictor
        self._decoder = predictor.decoder()
        self._ids = self._arrow.array(taxonomy.ids, self._arrow.string())
        child, parent = taxonomy.edge_array.T
        self._parents: csr_array[Any] = csr_array(
            (np.ones(len(child), dtype=np.int32), (child, parent)), shape=(len(taxonomy), len(taxonomy))
        )
        self._above = taxonomy.first_parents
        self._lengths = np.ones(len(taxonomy), dtype=np.int64)  # labels on the first path to each
        for rows in taxonomy.levels[1:]:
            self._lengths[rows] += self._lengths[self._above[rows]]

    @property
    def schema(self) -> Any:
        """Names and types of the columns."""
        arrow = self._arrow
        text = arrow.string()
        types = {"id": text, "labels": arrow.list_(text), "scores": arrow.list_(arrow.float32())}
        return arrow.schema({**types, "paths": arrow.list_(arrow.list_(text)), "error": text})

    def table(self, rows: Sequence[Row]) -> Any:
        """One row out for each row in, in order; those that cannot be predicted have no labels but an error."""
        good = np.flatnonzero([row.error is None for row in rows])
        document, label, score, end = self._choose([rows[place].text for place in good.tolist()])
        document = good[document]
        order = np.argsort(document, kind="stable")
        labels = self._ids.take(self._arrow.array(label[order]))
        counts = _bounds(document, len(rows))
        columns = [
            [row.id for row in rows],
            self._list(counts, labels),
            self._list(counts, self._arrow.array(score[order].astype(np.float32))),
            self._paths(document[end], label[end], score[end], len(rows)),
            [row.error for row in rows],
        ]
        fields = zip(columns, self.schema, strict=True)
        arrays = [self._arrow.array(c, f.type) if isinstance(c, list) else c for c, f in fields]
        return self._arrow.Table.from_arrays(arrays, schema=self.schema)

    def _choose(self, texts: list[str]) -> Chosen:
        none = np.zeros(0, dtype=np.int64)
        found: list[Chosen] = [(none, none, np.zeros(0, dtype=np.float32), np.zeros(0, dtype=bool))]
        for documents, scores in self._predictor.scores(texts) if texts else ():
            chosen, effective = self._decoder.decide(scores)
            place, label, score = chosen_cells(chosen, effective)
            above = (
                csr_array(chosen.astype(np.int32)) @ self._parents
            ).tocoo()  # (n, L): chosen children of each label
            end = ~np.isin(place * len(self._ids) + label, above.row.astype(np.int64) * len(self._ids) + above.col)
            found.append((documents[place], label, score, end))
        document, label, score, end = (np.concatenate(values) for values in zip(*found, strict=True))
        return document, label, score, end

    def _paths(self, document: IntArray, label: IntArray, score: npt.NDArray[Any], count: int) -> Any:
        """The path to every label that ends one, the best first, as far as a row has room for them."""
        order = np.lexsort((label, -score, document))
        order = order[_fitting(document[order], self._lengths[label[order]])]
        ends = label[order]
        bounds = np.append(0, np.cumsum(self._lengths[ends]))
        paths = self._list(bounds, self._ids.take(self._arrow.array(self._walk(ends, bounds))))
        return self._list(_bounds(document[order], count), paths)

    def _walk(self, ends: IntArray, bounds: IntArray) -> IntArray:
        """The labels from a root down to each of these, one path after the other."""
        steps = np.empty(bounds[-1], dtype=np.int64)
        here, place = ends, bounds[1:] - 1
        while len(here):
            steps[place] = here
            above = self._above[here]
            going = above >= 0
            here, place = above[going], place[going] - 1
        return steps

    def _list(self, bounds: IntArray, values: Any) -> Any:
        return self._arrow.ListArray.from_arrays(self._arrow.array(bounds.astype(np.int32)), values)


def _bounds(document: IntArray, count: int) -> IntArray:
    """Where the values of each text begin and end (texts + 1)."""
    return np.append(0, np.cumsum(np.bincount(document, minlength=count)))


def _fitting(document: IntArray, lengths: IntArray) -> BoolArray:
    """Which paths, sorted by text, have room in the row of their text; the first has always."""
    fresh = np.diff(document, prepend=-1) != 0
    ends = np.cumsum(lengths)
    used = ends - (ends - lengths)[fresh][np.cumsum(fresh) - 1]
    fits: BoolArray = fresh | (used <= MOST_STEPS)
    return fits
