"""Saved predictions of runs, and significance tests between two runs: paired bootstrap and approximate randomisation.

No torch is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file
from scipy.sparse import csr_array, hstack

from hill.errors import CheckpointError, DataError
from hill.metrics.label_sets import ratio
from hill.settings import check_one_of, within
from hill.taxonomy import Label, Taxonomy
from hill.types import FloatArray

PREDICTIONS_FILE = "predictions.safetensors"
DECODINGS = ("raw", "tuned")
METRICS = ("micro_f1", "macro_f1", "hierarchical_f1")
MAX_RESAMPLES = 10_000_000
DRAW_BLOCK = 2**22
"""Largest number of documents times resamples that is drawn at once."""
EQUAL = 1e-12
"""Differences up to this size come from rounding."""


# Predictions


@dataclass(frozen=True)
class Predictions:
    """The ids of documents, their gold labels and the labels predicted with each decoding: (documents, L) each."""

    taxonomy: Taxonomy
    ids: list[str]
    gold: csr_array[Any]
    predicted: Mapping[str, csr_array[Any]]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything as named arrays, in the form of the file."""
        labels = [[label.id, label.name, list(label.parents)] for label in self.taxonomy]
        texts = {
            name: json.dumps(value, ensure_ascii=False) for name, value in (("taxonomy", labels), ("ids", self.ids))
        }
        arrays: dict[str, npt.NDArray[Any]] = {
            name: np.frombuffer(text.encode(), dtype=np.uint8).copy() for name, text in texts.items()
        }
        for name, table in {"gold": self.gold, **self.predicted}.items():
            arrays[f"{name}.rows"] = table.indices.astype(np.int32)
            arrays[f"{name}.counts"] = np.diff(table.indptr).astype(np.int32)
        return arrays

    @classmethod
    def read(cls, path: Path) -> Predictions:
        """Read the predictions of a run from its folder or from the file itself."""
        file = path / PREDICTIONS_FILE if path.is_dir() else path
        try:
            arrays = load_file(file)
            entries = json.loads(arrays["taxonomy"].tobytes())
            labels = [Label(label, name, tuple(parents)) for label, name, parents in entries]
            ids = json.loads(arrays["ids"].tobytes())
            tables: dict[str, csr_array[Any]] = {}
            for name in ("gold", *DECODINGS):
                rows, starts = arrays[f"{name}.rows"], np.append(0, np.cumsum(arrays[f"{name}.counts"]))
                tables[name] = csr_array((np.ones(len(rows), dtype=bool), rows, starts), shape=(len(ids), len(labels)))
        except FileNotFoundError:
            raise CheckpointError(
                f"'{path}' has no predictions; expected the folder of a run of `hill research`, such as runs/hill-1"
            ) from None
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(f"'{file}' cannot be read: {error}; run the experiment again") from None
        return cls(Taxonomy(labels), ids, tables.pop("gold"), tables)


# Tests


class Pair:
    """The predictions of two runs as counts per document; the counts of a resample are a weighted sum of them.

    Columns of the counts of a run: per label, if it is a hit (L) and if it is predicted (L); then the number of hits
    and of predicted labels after ancestors are added.
    """

    def __init__(self, a: Predictions, b: Predictions, decoding: str) -> None:
        check_one_of(decoding, DECODINGS, "decoding")
        _check_same(a, b)
        self.labels = len(a.taxonomy)
        all_gold = a.taxonomy.closures(a.gold)  # with ancestors
        self.gold = _columns([a.gold], [all_gold])
        self.counts = []
        for predicted in (a.predicted[decoding], b.predicted[decoding]):
            all_predicted = a.taxonomy.closures(predicted)
            hits, all_hits = predicted.multiply(a.gold), all_predicted.multiply(all_gold)
            self.counts.append(_columns([hits, predicted], [all_hits, all_predicted]))

    def __len__(self) -> int:
        return int(self.gold.shape[0])

    def scores(self, counts: npt.NDArray[Any], gold: npt.NDArray[Any]) -> FloatArray:
        """The metrics (3, n) for summed counts of a run (2 L + 2, n) and of the gold labels (L + 1, n)."""
        hits, predicted = counts[: self.labels], counts[self.labels : -2]
        micro = ratio(2 * hits.sum(axis=0), predicted.sum(axis=0) + gold[:-1].sum(axis=0))
        macro = ratio(2 * hits, predicted + gold[:-1]).mean(axis=0)
        return np.stack([micro, macro, ratio(2 * counts[-2], counts[-1] + gold[-1])])

    def weighted(self, weights: npt.NDArray[np.int64]) -> FloatArray:
        """B - A of the metrics (3, n) if documents occur with these multiplicities (documents, n)."""
        gold = self.gold.T @ weights
        a, b = (self.scores(counts.T @ weights, gold) for counts in self.counts)
        return b - a

    def swapped(self, swaps: npt.NDArray[np.int64]) -> FloatArray:
        """B - A of the metrics (3, n) if the runs are swapped in some documents (documents, n)."""
        change = (self.counts[1] - self.counts[0]).T @ swaps
        gold, a, b = (counts.sum(axis=0)[:, None] for counts in (self.gold, *self.counts))
        return self.scores(b - change, gold) - self.scores(a + change, gold)

    def observed(self) -> FloatArray:
        """The metrics of both runs: (2, 3)."""
        gold, a, b = (counts.sum(axis=0)[:, None] for counts in (self.gold, *self.counts))
        return np.stack([self.scores(counts, gold)[:, 0] for counts in (a, b)])


