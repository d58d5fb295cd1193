"""Paths of bulk predictions: equal to those of `Prediction`, computed for many texts at once, and limited if deep."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hill.bulk import write as write_module
from hill.bulk.source import InputRow
from hill.bulk.write import Columns
from hill.decode import DecodeConfig
from hill.predictor import Predictor, ScoredBatch
from hill.taxonomy import Label, Taxonomy
from hill.types import FloatArray
from tests.conftest import random_taxonomy


class FixedScores(Predictor):
    """Scores the texts "0", "1", ... with the rows of an array."""

    def __init__(self, taxonomy: Taxonomy, scores: FloatArray) -> None:
        self.taxonomy, self.thresholds = taxonomy, None
        self.decode_config = DecodeConfig(strategy="closure", calibrate="off")
        self._scores = scores.astype(np.float32)

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        yield np.arange(len(texts)), self._scores[[int(text) for text in texts]]


def rows_of(texts: int, wrong: Sequence[int] = ()) -> list[InputRow]:
    return [InputRow(f"row {i}", str(i), "no text" if i in wrong else None) for i in range(texts)]


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 12))
def test_paths_equal_those_of_single_texts_up_to_the_limit(seed: int, n_parents: int, max_ids: int) -> None:
    taxonomy = random_taxonomy(seed, n=15, most_parents=n_parents)
    scores = np.random.default_rng(seed).random((6, 15)) ** 4
    model = FixedScores(taxonomy, scores)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_module, "MAX_PATH_IDS", max_ids)
        rows = Columns(model).table(rows_of(6, wrong=[2])).to_pylist()
    for number, (row, wanted) in enumerate(zip(rows, model.predictions([str(i) for i in range(6)]), strict=True)):
        expected: list[list[str]] = []
        for path in wanted.paths if number != 2 else ():
            if expected and sum(map(len, [*expected, path])) > max_ids:
                break
            expected.append([taxonomy[taxonomy.row(label)].name for label in path])
        assert row["paths"] == expected
        assert row["labels"] == (list(wanted.labels) if number != 2 else [])


def test_paths_do_not_grow_with_the_square_of_the_depth() -> None:
    depth, limit = 1_000, write_module.MAX_PATH_IDS
    spine = [Label(f"s{i}", f"s{i}", (f"s{i - 1}",) if i else ()) for i in range(depth)]
    comb = Taxonomy([*spine, *(Label(f"t{i}", f"t{i}", (f"s{i}",)) for i in range(depth))])
    for row in Columns(FixedScores(comb, np.ones((2, 2 * depth)))).table(rows_of(2)).to_pylist():
        count = len(row["paths"])
        assert row["paths"] == [[*(f"s{step}" for step in range(i + 1)), f"t{i}"] for i in range(count)]
        assert sum(map(len, row["paths"])) <= limit < sum(map(len, row["paths"])) + count + 2
        assert len(row["labels"]) == 2 * depth


def test_a_single_path_is_complete_however_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_module, "MAX_PATH_IDS", 3)
    chain = Taxonomy([Label(f"s{i}", f"s{i}", (f"s{i - 1}",) if i else ()) for i in range(9)])
    (row,) = Columns(FixedScores(chain, np.ones((1, 9)))).table(rows_of(1)).to_pylist()
    assert row["paths"] == [[f"s{i}" for i in range(9)]]
