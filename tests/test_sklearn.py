"""HillClassifier among scikit-learn's tools: its own checks, clone, Pipeline, GridSearchCV, cross_val_score, pickle."""

import copy
import inspect
import pickle
import pydoc
import re
import sys
import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_matrix, csr_matrix, issparse
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.metrics import classification_report, f1_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, MultiLabelBinarizer
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from hill.classifier import HELP, HillClassifier
from hill.errors import ConfigError, DataError, TaxonomyError
from hill.taxonomy import Label, Taxonomy, write_taxonomy
from tests.conftest import ROOT, animals_taxonomy, toy_documents

PLAIN: dict[str, Any] = {"strategy": "closure", "tune": "off", "calibrate": "off"}
EXPECTED = {
    "check_dont_overwrite_parameters": "metrics, thresholds and settings have the names that every predictor has",
    "check_estimators_unfitted": "the error is a ConfigError, for which scikit-learn need not be installed",
    "check_fit2d_1sample": "the error speaks of documents, not of samples",
}


class OnNumbers(HillClassifier):
    """The classifier for checks that come with numbers: a row is a text whose words are the rounded numbers."""

    def __init__(self, taxonomy: Any = None, model: str = "linear", settings: Any = None, preset: Any = None) -> None:
        super().__init__(taxonomy, model, settings, preset)

    @cached_property
    def taxonomy(self) -> Taxonomy:
        return Taxonomy([Label(str(row), f"class {row}") for row in range(10)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        tags.classifier_tags.multi_label = False
        return tags

    def fit(self, X: Any, y: Any) -> Any:
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.known_, rows = np.unique(y, return_inverse=True)
        return super().fit(_words(X), [[str(row)] for row in rows])

    @property
    def classes_(self) -> Any:
        return self.known_

    def predict_proba(self, X: Any) -> Any:
        _ = self.stored
        scores = super().predict_proba(_words(validate_data(self, X, reset=False)))[:, : len(self.known_)]
        return scores / scores.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> Any:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def score(self, X: Any, y: Any) -> float:
        return float((self.predict(X) == y).mean())


def _words(X: Any) -> list[str]:
    return [" ".join(f"c{column}v{round(float(value))}" for column, value in enumerate(row)) for row in X]


def _checks() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not inherit from `sklearn.base.BaseEstimator`")
        yield from estimator_checks_generator(OnNumbers(), expected_failed_checks=EXPECTED, mark="xfail")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "check"), list(_checks()), ids=lambda value: getattr(getattr(value, "func", None), "__name__", "")
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_checks_that_fail_are_documented() -> None:
    page = (ROOT / "docs" / "sklearn.md").read_text()
    assert set(re.findall(r"^\| `(check_\w+)` \|", page, re.MULTILINE)) == set(EXPECTED)


@pytest.fixture(scope="module")
def data() -> tuple[list[str], list[list[str]]]:
    return toy_documents(60, seed=1)


@pytest.fixture
def linear() -> HillClassifier:
    return HillClassifier(animals_taxonomy(), "linear", {"decode": PLAIN}, preset=None)


def micro_f1(labels: list[list[str]], predicted: list[list[str]]) -> float:
    """From the definition, on sets closed by hand."""
    taxonomy = animals_taxonomy()
    pairs = [
        (set(taxonomy.closure(taxonomy.encode(a)).tolist()), set(taxonomy.encode(b).tolist()))
        for a, b in zip(labels, predicted, strict=True)
    ]
    return 2 * sum(len(a & b) for a, b in pairs) / sum(len(a) + len(b) for a, b in pairs)


def test_tags_say_that_samples_are_texts_with_several_labels(linear: HillClassifier) -> None:
    tags = get_tags(linear)
    assert is_classifier(linear) and tags.classifier_tags.multi_label and tags.target_tags.required
    assert tags.input_tags.string and tags.input_tags.one_d_array and not tags.input_tags.two_d_array
    with pytest.warns(SkipTestWarning, match="Can't test estimator HillClassifier"):
        check_estimator(linear)


def test_nothing_is_read_or_checked_before_it_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown model 'hil'; did you mean 'hill'"):
        _ = HillClassifier("none.tsv", "hil", preset=None).taxonomy
    with pytest.raises(TaxonomyError, match=r"none.tsv"):
        HillClassifier("none.tsv", preset=None).fit(["x"], [["p"]])
    wrong = HillClassifier(animals_taxonomy(), settings={"train": {"epocs": 3}}, preset=None)
    with pytest.raises(ConfigError, match="unknown setting of train 'epocs'; did you mean 'epochs'"):
        _ = wrong.taxonomy
    with pytest.raises(ConfigError, match="unknown group of settings 'trian'"):
        HillClassifier(animals_taxonomy(), settings={"trian": {}}, preset=None).settings()
    write_taxonomy(animals_taxonomy(), tmp_path / "taxonomy.json")
    late = HillClassifier(tmp_path / "later.json", preset=None)
    (tmp_path / "taxonomy.json").rename(tmp_path / "later.json")
    assert late.taxonomy == animals_taxonomy() and late.get_params(deep=False)["taxonomy"] == tmp_path / "later.json"


def test_parameters_are_kept_as_given_and_settings_are_parameters_too() -> None:
    settings: dict[str, Any] = {"train": {"epochs": 3}}
    classifier = HillClassifier(animals_taxonomy(), settings=settings, preset=None)
    assert classifier.get_params(deep=False)["settings"] is settings
    deep = classifier.get_params()
    assert deep["train__epochs"] == 3 and deep["train__batch_size"] == 32 and deep["model__height"] == 3
    assert classifier.train_config.epochs == 3
    assert classifier.set_params(train__epochs=5, model__height=2, decode__threshold=0.3) is classifier
    found = classifier.settings()
    assert (found["train"]["epochs"], found["model"]["height"], found["decode"]["threshold"]) == (5, 2, 0.3)
    assert settings == {"train": {"epochs": 3}}, "what was given is not changed in place"
    copied = clone(classifier)
    assert copied.get_params() == classifier.get_params() and copied is not classifier
    assert "train__epochs=5" in repr(copied) and repr(copied).startswith("HillClassifier(taxonomy=Taxonomy(DAG")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"train__epocs": 1}, "unknown setting of train 'epocs'; did you mean 'epochs'"),
        ({"trian__epochs": 1}, "unknown group of settings 'trian'; expected model, train, data, decode"),
        ({"epocs": 1}, "unknown parameter or setting 'epocs'; did you mean 'epochs'"),
        ({"zzzzzz": 1}, "unknown parameter or setting 'zzzzzz'; `hill settings` lists all"),
        ({"epochs": 0}, "train.epochs is 0; expected at least 1"),
        ({"epochs": 1, "train__epochs": 2}, "train.epochs is given as 'epochs' and as 'train__epochs'; leave one out"),
        (
            {"model": "hgclr", "keep": 3},
            "'keep' is a setting of model and of decode; write model__keep or decode__keep",
        ),
        ({"train__epochs": 0}, "train.epochs is 0; expected at least 1"),
        ({"model": "linear", "model__height": 2}, "unknown setting of model 'height'"),
    ],
)
def test_wrong_parameters_change_nothing(params: dict[str, Any], message: str) -> None:
    classifier = HillClassifier(animals_taxonomy(), preset=None)
    before = classifier.get_params()
    with pytest.raises(ConfigError, match=message):
        classifier.set_params(**params)
    assert classifier.get_params() == before


