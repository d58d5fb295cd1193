"""Mixtures: the scores of several models for the same documents become one score, with weights fitted on dev."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.decode.calibration import EDGE, REMEDY, logits, read_array, sigmoid
from hill.errors import CheckpointError
from hill.sparse import Matrix, flat_indices
from hill.taxonomy import Taxonomy
from hill.types import FloatArray

PRIOR = 5.0
"""Strength of the prior of the weights: that of about this many documents."""
MIN_DOCUMENTS = 20
"""With fewer documents, nothing is fitted or tuned."""
MAX_PAIRS = 2**24
"""Pairs of a document and a label that weights are fitted to; of more documents, a random sample is used."""
ROUNDS = 50
MAX_WEIGHT = 1e6
SEED = 0


class Mixture:
    """Mixes the scores of M models: the logit of a label on level k is bias[k] + Σ_m weights[m, k] · logit of model m.

    Being linear in logits, it mixes explanations, too. The weights are not negative: a mixture never ranks against a
    model. A score that is missing in a sparse matrix counts as the lowest score of its document.

    Args:
        taxonomy: the labels.
        weights: (M, levels).
        bias: (levels).
    """

    def __init__(self, taxonomy: Taxonomy, weights: FloatArray, bias: FloatArray) -> None:
        self.weights = weights
        self.bias = bias
        level = taxonomy.depth - 1
        self.label_weights: FloatArray = weights[:, level]
        """(M, L)."""
        self.label_bias: FloatArray = bias[level]
        """(L)."""

    def __call__(self, scores: Sequence[Matrix]) -> Matrix:
        """Mix the scores (B, L) of each model, all dense or all sparse."""
        if not isinstance(first := scores[0], csr_array):
            mixed = self.label_bias.copy()
            for weights, own in zip(self.label_weights, scores, strict=True):
                mixed = mixed + weights * logits(own)  # type: ignore[arg-type]
            dense: Matrix = sigmoid(mixed).astype(np.float32)
            return dense
        positions, parts = align_entries(scores)  # type: ignore[arg-type]
        rows, labels = np.divmod(positions, first.shape[1])
        values = self.label_bias[labels] + (self.label_weights[:, labels] * parts).sum(axis=0)
        indptr = np.searchsorted(rows, np.arange(first.shape[0] + 1))
        return csr_array((sigmoid(values).astype(np.float32), labels, indptr), shape=first.shape)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"weights": self.weights.tolist(), "bias": self.bias.tolist()}


def read_mixture(document: dict[str, Any], taxonomy: Taxonomy, models: int) -> Mixture:
    """Create the mixture of this many models that `to_dict` described."""
    levels = len(taxonomy.levels)
    try:
        weights = read_array(document["weights"], (models, levels), 0, MAX_WEIGHT)
        return Mixture(taxonomy, weights, read_array(document["bias"], (levels,), -MAX_WEIGHT, MAX_WEIGHT))
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"the mixture has no weights for {models} models and {levels} levels; {REMEDY}") from None


def align_entries(scores: Sequence[csr_array[Any]]) -> tuple[Any, FloatArray]:
    """The positions of all entries in the flattened matrix, and the logits of each model there (M, entries).

    >>> first, second = csr_array([[0.5, 0.0, 0.9]]), csr_array([[0.0, 0.2, 0.8]])
    >>> positions, values = align_entries([first, second])
    >>> positions.tolist(), sigmoid(values).round(2).tolist()
    ([0, 1, 2], [[0.5, 0.5, 0.9], [0.2, 0.2, 0.8]])
    """
    own = [flat_indices(each) for each in scores]
    positions = np.unique(np.concatenate(own))
    rows = positions // max(scores[0].shape[1], 1)
    values = np.empty((len(scores), len(positions)))
    for m, each in enumerate(scores):
        lowest = np.full(each.shape[0], EDGE)
        filled = np.flatnonzero(np.diff(each.indptr))
        if len(filled):
            lowest[filled] = np.minimum.reduceat(each.data, each.indptr[filled])
        values[m] = logits(lowest)[rows]
        values[m, np.searchsorted(positions, own[m])] = logits(each.data)
    return positions, values


def equal_weights(taxonomy: Taxonomy, models: int) -> Mixture:
    """The mean of the logits of this many models."""
    shape = models, len(taxonomy.levels)
    return Mixture(taxonomy, np.full(shape, 1 / models), np.zeros(shape[1]))


def fit_mixture(
    taxonomy: Taxonomy, scores: Sequence[Matrix], labels: csr_array[Any], prior: Mixture | None = None
) -> Mixture:
    """Fit the weights of each level by logistic regression on documents that were not used for training.

    Args:
        taxonomy: the labels.
        scores: the scores (documents, L) of each model, all dense or all sparse.
        labels: the gold labels (documents, L).
        prior: weights that few documents hardly change; by default, all models have the same weight.
    """
    documents, width = labels.shape
    prior = prior or equal_weights(taxonomy, len(scores))
    if documents < MIN_DOCUMENTS:
        return prior
    stored = scores[0].nnz // max(documents, 1) if isinstance(scores[0], csr_array) else width
    if documents * stored > MAX_PAIRS:
        sample = np.random.default_rng(SEED).choice(documents, max(MAX_PAIRS // stored, 1), replace=False)
        scores, labels = [each[np.sort(sample)] for each in scores], labels[np.sort(sample)]
    if isinstance(scores[0], csr_array):
        positions, values = align_entries(scores)  # type: ignore[arg-type]
        column = positions % width
        gold = np.isin(positions, flat_indices(labels))
    else:
        values = np.stack([logits(each).ravel() for each in scores])  # type: ignore[arg-type]
        column = np.tile(np.arange(width), labels.shape[0])
        gold = labels.toarray().astype(bool).ravel()
    level = taxonomy.depth[column] - 1
    expected = np.vstack([prior.weights, prior.bias]).T  # (levels, M + 1)
    fitted = [_fit(values[:, level == k], gold[level == k], expected[k]) for k in range(len(taxonomy.levels))]
    return Mixture(taxonomy, np.array([each[:-1] for each in fitted]).T, np.array([each[-1] for each in fitted]))


def _fit(values: FloatArray, gold: Any, prior: FloatArray) -> FloatArray:
    """Weights and bias (M + 1) of a logistic regression with a prior (M + 1); no weight is negative."""
    count = len(values)
    used = np.ones(count + 1, dtype=bool)
    while True:
        result = _newton(np.vstack([values, np.ones(values.shape[1])])[used], gold, prior[used])
        weights = np.zeros(count + 1)
        weights[used] = result
        if (weights[:-1] >= 0).all():
            return weights
        used[:-1] &= weights[:-1] > 0


def _newton(features: FloatArray, gold: Any, prior: FloatArray) -> FloatArray:
    """The minimum of the log loss plus PRIOR / 2 times the squared distance from the prior; damped Newton steps."""

    def loss(candidate: FloatArray) -> float:
        outputs = candidate @ features
        return float((np.logaddexp(0, outputs) - gold * outputs).sum() + PRIOR / 2 * ((candidate - prior) ** 2).sum())

    weights, value = prior.copy(), loss(prior)
    for _ in range(ROUNDS):
        shares = sigmoid(weights @ features)
        gradient = features @ (shares - gold) + PRIOR * (weights - prior)
        hessian = (features * (shares * (1 - shares))) @ features.T + PRIOR * np.eye(len(weights))
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while (new := loss(weights - size * step)) > value and size > 1e-6:
            size /= 2
        if value - new < 1e-9 * max(value, 1.0):
            break
        weights, value = weights - size * step, new
    return weights
