"""Calibration: what makes scores probabilities, fitted on documents that training did not see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression, minimize_scalar
from scipy.sparse import csr_array

from hill.metrics.sparse import gold_scores
from hill.taxonomy import Taxonomy
from hill.taxonomy.cells import with_values
from hill.types import FloatArray, IntArray

Scores = npt.NDArray[np.floating]
AnyTable = TypeVar("AnyTable", Scores, csr_array[Any])
Rows = npt.NDArray[np.integer[Any]] | slice
Block = tuple[Any, Any]
"""Labels and scores of some documents: (B, L) each, both dense or both sparse."""

EDGE = 1e-7
"""Scores nearer to 0 or 1 than this have the logit of this: beyond it float32 knows no more."""
FINE = np.linspace(-16, 16, 641)
COARSE = np.linspace(-8, 8, 65)
"""Logits at which a curve has its nodes."""
SUPPORT = 50
"""Fewest gold documents for which a label has a curve of its own."""
STEEPEST = 20.0
SLOPE = 1e-3
"""Share of a curve that is the score itself, so that it rises everywhere and calibration changes no order."""


class Calibrator(ABC):
    """Maps scores (B, L) to probabilities (B, L); for each label the map never falls. Missing scores stay missing."""

    def __call__(self, scores: AnyTable) -> AnyTable:
        """The probabilities of these scores."""
        if isinstance(scores, csr_array):
            return with_values(scores, self._map(scores.data, scores.indices))
        return self._map(scores, slice(None))

    @abstractmethod
    def _map(self, scores: Scores, rows: Rows) -> Scores:
        """The probabilities of scores of these labels, or of all in their order."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Everything as plain values, for `read_calibrator`."""