def test_settings_are_keywords(data: Any) -> None:
    classifier = HillClassifier(animals_taxonomy(), epochs=3, encoder="mpnet", decode__keep=5, preset=None)
    assert classifier.get_params(deep=False)["epochs"] == classifier.get_params()["train__epochs"] == 3
    assert classifier.train_config.epochs == 3 and classifier.model_config.encoder == "mpnet"
    assert classifier.decode_config.keep == 5
    copied = clone(classifier)
    assert copied.get_params() == classifier.get_params() and "epochs=3, encoder='mpnet'" in repr(copied)
    assert copied.set_params(epochs=4, lr=0.5).train_config.epochs == 4, "the same name"
    assert copied.set_params(train__epochs=5).settings()["train"]["epochs"] == 5, "another name of the same setting"
    assert "epochs" not in copied.get_params(deep=False) and copied.train_config.lr == 0.5
    assert HillClassifier(animals_taxonomy(), settings={"train": {"epochs": 7}}, epochs=8).train_config.epochs == 8
    with pytest.raises(ConfigError, match="unknown parameter or setting 'epocs'; did you mean 'epochs'"):
        HillClassifier(animals_taxonomy(), epocs=3).fit(*data)


def test_a_search_over_keywords(data: Any) -> None:
    texts, labels = data[0], [label for (label,) in data[1]]
    classifier = HillClassifier(animals_taxonomy(), "linear", preset=None, ngrams=1)
    search = GridSearchCV(classifier, {"c": [1e-6, 1.0], "tune": ["off"], "threshold": [0.5]}, cv=2).fit(texts, labels)
    assert search.best_params_["c"] == 1.0
    found = search.best_estimator_.settings()["model"]
    assert (found["c"], found["ngrams"]) == (1.0, 1)


