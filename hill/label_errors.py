"""Likely label errors in training data, by confident learning (Northcutt et al., JAIR 2021) on out-of-fold scores.

Every document is scored by models that were not fitted on it: a linear model on TF-IDF vectors and, if vectors of the
texts are given, a ridge regression on them. Scores are those of whole paths: an error often has the wrong ancestors,
too. A document is reported if one of its most specific labels scores much lower than it does on average in its
documents, and below a label that the document does not have.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.classifier import HillClassifier
from hill.data import Documents
from hill.data.seen import text_hashes
from hill.decode import fit_mixture
from hill.decode.calibration import sigmoid
from hill.errors import DataError
from hill.html import render
from hill.taxonomy import Taxonomy
from hill.taxonomy.propagate import AnyEdges, downward_rounds
from hill.types import BoolArray, FloatArray, IntArray

FOLDS = 5
PENALTY = 1.0
"""Of the ridge regression."""
LOW = 0.25
"""With planted errors in wos and arxiv, 1 reports 1.6 times as many documents for 1 to 2 % more of the errors."""
MIN_SCORE, TINY = 1e-6, 1e-30
SHARPNESS = 10.0
"""Turns outputs of the ridge regression, near 0 or 1, into scores; their mixture is fitted afterwards."""


@dataclass(frozen=True)
class LabelError:
    """A document whose labels are probably wrong."""

    index: int
    """Its index in the documents."""
    wrong: str
    """The label that is probably wrong."""
    proposed: str
    """The label that it probably should have instead."""
    score: float
    """How likely the label is wrong, from 0 to 1."""
    labels: tuple[str, ...]
    """All most specific labels after the correction."""


@dataclass(frozen=True)
class ErrorReport:
    """The likely label errors of documents, the most likely first."""

    documents: Documents
    taxonomy: Taxonomy
    errors: list[LabelError]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, with texts."""
        errors = [self._to_dict(error) for error in self.errors]
        return {"documents": len(self.documents), "unjudged": self.unjudged, "errors": errors}

    @property
    def unjudged(self) -> int:
        """The number of documents whose most specific labels no other document has; also those without labels."""
        specific = most_specific(self.documents.labels.toarray().astype(bool), self.taxonomy)
        shared = specific & (specific.sum(axis=0) > 1)
        return int((~shared.any(axis=1)).sum())

    def _to_dict(self, error: LabelError) -> dict[str, Any]:
        documents = self.documents
        names = {key: self.taxonomy[self.taxonomy.row(getattr(error, key))].name for key in ("wrong", "proposed")}
        return {
            "id": documents.ids[error.index],
            "text": documents.texts[error.index],
            "wrong": error.wrong,
            "proposed": error.proposed,
            "wrong_name": names["wrong"],
            "proposed_name": names["proposed"],
            "score": round(error.score, 4),
            "labels": list(error.labels),
        }

    def html(self) -> str:
        """A page with a table of the errors."""
        return render("errors.html", report=self.to_dict())


def find_errors(documents: Documents, taxonomy: Taxonomy, vectors: FloatArray | None = None) -> Iterator[Any]:
    """Find likely label errors; yields the number of folds done, and finally an `ErrorReport`.

    Args:
        documents: labelled documents.
        taxonomy: the labels.
        vectors: unit vectors of the texts (documents, D) by an encoder, which make the scores better.
    """
    documents.check(taxonomy)
    if len(documents) < 2 * FOLDS:
        raise DataError(f"there are {len(documents)} documents; expected at least {2 * FOLDS} to look for errors")
    folds = assign_folds(documents)
    scores = np.zeros((len(documents), len(taxonomy)), dtype=np.float32)
    for fold in range(FOLDS):
        scores[folds == fold] = _linear_scores(documents, taxonomy, folds, fold)
        yield fold + 1
    all_scores = [scores]
    if vectors is not None:
        all_scores.append(_ridge_scores(documents, vectors, folds))
    probabilities = fit_mixture(taxonomy, all_scores, documents.labels)(all_scores)
    yield ErrorReport(documents, taxonomy, rank_errors(np.asarray(probabilities), documents.labels, taxonomy))


