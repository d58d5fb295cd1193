"""Scores of which some are kept only: whatever is made of them is what dense scores give whose others are 0."""

from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, csr_matrix

import hill.decode.calibration as calibration_module
from hill.decode import STRATEGIES, CollectedScores, DecodeConfig, Decoder, Tuned, collect_scores, tune
from hill.decode.calibration import fit_calibrator
from hill.decode.decoder import TUNE_METRICS
from hill.decode.tuning import GRID, Histograms
from hill.errors import DataError
from hill.metrics import Scorer, flat_scores, ranking_scores, score
from hill.sparse import max_entries, to_dense, top_k, top_k_matrix, with_values
from tests.conftest import random_taxonomy

KEEPS = st.sampled_from([1, 3, 6, 14])
"""Of 14 labels; with 14 all are kept, exact zeros too."""


def made(seed: int, parents: int, keep: int, documents: int = 25) -> SimpleNamespace:
    """A taxonomy, labels, and scores with ties and zeros: kept in a sparse table, and dense with the others 0."""
    draw = np.random.default_rng(seed)
    taxonomy = random_taxonomy(seed, n=14, roots=int(draw.integers(1, 5)), most_parents=parents)
    gold = draw.random((documents, 14)) < draw.choice([0.1, 0.3])
    scores = np.clip(gold * 0.4 + draw.random((documents, 14)) * 0.9 - 0.2, 0, 1).astype(np.float32)
    scores = np.round(scores, 1) if seed % 3 == 0 else scores
    known = np.zeros(scores.shape, dtype=bool)
    for document, row in enumerate(scores):
        known[document, sorted(range(14), key=lambda label, row=row: (-row[label], -label))[:keep]] = True
    places = np.nonzero(known)
    sparse = csr_array((scores[known], places), shape=scores.shape)
    return SimpleNamespace(
        taxonomy=taxonomy,
        gold=gold,
        labels=csr_array(gold),
        known=known,
        sparse=sparse,
        dense=np.where(known, scores, 0),
    )


def flattened(result: dict) -> dict[str, float]:
    levels = result.pop("levels")
    return result | {f"{name} {level['level']}": value for level in levels for name, value in level.items()}


@given(st.integers(0, 10**6), st.integers(1, 3), KEEPS)
def test_every_metric_is_that_of_dense_scores(seed: int, parents: int, keep: int) -> None:
    case = made(seed, parents, keep)
    counts = np.random.default_rng(seed).integers(0, 9, 14)
    dense, sparse = Scorer(case.taxonomy, counts, (1, 3, 9)), Scorer(case.taxonomy, counts, (1, 3, 9))
    for part in (slice(0, 9), slice(9, 9), slice(9, 25)):
        dense.update(case.gold[part], case.dense[part] > 0.3, case.dense[part])
        sparse.update(case.labels[part], csr_array(case.dense[part] > 0.3), case.sparse[part])
    expected = pytest.approx(flattened(dense.result()), rel=1e-12, abs=1e-12)
    assert flattened(sparse.result()) == expected
    for name, values in dense.label_table().items():
        assert np.array_equal(sparse.label_table()[name], values)


@given(st.integers(0, 10**6))
def test_labels_alone_may_be_sparse_and_tables_of_two_kinds_mixed(seed: int) -> None:
    case = made(seed, 2, 3)
    chosen = case.dense > 0.3
    expected = flattened(score(case.gold, chosen, case.dense, case.taxonomy))
    for given_tables in [
        (case.labels, chosen, case.dense),
        (case.gold, chosen, case.sparse),
        (csr_matrix(case.gold.astype(int)), csr_array(chosen), case.dense),
    ]:
        assert flattened(score(*given_tables, case.taxonomy)) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    alone = flattened(score(case.gold, chosen, None, case.taxonomy))
    assert flattened(score(case.labels, csr_array(chosen), None, case.taxonomy)) == pytest.approx(alone)
    assert flat_scores(case.labels, csr_array(chosen)) == flat_scores(case.gold, chosen)