@pytest.mark.parametrize("keep", [0, 3])
def test_a_classification_report_of_scikit_learn(data: Any, keep: int) -> None:
    texts, labels = data
    classifier = HillClassifier(animals_taxonomy(), "linear", preset=None, keep=keep).fit(texts, labels)
    predicted = classifier.predict_indicator(texts)
    assert issparse(predicted) == bool(keep)
    names = classifier.classes_
    report = classification_report(
        classifier.indicator(labels), predicted, target_names=names, output_dict=True, zero_division=0
    )
    for label in names:
        gold = [label in closed for closed in map(closed_ids, labels)]
        found = [label in ids for ids in classifier.predict(texts)]
        both = sum(a and b for a, b in zip(gold, found, strict=True))
        assert report[label]["support"] == sum(gold)
        assert report[label]["precision"] == pytest.approx(both / max(sum(found), 1))
        assert report[label]["recall"] == pytest.approx(both / sum(gold))


def closed_ids(labels: list[str]) -> set[str]:
    """The labels and their ancestors, by hand."""
    above = {"bat": {"m", "f", "a"}, "mo": {"m", "a"}, "fo": {"f", "a"}, "p": set()}
    return set(labels).union(*(above[label] for label in labels))


def test_help_shows_the_public_surface_only() -> None:
    text = pydoc.render_doc(HillClassifier, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert "`classification_report`, take `predict_indicator`" in text
    shown = set(re.findall(r"^ \|  (\w+)(?:\(.*|| = .*)$", text, re.M)) - {"HillClassifier", "Args", "3"}
    assert shown == set(HELP) and not [name for name in shown if name.startswith("_")]
    assert "keywords: settings by name" in text
    assert all(inspect.getattr_static(HillClassifier, name).__doc__ for name in HELP)


def test_parameters_set_after_fit_count_from_the_next_fit(linear: HillClassifier, data: Any) -> None:
    fitted = linear.fit(*data)
    scores = fitted.predict_proba(data[0])
    fitted.set_params(decode__threshold=0.999, model__ngrams=1)
    assert fitted.predict(data[0]) and fitted.decode_config.threshold == 0.5
    assert np.array_equal(fitted.predict_proba(data[0]), scores)
    fitted.fit(*data)
    assert fitted.decode_config.threshold == 0.999 and fitted.model_config.ngrams == 1
    assert not np.array_equal(fitted.predict_proba(data[0]), scores)


def test_a_second_fit_starts_from_the_parameters(data: Any) -> None:
    tuned = HillClassifier(
        animals_taxonomy(), "linear", {"decode": PLAIN | {"tune": "global", "threshold": 0.123}}, preset=None
    )
    first = tuned.fit(*data).decode_config.threshold
    scores = tuned.predict_proba(data[0])
    assert first != 0.123, "it was tuned"
    tuned.fit(*data)
    assert tuned.decode_config.threshold == first and np.array_equal(tuned.predict_proba(data[0]), scores)
    with pytest.raises(DataError):
        tuned.fit(["x", ""], [["p"], ["p"]])
    with pytest.raises(ConfigError, match="has not learned anything yet"):
        tuned.predict(["x"])


def test_fitted_or_not(linear: HillClassifier, data: Any) -> None:
    with pytest.raises(NotFittedError):
        check_is_fitted(linear)
    assert not hasattr(linear, "classes_")
    linear.fit(*data)
    check_is_fitted(linear)
    assert linear.classes_.tolist() == ["a", "m", "f", "bat", "mo", "fo", "p"] and not hasattr(linear, "n_features_in_")


def test_indicator_is_what_a_binarizer_makes_of_closed_sets(linear: HillClassifier) -> None:
    given = [["bat"], ["Plants"], [], ["Animals > Flyers > Others", "p"], "mo"]
    closed = [["a", "m", "f", "bat"], ["p"], [], ["a", "f", "fo", "p"], ["a", "m", "mo"]]
    expected = MultiLabelBinarizer(classes=linear.taxonomy.ids).fit_transform(closed)
    assert np.array_equal(linear.indicator(given), expected)
    assert linear.indicator([]).shape == (0, 7)
    with pytest.raises(TaxonomyError, match="label 'plnats' is not in the taxonomy; did you mean 'Plants'"):
        linear.indicator([["plnats"]])


@pytest.mark.parametrize("form", ["strings", "array", "names", "matrix", "bool", "sparse", "most specific"])
def test_every_form_of_labels_teaches_the_same(linear: HillClassifier, data: Any, form: str) -> None:
    texts, labels = data
    matrix = linear.indicator(labels)
    path = {"bat": "Bats", "mo": "Animals > Mammals > Others", "fo": "Animals > Flyers > Others", "p": "Plants"}
    given: Any = {
        "strings": [label for (label,) in labels],
        "array": np.array([label for (label,) in labels]),
        "names": [[path[label]] for (label,) in labels],
        "matrix": matrix,
        "bool": matrix.astype(bool),
        "sparse": csr_matrix(matrix),
        "most specific": MultiLabelBinarizer(classes=linear.taxonomy.ids).fit_transform(labels),
    }[form]
    expected = clone(linear).fit(texts, labels)
    found = linear.fit(np.array(texts), given)
    assert np.array_equal(found.predict_proba(texts), expected.predict_proba(texts))
    assert found.score(texts, given) == expected.score(texts, labels)
    predicted = found.predict(np.array(texts))
    assert predicted == expected.predict(texts) and isinstance(predicted[0], list)
    indicator = found.predict_indicator(np.array(texts))
    assert indicator.dtype == np.int64 and np.array_equal(indicator, linear.indicator(predicted))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 6), int), r"shape \(2, 6\); expected \(2, 7\)"),
        (np.ones((3, 7), int), r"shape \(3, 7\); expected \(2, 7\)"),
        (np.ones((2, 7, 1), int), r"shape \(2, 7, 1\); expected \(2, 7\)"),
        (np.array(1), r"shape \(\); expected \(2, 7\)"),
        (np.array([[1] * 7, [0] * 7]), r"texts\[1\] has no labels"),
        (csr_matrix(np.array([[0] * 7, [1] * 7])), r"texts\[0\] has no labels"),
        (csr_matrix(([0, 1], ([0, 1], [2, 3])), shape=(2, 7)), r"texts\[0\] has no labels"),
        (np.full((2, 7), "1"), "a matrix of dtype <U1; expected 0 and 1"),
        (np.ones((2, 7), object), "a matrix of dtype object; expected 0 and 1"),
        (np.ones((2, 7), complex), "a matrix of dtype complex128; expected 0 and 1"),
        (coo_matrix(([1, 1, 1], ([0, 1, 1], [2, 3, 3])), shape=(2, 7)), r"labels\[1, 3\], for label 'bat', is 2;"),
    ],
)
def test_matrices_that_cannot_be_labels(linear: HillClassifier, matrix: Any, message: str) -> None:
    before = matrix.copy()
    with pytest.raises(DataError, match=message):
        linear.fit(["x", "y"], matrix)
    assert getattr(matrix, "nnz", 0) == getattr(before, "nnz", 0)