def assign_folds(documents: Documents) -> IntArray:
    """The fold of each document, at random; documents with the same text are in the same fold."""
    _, text = np.unique(text_hashes(documents.texts), return_inverse=True)
    return np.random.default_rng(0).permutation(int(text.max()) + 1)[text] % FOLDS


def _linear_scores(documents: Documents, taxonomy: Taxonomy, folds: IntArray, fold: int) -> Any:
    """The scores of the documents of a fold (n, L) by a linear model of the other folds."""
    classifier = HillClassifier(taxonomy, "linear", {"train": {"device": "cpu"}}, preset=None)
    classifier.fit_solver(documents.take(np.flatnonzero(folds != fold)))
    return classifier.score_matrix(documents.take(np.flatnonzero(folds == fold)).texts)


def _ridge_scores(documents: Documents, vectors: FloatArray, folds: IntArray) -> Any:
    """Out-of-fold scores (documents, L) of a ridge regression on vectors."""
    x, y = np.asarray(vectors, dtype=np.float64), documents.labels.astype(np.float64)
    scores = np.empty((len(x), y.shape[1]), dtype=np.float32)
    for fold in range(FOLDS):
        others, own = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        weights = np.linalg.solve(x[others].T @ x[others] + PENALTY * np.eye(x.shape[1]), (y[others].T @ x[others]).T)
        scores[own] = sigmoid(SHARPNESS * (x[own] @ weights - 0.5))
    return scores


def rank_errors(scores: FloatArray, labels: csr_array[Any], taxonomy: Taxonomy) -> list[LabelError]:
    """The likely errors, the most likely first, from out-of-fold probabilities and labels (documents, L).

    The share of a most specific label of a document is the score of its path, relative to itself and all labels that
    the document does not have. A document is an error if the lowest of these shares is less than `LOW` times the mean
    share that this label has in its documents, and below that of a label which the document does not have. This one
    is proposed. Candidates are labels that are the most specific label of some document.
    """
    given = labels.toarray().astype(bool)
    specific = most_specific(given, taxonomy)
    paths = path_scores(scores, taxonomy) * specific.any(axis=0)
    others = (paths * ~given).sum(axis=1, keepdims=True)
    shares = paths / np.maximum(paths + others, TINY)
    means = (shares * specific).sum(axis=0) / np.maximum(specific.sum(axis=0), 1)
    own, new = np.where(specific, shares, np.inf), np.where(given, -np.inf, paths)
    rows, wrong, proposed = np.arange(len(given)), own.argmin(axis=1), new.argmax(axis=1)
    lowest = own[rows, wrong]
    found = np.flatnonzero((lowest < LOW * means[wrong]) & (new[rows, proposed] > paths[rows, wrong]))
    errors = []
    for row in found[np.argsort(lowest[found], kind="stable")].tolist():
        corrected = specific[row].copy()
        corrected[wrong[row]], corrected[proposed[row]] = False, True
        ids = taxonomy.decode(np.flatnonzero(corrected))
        names = taxonomy[int(wrong[row])].id, taxonomy[int(proposed[row])].id
        errors.append(LabelError(row, *names, float(1 - lowest[row]), tuple(ids)))
    return errors


def path_scores(scores: FloatArray, taxonomy: Taxonomy) -> FloatArray:
    """The score of each label times the root of the path score of its best parent: (n, L) to (n, L)."""
    paths = np.maximum(scores.astype(np.float64), MIN_SCORE).T  # (L, n)
    own, best = paths.copy(), np.zeros_like(paths)
    for children, parents in downward_rounds(taxonomy):
        best[children] = np.maximum(best[children], np.sqrt(paths[parents]))
        paths[children] = own[children] * best[children]
    return paths.T


def most_specific(labels: BoolArray, taxonomy: Taxonomy) -> BoolArray:
    """The labels of each document without those that have a child among them: (n, L) to (n, L)."""
    edges = AnyEdges(taxonomy).of(labels)
    by_label = edges.enter(labels)
    specific: BoolArray = edges.leave(by_label > edges.with_child(by_label))
    return specific
