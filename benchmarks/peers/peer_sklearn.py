"""scikit-learn: TF-IDF vectors and one linear classifier per label (one-vs-rest).

- tfidf-svm: LinearSVC. Grid: words, or words and characters × C of 0.3, 1 and 3.
- tfidf-logreg: LogisticRegression (liblinear). Grid: the same features × C of 10, 100 and 1,000.

Words are words and pairs of words; characters are n-grams of 2 to 4 characters within words, for data sets with short
texts (300 characters or fewer on average): on abstracts they take several times as long. N-grams of fewer than 2
documents are left out. The vectors are sublinear. Labels are learned one by one, ancestors included. The grid is tried
on at most 4,000 documents.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

import joblib
import numpy as np
from common import SEED, Peer, Scores, expand, main, varied
from scipy.sparse import hstack
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from hill.data import Documents

SHORT = 300
"""Characters per text up to which character n-grams are tried."""


def vectorizers(features: str) -> list[TfidfVectorizer]:
    """TF-IDF of words and pairs of words, and of characters."""
    shared = {"min_df": 2, "sublinear_tf": True, "dtype": np.float32}
    words = TfidfVectorizer(ngram_range=(1, 2), **shared)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), **shared)
    return [words, characters] if features == "words+characters" else [words]


def is_short(texts: Sequence[str]) -> bool:
    """Whether texts are short enough for character n-grams."""
    return mean(map(len, texts)) <= SHORT


class Tfidf(Peer):
    """TF-IDF and linear classifiers."""

    COSTS: ClassVar[tuple[float, ...]]

    def grid(self) -> list[dict[str, Any]]:
        """Features × C."""
        features = ("words", "words+characters") if is_short(self.task.train.texts) else ("words",)
        return [{"features": name, "C": cost} for name in features for cost in self.COSTS]

    def grid_documents(self) -> int:
        """Some of the documents, if there are very many."""
        return 4_000

    def estimator(self, cost: float) -> Any:
        """The classifier of one label."""
        raise NotImplementedError

    def fit(self, train: Documents, settings: Mapping[str, Any]) -> Any:
        """Vectors, then one classifier per label."""
        name = settings["features"]
        parts, vectors = self.once((name, len(train)), lambda: self._vectors(name, train))
        columns = varied(train.labels)
        classifier = OneVsRestClassifier(self.estimator(settings["C"]), n_jobs=self.task.threads)
        with warnings.catch_warnings(), joblib.parallel_config("threading"):
            warnings.simplefilter("ignore", ConvergenceWarning)
            classifier.fit(vectors, train.labels[:, columns].toarray().astype(int))  # int8 overflows
        return parts, classifier, columns, train.labels

    @staticmethod
    def _vectors(name: str, train: Documents) -> Any:
        parts = vectorizers(name)
        vectors = hstack([part.fit_transform(train.texts) for part in parts], format="csr")
        vectors.sum_duplicates()  # sorts the columns; else every thread would do so in place at the same time
        return parts, vectors

    def scores(self, model: Any, texts: Sequence[str]) -> Scores:
        """Margins, or log odds: (texts, L)."""
        parts, classifier, columns, labels = model
        key = id(parts), len(texts), texts[0]  # settings with the same features share the vectors of dev
        vectors = self.once(key, lambda: hstack([part.transform(texts) for part in parts], format="csr"))
        weights = np.vstack([each.coef_ for each in classifier.estimators_]).astype(np.float32)
        intercepts = np.array([each.intercept_[0] for each in classifier.estimators_])
        return expand(vectors @ weights.T + intercepts, columns, labels)

    def save(self, model: Any, folder: Path) -> None:
        """A joblib file, as scikit-learn recommends."""
        joblib.dump(model[:3], folder / "model.joblib")


class Svm(Tfidf):
    """TF-IDF and LinearSVC."""

    COSTS = (0.3, 1.0, 3.0)

    def estimator(self, cost: float) -> Any:
        """A linear support vector machine."""
        return LinearSVC(C=cost, random_state=SEED)


class Logreg(Tfidf):
    """TF-IDF and logistic regression."""

    COSTS = (10.0, 100.0, 1000.0)

    def estimator(self, cost: float) -> Any:
        """A logistic regression."""
        return LogisticRegression(C=cost, solver="liblinear", random_state=SEED)


if __name__ == "__main__":
    main({"tfidf-svm": Svm, "tfidf-logreg": Logreg})