@pytest.mark.parametrize("kind", [np.array, csr_matrix, coo_matrix, "frame"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2, -1, 0.5])
def test_labels_other_than_0_and_1_are_named(linear: HillClassifier, kind: Any, value: float) -> None:
    """NaN counted as a label, and so did every number but 0."""
    make = pytest.importorskip("pandas").DataFrame if kind == "frame" else kind
    matrix = np.ones((3, 7))
    matrix[1, 4], matrix[0] = value, [0, 0, 0, 0, 0, 0, 1]
    message = re.escape(f"labels[1, 4], for label 'mo', is {float(value)}; expected 0 or 1")
    for use in (linear.fit, linear.score):
        with pytest.raises(DataError, match=message):
            use(["x", "y", "z"], make(matrix))
    if float(value).is_integer():
        with pytest.raises(DataError, match=rf"labels\[1, 4\], for label 'mo', is {value};"):
            linear.fit(["x", "y", "z"], make(matrix.astype(np.int64)))


def test_data_frames_are_matrices_whose_columns_have_names(linear: HillClassifier, data: Any) -> None:
    pandas = pytest.importorskip("pandas")
    texts, matrix = data[0], linear.indicator(data[1])
    wanted = clone(linear).fit(texts, matrix).predict_proba(texts)
    named = pandas.DataFrame(matrix, columns=linear.taxonomy.ids)
    for labels in (named, named.astype(bool), named.astype(float), pandas.DataFrame(matrix)):
        assert np.array_equal(clone(linear).fit(pandas.Series(texts), labels).predict_proba(texts), wanted)
    with pytest.raises(DataError, match=r"column 0 of labels is 'p'; expected 'a': order the columns"):
        linear.fit(texts, named[linear.taxonomy.ids[::-1]])


