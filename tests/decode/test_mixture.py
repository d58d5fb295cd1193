"""Mixtures: logistic regression of several models' logits, per level."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from hill.decode import Mixture, fit_mixture, read_mixture
from hill.decode import mixture as module
from hill.decode.calibration import logits, sigmoid
from hill.errors import CheckpointError
from hill.sparse import to_dense, top_k
from tests.conftest import random_taxonomy


def simulated(documents: int, noise: tuple[float, ...], seed: int = 0) -> tuple[list[np.ndarray], csr_array]:
    """Scores of models that see the same truth with different noise, and labels drawn from the truth."""
    draw = np.random.default_rng(seed)
    truth = draw.normal(-1, 2, (documents, 12))
    labels = csr_array(draw.random(truth.shape) < sigmoid(truth))
    scores = [sigmoid(truth + draw.normal(0, scale, truth.shape)).astype(np.float32) for scale in noise]
    return scores, labels


def test_weights_are_those_of_a_logistic_regression_per_level(monkeypatch: pytest.MonkeyPatch) -> None:
    taxonomy = random_taxonomy(3, 12)
    scores, labels = simulated(400, (0.7, 2.0))
    monkeypatch.setattr(module, "PRIOR", 1e-9)
    mixture = fit_mixture(taxonomy, scores, labels)
    for level, rows in enumerate(taxonomy.levels):
        features = np.stack([logits(each[:, rows]).ravel() for each in scores], axis=1)
        other = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(features, labels.toarray()[:, rows].ravel())
        assert mixture.weights[:, level] == pytest.approx(other.coef_[0], rel=1e-3)
        assert mixture.bias[level] == pytest.approx(other.intercept_[0], abs=1e-3)
    assert (mixture.weights[0] > mixture.weights[1]).all()  # the model with less noise counts more


def test_a_mixture_is_a_sum_of_logits() -> None:
    taxonomy = random_taxonomy(1, 12)
    scores, _ = simulated(5, (0.1, 1.0))
    levels = len(taxonomy.levels)
    mixture = Mixture(taxonomy, np.array([np.arange(levels) + 0.5, np.full(levels, 0.2)]), np.linspace(-1, 1, levels))
    mixed = mixture(scores)
    for document in range(5):
        for label in range(12):
            level = taxonomy.depth[label] - 1
            own, other = (float(np.log(s / (1 - s))) for s in (float(each[document, label]) for each in scores))
            expected = np.linspace(-1, 1, levels)[level] + (level + 0.5) * own + 0.2 * other
            assert mixed[document, label] == pytest.approx(1 / (1 + np.exp(-expected)), abs=1e-5)


def test_a_model_that_ranks_the_wrong_way_gets_no_weight() -> None:
    taxonomy = random_taxonomy(3, 12)
    (good, other), labels = simulated(300, (0.5, 0.5))
    mixture = fit_mixture(taxonomy, [good, 1 - other], labels)
    assert (mixture.weights >= 0).all() and mixture.weights[1] == pytest.approx(0.0)
    assert (mixture.weights[0] > 0.3).all()


def test_few_documents_stay_near_equal_weights() -> None:
    taxonomy = random_taxonomy(3, 12)
    scores, labels = simulated(19, (0.5, 0.5))
    few = fit_mixture(taxonomy, scores, labels)
    assert (few.weights == 0.5).all() and (few.bias == 0).all()
    scores, labels = simulated(20, (0.5, 0.5))
    assert 0 < np.abs(fit_mixture(taxonomy, scores, labels).weights - 0.5).max() < 0.35
    separated = np.where(labels.toarray(), 0.99, 0.01).astype(np.float32)
    perfect = fit_mixture(taxonomy, [separated, separated], labels)
    assert perfect.weights.max() < 1.5  # few perfect documents do not make it sure of itself


def test_few_documents_stay_near_a_given_prior() -> None:
    taxonomy = random_taxonomy(3, 12)
    levels = len(taxonomy.levels)
    prior = Mixture(taxonomy, np.array([[1.0] * levels, [0.0] * levels]), np.full(levels, -2.0))
    assert fit_mixture(taxonomy, *simulated(19, (0.5, 0.5)), prior) is prior
    scores, labels = simulated(20, (0.5, 0.5))
    near, far = (fit_mixture(taxonomy, scores, labels, each) for each in (prior, None))
    assert (near.weights[0] > far.weights[0]).all() and (near.weights[1] < far.weights[1]).all()
    assert (near.bias < far.bias).all()


def test_missing_scores_count_as_the_lowest_of_their_document() -> None:
    taxonomy = random_taxonomy(2, 12)
    scores, labels = simulated(40, (0.3, 0.6))
    sparse = [top_k(each, 4) for each in scores]
    filled = []
    for each in sparse:
        dense = to_dense(each)
        lowest = np.array([row[row > 0].min() for row in dense])
        filled.append(np.where(dense > 0, dense, lowest[:, None]).astype(np.float32))
    mixture = fit_mixture(taxonomy, sparse, labels)
    mixed, expected = mixture(sparse), mixture(filled)
    assert isinstance(mixed, csr_array)
    stored = (to_dense(sparse[0]) > 0) | (to_dense(sparse[1]) > 0)
    assert (to_dense(mixed) > 0).tolist() == stored.tolist()
    assert to_dense(mixed)[stored] == pytest.approx(expected[stored], abs=1e-6)


def test_it_is_read_as_it_was_written_and_damage_is_named() -> None:
    taxonomy = random_taxonomy(3, 12)
    scores, labels = simulated(50, (0.5, 1.0))
    mixture = fit_mixture(taxonomy, scores, labels)
    again = read_mixture(mixture.to_dict(), taxonomy, 2)
    assert again(scores).tolist() == mixture(scores).tolist()
    for damaged in ({}, {"weights": [[1.0]], "bias": [0.0]}, mixture.to_dict() | {"bias": [float("nan")] * 9}):
        with pytest.raises(CheckpointError, match=r"copy thresholds.json again|mixture"):
            read_mixture(damaged, taxonomy, 2)
