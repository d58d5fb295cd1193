"""Which documents to label next: documents of rare labels first, and of each label the most uncertain ones.

Every document is assigned to the leaf of the taxonomy with the highest score. The queue takes documents of the leaf
with the fewest labelled documents so far, those in the queue included, which also makes the queue diverse; of that
leaf, it takes the document whose two best leaves have the closest scores. On dev of wos and attack, this saved more
labels than uncertainty alone, than distances between vectors, and than uncertainty as a mean over levels.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.data import Documents
from hill.data.seen import are_seen, text_hashes
from hill.errors import DataError
from hill.models.base import COUNTS_FILE
from hill.predictor import Predictor
from hill.taxonomy import Taxonomy
from hill.types import FloatArray, IntArray

MAX_LABELS = 3
"""Labels per level whose scores are written to the queue."""


@dataclass(frozen=True)
class Suggestion:
    """A document to label, with the labels that the model suggests and why it was chosen."""

    index: int
    """Its index in the texts."""
    labels: tuple[str, ...]
    """The best leaf."""
    scores: dict[str, float]
    """The highest scores of each level, and those of the best leaf and its ancestors, by label."""
    uncertainty: float
    """From 0, certain, to 1."""
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Everything but the index as plain values."""
        return {"labels": list(self.labels), "scores": self.scores, "reason": self.reason}


def label_support(predictor: Any, labelled: Sequence[Documents] = ()) -> IntArray:
    """The documents per label (L) that a model was trained on, as far as it knows, and those of further documents."""
    stored = getattr(predictor, "stored", None)  # exported models do not know it
    counts = None if stored is None else stored.model.assets.get(COUNTS_FILE)
    support = np.zeros(len(predictor.taxonomy), dtype=np.int64) if counts is None else np.array(counts, dtype=np.int64)
    return sum((np.asarray(each.labels.sum(axis=0)) for each in labelled), start=support)


def suggest(
    predictor: Predictor, texts: Sequence[str], support: IntArray, count: int, labelled: Sequence[Documents] = ()
) -> list[Suggestion]:
    """The documents to label next, the most useful first.

    Texts that occur again, that the model was trained on, or that are labelled are left out.

    Args:
        predictor: the model.
        texts: unlabelled texts.
        support: labelled documents per label (L).
        count: the most documents to choose.
        labelled: documents that were labelled since the model was trained.
    """
    if not texts:
        raise DataError("there is nothing to suggest: there are no texts")
    _, first = np.unique(text_hashes(texts), return_index=True)
    new = np.sort(first)
    known = [text_hashes(documents.texts) for documents in labelled]
    seen = np.concatenate([*known, *([] if predictor.seen is None else [predictor.seen])] or [text_hashes([])])
    new = new[~are_seen([texts[i] for i in new], seen)]
    if not len(new):
        raise DataError(f"there is nothing to suggest: all {len(texts):,} texts are already labelled; give other texts")
    taxonomy, decoder = predictor.taxonomy, predictor.decoder()
    best, uncertain = np.empty(len(new), dtype=np.int64), np.empty(len(new))
    top: list[dict[int, float]] = [{}] * len(new)
    for rows, scores in predictor.scores([texts[i] for i in new]):
        effective = _dense(decoder.effective(scores))
        best[rows], uncertain[rows] = best_leaves(effective, taxonomy)
        for row, values in zip(rows.tolist(), effective, strict=True):
            top[row] = _top(values, int(best[row]), taxonomy)
    chosen = choose(best, uncertain, support, count)
    return [_suggestion(int(new[i]), int(best[i]), top[i], uncertain[i], support, taxonomy) for i in chosen]


def best_leaves(scores: FloatArray, taxonomy: Taxonomy) -> tuple[IntArray, FloatArray]:
    """The leaf with the highest score, and 1 - its lead over the second best: scores (n, L) to (n) each.

    The lead is a share of the sum of the scores of all leaves.

    >>> from hill.taxonomy import Label
    >>> taxonomy = Taxonomy([Label("a", "A"), Label("b", "B")])
    >>> leaves, uncertainty = best_leaves(np.array([[0.9, 0.1], [0.2, 0.3]]), taxonomy)
    >>> leaves.tolist(), uncertainty.round(2).tolist()
    ([0, 1], [0.2, 0.8])
    """
    own = np.pad(scores[:, taxonomy.leaves].clip(0), ((0, 0), (0, 1)))  # there may be a single leaf
    second, first = np.partition(own, -2, axis=1)[:, -2:].T
    leaves: IntArray = taxonomy.leaves[own[:, :-1].argmax(axis=1)]
    return leaves, 1 - (first - second) / np.maximum(own.sum(axis=1), 1e-12)


def choose(labels: IntArray, uncertain: FloatArray, support: IntArray, count: int) -> list[int]:
    """Choose documents: of the label with the lowest support so far, the most uncertain one; then again.

    Among labels with the same support, that with the most uncertain document is next.

    Args:
        labels: the label of each document (n).
        uncertain: the uncertainty of each document (n).
        support: labelled documents per label (L).
        count: how many documents to choose at most.
    """
    order = np.lexsort((-uncertain, labels))
    groups = {int(labels[group[0]]): group.tolist()[::-1] for group in _groups(order, labels)}
    heap = [(int(support[label]), -uncertain[group[-1]], label) for label, group in groups.items()]
    heapq.heapify(heap)
    chosen: list[int] = []
    while heap and len(chosen) < count:
        number, _, label = heapq.heappop(heap)
        chosen.append(groups[label].pop())
        if groups[label]:
            heapq.heappush(heap, (number + 1, -uncertain[groups[label][-1]], label))
    return chosen


def _groups(order: IntArray, labels: IntArray) -> Iterator[IntArray]:
    """Split documents, ordered by their label, into those of each label."""
    starts = np.flatnonzero(np.diff(labels[order])) + 1
    return (group for group in np.split(order, starts) if len(group))


def _dense(scores: Any) -> FloatArray:
    return scores.toarray() if isinstance(scores, csr_array) else np.asarray(scores)


def _top(scores: FloatArray, best: int, taxonomy: Taxonomy) -> dict[int, float]:
    """The highest scores of each level, and those of the best leaf and its ancestors."""
    rows = taxonomy.closure([best]).tolist()
    for level in taxonomy.levels:
        rows += level[np.argsort(-scores[level], kind="stable")[:MAX_LABELS]].tolist()
    return {row: float(scores[row]) for row in dict.fromkeys(rows)}


def _suggestion(
    index: int, best: int, top: dict[int, float], uncertain: float, support: IntArray, taxonomy: Taxonomy
) -> Suggestion:
    name, number = taxonomy[best].name, int(support[best])
    documents = "no labelled document" if not number else f"{number:,} labelled document{'s' if number > 1 else ''}"
    reason = f"probably '{name}', which has {documents}; uncertainty {uncertain:.2f}"
    scores = {taxonomy[row].id: round(score, 6) for row, score in sorted(top.items(), key=lambda item: -item[1])}
    return Suggestion(index, (taxonomy[best].id,), scores, float(uncertain), reason)
