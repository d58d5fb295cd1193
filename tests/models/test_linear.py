"""The linear model against scikit-learn's pipeline, and what it does where that has no word."""

import sys
from collections import Counter
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csc_array, csr_array
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from hill.classifier import HillClassifier
from hill.data import Documents
from hill.data.batches import collate
from hill.data.documents import label_documents
from hill.data.tokens import tokenize
from hill.encoders.tfidf import Bag
from hill.errors import ConfigError, DataError
from hill.models import Linear, linear
from hill.models import linear as machines
from hill.models.base import new_text_encoder
from hill.models.linear import Examples, LinearConfig, SparseHead, fit_machine, sample_documents
from hill.settings import make
from hill.taxonomy import Label, Taxonomy
from hill.train import Epoch
from hill.train.trainer import StageProgress
from hill.tree._loops import COMPILED
from tests.conftest import animals_taxonomy, random_taxonomy, toy_documents

WORDS = [f"w{number}" for number in range(40)]


def corpus(count: int, seed: int, words: list[str] = WORDS) -> list[str]:
    """Texts with frequent and rare words, repeated words, capitals and punctuation."""
    draw = np.random.default_rng(seed)
    share = 1 / np.arange(1, len(words) + 1)
    texts = []
    for _ in range(count):
        chosen = draw.choice(words, size=int(draw.integers(1, 25)), p=share / share.sum())
        texts.append(", ".join(" ".join(part) for part in np.array_split(chosen, 2)).title())
    return texts


def build(texts: list[str], documents: Documents, taxonomy: Taxonomy, **settings: Any) -> tuple[Linear, Any]:
    config = make(LinearConfig, {"characters": 0, **settings}, "model")
    text, tokenizer = new_text_encoder(config, texts)
    assert isinstance(text, Bag)
    return Linear(text, taxonomy, config, Linear.prepare(documents, taxonomy, config, tokenizer)), tokenizer


def fitted(texts: list[str], labels: list[list[str]], taxonomy: Taxonomy, **settings: Any) -> tuple[Linear, Any]:
    documents = label_documents(texts, labels, taxonomy)
    model, tokenizer = build(texts, documents, taxonomy, **settings)
    for _ in model.fit(tokenize(texts, tokenizer, 512), documents.labels, seed=0):
        pass
    return model, tokenizer


def read(texts: list[str], tokenizer: Any) -> Any:
    return collate(tokenize(texts, tokenizer, 512), None, np.arange(len(texts)), 0)


def margins(model: Linear, tokenizer: Any, texts: list[str]) -> np.ndarray:
    with torch.no_grad():
        return model(read(texts, tokenizer)).logits.double().numpy()


def vectorizer(ngrams: int, **settings: Any) -> TfidfVectorizer:
    return TfidfVectorizer(ngram_range=(1, ngrams), sublinear_tf=True, token_pattern=r"\w+", **settings)


def key_of(ngram: str, tokenizer: Any) -> int:
    ids = [tokenizer.token_to_id(word) for word in ngram.split()]
    return ids[0] if len(ids) == 1 else ids[0] * tokenizer.get_vocab_size() + ids[1]


@pytest.mark.parametrize("ngrams", [1, 2])
@pytest.mark.parametrize("least", [1, 2, 5])
def test_vectors_are_those_of_scikit_learn(ngrams: int, least: int) -> None:
    taxonomy = animals_taxonomy()
    texts, unseen = corpus(60, seed=0), corpus(30, seed=1, words=[*WORDS[:20], *(f"new{i}" for i in range(20))])
    documents = label_documents(texts, [["m"]] * 60, taxonomy)
    model, tokenizer = build(texts, documents, taxonomy, ngrams=ngrams, min_count=least)
    theirs = vectorizer(ngrams, min_df=least).fit(texts)
    keys = [key_of(ngram, tokenizer) for ngram in theirs.get_feature_names_out()]
    assert sorted(keys) == model.text.keys.tolist() and model.text.pairs == (ngrams == 2)
    batch = read([*texts, *unseen, "..."], tokenizer)
    expected = np.zeros((91, len(keys)))
    expected[:, np.argsort(np.argsort(keys))] = theirs.transform([*texts, *unseen, "..."]).toarray()
    assert np.abs(model.text(batch.ids, batch.mask).numpy() - expected).max() < 1e-6
    assert expected[:90].any(axis=1).all() and not expected[90].any()


