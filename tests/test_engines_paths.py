"""Paths of predictions in bulk: those of `Prediction`, made for many texts at once and bounded where they are deep."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hill.decode import DecodeConfig
from hill.engines import columns as columns_module
from hill.engines.columns import Columns
from hill.engines.rows import Row
from hill.predictor import Predictor, Scored
from hill.taxonomy import Label, Taxonomy
from hill.types import FloatArray
from tests.conftest import random_taxonomy


class Told(Predictor):
    """Scores the texts 0, 1, ... with the rows of a table."""

    def __init__(self, taxonomy: Taxonomy, scores: FloatArray) -> None:
        self.taxonomy, self.thresholds = taxonomy, None
        self.decode_config = DecodeConfig(strategy="closure", calibrate="off")
        self._scores = scores.astype(np.float32)

    def scores(self, texts: Sequence[str]) -> Iterator[Scored]:
        yield np.arange(len(texts)), self._scores[[int(text) for text in texts]]


def rows_of(texts: int, wrong: Sequence[int] = ()) -> list[Row]:
    return [Row(f"row {i}", str(i), "no text" if i in wrong else None) for i in range(texts)]


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 12))
def test_paths_are_those_of_one_text_at_a_time_until_a_row_is_full(seed: int, most_parents: int, most: int) -> None:
    taxonomy = random_taxonomy(seed, n=15, most_parents=most_parents)
    scores = np.random.default_rng(seed).random((6, 15)) ** 4
    model = Told(taxonomy, scores)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "MOST_STEPS", most)
        found = Columns(model).table(rows_of(6, wrong=[2])).to_pylist()
    for number, (row, wanted) in enumerate(zip(found, model.predictions([str(i) for i in range(6)]), strict=True)):
        kept: list[list[str]] = []
        for path in wanted.paths if number != 2 else ():
            if kept and sum(map(len, [*kept, path])) > most:
                break
            kept.append(list(path))
        assert row["paths"] == kept
        assert row["labels"] == (list(wanted.labels) if number != 2 else [])


def test_the_paths_of_a_row_do_not_grow_with_the_square_of_the_depth() -> None:
    depth, room = 1_000, columns_module.MOST_STEPS
    spine = [Label(f"s{i}", f"s{i}", (f"s{i - 1}",) if i else ()) for i in range(depth)]
    comb = Taxonomy([*spine, *(Label(f"t{i}", f"t{i}", (f"s{i}",)) for i in range(depth))])
    for row in Columns(Told(comb, np.ones((2, 2 * depth)))).table(rows_of(2)).to_pylist():
        count = len(row["paths"])
        assert row["paths"] == [[*(f"s{step}" for step in range(i + 1)), f"t{i}"] for i in range(count)]
        assert sum(map(len, row["paths"])) <= room < sum(map(len, row["paths"])) + count + 2
        assert len(row["labels"]) == 2 * depth


def test_one_path_is_whole_however_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "MOST_STEPS", 3)
    chain = Taxonomy([Label(f"s{i}", f"s{i}", (f"s{i - 1}",) if i else ()) for i in range(9)])
    (row,) = Columns(Told(chain, np.ones((1, 9)))).table(rows_of(1)).to_pylist()
    assert row["paths"] == [[f"s{i}" for i in range(9)]]
