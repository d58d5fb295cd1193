"""Calibration, against scikit-learn and against definitions spelled out."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

import hill.decode.calibration as calibration_module
from hill.decode import DecodeConfig, Decoder, read_calibrator
from hill.decode.calibration import COARSE, SLOPE, SUPPORT, fit_calibrator, logits
from hill.metrics.scores import CalibrationMetrics
from hill.taxonomy import Label, Taxonomy
from tests.conftest import random_taxonomy

TWO = Taxonomy([Label("a", "A"), Label("b", "B"), Label("c", "C", ("a",)), Label("d", "D", ("a", "b"))])


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def made(seed: int, documents: int = 2000, sharp: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn with probabilities whose logits the scores exaggerate."""
    draw = np.random.default_rng(seed)
    true = draw.normal(-1, 1.5, (documents, 4))
    return draw.random((documents, 4)) < sigmoid(true), sigmoid(true * sharp)


def in_parts(gold: np.ndarray, scores: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(gold[:700], scores[:700]), (gold[700:], scores[700:])]


def test_without_the_prior_temperatures_are_those_of_a_logistic_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_module, "PRIOR", 0.0)
    gold, scores = made(0)
    calibrator = fit_calibrator("temperature", TWO, in_parts(gold, scores))
    assert calibrator is not None
    for level, rows in enumerate([[0, 1], [2, 3]]):
        x, y = logits(scores[:, rows]).reshape(-1, 1), gold[:, rows].ravel()
        slope = LogisticRegression(C=1e9, fit_intercept=False).fit(x, y).coef_[0, 0]
        assert calibrator.to_dict()["levels"][level] == pytest.approx(1 / slope, rel=2e-3)
        assert calibrator(scores)[:, rows] == pytest.approx(sigmoid(slope * logits(scores[:, rows])), abs=2e-3)


def best_temperature(gold: np.ndarray, scores: np.ndarray, prior: float) -> float:
    """Try all temperatures of a fine grid on every pair of a document and a label."""

    def loss(log_temperature: float) -> float:
        logit = logits(scores).ravel() / np.exp(log_temperature)
        surprise = [np.log1p(np.exp(-z if is_gold else z)) for z, is_gold in zip(logit, gold.ravel(), strict=True)]
        return sum(surprise) + prior / 2 * log_temperature**2

    return float(np.exp(min(np.arange(-3, 3, 0.01), key=loss)))


@pytest.mark.parametrize(("documents", "sharp"), [(15, 2.0), (60, 2.0), (60, 0.4)])
def test_few_documents_keep_temperatures_near_one(documents: int, sharp: float) -> None:
    gold, scores = made(0, documents, sharp)
    calibrator = fit_calibrator("temperature", TWO, [(gold, scores)])
    assert calibrator is not None
    for found, rows in zip(calibrator.to_dict()["levels"], ([0, 1], [2, 3]), strict=True):
        assert found == pytest.approx(best_temperature(gold[:, rows], scores[:, rows], 20), rel=0.01)
        free = best_temperature(gold[:, rows], scores[:, rows], 0)
        assert abs(np.log(found)) < abs(np.log(free))


def test_documents_that_are_separated_perfectly_do_not_make_every_score_0_or_1() -> None:
    gold = np.eye(4, dtype=bool)[np.arange(60) % 4]
    scores = np.where(gold, sigmoid(np.array(1.0)), sigmoid(np.array(-1.0)))
    calibrator = fit_calibrator("temperature", TWO, [(gold, scores)])
    assert calibrator is not None
    # Per level: 120 pairs, each with the loss log(1 + exp(-slope)). At the minimum of the loss,
    # 120 slope / (1 + exp(slope)) = 20 log(slope), which holds at slope = 2.728.
    assert 120 * 2.728 / (1 + np.exp(2.728)) == pytest.approx(20 * np.log(2.728), rel=2e-3)
    assert calibrator.to_dict()["levels"] == pytest.approx([1 / 2.728] * 2, rel=1e-3)
    assert calibrator(scores).max() == pytest.approx(sigmoid(np.array(2.728)), abs=1e-3)  # 0.939