@pytest.fixture
def all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights are kept, as scikit-learn keeps them."""
    monkeypatch.setattr(linear, "MIN_WEIGHT", 0.0)


@pytest.mark.usefixtures("all_weights")
@pytest.mark.parametrize("settings", [{}, {"ngrams": 1, "c": 0.1}, {"balance": True}])
def test_margins_are_those_of_scikit_learns_pipeline(settings: dict[str, Any]) -> None:
    taxonomy = animals_taxonomy()
    texts, labels = toy_documents(120, seed=0)
    unseen, _ = toy_documents(50, seed=1)
    model, tokenizer = fitted(texts, labels, taxonomy, **settings)
    theirs = vectorizer(settings.get("ngrams", 2), min_df=2).fit(texts)
    gold = label_documents(texts, labels, taxonomy).labels.toarray()
    weight = "balanced" if settings.get("balance") else None
    for row in range(len(taxonomy)):
        machine = LinearSVC(C=settings.get("c", 1.0), class_weight=weight, random_state=0)
        machine.fit(theirs.transform(texts), gold[:, row])
        expected = machine.decision_function(theirs.transform(unseen))
        assert np.abs(margins(model, tokenizer, unseen)[:, row] - expected).max() < 1e-3
        assert expected.min() < 0 < expected.max()


def test_balance_takes_the_weights_of_documents_into_account() -> None:
    texts, labels = toy_documents(60, seed=0)
    documents = label_documents(texts, labels, animals_taxonomy())
    model, tokenizer = build(texts, documents, animals_taxonomy(), balance=True, c=0.5)
    tokens = tokenize(texts, tokenizer, 512)
    x, gold = model.text.vectors(tokens.ids, tokens.starts), documents.labels.toarray()[:, 1] > 0
    costs = np.random.default_rng(0).uniform(0.1, 9, 60)
    examples = Examples(x.indptr, x.indices, x.data, 1 + x.multiply(x).sum(axis=1))
    found = model._fit_label(examples, np.arange(60), gold, costs, 0)
    shares = np.where(gold, costs[gold].sum(), costs[~gold].sum()) * 2 / costs.sum()
    machine = LinearSVC(C=0.5, random_state=0).fit(x, gold, costs / shares)
    assert np.abs(found - [*machine.coef_[0], machine.intercept_[0]]).max() < 1e-3


@pytest.mark.usefixtures("all_weights")
def test_if_the_dual_does_not_converge_the_primal_is_solved() -> None:
    taxonomy, texts = animals_taxonomy(), corpus(80, seed=3)
    labels = [["m"] if number % 2 else ["p"] for number in range(80)]
    model, tokenizer = fitted(texts, labels, taxonomy, c=1e3, min_count=1)
    theirs = vectorizer(2).fit(texts)
    gold = np.arange(80) % 2 == 1
    with pytest.warns(match="failed to converge"):
        LinearSVC(C=1e3, random_state=0).fit(theirs.transform(texts), gold)
    machine = LinearSVC(C=1e3, dual=False, tol=1e-6, max_iter=5_000).fit(theirs.transform(texts), gold)
    found = margins(model, tokenizer, texts)[:, taxonomy.row("m")]
    assert np.abs(found - machine.decision_function(theirs.transform(texts))).max() < 0.01


def test_the_machine_has_the_optimum_of_its_problem() -> None:
    """With documents left out and weighted, against scikit-learn's solver of the primal problem."""
    draw = np.random.default_rng(0)
    shares = np.where(np.arange(60) % 9 == 7, 0.0, 0.3)[:, None]  # some documents are empty
    x = csr_array(np.where(draw.random((60, 20)) < shares, draw.normal(size=(60, 20)), 0).astype("float32"))
    documents, signs, costs = draw.permutation(60)[:45], draw.choice([-1.0, 1.0], 45), draw.uniform(0.1, 4, 45)
    examples = Examples(x.indptr, x.indices, x.data, 1 + x.multiply(x).sum(axis=1))
    found = [np.zeros(21, dtype=np.float32) for _ in range(3)]
    for weights, seed in zip(found, (0, 0, 9), strict=True):
        assert fit_machine(examples, documents, signs, costs, weights, seed)
    machine = LinearSVC(dual=False, tol=1e-9).fit(x[documents], signs, costs)
    assert np.abs(found[0] - [*machine.coef_[0], machine.intercept_[0]]).max() < 1e-3
    assert np.array_equal(found[0], found[1]) and 0 < np.abs(found[0] - found[2]).max() < 1e-3


