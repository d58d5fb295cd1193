"""Predicting, evaluating and tuning with some of the scores, from a model's batches on, in little memory."""

import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from hill.classifier import HillClassifier
from hill.data.tokens import tokenize
from hill.data.windows import pool
from hill.decode import STRATEGIES, DecodeConfig
from hill.errors import ConfigError
from hill.predictor import Predictor, ScoredBatch
from hill.sparse import top_k
from hill.taxonomy import Label, Taxonomy
from hill.train import Session, Split, TrainConfig
from hill.train.trainer import choose_labels, score_split
from tests.conftest import animals_taxonomy, random_taxonomy, toy_documents
from tests.made import make_model

TEXTS = [str(number) for number in range(60)]


class Given(Predictor):
    """A predictor whose texts are numbers of documents with given scores."""

    def __init__(self, taxonomy: Taxonomy, scores: Any, config: DecodeConfig) -> None:
        self.taxonomy, self.decode_config, self.thresholds, self._scores = taxonomy, config, None, scores

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        rows = np.array([int(text) for text in texts], dtype=np.int64)
        order = np.random.default_rng(0).permutation(len(rows))
        yield from ((numbers, self._scores[rows[numbers]]) for numbers in np.array_split(order, 4) if len(numbers))


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    levels = [found.pop("levels"), wanted.pop("levels")]
    pairs = [(found, wanted), *zip(*levels, strict=True)]
    return all(one == pytest.approx(other, rel=1e-9, abs=1e-9) for one, other in pairs)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_predictor_says_the_same_of_sparse_scores(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hill.decode.tuning.MIN_SUPPORT", 5)
    taxonomy, draw = random_taxonomy(5, n=20, most_parents=2), np.random.default_rng(2)
    gold = draw.random((60, 20)) < 0.2
    sparse = top_k(np.clip(gold * 0.5 + draw.random((60, 20)) * 0.6 - 0.1, 1e-3, 1).astype(np.float32), 6)
    config, labels = DecodeConfig(strategy, tune="label", calibrate="off", k=2), csr_array(gold)
    one, other = Given(taxonomy, sparse, config), Given(taxonomy, sparse.toarray(), config)
    for predictor in (one, other):
        predictor.tune(predictor.scores(TEXTS), labels)
    assert one.thresholds_document() == other.thresholds_document()
    found, wanted = one.predictions(TEXTS), other.predictions(TEXTS)
    assert found == wanted and sum(len(each.labels) for each in found) > 60
    assert one.predict_paths(TEXTS[:9]) == other.predict_paths(TEXTS[:9])
    scores = one.predict_proba(TEXTS)
    assert isinstance(scores, csr_array) and np.array_equal(scores.toarray(), other.predict_proba(TEXTS))
    assert same(one.measure(one.scores(TEXTS), labels), other.measure(other.scores(TEXTS), labels))
    assert one.predictions([]) == [] and one.predict_proba([]).shape == (0, 20)


@given(st.integers(0, 100), st.integers(1, 3))
def test_predictions_end_where_no_child_is_chosen(seed: int, parents: int) -> None:
    taxonomy, draw = random_taxonomy(seed, n=12, most_parents=parents), np.random.default_rng(seed)
    scores = draw.random((5, 12)).astype(np.float32)
    for table in (scores, top_k(scores, 5)):
        predictor = Given(taxonomy, table, DecodeConfig("ancestors", 0.6))
        for prediction, row in zip(predictor.predictions(TEXTS[:5]), predictor.predict_proba(TEXTS[:5]), strict=True):
            rows = [taxonomy.row(label) for label in prediction.labels]
            ends = [row for row in rows if not set(taxonomy.children(row).tolist()) & set(rows)]
            values = row.toarray().ravel() if table is not scores else row
            assert prediction.scores == tuple(float(values[each]) for each in rows)
            assert [path[-1] for path in prediction.paths] == [
                taxonomy[end].id for end in sorted(ends, key=lambda end, values=values: -values[end])
            ]


@given(data=st.data())
def test_windows_are_pooled_as_dense_ones(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    document = np.repeat(np.arange(len(counts)), counts)
    order = np.array(data.draw(st.permutations(range(len(document)))))
    size = data.draw(st.integers(1, len(document)))
    sparse = top_k(np.random.default_rng(len(order)).random((len(order), 7), dtype=np.float32), 3)
    found = {}
    for table in (sparse, sparse.toarray()):
        pooled = np.full((len(counts), 7), np.nan, dtype=np.float32)
        chunks = [(part, table[part]) for part in np.split(order, range(size, len(order), size))]
        for numbers, values in pool(iter(chunks), document):
            assert isinstance(values, csr_array) == (table is sparse) and np.isnan(pooled[numbers]).all()
            pooled[numbers] = values.toarray() if table is sparse else values
        found[table is sparse] = pooled
    assert np.allclose(found[True], found[False], atol=2e-6)
    nowhere = np.array([~(sparse[document == number].toarray() > 0).any(axis=0) for number in range(len(counts))])
    assert (found[True][nowhere] == 0).all()


@pytest.fixture(scope="module")
def session(tiny_encoder: Path) -> tuple[Session, Split]:
    made = make_model("hill", {}, tiny_encoder)
    texts = toy_documents(70, 3)[0]
    labels = np.random.default_rng(0).random((70, 7)) < 0.3
    split = Split(tokenize(texts, made.stored.tokenizer, 32), csr_array(labels))
    return Session(made.model, TrainConfig(), torch.device("cpu")), split


def test_the_best_scores_of_a_model_are_those_of_all(session: tuple[Session, Split]) -> None:
    running, split = session
    dense = np.zeros((70, 7), dtype=np.float32)
    for documents, scores in running.inference.scores(split.tokens):
        dense[documents] = scores
    for documents, scores in running.inference.scores(split.tokens, keep=3):
        assert isinstance(scores, csr_array) and (np.diff(scores.indptr) == 3).all() and scores.dtype == np.float32
        for own, row in zip(dense[documents], scores.toarray(), strict=True):
            assert np.allclose(row, np.where(own >= np.sort(own)[-3], own, 0), atol=1e-6)
    assert all(isinstance(scores, np.ndarray) for _, scores in running.inference.scores(split.tokens, keep=7))


def test_with_very_many_labels_a_split_is_scored_sparsely(
    session: tuple[Session, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, split = session
    wanted = score_split(running, split, animals_taxonomy())
    monkeypatch.setattr("hill.sparse.MANY_LABELS", 6)
    monkeypatch.setattr("hill.sparse.DEFAULT_TOP_K", 6)
    read, own = [], running.model.top_k
    monkeypatch.setattr(running.model, "top_k", lambda batch, count: read.append(count) or own(batch, count))
    found = score_split(running, split, animals_taxonomy())
    assert read == [6, 6] and found["micro_f1"] > 0
    for name in ("micro_f1", "macro_f1", "hierarchical_f1", "precision_at_1", "precision_at_5"):
        assert found[name] == pytest.approx(wanted[name], abs=1e-6)


@pytest.mark.parametrize("settings", [{"loss": "bce"}, {"loss": "softmax"}, {"loss": "conditional-softmax"}], ids=str)
def test_what_is_chosen_in_training_is_chosen_of_sparse_scores_too(
    settings: dict[str, Any], tiny_encoder: Path
) -> None:
    model = make_model("flat", settings, tiny_encoder).model
    scores = top_k(np.random.default_rng(0).random((150, 7), dtype=np.float32), 4)
    found = choose_labels(model, scores)
    assert isinstance(found, csr_array) and found.dtype == bool
    assert np.array_equal(found.toarray(), choose_labels(model, scores.toarray()))


def test_a_classifier_that_keeps_some_scores(tmp_path: Path) -> None:
    settings = {"decode": {"keep": 4, "tune": "level"}}
    classifier = HillClassifier(animals_taxonomy(), "linear", settings, preset=None).fit(*toy_documents(120, 1))
    unseen, gold = toy_documents(40, 2)
    assert classifier.score(unseen, gold) > 0.8 and classifier.metrics["violations"] == 0
    scores = classifier.predict_proba(unseen)
    assert isinstance(scores, csr_array) and scores.shape == (40, 7)
    assert all(
        isinstance(found, csr_array) and (np.diff(found.indptr) == 4).all() for _, found in classifier.scores(unseen)
    )
    classifier.save(tmp_path / "model")
    loaded = HillClassifier.load(tmp_path / "model")
    assert loaded.decode_config.keep == 4 and loaded.predictions(unseen) == classifier.predictions(unseen)


def test_a_wrong_number_of_scores_is_named() -> None:
    with pytest.raises(ConfigError, match=r"decode\.keep is -1; expected at least 0"):
        DecodeConfig(keep=-1)


def wide(labels: int) -> Taxonomy:
    """A tree of this many labels of depth 7."""
    parent = np.random.default_rng(0).integers(0, [max(row // 8, 1) for row in range(labels)])
    return Taxonomy([Label("0", "0"), *(Label(str(row), str(row), (str(parent[row]),)) for row in range(1, labels))])


def test_memory_goes_with_the_scores_that_are_kept() -> None:
    """A dense table of one byte a pair of document and label would take 600 MB."""
    taxonomy, draw, documents = wide(30_000), np.random.default_rng(1), 20_000
    rows = draw.integers(0, 30_000, (documents, 10))
    scores = csr_array(
        (draw.random(rows.size, dtype=np.float32), (np.repeat(np.arange(documents), 10), rows.ravel())),
        shape=(documents, 30_000),
    )
    scores.data[scores.data > 1] = 1
    gold = taxonomy.closures(csr_array(scores > 0.95))
    config = DecodeConfig("closure", tune="label", tune_metric="mean_f1", calibrate="isotonic")
    predictor = Given(taxonomy, scores, config)
    parts = [(part, scores[part]) for part in np.array_split(np.arange(documents), 10)]
    tracemalloc.start()
    predictor.tune(iter(parts), gold)
    found = predictor.measure(iter(parts), gold)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["documents"] == documents and found["micro_f1"] > 0.5
    assert peak < 300 * 2**20, peak