def test_cells_out_of_order_and_zeros_that_are_held_are_no_labels() -> None:
    taxonomy = random_taxonomy(0, n=3, roots=3)
    untidy = csr_array((np.array([True, False, True]), np.array([2, 1, 0]), np.array([0, 2, 3])), shape=(2, 3))
    tidy = np.array([[0, 0, 1], [1, 0, 0]])
    assert score(untidy, untidy, None, taxonomy) == score(tidy, tidy, None, taxonomy)
    assert score(tidy, untidy, None, taxonomy)["subset_accuracy"] == 1


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        (np.ones((2, 3)), np.full((2, 4), 0.5), r"scores have shape \(2, 4\), but labels have \(2, 3\)"),
        (np.ones((2, 4)), np.full((2, 4), 0.5), r"labels have shape \(2, 4\), but the taxonomy has 3 labels"),
        (np.full((2, 3), 0.5), np.full((2, 3), 0.5), r"labels have the value 0.5; expected true and false"),
        (np.ones((2, 3)), np.full((2, 3), 1.5), r"scores have the value 1.5; expected numbers from 0 to 1"),
    ],
)
def test_wrong_sparse_tables_are_named(labels: np.ndarray, scores: np.ndarray, message: str) -> None:
    scorer = Scorer(random_taxonomy(0, n=3, roots=3))
    with pytest.raises(DataError, match=message):
        scorer.update(csr_array(labels), csr_array(labels), csr_array(scores))
    assert scorer.result()["documents"] == 0


def zero_stays(known: np.ndarray, calibrated: np.ndarray) -> np.ndarray:
    return np.where(known, calibrated, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    KEEPS,
    st.sampled_from(["off", "temperature", "isotonic"]),
    st.booleans(),
    st.sampled_from([0.0, 0.6]),
    st.integers(1, 3),
)
def test_every_strategy_decides_as_with_dense_scores(
    strategy: str, seed: int, parents: int, keep: int, calibrate: str, by_label: bool, abstain: float, k: int
) -> None:
    case = made(seed, parents, keep)
    thresholds = np.random.default_rng(seed).random(14) if by_label else None
    calibrator = fit_calibrator(calibrate, case.taxonomy, [(case.gold, case.dense)])
    config = DecodeConfig(strategy, 0.5, k=k, abstain=abstain)  # which some scores are equal to
    expected = zero_stays(case.known, calibrator(case.dense)) if calibrator else case.dense
    plain, decoder = Decoder(case.taxonomy, config, thresholds), Decoder(case.taxonomy, config, thresholds, calibrator)
    for found, wanted in zip(decoder.decide(case.sparse), plain.decide(expected), strict=True):
        assert isinstance(found, csr_array) and np.array_equal(found.toarray(), wanted)
        assert found.has_sorted_indices and found.dtype == wanted.dtype
    assert np.array_equal(decoder.compared(case.sparse).toarray(), plain.compared(expected))
    assert np.array_equal(decoder.effective(case.sparse).toarray(), plain.effective(expected))


@pytest.mark.parametrize("kind", ["temperature", "isotonic"])
@given(st.integers(0, 10**6), KEEPS)
def test_calibrators_are_fitted_alike(kind: str, seed: int, keep: int) -> None:
    case = made(seed, 2, keep, documents=120)
    found = fit_calibrator(
        kind, case.taxonomy, [(case.labels[:50], case.sparse[:50]), (case.labels[50:], case.sparse[50:])]
    )
    wanted = fit_calibrator(kind, case.taxonomy, [(case.gold, case.dense)])
    assert found is not None and wanted is not None and found.to_dict() == wanted.to_dict()


def tuned_dense(case: SimpleNamespace, config: DecodeConfig) -> Tuned:
    """What dense scores give where a score of 0 stays 0, as a missing one does."""

    def keeping(kind: type) -> object:
        own = kind._map
        return patch.object(kind, "_map", lambda self, scores, rows: np.where(scores > 0, own(self, scores, rows), 0))

    with keeping(calibration_module.Temperature), keeping(calibration_module.Isotonic):
        return tune(case.taxonomy, config, CollectedScores(case.dense, case.labels))


TUNED = [
    *(DecodeConfig(name, tune="global", calibrate="off") for name in STRATEGIES),
    *(DecodeConfig("closure", tune=how, tune_metric=metric, calibrate="off")
      for how in ("level", "label") for metric in TUNE_METRICS),
    *(DecodeConfig(name, tune="label", tune_metric="mean_f1", calibrate="temperature")
      for name in ("ancestors", "top-down", "raw")),
    DecodeConfig("closure", tune="off", calibrate="isotonic"),
    DecodeConfig("auto"),
]  # fmt: skip