@pytest.mark.skipif(not COMPILED, reason="numba is missing or disabled")
def test_without_compilation_the_machine_is_the_same() -> None:
    draw = np.random.default_rng(1)
    x = csr_array(np.where(draw.random((40, 12)) < 0.3, draw.normal(size=(40, 12)), 0).astype("float32"))
    examples = Examples(x.indptr, x.indices, x.data, 1 + x.multiply(x).sum(axis=1))
    found = [np.zeros(13, dtype=np.float32) for _ in range(2)]
    for function, weights in zip((fit_machine, fit_machine.py_func), found, strict=True):  # type: ignore[attr-defined]
        function(examples, np.arange(40), np.where(np.arange(40) % 3, 1.0, -1.0), np.ones(40), weights, 5)
    assert np.array_equal(*found) and found[0].any()


def test_an_unknown_word_has_no_feature_and_parts_its_neighbours() -> None:
    taxonomy, texts = animals_taxonomy(), ["red cat", "red cat sat", "cat sat red"]
    model, tokenizer = build(texts, label_documents(texts, [["m"]] * 3, taxonomy), taxonomy, min_count=1)
    text = model.text

    def features(words: str) -> set[int]:
        batch = read([words], tokenizer)
        return {int(text.keys[place]) for place in text(batch.ids, batch.mask)[0].nonzero()[:, 0]}

    assert features("red cat") == {key_of(ngram, tokenizer) for ngram in ("red", "cat", "red cat")}
    assert features("red dog cat") == {key_of(ngram, tokenizer) for ngram in ("red", "cat")}
    assert features("dog") == set()
    batch = read(["red cat sat"], tokenizer)
    batch.mask[0, 1] = 0
    assert int((model.text(batch.ids, batch.mask) > 0).sum()) == 2, "what the mask leaves out is not there"


def test_the_vocabulary_can_be_limited() -> None:
    taxonomy, texts = animals_taxonomy(), ["a a b", "a b c", "a c b d"]
    model, tokenizer = build(
        texts, label_documents(texts, [["m"]] * 3, taxonomy), taxonomy, vocabulary=4, min_count=1, ngrams=1
    )
    assert tokenizer.get_vocab_size() == 4 and model.text.keys.tolist() == [2, 3]


def test_features_are_what_most_documents_have() -> None:
    taxonomy, texts = animals_taxonomy(), ["x x x y", "y z", "z y v", "z v y"]
    documents = label_documents(texts, [["m"]] * 4, taxonomy)
    for most, wanted in [(1, ["y"]), (2, ["y", "z"]), (3, ["y", "z", "v"]), (99, ["y", "z", "v"])]:
        model, tokenizer = build(texts, documents, taxonomy, features=most, ngrams=1)
        assert sorted(model.text.keys.tolist()) == sorted(key_of(word, tokenizer) for word in wanted)


def test_where_no_ngram_is_frequent_enough_all_are_features() -> None:
    taxonomy, texts = animals_taxonomy(), ["one text", "another word"]
    model, _ = build(texts, label_documents(texts, [["m"], ["p"]], taxonomy), taxonomy, min_count=3)
    assert model.text.width == 6


def test_texts_without_words_are_refused() -> None:
    with pytest.raises(DataError, match="no training document has a word"):
        build(["...", "?!"], label_documents(["...", "?!"], [["m"], ["p"]], animals_taxonomy()), animals_taxonomy())


