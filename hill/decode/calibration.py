"""Calibration: maps scores to probabilities, fitted on documents that were not used for training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression, minimize_scalar
from scipy.sparse import csr_array

from hill.errors import CheckpointError
from hill.sparse import with_values
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import scores_at_labels
from hill.types import FloatArray, IntArray

ScoreArray = npt.NDArray[np.floating]
AnyScores = TypeVar("AnyScores", ScoreArray, csr_array[Any])

Block = tuple[Any, Any]
"""Labels and scores of some documents: (B, L) each, both dense or both sparse."""
EDGE = 1e-7
"""Scores are clipped to [EDGE, 1 - EDGE] before the logit: float32 is not more accurate."""
FINE = np.linspace(-16, 16, 641)
"""Logits at which scores are counted to fit a temperature."""
COARSE = np.linspace(-8, 8, 65)
"""Logits of the nodes of an isotonic curve."""
MAX_SLOPE = 20.0
"""Temperatures are between 1 / MAX_SLOPE and MAX_SLOPE."""
SUPPORT = 50
"""Minimum number of gold documents of a label with its own isotonic curve."""
SLOPE = 1e-3
"""Weight of the identity in an isotonic curve: the curve is then strictly increasing, and ranks do not change."""
PRIOR = 20.0
"""Strength of the penalty on the logarithm of a temperature: with few documents, temperatures stay near 1."""


def logits(scores: ScoreArray) -> FloatArray:
    """Compute the logit of each score in double precision."""
    clipped = np.clip(scores.astype(np.float64), EDGE, 1 - EDGE)
    values: FloatArray = np.log(clipped) - np.log1p(-clipped)
    return values


def sigmoid(values: FloatArray) -> FloatArray:
    """Compute 1 / (1 + exp(-x))."""
    scores: FloatArray = 1 / (1 + np.exp(-values))
    return scores


class Calibrator(ABC):
    """Maps scores (B, L) to probabilities (B, L), monotonically for each label. Missing scores stay missing."""

    def __call__(self, scores: AnyScores) -> AnyScores:
        """Return the probabilities of these scores."""
        if isinstance(scores, csr_array):
            return with_values(scores, self._map(scores.data, scores.indices))
        return self._map(scores, slice(None))

    @abstractmethod
    def _map(self, scores: ScoreArray, labels: npt.NDArray[np.integer[Any]] | slice) -> ScoreArray:
        """Return the probabilities of scores whose last axis belongs to these labels."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for `read_calibrator`."""


class Temperature(Calibrator):
    """Divides the logits of each level by a temperature: above 1 for overconfident scores."""

    def __init__(self, taxonomy: Taxonomy, levels: FloatArray) -> None:
        self._levels = levels
        self._slopes = (1 / levels)[taxonomy.depth - 1]  # (L)

    def _map(self, scores: ScoreArray, labels: npt.NDArray[np.integer[Any]] | slice) -> ScoreArray:
        return sigmoid(logits(scores) * self._slopes[labels]).astype(scores.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"kind": "temperature", "levels": self._levels.tolist()}


class Isotonic(Calibrator):
    """Interpolates isotonic curves over logits: one per label with enough documents, one per level for the others."""

    def __init__(self, taxonomy: Taxonomy, levels: FloatArray, rows: IntArray, labels: FloatArray) -> None:
        self._levels, self._rows, self._labels = levels, rows, labels
        curve = taxonomy.depth - 1
        curve[rows] = len(levels) + np.arange(len(rows))
        self._starts = curve * len(COARSE)  # (L)
        self._curves = np.concatenate([levels, labels]).ravel()

    def _map(self, scores: ScoreArray, labels: npt.NDArray[np.integer[Any]] | slice) -> ScoreArray:
        position = _positions(logits(scores), COARSE)
        node = np.minimum(position.astype(np.int64), len(COARSE) - 2)
        index = self._starts[labels] + node
        low, high = self._curves[index], self._curves[index + 1]
        probabilities: ScoreArray = (low + (high - low) * (position - node)).astype(scores.dtype)
        return probabilities

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        arrays = {"levels": self._levels, "rows": self._rows, "labels": self._labels}
        return {"kind": "isotonic", **{name: array.tolist() for name, array in arrays.items()}}


REMEDY = "copy thresholds.json again, or train again"


def read_calibrator(document: dict[str, Any], taxonomy: Taxonomy) -> Calibrator:
    """Create the calibrator that `to_dict` described."""
    n_levels = len(taxonomy.levels)
    if document["kind"] == "temperature":
        return Temperature(taxonomy, read_array(document["levels"], (n_levels,), 1e-6, 1e6))
    rows = np.array(document["rows"], dtype=np.int64)
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(taxonomy):
        raise CheckpointError(f"the calibration has a curve for a label beyond the {len(taxonomy):,} labels; {REMEDY}")
    levels = read_array(document["levels"], (n_levels, len(COARSE)), 0, 1)
    return Isotonic(taxonomy, levels, rows, read_array(document["labels"], (len(rows), len(COARSE)), 0, 1))