UNORDERED = {
    "set": set,
    "frozenset": frozenset,
    "dict": dict.fromkeys,
    "keys": lambda items: dict.fromkeys(items).keys(),
    "values": lambda items: dict(enumerate(items)).values(),
}


@pytest.mark.parametrize("kind", UNORDERED)
def test_collections_without_order_are_refused(linear: HillClassifier, data: Any, kind: str) -> None:
    """A set pairs texts with labels at random."""
    texts, labels = [f"{text} {number}" for number, text in enumerate(data[0])], data[1]
    unordered = UNORDERED[kind]
    fitted = clone(linear).fit(*data)
    name = type(unordered(texts)).__name__
    for use in (linear.fit, fitted.score):
        with pytest.raises(DataError, match=f"texts is of type {name}; expected a list"):
            use(unordered(texts), labels)
        with pytest.raises(DataError, match=f"labels is of type {name}; expected a list"):
            use(texts, unordered([label for (label,) in labels]))
    for use in (fitted.predict, fitted.predict_proba, fitted.predict_paths, fitted.predictions, fitted.scores):
        with pytest.raises(DataError, match=f"texts is of type {name}; expected a list"):
            use(unordered(texts))
    with pytest.raises(DataError, match=f"labels is of type {name}; expected a list"):
        fitted.indicator(unordered(["p", "m"]))
    with pytest.raises(DataError, match="expected documents, a data file or a folder"):
        fitted.evaluate(unordered(texts))


def test_iterators_are_ordered(linear: HillClassifier, data: Any) -> None:
    texts, labels = data
    fitted = clone(linear).fit(*data)
    again = clone(linear).fit((text for text in texts), (iter(label) for label in labels))
    assert np.array_equal(again.predict_proba(iter(texts)), fitted.predict_proba(texts))
    assert again.predict(map(str, texts)) == fitted.predict(texts)
    assert again.score(iter(texts), iter(labels)) == fitted.score(texts, labels)


def test_score_is_micro_f1(linear: HillClassifier, data: Any) -> None:
    texts, labels = toy_documents(40, seed=8)
    fitted = linear.set_params(decode__threshold=0.45).fit(*data)
    predicted = fitted.predict(texts)
    expected = micro_f1(labels, predicted)
    assert 0.3 < expected < 1 and fitted.score(texts, labels) == pytest.approx(expected)
    for matrix in (fitted.indicator(predicted), fitted.predict_indicator(texts)):
        assert f1_score(fitted.indicator(labels), matrix, average="micro") == pytest.approx(expected)
    assert fitted.score(texts, fitted.indicator(labels)) == pytest.approx(expected)


