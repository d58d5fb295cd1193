"""The scorer of every metric: laws that must hold, batches, levels, thirds, edge cases and wrong input."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, precision_recall_fscore_support

from hill.errors import ConfigError, DataError
from hill.metrics import (
    Scorer,
    calibration_scores,
    curve_scores,
    flat_scores,
    hierarchical_scores,
    label_sets,
    ranking_scores,
    score,
)
from hill.taxonomy import Label, Taxonomy

SEEDS = st.integers(0, 2**32 - 1)
COUNTS = [5, 9, 9, 0, 2, 7, 1]


def taxonomy_of(rng, labels=7):
    """A random DAG; some labels have two parents."""
    parents = [rng.choice(row, size=min(row, rng.integers(3)), replace=False) if row else [] for row in range(labels)]
    return Taxonomy([Label(str(row), str(row), tuple(str(p) for p in above)) for row, above in enumerate(parents)])


def random_case(seed, documents=30):
    rng = np.random.default_rng(seed)
    taxonomy = taxonomy_of(rng)
    labels, scores = rng.random((documents, 7)) < 0.4, np.round(rng.random((documents, 7)), 2)
    return taxonomy, labels, scores > 0.6, scores


def closed(taxonomy, table):
    result = np.zeros_like(table)
    for document, row in enumerate(table):
        result[document, taxonomy.closure(np.flatnonzero(row))] = True
    return result


def flattened(result):
    """Every number of a result under one name."""
    levels = result.pop("levels")
    return result | {f"{name} {level['level']}": value for level in levels for name, value in level.items()}


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.lists(st.integers(0, 30), max_size=4))
def test_batches_of_any_size_equal_one_call(seed, cuts):
    taxonomy, *arrays = random_case(seed)
    scorer = Scorer(taxonomy, COUNTS)
    borders = [0, *sorted(cuts), 30]
    for start, stop in pairwise(borders):
        scorer.update(*(array[start:stop] for array in arrays))
    assert flattened(scorer.result()) == pytest.approx(flattened(score(*arrays, taxonomy, COUNTS)))


def test_blocks_inside_a_batch_do_not_show(monkeypatch):
    taxonomy, *arrays = random_case(3)
    whole = flattened(score(*arrays, taxonomy))
    monkeypatch.setattr(label_sets, "BLOCK_ENTRIES", 1)
    monkeypatch.setattr(label_sets, "MIN_DOCUMENTS", 4)
    assert flattened(score(*arrays, taxonomy)) == pytest.approx(whole)


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_the_order_of_documents_changes_nothing(seed):
    taxonomy, *arrays = random_case(seed)
    order = np.random.default_rng(seed).permutation(30)
    shuffled = score(*(array[order] for array in arrays), taxonomy, COUNTS)
    assert flattened(shuffled) == pytest.approx(flattened(score(*arrays, taxonomy, COUNTS)))


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_consistent_f1_is_f1_where_all_sets_are_closed(seed):
    taxonomy, labels, predicted, _ = random_case(seed)
    result = score(closed(taxonomy, labels), closed(taxonomy, predicted), None, taxonomy)
    assert result["consistent_micro_f1"] == result["micro_f1"] == result["hierarchical_f1"]
    assert result["consistent_macro_f1"] == result["macro_f1"]
    assert result["violations"] == 0


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_adding_implied_ancestors_leaves_closed_measures(seed):
    taxonomy, labels, predicted, _ = random_case(seed)
    before = hierarchical_scores(labels, predicted, taxonomy)
    after = hierarchical_scores(closed(taxonomy, labels), closed(taxonomy, predicted), taxonomy)
    names = [name for name in before if name.startswith(("hierarchical", "lca"))]
    assert len(names) == 9
    assert [after[name] for name in names] == [before[name] for name in names]


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_perfect_predictions_score_full(seed):
    taxonomy, labels, *_ = random_case(seed)
    labels[0] = True
    labels = closed(taxonomy, labels | np.eye(30, 7, dtype=bool)[::-1] | (np.arange(7) == 0))
    result = flattened(score(labels, labels, labels.astype(float), taxonomy, COUNTS, k=[1]))
    none = {name for name, value in result.items() if name.split()[0] in {"ece", "brier", "violations"}}
    assert all(result[name] == 0 for name in none)
    assert result.pop("hierarchical_f1_auc") == pytest.approx(0.995)
    rest = {name: value for name, value in result.items() if name.split()[0] not in {"documents", "level", "labels"}}
    assert {name: rest[name] for name in rest if name not in none} == pytest.approx(dict.fromkeys(set(rest) - none, 1))


def test_levels_score_the_labels_of_each_depth():
    taxonomy, labels, predicted, scores = random_case(5)
    levels = score(labels, predicted, scores, taxonomy)["levels"]
    assert [(level["level"], level["labels"]) for level in levels] == [
        (depth + 1, len(rows)) for depth, rows in enumerate(taxonomy.levels)
    ]
    for level, rows in zip(levels, taxonomy.levels, strict=True):
        hits, chosen, gold = (m[:, rows].sum() for m in (labels & predicted, predicted, labels))
        assert level["micro_precision"] == pytest.approx(hits / chosen)
        assert level["micro_recall"] == pytest.approx(hits / gold)
        macro = np.mean([f1_score(labels[:, row], predicted[:, row]) for row in rows])
        assert level["macro_f1"] == pytest.approx(macro)
        assert level["brier"] == pytest.approx(np.mean((scores[:, rows] - labels[:, rows]) ** 2))


def test_thirds_by_training_count_the_larger_first_ties_in_order():
    taxonomy, labels, predicted, scores = random_case(5)
    result = score(labels, predicted, scores, taxonomy, train_counts=COUNTS)
    for name, rows in {"head": [1, 2, 5], "torso": [0, 4], "tail": [6, 3]}.items():
        expected = np.mean([f1_score(labels[:, row], predicted[:, row]) for row in rows])
        assert result[f"{name}_macro_f1"] == pytest.approx(expected)
    assert "head_macro_f1" not in score(labels, predicted, scores, taxonomy)


def test_label_table_equals_scikit_learn():
    taxonomy, labels, predicted, _ = random_case(6)
    scorer = Scorer(taxonomy)
    scorer.update(labels, predicted)
    table = scorer.label_table()
    expected = precision_recall_fscore_support(labels, predicted, average=None, zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "gold"), expected, strict=True):
        assert table[name] == pytest.approx(values)
    assert (table["hits"] == (labels & predicted).sum(axis=0)).all()
    assert (table["predicted"] == predicted.sum(axis=0)).all()


def test_one_result_holds_what_each_family_gives():
    taxonomy, labels, predicted, scores = random_case(7)
    families = [
        flat_scores(labels, predicted),
        hierarchical_scores(labels, predicted, taxonomy),
        ranking_scores(labels, scores),
        calibration_scores(labels, scores, taxonomy),
        curve_scores(labels, scores, taxonomy),
    ]
    expected = {name: value for family in families for name, value in family.items()}
    result = score(labels, predicted, scores, taxonomy)
    del result["levels"]
    assert result == expected
    unscored = score(labels, predicted, None, taxonomy)
    assert set(unscored) == {*families[0], *families[1], "levels"}
    assert "ece" not in unscored["levels"][0]


@pytest.mark.parametrize("documents", [0, 4], ids=["no documents", "no labels anywhere"])
def test_nothing_to_score_gives_zeros(documents):
    taxonomy = taxonomy_of(np.random.default_rng(0))
    empty = np.zeros((documents, 7))
    result = flattened(score(empty, empty, empty, taxonomy, COUNTS))
    assert result.pop("documents") == documents
    assert result.pop("subset_accuracy") == (documents > 0)
    assert all(value == 0 for name, value in result.items() if not name.startswith(("level ", "labels ")))


def test_a_scorer_that_saw_nothing_and_a_taxonomy_without_labels():
    assert Scorer(taxonomy_of(np.random.default_rng(0))).result()["micro_f1"] == 0
    nothing = np.zeros((2, 0))
    result = score(nothing, nothing, nothing, Taxonomy([]), [])
    assert result["levels"] == []
    assert all(math.isfinite(value) for name, value in result.items() if name != "levels")


@pytest.mark.parametrize("dtype", [np.int8, np.float32], ids=str)
def test_zeros_and_ones_of_any_type_are_labels(dtype):
    taxonomy, labels, predicted, scores = random_case(8)
    typed = score(labels.astype(dtype), predicted.astype(dtype), scores, taxonomy)
    assert typed == score(labels, predicted, scores, taxonomy)


def test_scores_in_single_precision():
    taxonomy, labels, predicted, scores = random_case(9)
    single = scores.astype(np.float32)
    assert score(labels, predicted, single, taxonomy) == score(labels, predicted, single.astype(float), taxonomy)


ONE = Taxonomy([Label("a", "A"), Label("b", "B", ("a",))])


@pytest.mark.parametrize(
    ("labels", "predicted", "scores", "message"),
    [
        ([1, 0], [1, 0], None, r"labels have shape \(2,\); expected one row per document"),
        ([[1, 0, 0]], [[1, 0, 0]], None, r"labels have shape \(1, 3\), but the taxonomy has 2 labels"),
        ([[1, 0]], [[1, 0], [1, 0]], None, r"predicted have shape \(2, 2\), but labels have \(1, 2\)"),
        ([[1, 0]], [[1, 0]], [[0.5]], r"scores have shape \(1, 1\), but labels have \(1, 2\)"),
        ([[1, 0]], [[0.7, 0]], None, r"predicted have the value 0.7; expected true and false, or 1 and 0"),
        ([[1, 2]], [[1, 0]], None, r"labels have the value 2; expected true and false"),
        ([["a", "b"]], [[1, 0]], None, r"labels have the dtype <U1; expected a matrix of numbers"),
        ([[1, 0]], [[1, 0]], [[0.5, math.nan]], r"scores have the value nan; expected numbers from 0 to 1"),
        ([[1, 0]], [[1, 0]], [[0.5, 1.5]], r"scores have the value 1.5; expected numbers from 0 to 1: apply a sigmoid"),
        ([[1, 0]], [[1, 0]], [[-3.0, 0.5]], r"scores have the value -3.0; expected"),
    ],
)
def test_wrong_input_is_named_and_leaves_the_counts_alone(labels, predicted, scores, message):
    scorer = Scorer(ONE)
    with pytest.raises(DataError, match=message):
        scorer.update(labels, predicted, scores)
    assert scorer.result()["documents"] == 0


@pytest.mark.parametrize(("first", "then"), [([[0.5, 0.5]], None), (None, [[0.5, 0.5]])], ids=["stop", "start"])
def test_scores_come_with_every_batch_or_none(first, then):
    scorer = Scorer(ONE)
    scorer.update([[1, 0]], [[1, 0]], first)
    with pytest.raises(DataError, match=r"scores (are missing|are given) for this batch .* give them always or never"):
        scorer.update([[1, 0]], [[1, 0]], then)


def test_wrong_settings_are_named():
    with pytest.raises(DataError, match=r"train counts have the shape \(3,\).*; expected one number for each of the 2"):
        Scorer(ONE, train_counts=[1, 2, 3])
    with pytest.raises(ConfigError, match="k is 0; expected a whole number from 1"):
        Scorer(ONE, k=[0])
    with pytest.raises(ConfigError, match=r"bins is 2.5; expected a whole number from 1"):
        calibration_scores([[1, 0]], [[1, 0]], ONE, bins=2.5)
