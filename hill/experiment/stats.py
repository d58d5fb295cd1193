"""Means over seeds, and whether a row differs from the reference: the paper's t-test, and a paired one."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from hill.types import FloatArray

LEVEL = 0.05


@dataclass(frozen=True)
class Summary:
    """A metric of a row over its seeds."""

    values: tuple[float, ...]
    one_sample: float | None = None
    """p of the t-test of the values against the reference's mean, which the paper uses: that mean counts as exact."""
    paired: float | None = None
    """p of the t-test of the differences to the reference over seeds that both have."""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds (n - 1); of one seed there is none."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def marks(self) -> str:
        """† and ‡ where the one-sample and the paired test see a difference at 95 %."""
        tests = ((self.one_sample, "†"), (self.paired, "‡"))
        return "".join(mark for p, mark in tests if p is not None and p < LEVEL)


def summarise(values: Mapping[int, float], reference: Mapping[int, float] | None = None) -> Summary | None:
    """A row's values by seed, tested against those of the reference; nothing where there is no value."""
    if not values:
        return None
    own = np.array(list(values.values()), dtype=np.float64)
    if not reference:
        return Summary(tuple(own.tolist()))
    common = [seed for seed in values if seed in reference]
    differences = np.array([values[seed] - reference[seed] for seed in common])
    mean = float(np.mean(list(reference.values())))
    return Summary(tuple(own.tolist()), _p_value(own - mean), _p_value(differences))


def _p_value(values: FloatArray) -> float | None:
    """Two-sided p of the mean being 0; values that are all the same leave no doubt."""
    if len(values) < 2:
        return None
    if np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())):
        return 1.0 if abs(float(values.mean())) <= 1e-12 else 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # values that are nearly the same
        return float(stats.ttest_1samp(values, 0.0).pvalue)


Records = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Records of runs by row and seed."""


def summaries(
    records: Records, read: Callable[[Any], float | None], reference: str | None, rows: Iterable[str]
) -> dict[str, Summary | None]:
    """A number of each run, row by row, tested against that of the reference row."""
    found = {
        row: {seed: value for seed, run in records[row].items() if (value := read(run)) is not None} for row in rows
    }
    against = found.get(reference) if reference else None
    return {row: summarise(values, against) for row, values in found.items()}