def f1_micro(classifier: HillClassifier, texts: Any, matrix: Any) -> float:
    """A scorer as scikit-learn takes it."""
    return float(f1_score(matrix, classifier.predict_indicator(texts), average="micro"))


def test_cross_validation_by_score_and_by_scikit_learns_scorers(linear: HillClassifier, data: Any) -> None:
    texts, labels = data
    folds, expected = KFold(3), []
    for learn, test in folds.split(texts):
        fresh = clone(linear).fit([texts[i] for i in learn], [labels[i] for i in learn])
        expected.append(micro_f1([labels[i] for i in test], fresh.predict([texts[i] for i in test])))
    matrix = linear.indicator(labels)
    assert len(set(expected)) > 1
    assert cross_val_score(linear, texts, labels, cv=folds) == pytest.approx(expected)
    assert cross_val_score(linear, texts, matrix, cv=3) == pytest.approx(expected)
    assert cross_val_score(linear, texts, matrix, cv=3, scoring=f1_micro) == pytest.approx(expected)
    assert (cross_val_score(linear, texts, matrix, cv=2, scoring="average_precision") > 0.8).all()
    ragged = [[*given, "a"] if given == ["p"] else given for given in labels]
    assert len(cross_val_score(linear, texts, ragged, cv=folds)) == 3
    with pytest.raises(ValueError, match="Sequence of sequences are no"):
        cross_val_score(linear, texts, ragged, cv=3)


def test_a_grid_search_in_a_pipeline(linear: HillClassifier, data: Any) -> None:
    texts, matrix = [text.upper() for text in data[0]], linear.indicator(data[1])
    pipeline = Pipeline([("lower", FunctionTransformer(np.char.lower)), ("hill", linear)])
    grid = {"hill__decode__threshold": [0.99, 0.5], "hill__model__ngrams": [1]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(texts, matrix)
    assert search.best_params_ == {"hill__decode__threshold": 0.5, "hill__model__ngrams": 1}
    low, high = search.cv_results_["mean_test_score"]
    assert high == search.best_score_ > low
    assert search.classes_.tolist() == linear.taxonomy.ids
    assert search.score(texts, matrix) > 0.9 and len(search.predict(texts[:2])) == 2
    with pytest.raises(ConfigError, match="did you mean 'ngrams'"):
        GridSearchCV(pipeline, {"hill__model__ngram": [1]}, cv=2).fit(texts, matrix)


@pytest.mark.parametrize("model", ["linear", "hill"])
def test_copies_and_pickles_predict_the_same(model: str, tiny_encoder: Path, data: Any) -> None:
    settings: Any = {"model": {"encoder": str(tiny_encoder), "height": 2}, "train": {"epochs": 1}}
    fitted = HillClassifier(animals_taxonomy(), model, {} if model == "linear" else settings, preset=None).fit(*data)
    scores, pickled = fitted.predict_proba(data[0]), pickle.dumps(fitted)
    for other in (pickle.loads(pickled), copy.deepcopy(fitted), copy.copy(fitted)):
        assert np.array_equal(other.predict_proba(data[0]), scores) and other.predict(data[0]) == fitted.predict(
            data[0]
        )
        assert other.metrics == fitted.metrics and other.get_params() == fitted.get_params()
    weights = sum(weight.nbytes for weight in fitted.stored.model.state_dict().values())
    assert model == "linear" or len(pickled) < 2 * weights + 60_000, "there is no optimiser"
    assert (
        pickle.loads(pickle.dumps(HillClassifier("x.tsv", preset=None))).get_params(deep=False)["taxonomy"] == "x.tsv"
    )


def test_scikit_learn_is_needed_for_nothing_but_its_own_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (ROOT / "hill").rglob("*.py"):
        assert not re.search(r"^\s*(import|from) sklearn", file.read_text(), re.MULTILINE), file
    for name in [module for module in sys.modules if module.split(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    classifier = HillClassifier(animals_taxonomy(), preset=None).set_params(train__epochs=2)
    assert classifier.get_params()["train__epochs"] == 2 and classifier.indicator([["p"]]).sum() == 1
    with pytest.raises(ConfigError, match=r"needs sklearn, which is not installed; run: pip install 'scikit-learn>="):
        classifier.__sklearn_tags__()
