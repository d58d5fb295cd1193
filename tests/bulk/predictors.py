"""Predictors without torch for the tests of engines, so that processes start fast."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hill.decode import DecodeConfig
from hill.predictor import Predictor, ScoredBatch
from hill.taxonomy import Label, Taxonomy


class RandomPredictor(Predictor):
    """Random scores that depend on the text only, in batches out of order."""

    def __init__(self, taxonomy: Taxonomy, strategy: str = "closure") -> None:
        self.taxonomy, self.thresholds = taxonomy, None
        self.decode_config = DecodeConfig(strategy=strategy)

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        order = np.argsort([len(text) for text in texts], kind="stable")
        for rows in np.array_split(order, 3):
            scores = [np.random.default_rng(list(texts[i].encode())).random(len(self.taxonomy)) for i in rows]
            yield rows, np.array(scores, dtype=np.float32).reshape(len(rows), len(self.taxonomy))


class SlowPredictor(RandomPredictor):
    """Takes 0.2 s per call, and kills its process from call `first` on, `deaths` times in total."""

    def __init__(self, marks: Path | None = None, deaths: int = 0, first: int = 2) -> None:
        labels = [Label("a", "A"), Label("b", "B", ("a",)), Label("c", "C", ("a",)), Label("d", "D", ("b", "c"))]
        super().__init__(Taxonomy(labels))
        self._marks, self._deaths, self._first, self._calls = marks, deaths, first, 0

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        self._calls += 1
        if self._marks and self._calls >= self._first and len(list(self._marks.iterdir())) < self._deaths:
            (self._marks / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        return super().scores(texts)


def always_dying() -> Predictor:
    os._exit(3)