def test_curves_are_isotonic_regressions_at_the_nodes() -> None:
    gold, scores = made(1)
    gold[:, 3] &= np.arange(2000) < 100  # too few for a curve of its own
    assert gold[:, 3].sum() < SUPPORT <= gold[:, :3].sum(axis=0).min()
    calibrator = fit_calibrator("isotonic", TWO, in_parts(gold, scores))
    assert calibrator is not None and calibrator.to_dict()["rows"] == [0, 1, 2]
    node = np.clip(np.rint(logits(scores) * 4) / 4, -8, 8)
    for rows, shown in [([0], 0), ([1], 1), ([2], 2), ([2, 3], 3)]:
        model = IsotonicRegression(out_of_bounds="clip").fit(node[:, rows].ravel(), gold[:, rows].ravel())
        at_nodes = np.full((len(COARSE), 4), 0.5)
        at_nodes[:, shown] = sigmoid(COARSE)
        expected = (1 - SLOPE) * model.predict(COARSE) + SLOPE * sigmoid(COARSE)
        assert calibrator(at_nodes)[:, shown] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", ["temperature", "isotonic"])
def test_scores_of_other_documents_become_probabilities(kind: str) -> None:
    calibrator = fit_calibrator(kind, TWO, [made(2)])
    assert calibrator is not None
    gold, scores = made(3)
    before, after = CalibrationMetrics(TWO), CalibrationMetrics(TWO)
    before.update(gold, scores)
    after.update(gold, calibrator(scores))
    assert after.ece()["ece"] < before.ece()["ece"] / 3
    assert after.ece()["ece_levels"] < before.ece()["ece_levels"] / 3


@pytest.mark.parametrize("kind", ["temperature", "isotonic"])
@given(st.integers(0, 50))
def test_no_order_changes_and_what_is_written_is_what_is_read(kind: str, seed: int) -> None:
    taxonomy = random_taxonomy(seed, n=4, most_parents=2)
    gold, scores = made(seed, 300)
    calibrator = fit_calibrator(kind, taxonomy, [(gold, scores)])
    assert calibrator is not None
    rising = np.sort(np.random.default_rng(seed).random((100, 4)), axis=0)
    found = calibrator(rising)
    assert (found >= 0).all() and (found <= 1).all() and (np.diff(found, axis=0) >= 0).all()
    inside = np.abs(logits(rising)).max(axis=1) < 8
    assert (np.diff(found[inside], axis=0) > 0).all()
    again = read_calibrator(json.loads(json.dumps(calibrator.to_dict())), taxonomy)
    assert np.array_equal(again(rising), found)
    assert calibrator(rising.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("kind", ["temperature", "isotonic"])
def test_a_level_without_gold_keeps_its_scores(kind: str) -> None:
    gold, scores = made(4, 300)
    gold[:, 2:] = False
    calibrator = fit_calibrator(kind, TWO, [(gold, scores)])
    assert calibrator is not None
    near = np.abs(logits(scores)) < 7
    assert calibrator(scores)[:, 2:][near[:, 2:]] == pytest.approx(scores[:, 2:][near[:, 2:]], abs=2e-3)


def test_the_decoder_calibrates_before_it_makes_scores_consistent() -> None:
    calibrator = fit_calibrator("temperature", TWO, [made(5)])
    assert calibrator is not None
    scores = np.random.default_rng(0).random((20, 4))
    changed = calibrator(scores)
    decoder = Decoder(TWO, DecodeConfig("closure", 0.4), None, calibrator)
    expected = changed.copy()
    expected[:, 0] = changed[:, [0, 2, 3]].max(axis=1)
    expected[:, 1] = changed[:, [1, 3]].max(axis=1)
    assert decoder.effective(scores) == pytest.approx(expected)
    assert np.array_equal(decoder.decode(scores), expected > 0.4)


def test_the_mean_over_levels_weighs_levels_alike() -> None:
    gold = np.zeros((10, 4), dtype=bool)
    scores = np.array([[0.5, 0.3, 0.1, 0.1]]).repeat(10, axis=0)
    calibration = CalibrationMetrics(TWO)
    calibration.update(gold, scores)
    assert calibration.ece() == pytest.approx({"ece": 0.25, "ece_levels": (0.4 + 0.1) / 2})
    uneven = Taxonomy([Label("a", "A"), *(Label(f"b{i}", "B", ("a",)) for i in range(3))])
    calibration = CalibrationMetrics(uneven)
    calibration.update(gold, scores)
    assert calibration.ece() == pytest.approx({"ece": 0.25, "ece_levels": (0.5 + 0.5 / 3) / 2})
