"""HiClass: local classifiers on TF-IDF vectors of words and pairs of words.

HiClass predicts exactly one path per document, down to a leaf; the released package has no multi-label classifiers.

- hiclass on data with one path per document (wos, icd): `predict`, without a threshold. Grid: a classifier per parent
  node (LinearSVC, C of 1 and 3) or per node (logistic regression, C of 10 and 100; policy siblings).
- hiclass on other data (arxiv, attack): a document with several paths is repeated, once per path. Labels are those
  whose probability (`predict_proba` of the classifiers per node, policy siblings) is above a threshold. A label with
  several parents is a node of its own below each; its probability is the highest of them. Grid: C of 1, 10 and 100.

The grid is tried on at most 4,000 documents.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from common import SEED, Peer, Scores, Sets, Task, main, specific
from hiclass import LocalClassifierPerNode, LocalClassifierPerParentNode
from peer_sklearn import vectorizers
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from hill.data import Documents


def paths_of(labels: Any, task: Task) -> list[list[tuple[int, ...]]]:
    """All paths of each document, from a root to each most specific label."""
    ends = specific(labels, task.taxonomy)
    known = {row: [tuple(path) for path in task.taxonomy.paths(row)] for row in np.unique(ends.indices).tolist()}
    return [
        list(chain.from_iterable(known[row] for row in ends.indices[start:stop].tolist()))
        for start, stop in zip(ends.indptr[:-1], ends.indptr[1:], strict=True)
    ]


class HiClass(Peer):
    """Local classifiers."""

    PACKAGES = ("hiclass",)

    def grid(self) -> list[dict[str, Any]]:
        """Kinds of local classifiers, or C."""
        if self._single:
            kinds = {"parent node": (1.0, 3.0), "node": (10.0, 100.0)}
            return [{"local": kind, "C": cost} for kind, costs in kinds.items() for cost in costs]
        return [{"local": "node", "C": cost} for cost in (1.0, 10.0, 100.0)]

    def grid_documents(self) -> int:
        """Some of the documents, if there are very many."""
        return 4_000

    @property
    def _single(self) -> bool:
        """Whether every document has one path; a label with several parents has several."""
        return self.task.one_path and not self.task.taxonomy.is_dag

    def fit(self, train: Documents, settings: Mapping[str, Any]) -> Any:
        """Vectors, then local classifiers on one row per path."""
        words, vectors = self.once(("words", len(train)), lambda: self._vectors(train))
        paths = paths_of(train.labels, self.task)
        rows = np.repeat(np.arange(len(train)), list(map(len, paths)))
        depth = max(len(path) for path in chain.from_iterable(paths))
        ids = self.task.taxonomy.ids
        y = [[*(ids[row] for row in path), *[""] * (depth - len(path))] for path in chain.from_iterable(paths)]
        if settings["local"] == "parent node":
            local = LocalClassifierPerParentNode(
                LinearSVC(C=settings["C"], random_state=SEED), n_jobs=self.task.threads
            )
        else:
            estimator = LogisticRegression(C=settings["C"], solver="liblinear", random_state=SEED)
            local = LocalClassifierPerNode(
                estimator, n_jobs=self.task.threads, binary_policy="siblings", return_all_probabilities=True
            )
        local.fit(vectors[rows], np.array(y))
        return words, local

    @staticmethod
    def _vectors(train: Documents) -> Any:
        (words,) = vectorizers("words")
        return words, words.fit_transform(train.texts)

    def sets(self, model: Any, texts: Sequence[str]) -> Sets | None:
        """One path per text."""
        if not self._single:
            return None
        words, local = model
        chosen = np.zeros((len(texts), len(self.task.taxonomy)), dtype=bool)
        rows = {label: row for row, label in enumerate(self.task.taxonomy.ids)}
        for number, path in enumerate(local.predict(self._of_texts(words, texts))):
            chosen[number, [rows[label] for label in path if label]] = True
        return chosen

    def scores(self, model: Any, texts: Sequence[str]) -> Scores:
        """Probabilities: (texts, L)."""
        words, local = model
        scores = np.zeros((len(texts), len(self.task.taxonomy)), dtype=np.float32)
        rows = {label: row for row, label in enumerate(self.task.taxonomy.ids)}
        found = local.predict_proba(self._of_texts(words, texts))
        for names, probabilities in zip(local.classes_, found, strict=True):
            for name, column in zip(names, np.asarray(probabilities).T, strict=True):
                if name:
                    scores[:, rows[name]] = np.maximum(scores[:, rows[name]], column)
        return np.nan_to_num(scores)

    def _of_texts(self, words: Any, texts: Sequence[str]) -> Any:
        return self.once((id(words), len(texts), texts[0]), lambda: words.transform(texts))

    def save(self, model: Any, folder: Path) -> None:
        """A joblib file."""
        joblib.dump(model, folder / "model.joblib")


if __name__ == "__main__":
    main({"hiclass": HiClass})
