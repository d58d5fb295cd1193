"""Decoding: the laws that every strategy keeps, and the threshold against a brute-force search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hill.decode import STRATEGIES, DecodeConfig, Decoder, ThresholdTuner
from hill.metrics import flat_scores, hierarchical_scores
from hill.taxonomy import Taxonomy
from tests.conftest import random_taxonomy


def scores_for(taxonomy: Taxonomy, seed: int, documents: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).random((documents, len(taxonomy)))


@pytest.mark.parametrize("strategy", ["closure", "top-down", "path"])
@given(st.integers(0, 500), st.integers(1, 3), st.sampled_from([0.0, 0.3, 0.5, 0.9]))
def test_consistent_strategies_are_consistent(strategy: str, seed: int, parents: int, threshold: float) -> None:
    taxonomy = random_taxonomy(seed, n=15, most_parents=parents)
    decoder = Decoder(taxonomy, DecodeConfig(strategy, threshold))
    scores = scores_for(taxonomy, seed)
    chosen, effective = decoder.decode(scores), decoder.effective(scores)
    assert hierarchical_scores(chosen, chosen, taxonomy)["violations"] == 0
    for child, parent in taxonomy.edge_array:
        assert (effective[:, child] <= effective[:, parent]).all()


@given(st.integers(0, 500), st.integers(1, 3))
def test_strategies_do_what_they_say(seed: int, parents: int) -> None:
    taxonomy = random_taxonomy(seed, n=12, most_parents=parents)
    scores = scores_for(taxonomy, seed)
    above = [{*taxonomy.ancestors(row).tolist(), row} for row in range(12)]
    decoded = {name: Decoder(taxonomy, DecodeConfig(name)).decode(scores) for name in STRATEGIES}
    for document in range(len(scores)):
        over = {row for row in range(12) if scores[document, row] > 0.5}
        assert set(np.flatnonzero(decoded["raw"][document])) == over
        assert set(np.flatnonzero(decoded["closure"][document])) == set().union(*(above[row] for row in over))
        assert set(np.flatnonzero(decoded["top-down"][document])) == {row for row in range(12) if above[row] <= over}


@given(st.integers(0, 300))
def test_the_best_path_has_the_highest_mean_log_score(seed: int) -> None:
    taxonomy = random_taxonomy(seed, n=12)
    scores = scores_for(taxonomy, seed, 4)
    chosen = Decoder(taxonomy, DecodeConfig("path")).decode(scores)
    for document in range(4):
        paths = [path for leaf in taxonomy.leaves for path in taxonomy.paths(leaf)]

        logs = [np.log(scores[document, list(path)]) for path in paths]
        means = [np.average(log, weights=0.5 ** np.arange(len(log))[::-1]) for log in logs]
        best = paths[int(np.argmax(means))]
        assert np.flatnonzero(chosen[document]).tolist() == sorted(best)


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1"])
@pytest.mark.parametrize("strategy", ["closure", "top-down", "raw"])
def test_the_threshold_is_the_best_of_all(strategy: str, metric: str) -> None:
    taxonomy = random_taxonomy(3, n=10)
    draw = np.random.default_rng(0)
    labels = draw.random((200, 10)) < 0.3
    scores = np.clip(labels * 0.3 + draw.random((200, 10)) * 0.7, 0, 1)
    scores[:10] = np.round(scores[:10], 2)  # scores that lie on thresholds
    decoder = Decoder(taxonomy, DecodeConfig(strategy, tune_metric=metric))
    tuner = ThresholdTuner(decoder, 10)
    for part in np.array_split(np.arange(200), 7):
        tuner.update(labels[part], scores[part])

    def value(threshold: float) -> float:
        return flat_scores(labels, decoder.effective(scores) > threshold)[metric]

    assert value(tuner.best()) == pytest.approx(max(value(i / 200) for i in range(201)))

    def value_of(label: int, threshold: float) -> float:
        chosen = (decoder.effective(scores) > threshold)[:, [label]]
        return flat_scores(labels[:, [label]], chosen)["micro_f1"]

    for label, threshold in enumerate(tuner.best_by_label()):
        assert value_of(label, threshold) == pytest.approx(max(value_of(label, i / 200) for i in range(201)))


@pytest.mark.parametrize("strategy", ["closure", "top-down", "raw"])
def test_thresholds_by_label_keep_sets_consistent(strategy: str) -> None:
    taxonomy = random_taxonomy(4, n=15, most_parents=2)
    scores, thresholds = scores_for(taxonomy, 1, 50), np.random.default_rng(2).random(15)
    chosen = Decoder(taxonomy, DecodeConfig(strategy), thresholds).decode(scores)
    violations = hierarchical_scores(chosen, chosen, taxonomy)["violations"]
    assert (violations > 0) == (strategy == "raw")
    unsupported = ThresholdTuner(Decoder(taxonomy, DecodeConfig(strategy)), 15)
    unsupported.update(np.zeros((50, 15), dtype=bool), scores)
    assert set(unsupported.best_by_label()) == {unsupported.best()}
