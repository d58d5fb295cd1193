"""Thresholds, against a search through all of them."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from hill.decode import CollectedScores, DecodeConfig, Decoder, tune
from hill.decode.tuning import GRID, Histograms, choose_thresholds
from hill.metrics import flat_scores, hierarchical_scores
from hill.taxonomy import Label, Taxonomy
from tests.conftest import random_taxonomy

FOUR = Taxonomy([Label("a", "A"), Label("b", "B"), Label("c", "C", ("a",)), Label("d", "D", ("b",))])
LEVELS = np.array([0, 0, 1, 1])


def made(seed: int, documents: int = 60, labels: int = 4, rate: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and scores of few different values that know something about them."""
    draw = np.random.default_rng(seed)
    gold = draw.random((documents, labels)) < rate
    return gold, np.round(np.clip(gold * 0.3 + draw.random((documents, labels)) * 0.7, 0, 1) * 5) / 5


def counted(gold: np.ndarray, scores: np.ndarray) -> Histograms:
    histograms = Histograms(gold.shape[1])
    for part in np.array_split(np.arange(len(gold)), 3):
        histograms.update(gold[part], scores[part])
    return histograms


def value(gold: np.ndarray, chosen: np.ndarray, metric: str) -> float:
    found = flat_scores(gold, chosen)
    return (2 * found["micro_f1"] + found["macro_f1"]) / 3 if metric == "mean_f1" else found[metric]


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1", "mean_f1"])
@pytest.mark.parametrize("groups", [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 2, 3]], ids=["global", "level", "label"])
def test_thresholds_are_the_best_of_all_together(metric: str, groups: list[int]) -> None:
    for seed in range(8):
        gold, scores = made(seed)
        found = counted(gold, scores).best(np.array(groups), metric)
        assert len(found) == max(groups) + 1 and np.isin(found, GRID).all()
        tried = [0.1, 0.3, 0.5, 0.7, 0.9]  # between any two values that scores have
        best = max(
            value(gold, scores > np.array(each)[groups], metric) for each in product(tried, repeat=max(groups) + 1)
        )
        assert value(gold, scores > found[groups], metric) == pytest.approx(best)


def test_a_threshold_lies_in_the_middle_of_those_that_are_as_good() -> None:
    gold, scores = np.array([[True]] * 5 + [[False]] * 5), np.array([[0.9]] * 5 + [[0.1]] * 5)
    assert counted(gold, scores).best(np.array([0]), "micro_f1")[0] == pytest.approx(0.5, abs=0.02)


def test_a_score_on_a_threshold_is_not_above_it() -> None:
    gold, scores = np.array([[True], [False]]), GRID[[180, 179], None]
    assert GRID[180] == 0.5 and counted(gold, scores).best(np.array([0]), "micro_f1") == [GRID[179]]


@pytest.mark.parametrize("strategy", ["closure", "ancestors", "top-down", "safe", "raw"])
@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1", "hierarchical_f1"])
def test_the_one_threshold_is_the_best_for_the_strategy(strategy: str, metric: str) -> None:
    taxonomy = random_taxonomy(3, n=10, most_parents=2)
    gold, scores = made(1, 200, 10)
    if metric == "hierarchical_f1":
        gold = taxonomy.closures(csr_array(gold)).toarray()

    def measured(threshold: float) -> float:
        chosen = Decoder(taxonomy, DecodeConfig(strategy, threshold)).decode(scores)
        return (flat_scores(gold, chosen) | hierarchical_scores(gold, chosen, taxonomy))[metric]

    config = DecodeConfig(strategy, tune="global", tune_metric=metric, calibrate="off")
    tuned = tune(taxonomy, config, CollectedScores(scores.astype(np.float32), csr_array(gold)))
    assert tuned.thresholds is None
    best = max(measured(each) for each in (0.1, 0.3, 0.5, 0.7, 0.9))
    assert measured(tuned.config.threshold) == pytest.approx(best)


@given(st.integers(0, 100))
def test_labels_of_little_support_share_a_threshold(seed: int) -> None:
    gold, scores = made(seed)
    gold[:, 2:] &= np.random.default_rng(seed).random((60, 2)) < 0.3
    gold[:40, 0], gold[20:, 1] = True, True
    support = gold.sum(axis=0)
    assume((support[2:] < 10).all())
    histograms = counted(gold, scores)
    one, each = choose_thresholds(histograms, FOUR, DecodeConfig(tune="label"))
    alone = histograms.best(np.array([0, 1, 2, 2]), "micro_f1")
    rest = alone[2] if support[2:].sum() >= 10 else one
    assert each is not None and each.tolist() == [alone[0], alone[1], rest, rest]
    _, levels = choose_thresholds(histograms, FOUR, DecodeConfig(tune="level"))
    assert levels is not None
    lower = histograms.best(LEVELS, "micro_f1")[1] if support[2:].sum() >= 10 else one
    assert levels[2] == levels[3] == lower


def test_without_gold_labels_keep_the_middle() -> None:
    taxonomy = random_taxonomy(4, n=15, most_parents=2)
    held = CollectedScores(
        np.random.default_rng(0).random((50, 15)).astype(np.float32), csr_array((50, 15), dtype=bool)
    )
    tuned = tune(taxonomy, DecodeConfig("closure", tune="label", calibrate="off"), held)
    assert tuned.config.threshold == 0.5 and tuned.thresholds is not None and set(tuned.thresholds.tolist()) == {0.5}


@pytest.mark.parametrize("documents", [0, 1, 2])
@pytest.mark.parametrize("strategy", ["auto", "closure", "safe", "path"])
def test_few_documents_are_no_error(strategy: str, documents: int) -> None:
    taxonomy = random_taxonomy(4, n=6)
    gold, scores = made(0, documents, 6)
    tuned = tune(taxonomy, DecodeConfig(strategy), CollectedScores(scores.astype(np.float32), csr_array(gold)))
    assert tuned.config.strategy != "auto" and tuned.config.calibrate != "auto"
    assert tuned.decoder(taxonomy).decode(made(1, 5, 6)[1]).shape == (5, 6)