@pytest.mark.parametrize("config", TUNED, ids=lambda c: f"{c.strategy}-{c.tune}-{c.tune_metric}-{c.calibrate}")
@settings(max_examples=16)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([3, 14]))
def test_everything_that_is_tuned_is_tuned_alike(config: DecodeConfig, seed: int, parents: int, keep: int) -> None:
    case = made(seed, parents, keep, documents=60)
    if keep == 14:
        case.sparse.data[case.sparse.data == 0] = 1e-9  # missing and zero differ for calibrators alone
        case.dense[case.dense == 0] = 1e-9
    with patch("hill.decode.tuning.MIN_SUPPORT", 4):
        found = tune(case.taxonomy, config, CollectedScores(case.sparse, case.labels))
        wanted = tuned_dense(case, config)
    assert found.config == wanted.config
    assert (found.thresholds is None) == (wanted.thresholds is None)
    if wanted.thresholds is not None:
        assert np.array_equal(found.thresholds, wanted.thresholds)
    if wanted.calibrator is not None:
        assert found.calibrator.to_dict() == wanted.calibrator.to_dict()


@given(st.integers(0, 10**6), st.sampled_from([[0] * 14, [0, 1] * 7, list(range(14))]))
def test_counts_at_every_threshold_are_those_of_dense_scores(seed: int, groups: list[int]) -> None:
    case, draw = made(seed, 1, 6), np.random.default_rng(seed)
    edges = np.concatenate([GRID[[0, 1, 2, 180, 358, 359, 360]], [1.0]])
    values = np.clip(np.nextafter(draw.choice(edges, case.sparse.nnz), draw.choice([0, 1])), 0, 1)
    case.sparse = with_values(case.sparse, values)
    dense, sparse = Histograms(14), Histograms(14)
    for part in (slice(0, 9), slice(9, 25)):
        dense.update(case.gold[part], case.sparse[part].toarray())
        sparse.update(case.labels[part], case.sparse[part])
    assert np.array_equal(sparse.gold, dense.gold)
    of = np.array(groups)
    for found, wanted in zip((*sparse.counts(of), sparse.f1(of)), (*dense.counts(of), dense.f1(of)), strict=True):
        assert np.allclose(found, wanted, atol=1e-12)


def test_a_sparse_table_can_be_held_in_parts_and_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    case = made(1, 2, 3, documents=200)
    order = np.random.default_rng(0).permutation(200)

    def parts() -> object:
        return ((numbers, case.sparse[numbers]) for numbers in np.array_split(order, 7))

    whole = collect_scores(parts(), case.labels)
    assert isinstance(whole.scores, csr_array) and np.array_equal(whole.scores.toarray(), case.dense)
    monkeypatch.setattr("hill.decode.tuning.MAX_SCORES", 3 * 50)
    sample = collect_scores(parts(), case.labels)
    assert len(sample) == 50 and sample.scores.shape == (50, 14)
    monkeypatch.setattr("hill.decode.tuning.MAX_SCORES", 14 * 50)
    dense = collect_scores(((numbers, case.dense[numbers]) for numbers in np.array_split(order, 7)), case.labels)
    assert np.array_equal(sample.scores.toarray(), dense.scores)
    assert np.array_equal(sample.labels.toarray(), dense.labels.toarray())
    some = collect_scores(iter([(np.array([4, 2]), case.sparse[[4, 2]])]), case.labels)
    assert some.scores.nnz == case.sparse[[2, 4]].nnz


def test_how_many_scores_are_kept() -> None:
    assert [max_entries(0, labels) for labels in (1, 10_000, 10_001)] == [0, 0, 100]
    assert [max_entries(7, labels) for labels in (7, 8, 50_000)] == [0, 7, 7]


@given(st.integers(0, 1000), st.integers(1, 9))
def test_the_best_scores_are_kept(seed: int, count: int) -> None:
    scores = np.random.default_rng(seed).random((5, 9), dtype=np.float32)
    expected = np.zeros_like(scores)
    for document, row in enumerate(scores):
        for label in sorted(range(9), key=lambda label, row=row: -row[label])[:count]:
            expected[document, label] = row[label]
    found = top_k(scores, count)
    assert np.array_equal(to_dense(found), expected) and found.nnz == 5 * count and found.has_sorted_indices
    order = np.argsort(-scores, axis=1)[:, :count]
    assert np.array_equal(top_k_matrix(np.take_along_axis(scores, order, 1), order, 9).toarray(), expected)


def test_a_score_of_0_ranks_with_those_that_are_missing() -> None:
    kept = csr_array((np.array([0.0, 0.5]), np.array([2, 3]), np.array([0, 2])), shape=(1, 4))
    found = ranking_scores(csr_array(np.array([[True, False, False, False]])), kept, k=[1, 2])
    assert (found["precision_at_1"], found["precision_at_2"]) == (0, 0.5)
