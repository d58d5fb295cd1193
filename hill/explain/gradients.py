"""Integrated gradients and gradient × input: what each token's vector adds to a logit.

Sundararajan et al., Axiomatic Attribution for Deep Networks, ICML 2017. The way leads from the text with every token
masked to the text as it is; tokens that frame every text stay as they are, and so get nothing.
"""

from dataclasses import dataclass

import numpy as np

from hill.explain.way import Way
from hill.types import BoolArray, FloatArray, IntArray

FIRST_STEPS, MOST_STEPS = 8, 256
TOLERANCE = 0.05
"""The summing check: the gap is at most this share of what the words add, as in the paper, or this many logits."""


@dataclass(frozen=True)
class Attribution:
    """For each label (K): what tokens add (K, T), the logits of text and baseline, and the steps that were taken."""

    values: FloatArray
    logits: FloatArray
    baselines: FloatArray
    steps: IntArray


def integrate(way: Way, rows: IntArray, steps: int) -> Attribution:
    """Integrated gradients by the trapezoidal rule; with 0 steps, twice as many until the summing check holds.

    The rule reuses all earlier points when steps are doubled, and the slope is flat at both ends of most ways, where
    it is more exact than Gauss's. Only labels whose check does not hold go on.
    """
    counts = np.full(len(rows), steps or FIRST_STEPS)
    logits, slopes = way.slopes(np.linspace(0, 1, counts[0] + 1), rows)
    sums = slopes.sum(axis=1) - slopes[:, [0, -1]].sum(axis=1) / 2  # (K, T)
    rise = logits[:, -1] - logits[:, 0]
    while not steps and len(left := np.flatnonzero(_open(sums / counts[:, None], rise) & (counts < MOST_STEPS))):
        count = counts[left[0]]
        sums[left] += way.slopes((np.arange(count) + 0.5) / count, rows[left])[1].sum(axis=1)
        counts[left] *= 2
    return Attribution(sums / counts[:, None], logits[:, -1], logits[:, 0], counts)


def _open(values: FloatArray, rise: FloatArray) -> BoolArray:
    """Labels for which the summing check does not hold: (K, T) and (K) to (K)."""
    found: BoolArray = np.abs(rise - values.sum(axis=1)) > TOLERANCE * np.maximum(np.abs(rise), 1)
    return found


def multiply(way: Way, rows: IntArray) -> Attribution:
    """Gradient × input: the slope at the text itself, as if the way went on like that."""
    logits, slopes = way.slopes(np.array([0.0, 1.0]), rows)
    return Attribution(slopes[:, 1], logits[:, 1], logits[:, 0], np.ones(len(rows), dtype=np.int64))