def read_array(values: Any, shape: tuple[int, ...], minimum: float, maximum: float) -> FloatArray:
    """Read an array of this shape, with values in this range up to rounding errors."""
    array = np.array(values, dtype=np.float64).reshape(-1, *shape[1:])
    if array.shape != shape:
        raise CheckpointError(f"the calibration has an array of shape {array.shape}; expected {shape}; {REMEDY}")
    if len(wrong := array[~((array >= minimum - EDGE) & (array <= maximum + EDGE))]):
        raise CheckpointError(
            f"the calibration has the number {wrong[0]}; expected {minimum:g} to {maximum:g}; {REMEDY}"
        )
    return array


# Fitting


def fit_calibrator(kind: str, taxonomy: Taxonomy, blocks: Iterable[Block]) -> Calibrator | None:
    """Fit a calibrator of this kind to blocks of labels and scores (B, L); return None for `off`."""
    n_labels, level = len(taxonomy), taxonomy.depth - 1
    if kind == "temperature":
        counts = _count_scores(level, len(taxonomy.levels), FINE, blocks)
        return Temperature(taxonomy, np.array([_fit_temperature(*group) for group in zip(*counts, strict=True)]))
    if kind == "isotonic":
        gold, total = _count_scores(np.arange(n_labels), n_labels, COARSE, blocks)
        members = [level == i for i in range(len(taxonomy.levels))]
        levels = [_fit_curve(gold[rows].sum(axis=0), total[rows].sum(axis=0)) for rows in members]
        rows = np.flatnonzero(gold.sum(axis=1) >= SUPPORT)
        labels = np.array([_fit_curve(gold[row], total[row]) for row in rows]).reshape(-1, len(COARSE))
        return Isotonic(taxonomy, np.array(levels), rows, labels)
    return None


def _fit_temperature(gold: IntArray, total: IntArray) -> float:
    """Return the temperature with the lowest penalised log loss; 1 if all or none of the pairs are gold.

    The penalty bounds the temperature of scores that separate the gold pairs perfectly: without it, 0 would be best.
    """
    if not 0 < gold.sum() < total.sum():
        return 1.0

    def loss(log_slope: float) -> float:
        slope = np.exp(log_slope)
        log_loss = total @ np.logaddexp(0, slope * FINE) - slope * (gold @ FINE)
        return float(log_loss + PRIOR / 2 * log_slope**2)

    bound = np.log(MAX_SLOPE)
    return float(np.exp(-minimize_scalar(loss, bounds=(-bound, bound), method="bounded").x))


def _fit_curve(gold: IntArray, total: IntArray) -> FloatArray:
    """Fit an isotonic regression to the share of gold pairs at the nodes; return the identity if no pair is gold."""
    if not gold.sum():
        return sigmoid(COARSE)
    nodes = np.flatnonzero(total)
    shares = isotonic_regression(gold[nodes] / total[nodes], weights=total[nodes]).x
    curve: FloatArray = (1 - SLOPE) * np.interp(COARSE, COARSE[nodes], shares) + SLOPE * sigmoid(COARSE)
    return curve


def _count_scores(
    group: IntArray, n_groups: int, nodes: FloatArray, blocks: Iterable[Block]
) -> tuple[IntArray, IntArray]:
    """Count gold pairs and all pairs of a document and a label by group and by nearest node: (groups, nodes) each."""

    def index_of(groups: IntArray, scores: ScoreArray) -> IntArray:
        index: IntArray = groups * len(nodes) + np.rint(_positions(logits(scores), nodes)).astype(np.int64)
        return index

    gold, total = np.zeros((2, n_groups * len(nodes)), dtype=np.int64)
    for labels, scores in blocks:
        if isinstance(scores, csr_array):
            gold_labels, gold_scores = scores_at_labels(labels, scores)
            pairs = index_of(group[scores.indices], scores.data)
            gold_pairs = index_of(group[gold_labels], gold_scores)
            missing = len(labels.indptr) - 1 - np.bincount(scores.indices, minlength=len(group))
            total[:: len(nodes)] += np.bincount(group, missing, minlength=n_groups).astype(np.int64)  # they count as 0
        else:
            pairs = index_of(group, scores)
            gold_pairs = pairs[labels]
        total += np.bincount(pairs.ravel(), minlength=len(total))
        gold += np.bincount(gold_pairs, minlength=len(gold))
    return gold.reshape(n_groups, -1), total.reshape(n_groups, -1)


def _positions(values: FloatArray, nodes: FloatArray) -> FloatArray:
    """Return the fractional index of each value among evenly spaced nodes, clipped to the first and last."""
    positions: FloatArray = np.clip((values - nodes[0]) / (nodes[1] - nodes[0]), 0, len(nodes) - 1)
    return positions
