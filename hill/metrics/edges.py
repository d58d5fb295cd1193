"""Moving values along the edges of a taxonomy, for a block of documents at once."""

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hill.taxonomy import Taxonomy
from hill.types import BoolArray, FloatArray, IntArray

Values = TypeVar("Values", bound=npt.NDArray[Any])


WIDE = 64
"""Rounds after which what a label still has to receive is reduced first: a label may have very many children."""

Round = tuple[IntArray, IntArray, IntArray | None]


class Edges:
    """The edges of a taxonomy, in rounds.

    In a round every label receives at most once, so that one array operation serves it, and all that it sends has
    arrived in earlier rounds. Values have a row a label, so that what a round moves lies together in memory. Of label
    sets, `a * b` are the cells that both have, and `a > b` those that only the first has.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        children, parents = taxonomy.edge_array.T
        depth = taxonomy.depth[children]
        self._up = list(_rounds(parents, children, -depth))
        self._down = list(_rounds(children, parents, depth))

    def enter(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values as they are moved: (b, L) to (L, b)."""
        return np.ascontiguousarray(table.T)

    def leave(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values as they came: (L, b) to (b, L)."""
        return values.T

    def close(self, values: Values) -> Values:
        """The highest value of each label and its descendants: closure for booleans, (L, b) to (L, b)."""
        closed = values.copy()
        _receive(self._up, closed, closed, np.maximum)
        return closed

    def with_child(self, chosen: BoolArray) -> BoolArray:
        """Where a label has a chosen child: (L, b) to (L, b)."""
        found = np.zeros_like(chosen)
        _receive(self._up, found, chosen, np.logical_or)
        return found

    def least_above(self, values: Values) -> Values:
        """The lowest value of each label and its ancestors: for booleans, where all are chosen, (L, b) to (L, b)."""
        least = values.copy()
        _receive(self._down, least, least, np.minimum)
        return least

    def above(self, values: npt.NDArray[Any], thresholds: FloatArray | np.float64) -> BoolArray:
        """Where values are above a threshold, or each label's own (L): (L, b) to (L, b)."""
        return values > np.reshape(thresholds, (-1, 1))

    def within(self, values: npt.NDArray[Any], chosen: BoolArray) -> npt.NDArray[Any]:
        """The values of chosen cells, 0 elsewhere: (L, b) to (L, b)."""
        return np.where(chosen, values, 0)

    def highest(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The highest value of each document: (L, b) to (b)."""
        highest: npt.NDArray[Any] = values.max(axis=0, initial=0)
        return highest

    def of_documents(self, values: npt.NDArray[Any], kept: BoolArray) -> npt.NDArray[Any]:
        """The values of these documents (b), 0 elsewhere: (L, b) to (L, b)."""
        return values * kept

    def per_label(self, chosen: BoolArray) -> IntArray:
        """How often each label is chosen: (L, b) to (L)."""
        counts: IntArray = np.count_nonzero(chosen, axis=1)
        return counts

    def per_document(self, chosen: BoolArray) -> IntArray:
        """How many labels of each document are chosen: (L, b) to (b)."""
        counts: IntArray = np.count_nonzero(chosen, axis=0)
        return counts


def _receive(rounds: list[Round], values: npt.NDArray[Any], sent: npt.NDArray[Any], join: np.ufunc) -> None:
    for targets, sources, starts in rounds:
        arriving = sent[sources] if starts is None else join.reduceat(sent[sources], starts, axis=0)
        values[targets] = join(values[targets], arriving)


def _rounds(targets: IntArray, sources: IntArray, stage: IntArray) -> Iterator[Round]:
    """Edges stage by stage; within one, first the first edge of every target, then the second, and so on.

    The last round of a stage may bring several edges to a target, together and reduced from these starts.
    """
    order = np.lexsort((targets, stage))
    targets, sources, stage = targets[order], sources[order], stage[order]
    turn = np.minimum(_turns(targets, stage), WIDE)
    order = np.lexsort((turn, stage))
    borders = np.flatnonzero((np.diff(turn[order]) != 0) | (np.diff(stage[order]) != 0)) + 1
    for part in np.split(order, borders) if len(order) else []:
        if turn[part[0]] < WIDE:
            yield targets[part], sources[part], None
        else:
            receiving, starts = np.unique(targets[part], return_index=True)
            yield receiving, sources[part], starts


def _turns(targets: IntArray, stage: IntArray) -> IntArray:
    """For edges sorted by stage and target, how many edges to the same target in the same stage come before each."""
    fresh = np.ones(len(targets), dtype=bool)
    fresh[1:] = (np.diff(targets) != 0) | (np.diff(stage) != 0)
    starts = np.flatnonzero(fresh)
    turns: IntArray = np.arange(len(targets)) - np.repeat(starts, np.diff(np.append(starts, len(targets))))
    return turns