def _columns(tables: list[csr_array[Any]], summed: list[csr_array[Any]]) -> csr_array[Any]:
    """The columns of the tables, then one column per summed table with its number of labels per document."""
    totals = [csr_array(table.sum(axis=1, dtype=np.int64)[:, None]) for table in summed]
    return csr_array(hstack([table.astype(np.int64) for table in tables] + totals))


def _check_same(a: Predictions, b: Predictions) -> None:
    if a.taxonomy.ids != b.taxonomy.ids or not np.array_equal(a.taxonomy.edge_array, b.taxonomy.edge_array):
        raise DataError("the two runs have different taxonomies; compare runs on the same data")
    if a.ids != b.ids:
        what = f"{len(a.ids)} and {len(b.ids)}"
        for number, (first, second) in enumerate(zip(a.ids, b.ids, strict=False)):
            if first != second:
                what = f"number {number} is '{first}' or '{second}'"
                break
        raise DataError(f"the two runs have different test documents ({what}); compare runs on the same data")
    if not a.gold.nnz == b.gold.nnz == a.gold.multiply(b.gold).nnz:
        raise DataError("the two runs have different gold labels for the same documents; compare runs on the same data")
    if not a.ids:
        raise DataError("the two runs have no test documents")


@dataclass(frozen=True)
class MetricDifference:
    """A metric of two runs, the difference B - A with its 95 % interval, and the two-sided p-values of both tests."""

    measure: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_bootstrap: float
    p_randomisation: float

    def to_dict(self) -> dict[str, Any]:
        """The values as a dictionary."""
        return asdict(self)


def compare(
    a: Predictions, b: Predictions, decoding: str = "tuned", resamples: int = 10_000, seed: int = 0
) -> list[MetricDifference]:
    """Run both tests for every metric. The same seed gives the same result.

    Bootstrap: documents are drawn with replacement; p is the share of resamples whose difference is at least as far
    from the observed one as that is from 0. Randomisation: in each document the runs are swapped at random; p is the
    share of draws with a difference at least as large as the observed one.
    """
    within(resamples, 1, MAX_RESAMPLES, "--resamples")
    within(seed, 0, 2**63 - 1, "--seed")
    pair = Pair(a, b, decoding)
    scores = pair.observed()
    observed = scores[1] - scores[0]
    draws, swaps = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    bootstrap, randomisation = [], []
    n, block = len(pair), max(1, DRAW_BLOCK // len(pair))
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        # Counting (resample, document) pairs gives the multiplicity of each document in each resample.
        pairs = draws.integers(0, n, size=(size, n)) + n * np.arange(size)[:, None]
        weights = np.bincount(pairs.ravel(), minlength=size * n).reshape(size, n)
        bootstrap.append(pair.weighted(np.ascontiguousarray(weights.T)))
        randomisation.append(pair.swapped(np.ascontiguousarray(swaps.integers(0, 2, size=(size, n)).T)))
    resampled, swapped = np.concatenate(bootstrap, axis=1), np.concatenate(randomisation, axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975], axis=1)
    p_values = _p_values(resampled - observed[:, None], observed), _p_values(swapped, observed)
    columns = (*scores, observed, low, high, *p_values)
    return [MetricDifference(name, *(float(column[i]) for column in columns)) for i, name in enumerate(METRICS)]


def compare_runs(a: Path, b: Path, decoding: str, resamples: int, seed: int) -> list[MetricDifference]:
    """Compare two runs, given their folders or files of predictions."""
    return compare(Predictions.read(a), Predictions.read(b), decoding, resamples, seed)


def _p_values(differences: FloatArray, observed: FloatArray) -> FloatArray:
    """The share of differences that are at least as large. The observation counts as one draw: p is never 0."""
    reached = np.abs(differences) >= np.abs(observed)[:, None] - EQUAL
    share: FloatArray = (1 + reached.sum(axis=1)) / (1 + differences.shape[1])
    return share
