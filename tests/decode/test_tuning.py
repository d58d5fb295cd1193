"""What is decided on dev: that it holds on documents that were not seen, and that it is kept with the model."""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import hill.decode.tuning as tuning_module
from hill.decode import CollectedScores, DecodeConfig, Decoder, Tuned, collect_scores, tune
from hill.metrics import score
from hill.predictor import Predictor, ScoredBatch
from hill.taxonomy import Label, Taxonomy
from hill.types import IntArray
from tests.conftest import animals_taxonomy, random_taxonomy

TAIL = Taxonomy(
    [
        *(Label(f"r{i}", f"Root {i}") for i in range(4)),
        *(Label(f"r{i}.{j}", f"Leaf {i}.{j}", (f"r{i}",)) for i in range(4) for j in range(10)),
    ]
)
SHOWN = ("micro_f1", "macro_f1", "hierarchical_f1")


def long_tail(seed: int, documents: int, shy: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels of a long tail, and scores that are too low for the rarer ones, as trained models have them."""
    draw = np.random.default_rng(seed)
    rate = np.concatenate([np.full(4, 0.3), np.tile(0.25 / np.arange(1, 11) ** 1.3, 4)])
    leaves = draw.random((documents, 44)) < rate
    leaves[:, :4] = False
    gold = TAIL.closures(csr_array(leaves)).toarray()
    rarity = np.log(0.25 / rate)
    logit = np.where(gold, 1.2, -3.0) + draw.normal(0, 1.3, gold.shape) - shy * np.clip(rarity, 0, None) / 2
    return gold, (1 / (1 + np.exp(-logit))).astype(np.float32)


def collected(seed: int, documents: int, shy: float = 2.0) -> CollectedScores:
    gold, scores = long_tail(seed, documents, shy)
    return CollectedScores(scores, csr_array(gold))


def measured(tuned: Tuned, unseen: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    gold, scores = unseen
    return score(gold, tuned.decoder(TAIL).decode(scores), None, TAIL)


@pytest.mark.parametrize("documents", [300, 1500])
def test_auto_raises_rare_labels_and_lowers_nothing(documents: int) -> None:
    unseen = long_tail(99, 4000)
    plain = score(unseen[0], unseen[1] > 0.5, None, TAIL)
    found = measured(tune(TAIL, DecodeConfig(), collected(1, documents)), unseen)
    assert found["violations"] == 0 and plain["violations"] > 0
    for name in SHOWN:
        assert found[name] > plain[name] - 0.002, name
    assert found["hierarchical_f1"] > plain["hierarchical_f1"]
    assert found["macro_f1"] > plain["macro_f1"] + 0.03


def test_auto_stays_plain_where_nothing_is_to_be_gained() -> None:
    gold, _ = long_tail(0, 400)
    scores = np.where(gold, 0.9, 0.1).astype(np.float32)
    tuned = tune(TAIL, DecodeConfig(calibrate="isotonic"), CollectedScores(scores, csr_array(gold)))
    assert (tuned.config.strategy, tuned.config.tune) == ("ancestors", "off") and tuned.calibrator is not None
    _, others = long_tail(5, 300)
    assert np.array_equal(tuned.decoder(TAIL).decode(others), Decoder(TAIL, DecodeConfig("closure")).decode(others))


@pytest.mark.parametrize(
    ("documents", "gain", "expected"), [(199, 0.029, "off"), (199, 0.031, "level"), (200, 0.02, "level")]
)
def test_few_documents_need_a_clear_gain(
    monkeypatch: pytest.MonkeyPatch, documents: int, gain: float, expected: str
) -> None:
    rows = np.array([[0.0] * 3, *[[-0.1] * 3] * 2, [gain] * 3, *[[-0.1] * 3] * 3])
    monkeypatch.setattr(tuning_module, "_gains", lambda *given: rows)
    assert tuning_module.choose_rule(TAIL, DecodeConfig(), collected(0, documents)).tune == expected


def test_few_documents_get_the_default_rule_and_the_result_says_so() -> None:
    tuned = tune(TAIL, DecodeConfig(), collected(3, 112, shy=0.0))
    assert (tuned.config.strategy, tuned.config.tune, tuned.config.threshold) == ("ancestors", "off", 0.5)
    assert tuned.config.calibrate != "isotonic"
    assert tuned.note == "112 dev documents: too few to tune thresholds; scores above 0.5 are predicted"
    _, others = long_tail(5, 300)
    predicted = TAIL.closures(csr_array(others > 0.5)).toarray()
    assert np.array_equal(tuned.decoder(TAIL).decode(others), predicted)


def test_few_documents_still_tell_that_all_scores_are_far_too_low() -> None:
    gold, scores = long_tail(1, 60, shy=0.0)
    low = (scores / 4).astype(np.float32)
    tuned = tune(TAIL, DecodeConfig(), CollectedScores(low, csr_array(gold)))
    assert tuned.config.tune != "off" and tuned.note.startswith("60 dev documents: few, but a tuned threshold")
    unseen, unseen_scores = long_tail(99, 2000, shy=0.0)
    assert measured(tuned, (unseen, unseen_scores / 4))["micro_f1"] > 0.6
    assert score(unseen, unseen_scores / 4 > 0.5, None, TAIL)["micro_f1"] == 0


def one_path(documents: int, ends: IntArray, spread: float) -> CollectedScores:
    """Documents with one path each, whose leaf has the highest score, and no score is above 0.5."""
    draw = np.random.default_rng(documents)
    gold = np.zeros((documents, len(TAIL)), dtype=bool)
    for row, end in enumerate(draw.choice(ends, documents).tolist()):
        gold[row, TAIL.closure([end])] = True
    scores = np.where(gold, 0.3, 0.1) * draw.uniform(1 - spread, 1, (documents, 1))
    return CollectedScores(scores.astype(np.float32), csr_array(gold))


@pytest.mark.parametrize("documents", [5, 60, 199])
def test_few_documents_with_one_path_each_get_the_best_path(documents: int) -> None:
    tuned = tune(TAIL, DecodeConfig(), found := one_path(documents, TAIL.leaves, 0.9))
    assert (tuned.config.strategy, tuned.config.tune) == ("path", "off")
    assert tuned.note.endswith("too few to tune thresholds, and documents have one path; the best path is predicted")
    assert np.array_equal(tuned.decoder(TAIL).decode(found.scores), found.labels.toarray())


def test_the_best_path_is_chosen_for_many_documents_if_no_threshold_is_as_good() -> None:
    tuned = tune(TAIL, DecodeConfig(), one_path(300, TAIL.leaves, 0.9))  # all scores of some documents are lower
    assert (tuned.config.strategy, tuned.note) == (
        "path",
        "300 dev documents: documents have one path; the best path is predicted",
    )
    found = one_path(300, TAIL.leaves, 0.0)  # the same scores in all documents
    clear = CollectedScores(np.where(found.scores > 0.2, 0.9, 0.1).astype(np.float32), found.labels)
    assert tune(TAIL, DecodeConfig(), clear).config.strategy == "ancestors"  # scores above 0.5 are as good


def test_the_best_path_is_for_documents_with_one_path_down_to_a_leaf() -> None:
    inner = np.setdiff1d(np.arange(len(TAIL)), TAIL.leaves)
    others = one_path(60, inner, 0.9), one_path(300, inner, 0.9), collected(3, 60, shy=0.0)
    assert all(tune(TAIL, DecodeConfig(), each).config.strategy == "ancestors" for each in others)


@pytest.mark.parametrize(
    ("config", "documents", "note"),
    [
        (DecodeConfig("closure"), 60, "60 dev documents: one threshold for all labels, tuned for micro F1"),
        (
            DecodeConfig("ancestors", tune="label", tune_metric="mean_f1"),
            1,
            "1 dev document: thresholds per label, tuned for mean F1",
        ),
        (DecodeConfig("raw", tune="off", calibrate="off"), 60, "60 dev documents: scores above 0.5 are predicted"),
        (
            DecodeConfig("closure", threshold=0.3, tune="off", calibrate="isotonic"),
            1200,
            "1,200 dev documents: scores above 0.3 before calibration are predicted",
        ),
        (DecodeConfig("path"), 60, "60 dev documents: the best path is predicted"),
        (DecodeConfig("path", k=2), 60, "60 dev documents: the 2 best paths are predicted"),
    ],
)
def test_what_the_user_fixed_is_used_with_any_number_of_documents(
    config: DecodeConfig, documents: int, note: str
) -> None:
    tuned = tune(TAIL, config, collected(1, documents))
    assert tuned.note == note and tuned.config.strategy == config.strategy and tuned.config.tune == config.tune


def test_isotonic_curves_need_200_documents() -> None:
    draw = np.random.default_rng(0)
    scores = draw.random((200, 44)).astype(np.float32)
    labels = csr_array(draw.random(scores.shape) < 0.2)  # whatever the score is: only a flat curve is calibrated
    assert tuning_module.choose_calibration(TAIL, CollectedScores(scores, labels)) == "isotonic"
    assert tuning_module.choose_calibration(TAIL, CollectedScores(scores[:199], labels[:199])) == "temperature"


def test_a_rule_that_loses_more_than_a_little_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [[0.01, 0, 0], [0.05, 0.05, 0.05], [0.2, 0.3, -0.01], [0.06, 0.06, 0.06], *[[0, 0, 0]] * 3]
    for rows, expected in (
        (rules, ("ancestors", "level", "micro_f1")),
        ([*rules[:5], [0.1, 0.1, -0.003], [0.2, 0.1, -0.005]], ("ancestors", "label", "micro_f1")),
    ):
        monkeypatch.setattr(tuning_module, "_gains", lambda *given, rows=rows: np.array(rows))
        chosen = tuning_module.choose_rule(TAIL, DecodeConfig(), collected(0, 200))
        assert (chosen.strategy, chosen.tune, chosen.tune_metric) == expected


@pytest.mark.parametrize("tuning", ["global", "level", "label"])
def test_calibration_changes_no_label_where_each_is_compared_for_itself(tuning: str) -> None:
    dev, (_, unseen) = collected(1, 800), long_tail(7, 500)
    chosen = {
        calibrate: tune(TAIL, DecodeConfig("ancestors", tune=tuning, calibrate=calibrate), dev).decoder(TAIL)
        for calibrate in ("off", "temperature", "isotonic")
    }
    plain = chosen["off"].decode(unseen)
    assert plain.any()
    for calibrate in ("temperature", "isotonic"):
        assert np.abs(chosen[calibrate].effective(unseen) - chosen["off"].effective(unseen)).max() > 0.05
        assert (chosen[calibrate].decode(unseen) != plain).mean() < 1e-4  # but for what float32 rounds away


def test_own_thresholds_that_only_fit_by_chance_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_module, "MIN_SUPPORT", 1)
    gold, scores = long_tail(3, 60, shy=0.0)
    config = DecodeConfig("closure", tune="label", tune_metric="macro_f1", calibrate="off")
    fitted = tune(TAIL, config, CollectedScores(scores, csr_array(gold)))
    unseen = long_tail(98, 3000, shy=0.0)
    plain = tune(TAIL, DecodeConfig("closure", tune="off", calibrate="off"), CollectedScores(scores, csr_array(gold)))
    assert measured(fitted, (gold, scores))["macro_f1"] > measured(plain, (gold, scores))["macro_f1"]
    chosen = tune(TAIL, DecodeConfig(calibrate="off"), CollectedScores(scores, csr_array(gold)))
    assert measured(chosen, unseen)["micro_f1"] > measured(plain, unseen)["micro_f1"] - 0.01


@pytest.mark.parametrize("calibrate", ["auto", "temperature", "isotonic", "off"])
@given(st.integers(0, 200), st.integers(1, 3), st.sampled_from(["auto", "closure", "ancestors", "top-down", "safe"]))
def test_whatever_is_decided_is_consistent(calibrate: str, seed: int, parents: int, strategy: str) -> None:
    taxonomy = random_taxonomy(seed, n=8, most_parents=parents)
    draw = np.random.default_rng(seed)
    gold, scores = draw.random((40, 8)) < 0.3, draw.random((40, 8)).astype(np.float32)
    config = DecodeConfig(strategy, tune="label", calibrate=calibrate)
    with patch.object(tuning_module, "MIN_SUPPORT", 3):
        tuned = tune(taxonomy, config, CollectedScores(scores, csr_array(gold)))
    chosen, effective = tuned.decoder(taxonomy).decide(scores)
    for child, parent in taxonomy.edge_array:
        assert (chosen[:, child] <= chosen[:, parent]).all()
        assert (effective[:, child] <= effective[:, parent]).all()


def test_calibration_is_chosen_by_what_it_does_to_documents_it_did_not_see() -> None:
    draw = np.random.default_rng(0)
    scores = draw.random((3000, 44)).astype(np.float32)
    true = tune(
        TAIL,
        DecodeConfig("closure", tune="off"),
        CollectedScores(scores, csr_array(draw.random(scores.shape) < scores)),
    )
    logit = np.log(scores / (1 - scores))
    sharp = (1 / (1 + np.exp(-3 * logit))).astype(np.float32)
    shy = tune(
        TAIL, DecodeConfig("closure", tune="off"), CollectedScores(sharp, csr_array(draw.random(scores.shape) < scores))
    )
    assert true.config.calibrate in ("off", "temperature") and shy.config.calibrate == "temperature"
    bent = tune(
        TAIL, DecodeConfig("closure", tune="off"), CollectedScores(scores, csr_array(draw.random(scores.shape) < 0.2))
    )
    assert bent.config.calibrate == "isotonic"


def parts(scores: np.ndarray, seed: int) -> Iterator[ScoredBatch]:
    for numbers in np.array_split(np.random.default_rng(seed).permutation(len(scores)), 7):
        yield numbers, scores[numbers]


def test_documents_are_held_in_their_order_and_sampled_where_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gold, scores = long_tail(0, 200)
    whole = collect_scores(parts(scores, 1), csr_array(gold))
    assert np.array_equal(whole.scores, scores) and np.array_equal(whole.labels.toarray(), gold)
    monkeypatch.setattr(tuning_module, "MAX_SCORES", 44 * 50)
    sample = collect_scores(parts(scores, 2), csr_array(gold))
    places = [int(np.flatnonzero((scores == row).all(axis=1))[0]) for row in sample.scores]
    assert len(set(places)) == 50 and max(places) > 150 and places == sorted(places)
    assert np.array_equal(sample.labels.toarray(), gold[places])


def test_every_document_is_judged_once_by_the_others() -> None:
    documents = CollectedScores(np.arange(10, dtype=np.float32)[:, None], csr_array(np.ones((10, 1), dtype=bool)))
    seen = []
    for fitted, judged in documents.folds():
        assert not set(fitted.scores.ravel()) & set(judged.scores.ravel()) and len(fitted) + len(judged) == 10
        seen += judged.scores.ravel().tolist()
    assert sorted(seen) == list(range(10))


class Given(Predictor):
    """A predictor whose texts are numbers of documents with given scores."""

    def __init__(self, taxonomy: Taxonomy, scores: np.ndarray, config: DecodeConfig) -> None:
        self.taxonomy, self.decode_config, self.thresholds, self._scores = taxonomy, config, None, scores

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        rows = np.array([int(text) for text in texts])
        yield from ((numbers, self._scores[rows[numbers]]) for numbers in np.array_split(np.arange(len(rows)), 3))


TEXTS = [str(i) for i in range(100)]


@pytest.mark.parametrize(
    "config",
    [
        DecodeConfig(),
        DecodeConfig("closure", tune="level", calibrate="temperature"),
        DecodeConfig("top-down", tune="label", calibrate="isotonic"),
        DecodeConfig("path", k=2),
        DecodeConfig("raw", tune="off", calibrate="off"),
    ],
    ids=lambda config: config.strategy,
)
def test_what_was_decided_is_kept(config: DecodeConfig) -> None:
    gold, scores = long_tail(1, 600)
    predictor = Given(TAIL, scores, config)
    predictor.tune(parts(scores, 0), csr_array(gold))
    kept = json.loads(json.dumps(predictor.thresholds_document()))
    other = Given(TAIL, scores, config)
    other.set_thresholds(kept)
    assert other.decode_config == predictor.decode_config and other.thresholds_document() == kept
    assert other.decode_note == predictor.decode_note
    assert other.decode_note.startswith("600 dev documents: ") or not config.tunable
    assert other.predict(TEXTS) == predictor.predict(TEXTS)
    assert np.array_equal(other.predict_proba(TEXTS), predictor.predict_proba(TEXTS))
    assert "auto" not in (predictor.decode_config.strategy, predictor.decode_config.calibrate)


def test_models_saved_before_decode_as_they_did() -> None:
    scores = np.array([[0.4, 0.5, 0.2, 0.6, 0.1, 0.1, 0.3], [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.35]], dtype=np.float32)
    old = Given(animals_taxonomy(), scores, DecodeConfig("closure"))
    old.set_thresholds({"threshold": 0.32})
    assert old.predict(["0", "1"]) == [["a", "m", "f", "bat"], ["p"]]
    assert old.decode_config.calibrate == "off" and old.calibrator is None and old.thresholds is None
    old.set_thresholds({"threshold": 0.32, "labels": [0.9, 0.9, 0.9, 0.5, 0.9, 0.9, 0.36]})
    assert old.predict(["0", "1"]) == [["a", "m", "f", "bat"], []]


def slow_ece(gold: np.ndarray, scores: np.ndarray) -> float:
    cells, total = sorted(zip(scores.ravel().tolist(), gold.ravel().tolist(), strict=True)), 0.0
    for number in range(15):
        inside = [(s, g) for s, g in cells if number / 15 < s <= (number + 1) / 15 or (number == 0 and s == 0)]
        total += abs(sum(s for s, _ in inside) - sum(g for _, g in inside))
    return total / len(cells)


def test_evaluation_measures_calibration_before_and_after() -> None:
    gold, scores = long_tail(1, 600)
    predictor = Given(TAIL, scores, DecodeConfig())
    predictor.tune(parts(scores, 0), csr_array(gold))
    found = predictor.measure(parts(scores, 3), csr_array(gold))
    given_scores = np.concatenate([predictor.predict_proba([str(i) for i in range(600)])])
    levels = [slice(0, 4), slice(4, 44)]
    for name, values in (("", given_scores), ("raw_", scores)):
        assert found[f"{name}ece"] == pytest.approx(slow_ece(gold, values), abs=1e-6)
        by_level = [slow_ece(gold[:, rows], values[:, rows]) for rows in levels]
        assert found[f"{name}ece_levels"] == pytest.approx(np.mean(by_level), abs=1e-6)
    assert found["ece"] < found["raw_ece"] and found["violations"] == 0
    raw = score(gold, scores > 0.5, None, TAIL)
    assert all(found[f"raw_{name}"] == pytest.approx(raw[name]) for name in (*SHOWN, "violations"))
    assert found["threshold"] == predictor.decode_config.threshold


def test_with_very_few_documents_auto_tunes_nothing() -> None:
    taxonomy, draw = random_taxonomy(1, 12), np.random.default_rng(0)
    labels = taxonomy.closures(csr_array(draw.random((19, 12)) < 0.2))
    low = CollectedScores(np.where(labels.toarray(), 0.2, 0.1).astype(np.float32), labels)  # a threshold would help
    tuned = tune(taxonomy, DecodeConfig(), low)
    assert (tuned.config.strategy, tuned.config.tune, tuned.config.calibrate) == ("ancestors", "off", "off")
    assert tuned.calibrator is None and tuned.note.startswith("19 dev documents: too few to tune thresholds")
    asked = tune(taxonomy, DecodeConfig(strategy="closure", calibrate="off"), low)
    assert asked.config.threshold < 0.2
