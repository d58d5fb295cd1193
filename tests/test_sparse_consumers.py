"""What uses predictions says the same of scores that are kept in part as of dense scores whose others are 0."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from scipy.sparse import csr_array

from hill.bulk.source import InputRow
from hill.bulk.write import Columns
from hill.classifier import HillClassifier
from hill.data import Documents
from hill.decode import DecodeConfig
from hill.predictor import Predictor, ScoredBatch
from hill.report import make_report
from hill.serve.app import make_app
from hill.serve.registry import ModelRegistry
from hill.sparse import top_k
from hill.taxonomy import Taxonomy
from tests.conftest import animals_taxonomy, random_taxonomy, toy_documents

TEXTS = [f"{number} text" for number in range(80)]


class Given(Predictor):
    """A predictor whose texts begin with the numbers of documents with given scores."""

    name, thresholds, max_length = "given", None, 8

    def __init__(self, taxonomy: Taxonomy, scores: Any, config: DecodeConfig) -> None:
        self.taxonomy, self.decode_config, self._scores = taxonomy, config, scores
        self.metrics: dict[str, Any] = {}

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        rows = np.array([int(text.split()[0]) for text in texts])
        for numbers in np.array_split(np.random.default_rng(0).permutation(len(rows)), 3):
            yield numbers, self._scores[rows[numbers]]


@pytest.fixture(params=["closure", "path", "raw"])
def both(request: pytest.FixtureRequest) -> list[Given]:
    """The same predictor with sparse and with dense scores, tuned and calibrated where decoding has it."""
    taxonomy, draw = random_taxonomy(5, n=20, most_parents=2), np.random.default_rng(2)
    sparse = top_k(draw.random((80, 20)).astype(np.float32) ** 2, 6)
    config = DecodeConfig(request.param, 0.3, tune="off", calibrate="off")
    return [Given(taxonomy, table, config) for table in (sparse, sparse.toarray())]


def test_columns(both: list[Given]) -> None:
    rows = [InputRow(str(number), text, None) for number, text in enumerate(TEXTS)] + [
        InputRow("bad", "", "the text is empty")
    ]
    one, other = (Columns(predictor).table(rows) for predictor in both)
    assert one.equals(other) and sum(map(len, one["labels"].to_pylist())) > 80


def test_report(both: list[Given]) -> None:
    gold = np.random.default_rng(1).random((80, 20)) < 0.2
    documents = Documents([str(number) for number in range(80)], TEXTS, csr_array(gold), 0)
    one, other = (make_report(predictor, documents).to_dict() for predictor in both)
    assert one.keys() == other.keys()
    for name in one:
        if name == "metrics":
            assert {k: v for k, v in one[name].items() if k != "levels"} == pytest.approx(
                {k: v for k, v in other[name].items() if k != "levels"}, abs=1e-9
            )
        else:
            assert one[name] == other[name], name


def test_server(both: list[Given]) -> None:
    answers = []
    for predictor in both:
        app = make_app(ModelRegistry([(Path("given"), predictor, None)]))
        with TestClient(app, base_url="http://localhost") as client:
            asked = client.post("/v1/predict", json={"texts": TEXTS[:5], "top_k": 4})
            suggested = client.post("/v1/projects/given/suggest", data={"text": TEXTS[3], "limit": 5})
            answers.append((asked.json(), suggested.json()))
            assert asked.status_code == suggested.status_code == 200
    assert answers[0] == answers[1]


def test_a_matrix_of_labels_and_an_explanation() -> None:
    texts, labels = toy_documents(120, 1)
    taxonomy = animals_taxonomy()
    classifier = HillClassifier(taxonomy, "linear", {"decode": {"keep": 4}}, preset=None)
    matrix = classifier.indicator(labels)
    classifier.fit(texts, matrix)
    found = classifier.predict_indicator(texts[:30])
    assert isinstance(found, csr_array) and found.dtype == np.int64
    dense = np.zeros((30, 7), dtype=np.int64)
    for numbers, scores in classifier.scores(texts[:30]):
        dense[numbers] = classifier.decoder().decode(scores).toarray()
    assert np.array_equal(found.toarray(), dense) and (dense == matrix[:30]).mean() > 0.9
    explanation = classifier.explain(texts[0])
    assert {label.id for label in explanation.labels} == {taxonomy[row].id for row in np.flatnonzero(dense[0])}