class Temperature(Calibrator):
    """Divides the logits of each level by a number above 0: more than 1 where scores were too sure."""

    def __init__(self, taxonomy: Taxonomy, levels: FloatArray) -> None:
        self._levels = levels
        self._slopes = (1 / levels)[taxonomy.depth - 1]  # (L)

    def _map(self, scores: Scores, rows: Rows) -> Scores:
        return _sigmoid(logits(scores) * self._slopes[rows]).astype(scores.dtype)

    def document(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {"kind": "temperature", "levels": self._levels.tolist()}


class Isotonic(Calibrator):
    """Reads probabilities off curves over logits, one a level, and one for each label that has enough documents."""

    def __init__(self, taxonomy: Taxonomy, levels: FloatArray, rows: IntArray, labels: FloatArray) -> None:
        self._levels, self._rows, self._labels = levels, rows, labels
        curve = taxonomy.depth - 1
        curve[rows] = len(levels) + np.arange(len(rows))
        self._starts = curve * len(COARSE)  # (L)
        self._curves = np.concatenate([levels, labels]).ravel()

    def _map(self, scores: Scores, rows: Rows) -> Scores:
        place = _places(logits(scores), COARSE)
        low = np.minimum(place.astype(np.int64), len(COARSE) - 2)
        starts = self._starts[rows] + low
        first = self._curves[starts]
        rise = self._curves[starts + 1] - first
        found: Scores = (first + rise * (place - low)).astype(scores.dtype)
        return found

    def document(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "kind": "isotonic",
            "levels": self._levels.tolist(),
            "rows": self._rows.tolist(),
            "labels": self._labels.tolist(),
        }


def read_calibrator(found: dict[str, Any], taxonomy: Taxonomy) -> Calibrator:
    """The calibrator whose `document` this is."""
    levels = np.array(found["levels"], dtype=np.float64)
    if found["kind"] == "temperature":
        return Temperature(taxonomy, levels)
    labels = np.array(found["labels"], dtype=np.float64).reshape(-1, len(COARSE))
    return Isotonic(taxonomy, levels, np.array(found["rows"], dtype=np.int64), labels)


def fit_calibrator(kind: str, taxonomy: Taxonomy, blocks: Iterable[Block]) -> Calibrator | None:
    """The calibrator of a kind for documents whose labels and scores (B, L) come in blocks; none for `off`."""
    match kind:
        case "temperature":
            return _fit_temperature(taxonomy, blocks)
        case "isotonic":
            return _fit_isotonic(taxonomy, blocks)
    return None


def logits(scores: Scores) -> FloatArray:
    """The logit of each score, in double precision."""
    inside = np.clip(scores.astype(np.float64), EDGE, 1 - EDGE)
    found: FloatArray = np.log(inside) - np.log1p(-inside)
    return found


def _fit_temperature(taxonomy: Taxonomy, blocks: Iterable[Block]) -> Temperature:
    """For each level the temperature of the least log loss; 1 where all labels or none are gold."""
    gold, seen = _counts(taxonomy.depth - 1, len(taxonomy.levels), FINE, blocks)
    return Temperature(taxonomy, np.array([_temperature(*level) for level in zip(gold, seen, strict=True)]))


def _temperature(gold: IntArray, seen: IntArray) -> float:
    if not 0 < gold.sum() < seen.sum():
        return 1.0

    def loss(slope: float) -> float:
        return float(seen @ np.logaddexp(0, slope * FINE) - slope * (gold @ FINE))

    return float(1 / minimize_scalar(loss, bounds=(1 / STEEPEST, STEEPEST), method="bounded").x)


def _fit_isotonic(taxonomy: Taxonomy, blocks: Iterable[Block]) -> Isotonic:
    level = taxonomy.depth - 1
    gold, seen = _counts(np.arange(len(taxonomy)), len(taxonomy), COARSE, blocks)
    levels = [_curve(gold[level == i].sum(axis=0), seen[level == i].sum(axis=0)) for i in range(len(taxonomy.levels))]
    rows = np.flatnonzero(gold.sum(axis=1) >= SUPPORT)
    labels = [_curve(gold[row], seen[row]) for row in rows]
    return Isotonic(taxonomy, np.array(levels), rows, np.array(labels).reshape(-1, len(COARSE)))


def _curve(gold: IntArray, seen: IntArray) -> FloatArray:
    """The rising curve nearest to the shares of gold at the nodes; the scores as they are where nothing is gold."""
    nodes = np.flatnonzero(seen)
    if not gold.sum():
        return _sigmoid(COARSE)
    found = isotonic_regression(gold[nodes] / seen[nodes], weights=seen[nodes]).x
    curve: FloatArray = (1 - SLOPE) * np.interp(COARSE, COARSE[nodes], found) + SLOPE * _sigmoid(COARSE)
    return curve


def _counts(group: IntArray, groups: int, nodes: FloatArray, blocks: Iterable[Block]) -> tuple[IntArray, IntArray]:
    """How many cells of each group of labels lie nearest to each node, gold ones and all: (groups, nodes) each."""
    gold, seen = np.zeros((2, groups * len(nodes)), dtype=np.int64)
    for labels, scores in blocks:
        if isinstance(scores, csr_array):
            rows, values = gold_scores(labels, scores)
            cells, hits = _cells(group[scores.indices], scores.data, nodes), _cells(group[rows], values, nodes)
            missing = len(labels.indptr) - 1 - np.bincount(scores.indices, minlength=len(group))
            seen[:: len(nodes)] += np.bincount(group, missing, minlength=groups).astype(np.int64)
        else:
            cells = _cells(group, scores, nodes)
            hits = cells[labels]
        seen += np.bincount(cells.ravel(), minlength=len(seen))
        gold += np.bincount(hits, minlength=len(gold))
    return gold.reshape(groups, -1), seen.reshape(groups, -1)


def _cells(group: IntArray, scores: Scores, nodes: FloatArray) -> IntArray:
    """The node nearest to each score, of those of all groups; that of a missing score is the first."""
    cells: IntArray = group * len(nodes) + np.rint(_places(logits(scores), nodes)).astype(np.int64)
    return cells


def _places(values: FloatArray, nodes: FloatArray) -> FloatArray:
    """Where values lie between evenly spaced nodes: 0 at the first and before, the last number from the last on."""
    places: FloatArray = np.clip((values - nodes[0]) / (nodes[1] - nodes[0]), 0, len(nodes) - 1)
    return places


def _sigmoid(values: FloatArray) -> FloatArray:
    found: FloatArray = 1 / (1 + np.exp(-values))
    return found
