"""Where scores fall on a grid of equal steps from 0 to 1."""

import numpy as np

from hill.types import FloatArray, IntArray


def steps_below(scores: FloatArray, steps: int) -> IntArray:
    """How many of 0, 1/steps, 2/steps, ..., 1 each score exceeds.

    >>> steps_below(np.array([0.0, 0.07, 0.071, 1.0]), 100)
    array([  0,   7,   8, 100])
    """
    # a product may round up to a step that the score does not exceed, or down from the one it is on (0.29 * 100 < 29)
    low = (scores * steps).astype(np.int64)
    return low + (scores > (np.arange(steps + 1) / steps).take(low))
