"""Are two runs on the same documents really different? Paired bootstrap and approximate randomisation."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hill.errors import ConfigError
from hill.experiment.pair import MEASURES, Pair
from hill.experiment.predictions import Predictions
from hill.types import FloatArray

CELLS = 2**22
"""Most documents times resamples that are drawn at once."""
EQUAL = 1e-12
"""Differences of scores as small as this come from rounding."""


@dataclass(frozen=True)
class Difference:
    """A measure of two runs, their difference B - A with its 95 % interval, and the p of both tests, two-sided."""

    measure: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_bootstrap: float
    p_randomisation: float

    def document(self) -> dict[str, Any]:
        """The values by name."""
        return asdict(self)


def compare(
    a: Predictions, b: Predictions, decoding: str = "tuned", resamples: int = 10_000, seed: int = 0
) -> list[Difference]:
    """Both tests for every measure; the same seed gives the same values.

    Bootstrap: documents are drawn with replacement; p is the share of resamples whose difference lies as far from the
    one found as that lies from 0. Randomisation: in each document the runs change places or not; p is the share of
    such draws with a difference as large as the one found.
    """
    if resamples < 1:
        raise ConfigError(f"--resamples is {resamples}; expected at least 1")
    pair = Pair(a, b, decoding)
    scores = pair.observed()
    found = scores[1] - scores[0]
    drawn = np.concatenate([pair.weighted(weights) for weights in _draws(pair, resamples, seed)], axis=1)
    random = np.concatenate([pair.swapped(swaps) for swaps in _swaps(pair, resamples, seed)], axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=1)
    p_bootstrap = _share(np.abs(drawn - found[:, None]), found)
    p_random = _share(np.abs(random), found)
    columns = (*scores, found, low, high, p_bootstrap, p_random)
    return [Difference(name, *(float(column[i]) for column in columns)) for i, name in enumerate(MEASURES)]


def compare_runs(a: Path, b: Path, decoding: str, resamples: int, seed: int) -> list[Difference]:
    """Compare two runs' folders, or files of predictions."""
    return compare(Predictions.read(a), Predictions.read(b), decoding, resamples, seed)


def _share(distances: FloatArray, found: FloatArray) -> FloatArray:
    """How often a distance reaches the difference found; what was found counts as one draw, so that p is never 0."""
    reached = distances >= np.abs(found)[:, None] - EQUAL
    share: FloatArray = (1 + reached.sum(axis=1)) / (1 + distances.shape[1])
    return share


def _draws(pair: Pair, resamples: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """How often each document occurs in each resample: (documents, n) at a time."""
    random, documents = np.random.default_rng([seed, 0]), len(pair)
    for size in _sizes(documents, resamples):
        places = random.integers(0, documents, size=(size, documents)) + documents * np.arange(size)[:, None]
        weights = np.bincount(places.ravel(), minlength=size * documents)
        yield np.ascontiguousarray(weights.reshape(size, documents).T)


def _swaps(pair: Pair, resamples: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Whether the runs change places in each document: (documents, n) at a time."""
    random, documents = np.random.default_rng([seed, 1]), len(pair)
    for size in _sizes(documents, resamples):
        yield np.ascontiguousarray(random.integers(0, 2, size=(size, documents)).T)


def _sizes(documents: int, resamples: int) -> Iterator[int]:
    most = max(1, CELLS // max(documents, 1))
    for start in range(0, resamples, most):
        yield min(most, resamples - start)