@pytest.mark.parametrize("limit", [1, 7, 50, 10_000])
def test_documents_are_counted_and_read_however_they_are_cut(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taxonomy, texts = animals_taxonomy(), [*corpus(40, seed=0), "...", *corpus(3, seed=1), "..."]
    documents = label_documents(texts, [["m"]] * 45, taxonomy)
    monkeypatch.setattr(linear, "MAX_TOKENS", limit)
    model, tokenizer = build(texts, documents, taxonomy, ngrams=1, min_count=1)
    words = [text.lower().replace(",", "").split() for text in texts[:-1]]
    expected = Counter(key_of(word, tokenizer) for text in words for word in {*text} - {"..."})
    ngrams = model.assets[linear.NGRAMS_FILE]
    assert dict(zip(ngrams["keys"], ngrams["counts"], strict=True)) == expected
    tokens = tokenize(texts, tokenizer, 512)
    parts = [model.text.vectors(*part).toarray() for part in linear._parts(tokens)]
    assert np.array_equal(np.concatenate(parts), model.text.vectors(tokens.ids, tokens.starts).toarray())
    assert np.concatenate(parts).shape == (45, len(expected)) and len(parts) == -(-len(tokens.ids) // limit)


def test_labels_that_none_or_all_documents_have() -> None:
    taxonomy = Taxonomy([Label("a", "a"), Label("b", "b", ("a",)), Label("c", "c", ("a",)), Label("d", "d", ("a",))])
    texts, labels = ["red cat", "red dog", "cat red", "dog red"], [["b"], ["c"], ["b"], ["c"]]
    model, tokenizer = fitted(texts, labels, taxonomy)
    found = margins(model, tokenizer, [*texts, "nothing known"])
    assert (found[:, 0] == 1).all() and (found[:, 3] == -1).all()
    assert (found[:4, 1] > 0).tolist() == [True, False, True, False]


def test_a_seed_fixes_the_fit_and_every_label_is_told_of() -> None:
    texts, labels = toy_documents(60, seed=0)
    taxonomy = animals_taxonomy()
    documents = label_documents(texts, labels, taxonomy)
    weights = []
    for _ in range(2):
        model, tokenizer = build(texts, documents, taxonomy)
        told = list(model.fit(tokenize(texts, tokenizer, 512), documents.labels, seed=3))
        assert told == [(done, 7) for done in range(1, 8)]
        weights.append(model.head.matrix.toarray())
    assert np.array_equal(*weights) and weights[0].any()


def test_the_number_of_threads_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = toy_documents(60, seed=0)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        model, tokenizer = fitted(texts, labels, animals_taxonomy())
        found.append(margins(model, tokenizer, texts))
    assert np.array_equal(*found)


def test_a_fit_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = toy_documents(60, seed=0)
    documents, fitted_labels = label_documents(texts, labels, animals_taxonomy()), []
    model, tokenizer = build(texts, documents, animals_taxonomy())

    def slow(*_: Any) -> Any:
        fitted_labels.append(1)
        sleep(0.05)
        return np.zeros(model.text.width + 1)

    monkeypatch.setattr(Linear, "_fit_label", slow)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    fitting: Any = model.fit(tokenize(texts, tokenizer, 512), documents.labels, seed=3)
    assert next(fitting) == (1, 7)
    fitting.close()
    assert len(fitted_labels) < 4


def test_small_weights_are_dropped() -> None:
    texts, labels = toy_documents(120, seed=0)
    model, _ = fitted(texts, labels, animals_taxonomy(), c=0.01)
    weights = np.abs(model.head.matrix.toarray())
    assert (weights[weights > 0] >= 0.999 * (linear.MIN_WEIGHT * weights.max(axis=0))[weights.nonzero()[1]]).all()
    assert model.head.matrix.nnz == np.count_nonzero(weights) and weights.any(axis=0).all()


def test_it_is_trained_saved_and_used_like_any_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = toy_documents(150, seed=0)
    unseen, gold = toy_documents(60, seed=1)
    classifier = HillClassifier(animals_taxonomy(), "linear", preset=None).fit(texts, labels)
    documents = label_documents(unseen, gold, classifier.taxonomy)
    assert classifier.evaluate(documents, include_seen=True)["micro_f1"] > 0.95
    classifier.save(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    loaded = HillClassifier.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba(unseen), classifier.predict_proba(unseen))
    assert loaded.predict(unseen) == classifier.predict(unseen)
    proba = classifier.predict_proba(unseen)
    assert np.array_equal(classifier.fit(texts, labels).predict_proba(unseen), proba), "fitting needs no scikit-learn"


def test_a_training_stopped_after_the_fit_goes_on_without_another(tmp_path: Path) -> None:
    texts, labels = toy_documents(80, seed=0)
    data = {"train": label_documents(texts, labels, animals_taxonomy())}
    often = {"train": {"checkpoint_seconds": 0}}
    whole, stopped, resumed = (HillClassifier(animals_taxonomy(), "linear", often, preset=None) for _ in range(3))
    stages = [event.stage for event in whole.training(data, tmp_path / "whole") if isinstance(event, StageProgress)]
    assert stages == ["tokenising"] * 2 + ["fitting"] * 7
    running = stopped.training(data, tmp_path / "stopped")
    assert isinstance([next(running) for _ in range(11)][-1], Epoch)
    running.close()
    again = list(resumed.training(data, tmp_path / "stopped", resume=True))
    assert not any(isinstance(report, StageProgress) and report.stage == "fitting" for report in again)
    assert np.array_equal(resumed.predict_proba(texts), whole.predict_proba(texts))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ngrams": 3}, "unknown model.ngrams '3'"),
        ({"characters": 1}, "unknown model.characters '1'; expected auto, 0, 2, 3, 4, 5"),
        ({"characters": 6}, "unknown model.characters '6'"),
        ({"characters": "many"}, "unknown model.characters 'many'"),
        ({"c": 0.0}, "model.c is 0; expected a number above 0"),
        ({"features": 0}, "model.features is 0; expected at least 1"),
        ({"text": "transformer"}, "unknown model.text 'transformer'"),
        ({"loss": "conditional-softmax", "adjust": 1.0}, "has a loss of its own"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(LinearConfig, settings, "model")


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MANY_LABELS", 6)


@pytest.mark.usefixtures("few_are_many")
def test_of_many_labels_the_larger_weights_are_kept() -> None:
    """So few documents are all taken, so that the machines are those of few labels, without their small weights."""
    texts, labels = toy_documents(120, seed=0)
    unseen, _ = toy_documents(50, seed=1)
    taxonomy = animals_taxonomy()
    sparse, tokenizer = fitted(texts, labels, taxonomy)
    assert isinstance(sparse.head, SparseHead)
    theirs = vectorizer(2, min_df=2).fit(texts)
    gold = label_documents(texts, labels, taxonomy).labels.toarray()
    order = np.argsort([key_of(ngram, tokenizer) for ngram in theirs.get_feature_names_out()])
    for row in range(len(taxonomy)):
        machine = LinearSVC(random_state=0).fit(theirs.transform(texts), gold[:, row])
        smallest = linear.MIN_WEIGHT * np.abs(machine.coef_[0]).max()
        weights = np.where(np.abs(machine.coef_[0]) >= smallest, machine.coef_[0], 0)
        expected = theirs.transform(unseen) @ weights + machine.intercept_[0]
        assert np.abs(margins(sparse, tokenizer, unseen)[:, row] - expected).max() < 0.02
        found = sparse.head.matrix[:, [row]].toarray()[:, 0]
        assert np.abs(found - weights[order]).max() < 0.02
    assert 0 < sparse.head.matrix.nnz < sparse.text.width * 7


@pytest.mark.usefixtures("few_are_many")
def test_of_many_labels_too_it_is_saved_and_used_like_any_model(tmp_path: Path) -> None:
    texts, labels = toy_documents(150, seed=0)
    unseen, gold = toy_documents(60, seed=1)
    settings = {"train": {"checkpoint_seconds": 0}}
    classifier = HillClassifier(animals_taxonomy(), "linear", settings, preset=None).fit(texts, labels)
    documents = label_documents(unseen, gold, classifier.taxonomy)
    assert classifier.evaluate(documents, include_seen=True)["micro_f1"] > 0.95
    classifier.save(tmp_path / "model")
    loaded = HillClassifier.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba(unseen), classifier.predict_proba(unseen))


@pytest.mark.usefixtures("few_are_many")
def test_of_many_labels_those_that_none_or_all_documents_have() -> None:
    taxonomy = Taxonomy([Label(f"l{i}", f"l{i}", ("l0",) if i else ()) for i in range(7)])
    texts, labels = ["red cat", "red dog", "cat red", "dog red"], [["l1"], ["l2"], ["l1"], ["l2"]]
    model, tokenizer = fitted(texts, labels, taxonomy)
    found = margins(model, tokenizer, [*texts, "nothing known"])
    assert (found[:, 0] == 1).all() and (found[:, 3:] == -1).all()
    assert (found[:4, 1] > 0).tolist() == [True, False, True, False]
    model, tokenizer = fitted(texts, [["l0"]] * 4, taxonomy)
    assert (margins(model, tokenizer, texts) == [1, *[-1] * 6]).all(), "no machine at all"


@pytest.mark.parametrize("drawn", [3, 1_000])
def test_the_documents_of_a_machine_stand_for_all(drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "MAX_NEGATIVES", drawn)
    taxonomy = random_taxonomy(3, 20, 2, 2)
    texts = [f"text {number}" for number in range(400)]
    labels = [[taxonomy[number % 20].id] for number in range(400)]
    gold = label_documents(texts, labels, taxonomy).labels
    everyone = set(range(400))
    for label, (first, others, weight) in enumerate(sample_documents(gold.tocsc(), taxonomy.edge_array, seed=1)):
        documents = [*first.tolist(), *others.tolist()]
        own = {*gold.tocsc()[:, [label]].nonzero()[0].tolist()}
        near = {*gold.tocsc()[:, taxonomy.parents(label)].nonzero()[0].tolist()} - own
        groups = [own, near, everyone - own - near]
        taken = [[place for place in documents if place in group] for group in groups]
        assert sum(map(len, taken)) == len({*documents}) == len(documents) == len(weight)
        assert {*taken[0]} == own == {*first.tolist()}
        for group, places in zip(groups[1:], taken[1:], strict=True):
            assert len(places) == min(drawn, len(group)) or 0 < len(places) <= drawn < len(group)
        for group in groups:
            stands_for = sum(weight[at] for at, place in enumerate(documents) if place in group)
            assert stands_for == pytest.approx(len(group))


def test_negatives_of_very_many_documents_are_drawn_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "MAX_NEGATIVES", 20)
    labels, edges = csc_array((np.arange(100) < 30)[:, None]), np.empty((0, 2), dtype=np.int64)
    found = [next(sample_documents(labels, edges, seed))[1] for seed in range(3_000)]
    assert all(len({*documents.tolist()}) == len(documents) for documents in found)
    times = np.bincount(np.concatenate(found), minlength=100)
    assert (
        not times[:30].any()
        and times[30:].min() > 0.8 * times[30:].mean()
        and times[30:].max() < 1.2 * times[30:].mean()
    )


def test_weights_that_are_loaded_take_the_place_of_those_before() -> None:
    draw = np.random.default_rng(0)
    dense = [
        np.where(draw.random((9, 5)) < share, draw.normal(size=(9, 5)), 0).astype("float32") for share in (0.3, 0.6)
    ]
    heads = []
    for weights in dense:
        heads.append(SparseHead(9, 5))
        heads[-1].set(csr_array(weights))
    documents = csr_array(np.array([[1, 0, 0, 2, 0, 0, 0, 0, 0], [0, -1, 1, 0, 0, 0, 0, 0, 0]], dtype="float32"))
    assert np.allclose(heads[0](documents).numpy(), documents.toarray() @ dense[0], atol=1e-6)
    heads[0].load_state_dict(heads[1].state_dict())
    assert np.allclose(heads[0](documents).numpy(), documents.toarray() @ dense[1], atol=1e-6)
    heads[1].load_state_dict({"weight": torch.from_numpy(dense[0])})
    assert np.array_equal(heads[1].matrix.toarray(), dense[0]), "the dense weights of earlier versions"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", torch.tensor([0, 5], dtype=torch.int32)),
        ("labels", torch.tensor([0, -1], dtype=torch.int32)),
        ("starts", torch.tensor([0, 1, 9])),
        ("starts", torch.tensor([0, 2])),
        ("starts", torch.tensor([0, -3, 2])),
        ("weights", torch.ones(1)),
        ("weights", torch.ones(1, 2)),
    ],
)
def test_damaged_weights_are_refused(name: str, value: torch.Tensor) -> None:
    head = SparseHead(2, 3)
    state = {"starts": torch.tensor([0, 1, 2]), "labels": torch.tensor([0, 2], dtype=torch.int32)}
    head.load_state_dict(state | {"weights": torch.ones(2)})
    with pytest.raises(RuntimeError, match="Error"):
        head.load_state_dict(state | {"weights": torch.ones(2)} | {name: value})
