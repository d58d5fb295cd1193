"""A predictor for the tests of engines that needs no torch, so that processes start fast."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hill.decode import DecodeConfig
from hill.predictor import Predictor, Scored
from hill.taxonomy import Label, Taxonomy


class Drawn(Predictor):
    """Scores that hang on the text alone, given in batches out of order."""

    def __init__(self, taxonomy: Taxonomy, strategy: str = "closure") -> None:
        self.taxonomy, self.thresholds = taxonomy, None
        self.decode_config = DecodeConfig(strategy=strategy)

    def scores(self, texts: Sequence[str]) -> Iterator[Scored]:
        order = np.argsort([len(text) for text in texts], kind="stable")
        for some in np.array_split(order, 3):
            drawn = [np.random.default_rng(list(texts[i].encode())).random(len(self.taxonomy)) for i in some]
            yield some, np.array(drawn, dtype=np.float32).reshape(len(some), len(self.taxonomy))


class Slow(Drawn):
    """Takes a while, and where it is told to dies, at its second call or another, so many times in all."""

    def __init__(self, marks: Path | None = None, deaths: int = 0, first: int = 2) -> None:
        labels = [Label("a", "A"), Label("b", "B", ("a",)), Label("c", "C", ("a",)), Label("d", "D", ("b", "c"))]
        super().__init__(Taxonomy(labels))
        self._marks, self._deaths, self._first, self._calls = marks, deaths, first, 0

    def scores(self, texts: Sequence[str]) -> Iterator[Scored]:
        self._calls += 1
        if self._marks and self._calls >= self._first and len(list(self._marks.iterdir())) < self._deaths:
            (self._marks / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        return super().scores(texts)


def always_dying() -> Predictor:
    os._exit(3)
