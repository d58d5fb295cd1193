"""Flat, ranking and calibration measures, against scikit-learn and against definitions spelled out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import accuracy_score, brier_score_loss, f1_score, ndcg_score, precision_recall_fscore_support

from hill.metrics import calibration_scores, flat_scores, ranking_scores
from hill.metrics.label_sets import steps_below
from hill.metrics.scores import CalibrationMetrics
from hill.taxonomy import Label, Taxonomy

SHAPES = st.tuples(st.integers(1, 6), st.integers(2, 6))
CHAIN = [Label("0", "0"), *(Label(str(row), str(row), (str((row - 1) // 2),)) for row in range(1, 6))]


EDGES = st.sampled_from([i / 15 for i in range(16)] + [i / 4 for i in range(5)])
ELEMENTS = {bool: st.booleans(), float: EDGES | st.floats(0, 1)}


@st.composite
def tables(draw, *dtypes):
    shape = draw(SHAPES)
    return [draw(arrays(dtype, shape, elements=ELEMENTS[dtype], fill=st.nothing())) for dtype in dtypes]


@given(tables(bool, bool))
def test_flat_scores_equal_scikit_learn(pair):
    labels, predicted = pair
    found = flat_scores(labels, predicted)
    for average in ("micro", "macro"):
        expected = precision_recall_fscore_support(labels, predicted, average=average, zero_division=0)[:3]
        assert [found[f"{average}_{name}"] for name in ("precision", "recall", "f1")] == pytest.approx(expected)
    assert found["documents"] == len(labels)
    assert found["subset_accuracy"] == pytest.approx(accuracy_score(labels, predicted))


@given(tables(bool, bool))
def test_macro_over_supported_labels_leaves_out_labels_without_gold(pair):
    labels, predicted = pair
    rows = [row for row in range(labels.shape[1]) if labels[:, row].any()]
    each = [f1_score(labels[:, row], predicted[:, row], zero_division=0) for row in rows]
    expected = sum(each) / max(len(each), 1)
    assert flat_scores(labels, predicted)["macro_f1_supported"] == pytest.approx(expected)


@given(tables(bool, float))
def test_ranking_scores_follow_their_definitions(pair):
    """Sorted by falling score, equal scores in the order of labels."""
    labels, scores = pair
    found = ranking_scores(labels, scores, k=(1, 2, 9))
    orders = [sorted(range(labels.shape[1]), key=lambda row, s=s: (-s[row], row)) for s in scores]
    hits = [[bool(gold[row]) for row in order] for gold, order in zip(labels, orders, strict=True)]
    n = len(labels)
    assert found["r_precision"] == pytest.approx(sum(sum(h[: sum(h)]) / sum(h) for h in hits if any(h)) / n)
    for k in (1, 2, 9):
        best = [sum(1 / math.log2(i + 2) for i in range(min(k, sum(h)))) for h in hits]
        gains = [sum(hit / math.log2(i + 2) for i, hit in enumerate(h[:k])) for h in hits]
        assert found[f"precision_at_{k}"] == pytest.approx(sum(sum(h[:k]) / k for h in hits) / n)
        assert found[f"ndcg_at_{k}"] == pytest.approx(sum(g / b for g, b in zip(gains, best, strict=True) if b) / n)


@pytest.mark.parametrize("density", [0.0, 0.03, 0.8], ids=["no gold", "few gold", "many gold"])
def test_ndcg_equals_scikit_learn(density):
    rng = np.random.default_rng(0)
    labels, scores = rng.random((50, 120)) < density, rng.random((50, 120))
    found = ranking_scores(labels, scores, k=[1, 5, 200])
    for k in (1, 5, 200):
        assert found[f"ndcg_at_{k}"] == pytest.approx(ndcg_score(labels, scores, k=k))


def test_sorting_and_counting_give_the_same_ranks():
    """With ties, on documents on either side of where sorting sets in."""
    rng = np.random.default_rng(1)
    scores = np.round(rng.random((40, 130)), 1)
    few = np.zeros((40, 130), dtype=bool)
    few[:, ::3] = True
    many = np.ones((1, 130), dtype=bool)
    mixed = ranking_scores(np.vstack([many, few[1:]]), scores, k=[4])
    apart = [ranking_scores(gold[None], s[None], k=[4]) for gold, s in zip([many[0], *few[1:]], scores, strict=True)]
    assert mixed == pytest.approx({name: np.mean([each[name] for each in apart]) for name in mixed})


def ece(labels, scores, bins):
    """Bins open below and closed above; the first has 0 too."""
    gap = 0.0
    for i in range(bins):
        inside = (scores > i / bins) & (scores <= (i + 1) / bins) | ((scores == 0) & (i == 0))
        gap += abs(scores[inside].sum() - labels[inside].sum())
    return gap / labels.size


@given(tables(bool, float), st.sampled_from([1, 4, 15]))
def test_calibration_follows_its_definition_overall_and_per_level(pair, bins):
    labels, scores = pair
    taxonomy = Taxonomy(CHAIN[: labels.shape[1]])
    expected = {
        "ece": ece(labels, scores, bins),
        "brier": brier_score_loss(labels.ravel(), scores.ravel(), pos_label=1),
    }
    assert calibration_scores(labels, scores, taxonomy, bins) == pytest.approx(expected)
    calibration = CalibrationMetrics(taxonomy, bins)
    calibration.update(labels, scores)
    for found, rows in zip(calibration.levels(), taxonomy.levels, strict=True):
        gold, given_scores = labels[:, rows], scores[:, rows]
        brier = ((given_scores - gold) ** 2).mean()
        assert found == pytest.approx({"ece": ece(gold, given_scores, bins), "brier": brier})


@pytest.mark.parametrize("steps", [1, 7, 15, 100])
def test_steps_below_is_exact_on_and_next_to_each_step(steps):
    grid = np.arange(steps + 1) / steps
    scores = np.concatenate([grid, np.nextafter(grid, 0), np.nextafter(grid, 1)])
    assert (steps_below(scores, steps) == np.searchsorted(grid, scores, side="left")).all()
