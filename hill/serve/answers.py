"""Answers: what is said of texts whose scores are known, as plain values."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hill.decode import Decoder
from hill.predictor import Predictor, Scored
from hill.serve.shelf import Served
from hill.serve.worker import Scores
from hill.taxonomy import Taxonomy
from hill.taxonomy.cells import as_dense
from hill.types import IntArray, Prediction

Row = npt.NDArray[np.floating]
EXPLAINED = 20
"""Labels that are explained at most: each takes about as long as hundreds of texts."""
DIGITS = 6


class Decided(Predictor):
    """Predicts from scores that are known already, decoded in a request's own way."""

    def __init__(self, taxonomy: Taxonomy, decoder: Decoder, found: Scores) -> None:
        self.taxonomy, self._decoder, self._found = taxonomy, decoder, found

    def scores(self, texts: Sequence[str]) -> Iterator[Scored]:
        """The known scores."""
        yield np.arange(self._found.shape[0]), self._found

    def decoder(self) -> Decoder:
        """The request's own."""
        return self._decoder


def answer_texts(
    served: Served, decoder: Decoder, texts: Sequence[str], top_k: int | None, explain: bool | list[str], scores: Scores
) -> list[dict[str, Any]]:
    """Labels and paths of each text; where asked, its best scores too, and why."""
    taxonomy = served.predictor.taxonomy
    predicted = Decided(taxonomy, decoder, scores).predictions(texts)
    found = [_prediction(taxonomy, each) for each in predicted]
    if top_k:
        for document, effective in zip(found, as_dense(decoder.effective(scores)), strict=True):
            document["scores"] = best_labels(taxonomy, effective, top_k)
    if explain:
        found[0]["explanation"] = _explain(served, decoder, texts[0], explain, predicted[0], scores)
    return found


def best_labels(taxonomy: Taxonomy, effective: Row, count: int) -> list[dict[str, Any]]:
    """The labels with the highest scores (L), the more specific first where scores are equal."""
    return [_scored(taxonomy, row, effective[row]) for row in best_rows(taxonomy, effective, count).tolist()]


def best_rows(taxonomy: Taxonomy, effective: Row, count: int) -> IntArray:
    """The rows with the highest scores (L), the more specific first where scores are equal."""
    rows = np.arange(len(effective))
    if count < len(rows):
        least = np.partition(effective, -count)[-count]
        rows = np.flatnonzero(effective >= least)
    return rows[np.lexsort((-taxonomy.depth[rows], -effective[rows]))][:count]


def _scored(taxonomy: Taxonomy, row: int, score: float) -> dict[str, Any]:
    label = taxonomy[row]
    return {"id": label.id, "name": label.name, "score": round(float(score), DIGITS)}


def _prediction(taxonomy: Taxonomy, prediction: Prediction) -> dict[str, Any]:
    rows = [taxonomy.row(label) for label in prediction.labels]
    labels = [
        {**_scored(taxonomy, row, score), "level": int(taxonomy.depth[row])}
        for row, score in zip(rows, prediction.scores, strict=True)
    ]
    return {"labels": labels, "paths": [list(path) for path in prediction.paths]}


def _explain(
    served: Served, decoder: Decoder, text: str, asked: bool | list[str], predicted: Prediction, scores: Scores
) -> dict[str, Any]:
    """The explanation of the labels asked for, else of those predicted, else of the best one."""
    assert served.explain is not None
    taxonomy, effective = served.predictor.taxonomy, as_dense(decoder.effective(scores))[0]
    chosen = asked if isinstance(asked, list) else _most_specific(taxonomy, predicted)
    chosen = chosen or taxonomy.decode(best_rows(taxonomy, effective, 1))
    found: dict[str, Any] = served.explain(served.predictor, text, chosen).document()
    for label in found["labels"]:
        label["predicted"] = label["id"] in predicted.labels
        label["score"] = round(float(effective[taxonomy.row(label["id"])]), DIGITS)
    return found


def _most_specific(taxonomy: Taxonomy, predicted: Prediction) -> list[str]:
    order = sorted(
        zip(predicted.labels, predicted.scores, strict=True),
        key=lambda pair: (-taxonomy.depth[taxonomy.row(pair[0])], -pair[1]),
    )
    return [label for label, _ in order[:EXPLAINED]]
