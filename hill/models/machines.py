"""Support vector machines, one a label: on all documents, or of very many labels on those that matter for each."""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csc_array, csr_array

from hill.extras import need
from hill.types import BoolArray, FloatArray, IntArray

DRAWN = 1_000
"""Most documents near a label, and most of the others, that its machine is fitted against."""


class Drawn(NamedTuple):
    """The documents for the machine of a label, those that have it first, and how much each counts."""

    places: IntArray
    gold: BoolArray
    weight: FloatArray


def separate(
    features: csr_array[Any], gold: BoolArray, c: float, balance: bool, seed: int, weight: FloatArray | None = None
) -> Any:
    """The machine of one label; where the dual problem does not converge, which balance may cause, the primal's."""
    svm, errors = (need(f"sklearn.{part}", "sklearn", "the linear model") for part in ("svm", "exceptions"))
    machine = svm.LinearSVC(C=c, class_weight="balanced" if balance else None, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ConvergenceWarning)
        machine.fit(features, gold, weight)
    solved = machine.n_iter_ < machine.max_iter
    return machine if solved else machine.set_params(dual=False).fit(features, gold, weight)


def draw_documents(labels: csc_array[Any], edges: IntArray, seed: int) -> Iterator[Drawn]:
    """For each label its documents, and some of those without it, which count for all of them.

    Labels are (documents, L), edges rows (child, parent). Documents with a parent of the label, which are hard to tell
    from its own, and all others are drawn from separately, at most `DRAWN` of each.
    """
    draw, count = np.random.default_rng(seed), labels.shape[0]
    order = np.argsort(edges[:, 0], kind="stable")
    starts = np.searchsorted(edges[order, 0], np.arange(labels.shape[1] + 1))
    for label in range(labels.shape[1]):
        own = _documents(labels, label)
        above = [_documents(labels, parent) for parent in edges[order[starts[label] : starts[label + 1]], 1]]
        near = np.setdiff1d(np.concatenate([*above, own[:0]]), own)
        taken = draw.choice(near, DRAWN, replace=False) if len(near) > DRAWN else near
        others = count - len(own) - len(near)
        drawn = _draw_others(draw, np.concatenate([own, near]), count)
        sizes = len(own), len(taken), len(drawn)
        shares = [whole / max(size, 1) for whole, size in zip((len(own), len(near), others), sizes, strict=True)]
        places = np.concatenate([own, taken, drawn]).astype(np.int64)
        yield Drawn(places, np.arange(len(places)) < len(own), np.repeat(shares, sizes))


def _documents(labels: csc_array[Any], label: int) -> IntArray:
    found: IntArray = labels.indices[labels.indptr[label] : labels.indptr[label + 1]].astype(np.int64)
    return found


def _draw_others(draw: np.random.Generator, known: IntArray, count: int) -> IntArray:
    """Documents of so many that are none of the known ones: some, drawn, or all where they are few."""
    if len(known) > count // 2 or count <= 2 * DRAWN:
        others = np.setdiff1d(np.arange(count), known)
        return others if len(others) <= DRAWN else draw.choice(others, DRAWN, replace=False)
    drawn = np.unique(draw.integers(0, count, DRAWN))
    return np.setdiff1d(drawn, known)
