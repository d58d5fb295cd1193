"""Decoding: the laws that every strategy keeps, against sets and paths spelled out one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hill.decode import STRATEGIES, DecodeConfig, Decoder
from hill.errors import ConfigError
from hill.metrics import hierarchical_scores
from hill.taxonomy import Label, Taxonomy
from tests.conftest import random_taxonomy

CONSISTENT = [name for name in STRATEGIES if name != "raw"]


def scores_for(taxonomy: Taxonomy, seed: int, documents: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).random((documents, len(taxonomy)))


def above(taxonomy: Taxonomy) -> list[set[int]]:
    """Each label with all its ancestors."""
    return [{*taxonomy.ancestors(row).tolist(), row} for row in range(len(taxonomy))]


def sets(chosen: np.ndarray) -> list[set[int]]:
    return [set(np.flatnonzero(row).tolist()) for row in chosen]


@pytest.mark.parametrize("strategy", CONSISTENT)
@given(
    st.integers(0, 500),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.3, 0.5, 0.9]),
    st.booleans(),
    st.sampled_from([0.0, 0.97]),
    st.integers(1, 4),
)
def test_label_sets_are_consistent(
    strategy: str, seed: int, parents: int, threshold: float, by_label: bool, abstain: float, k: int
) -> None:
    taxonomy = random_taxonomy(seed, n=15, most_parents=parents)
    thresholds = np.random.default_rng(seed + 1).random(15) if by_label else None
    decoder = Decoder(taxonomy, DecodeConfig(strategy, threshold, abstain=abstain, k=k), thresholds)
    chosen, effective = decoder.decide(scores_for(taxonomy, seed))
    assert hierarchical_scores(chosen, chosen, taxonomy)["violations"] == 0
    for child, parent in taxonomy.edge_array:
        assert (effective[:, child] <= effective[:, parent]).all()
        assert (chosen[:, child] <= chosen[:, parent]).all()


@given(st.integers(0, 500), st.integers(1, 3), st.booleans())
def test_strategies_do_what_they_say(seed: int, parents: int, by_label: bool) -> None:
    taxonomy = random_taxonomy(seed, n=12, most_parents=parents)
    scores, over = scores_for(taxonomy, seed), above(taxonomy)
    thresholds = np.random.default_rng(seed + 1).random(12) if by_label else np.full(12, 0.5)
    decoded = {
        name: sets(Decoder(taxonomy, DecodeConfig(name), thresholds if by_label else None).decode(scores))
        for name in ("raw", "closure", "ancestors", "top-down", "auto")
    }
    for document, given_scores in enumerate(scores):
        passing = {row for row in range(12) if given_scores[row] > thresholds[row]}
        below = {row: max(given_scores[low] for low in range(12) if row in over[low]) for row in range(12)}
        highest = {row for row in range(12) if below[row] > thresholds[row]}
        lowest = {row for row in range(12) if min(given_scores[list(over[row])]) > thresholds[row]}
        assert decoded["raw"][document] == passing
        assert decoded["ancestors"][document] == set().union(*(over[row] for row in passing))
        assert decoded["closure"][document] == set().union(*(over[row] for row in highest))
        assert decoded["top-down"][document] == {row for row in lowest if over[row] <= lowest}
        assert decoded["auto"][document] == decoded["closure"][document]
        if not by_label:
            assert decoded["closure"][document] == decoded["ancestors"][document]


def path_means(taxonomy: Taxonomy, scores: np.ndarray) -> dict[int, float]:
    """The weighted mean of the best path to each leaf of a forest: half the weight for each step up."""
    found = {}
    for leaf in taxonomy.leaves.tolist():
        (path,) = taxonomy.paths(leaf)
        found[leaf] = float(np.average(np.log(scores[list(path)]), weights=0.5 ** np.arange(len(path))[::-1]))
    return found


@given(st.integers(0, 300), st.integers(1, 4))
def test_the_best_paths_have_the_highest_mean_log_scores(seed: int, k: int) -> None:
    taxonomy = random_taxonomy(seed, n=12)
    scores, over = scores_for(taxonomy, seed, 4), above(taxonomy)
    chosen = sets(Decoder(taxonomy, DecodeConfig("path", k=k)).decode(scores))
    for document in range(4):
        means = path_means(taxonomy, scores[document])
        ends = sorted(means, key=lambda leaf: -means[leaf])[:k]
        assert chosen[document] == set().union(*(over[end] for end in ends))


def dag_means(taxonomy: Taxonomy, scores: np.ndarray) -> dict[int, float]:
    """The same for labels with several parents, one label after the other."""
    best: dict[int, tuple[float, float]] = {}
    for row in np.argsort(taxonomy.depth, kind="stable").tolist():
        own = float(np.log(scores[row]))
        ways = [
            (own + 0.5 * best[parent][0], 1 + 0.5 * best[parent][1]) for parent in taxonomy.parents(row).tolist()
        ] or [(own, 1.0)]
        best[row] = max(ways, key=lambda way: way[0] / way[1])
    return {leaf: best[leaf][0] / best[leaf][1] for leaf in taxonomy.leaves.tolist()}


@given(st.integers(0, 300), st.integers(1, 3))
def test_paths_of_a_dag_come_through_the_best_parent(seed: int, k: int) -> None:
    taxonomy = random_taxonomy(seed, n=14, most_parents=3)
    scores, over = scores_for(taxonomy, seed, 4), above(taxonomy)
    chosen = sets(Decoder(taxonomy, DecodeConfig("path", k=k)).decode(scores))
    for document in range(4):
        means = dag_means(taxonomy, scores[document])
        ends = sorted(means, key=lambda leaf: -means[leaf])[:k]
        assert chosen[document] == set().union(*(over[end] for end in ends))


@given(st.integers(0, 300), st.integers(1, 3), st.integers(1, 2), st.sampled_from([0.2, 0.6, 0.9]))
def test_safe_stops_where_the_path_is_no_longer_certain(seed: int, parents: int, k: int, threshold: float) -> None:
    taxonomy = random_taxonomy(seed, n=12, most_parents=parents)
    scores, over = scores_for(taxonomy, seed), above(taxonomy)
    whole = sets(Decoder(taxonomy, DecodeConfig("path", k=k)).decode(scores))
    safe = sets(Decoder(taxonomy, DecodeConfig("safe", threshold, k=k)).decode(scores))
    for document, path in enumerate(whole):
        certain = [row for row in path if scores[document, row] > threshold]
        assert safe[document] == set().union(*(over[row] for row in certain))


def test_safe_keeps_the_deepest_certain_ancestor_and_abstains() -> None:
    chain = Taxonomy([Label("a", "A"), Label("b", "B", ("a",)), Label("c", "C", ("b",)), Label("d", "D")])
    scores = np.array([[0.9, 0.8, 0.3, 0.1], [0.2, 0.7, 0.1, 0.1], [0.9, 0.9, 0.9, 0.1], [0.4, 0.4, 0.4, 0.1]])
    found = sets(Decoder(chain, DecodeConfig("safe", 0.5)).decode(scores))
    assert found == [{0, 1}, {0, 1}, {0, 1, 2}, set()]
    unsure = sets(Decoder(chain, DecodeConfig("safe", 0.5, abstain=0.75)).decode(scores))
    assert unsure == [{0, 1}, set(), {0, 1, 2}, set()]
    assert sets(Decoder(chain, DecodeConfig("path", abstain=0.5)).decode(scores)) == [{0, 1, 2}] * 3 + [set()]


def test_a_score_on_the_threshold_does_not_pass_whatever_its_type() -> None:
    taxonomy = random_taxonomy(0, n=4)
    for kind in (np.float32, np.float64):
        scores = np.full((1, 4), 0.3, dtype=kind)
        decoder = Decoder(taxonomy, DecodeConfig("raw", threshold=float(kind(0.3))))
        assert not decoder.decode(scores).any()


def test_more_paths_than_leaves_are_all_labels() -> None:
    taxonomy = random_taxonomy(1, n=10)
    assert Decoder(taxonomy, DecodeConfig("path", k=99)).decode(scores_for(taxonomy, 0)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "closur"}, "did you mean 'closure'"),
        ({"tune": "levels"}, "did you mean 'level'"),
        ({"tune_metric": "f1"}, r"unknown decode\.tune_metric 'f1'"),
        ({"calibrate": "platt"}, "expected auto, temperature, isotonic, off"),
        ({"k": 0}, r"decode\.k is 0; expected at least 1"),
        ({"abstain": 2.0}, r"decode\.abstain is 2\.0; expected a number from 0 to 1"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DecodeConfig(**settings)  # type: ignore[arg-type]
