"""Classifiers of scikit-learn on sentence vectors: sentence-transformers, the encoder is not trained.

All three run in one process, which encodes train, dev and test once; the seconds for that count in each row, and the
peak memory is that of the process.

- vectors-logreg: one logistic regression per label. Grid: C of 1, 10 and 100.
- vectors-knn: a label's score is the mean over the nearest training documents, weighted by cosine. Grid: 5, 10, 20.
- vectors-mlp: MLPClassifier, one hidden layer, batches of 128, about 3,000 steps (10 to 100 epochs). Grid: 256 and
  1,024 units. Early stopping is off: scikit-learn would stop by the share of documents with exactly the right labels.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from common import SEED, Peer, Scores, expand, main, varied
from sentence_transformers import SentenceTransformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import NearestNeighbors
from sklearn.neural_network import MLPClassifier

from hill.data import Documents

MAX_LENGTH = 256
"""Tokens per text; longer texts are truncated, as the encoder's own settings have it."""
BATCH = 128
STEPS = 3_000


@cache
def load(folder: str, device: str) -> SentenceTransformer:
    """The encoder; it is loaded when train is encoded, so the seconds for that count there."""
    encoder = SentenceTransformer(folder, device=device).float()
    encoder.max_seq_length = MAX_LENGTH
    return encoder


class Vectors(Peer):
    """A classifier on vectors."""

    PACKAGES = ("sentence-transformers", "transformers", "torch")

    def grid_documents(self) -> int:
        """Some of the documents, if there are many: the classifiers take longer than the vectors."""
        return 4_000

    def forget(self) -> None:
        """Keep the vectors."""

    def vectors(self, texts: Sequence[str]) -> Any:
        """Unit vectors (texts, D); a sample of train has those of train."""
        train = self.task.train.texts
        if len(texts) < len(train) and all(text in self._rows for text in texts):
            rows = [self._rows[text] for text in texts]
            return self._encoded(train)[rows]
        return self._encoded(texts)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {text: row for row, text in enumerate(self.task.train.texts)}

    def _encoded(self, texts: Sequence[str]) -> Any:
        def encode() -> Any:
            encoder = load(self.task.encoder, self.task.device)
            return encoder.encode(list(texts), batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False)

        return self.once((len(texts), texts[0], texts[-1]), encode)

    def save(self, model: Any, folder: Path) -> None:
        """The encoder and a joblib file."""
        load(self.task.encoder, self.task.device).save(str(folder / "encoder"))
        joblib.dump(model, folder / "model.joblib")


class VectorsLogreg(Vectors):
    """Logistic regression."""

    def grid(self) -> list[dict[str, Any]]:
        """C."""
        return [{"C": 1.0}, {"C": 10.0}, {"C": 100.0}]

    def fit(self, train: Documents, settings: Mapping[str, Any]) -> Any:
        """One classifier per label."""
        columns = varied(train.labels)
        estimator = LogisticRegression(C=settings["C"], max_iter=200)
        classifier = OneVsRestClassifier(estimator, n_jobs=self.task.threads)
        with warnings.catch_warnings(), joblib.parallel_config("threading"):
            warnings.simplefilter("ignore", ConvergenceWarning)
            classifier.fit(self.vectors(train.texts), train.labels[:, columns].toarray().astype(int))
        return classifier, columns, train.labels

    def scores(self, model: Any, texts: Sequence[str]) -> Scores:
        """Log odds: (texts, L)."""
        classifier, columns, labels = model
        weights = np.vstack([each.coef_ for each in classifier.estimators_])
        intercepts = np.array([each.intercept_[0] for each in classifier.estimators_])
        return expand(self.vectors(texts) @ weights.T + intercepts, columns, labels)


class VectorsKnn(Vectors):
    """Nearest neighbours."""

    def grid(self) -> list[dict[str, Any]]:
        """Neighbours."""
        return [{"k": count} for count in (5, 10, 20)]

    def fit(self, train: Documents, settings: Mapping[str, Any]) -> Any:
        """An index of the vectors."""
        index = NearestNeighbors(n_neighbors=min(settings["k"], len(train)), metric="cosine", n_jobs=self.task.threads)
        return index.fit(self.vectors(train.texts)), train.labels.astype(np.float32)

    def scores(self, model: Any, texts: Sequence[str]) -> Scores:
        """Weighted shares of the neighbours: (texts, L)."""
        index, labels = model
        distances, neighbours = index.kneighbors(self.vectors(texts))
        weights = np.maximum(1 - distances, 1e-6)
        weights /= weights.sum(axis=1, keepdims=True)
        scores = np.zeros((len(texts), labels.shape[1]), dtype=np.float32)
        for column in range(neighbours.shape[1]):
            scores += labels[neighbours[:, column]].multiply(weights[:, [column]]).toarray()
        return scores


class VectorsMlp(Vectors):
    """A multilayer perceptron."""

    def grid(self) -> list[dict[str, Any]]:
        """Hidden units."""
        return [{"units": 256}, {"units": 1024}]

    def fit(self, train: Documents, settings: Mapping[str, Any]) -> Any:
        """One network for all labels."""
        columns = varied(train.labels)
        network = MLPClassifier(
            (settings["units"],),
            batch_size=min(BATCH, len(train)),
            learning_rate_init=2e-3,
            max_iter=min(max(STEPS * BATCH // len(train), 10), 100),
            random_state=SEED,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(self.vectors(train.texts), train.labels[:, columns].toarray().astype(int))
        return network, columns, train.labels

    def scores(self, model: Any, texts: Sequence[str]) -> Scores:
        """Probabilities: (texts, L)."""
        network, columns, labels = model
        return expand(network.predict_proba(self.vectors(texts)), columns, labels)


if __name__ == "__main__":
    main({"vectors-logreg": VectorsLogreg, "vectors-knn": VectorsKnn, "vectors-mlp": VectorsMlp})
