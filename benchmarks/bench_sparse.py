"""Tune the decoding and compute metrics with very many labels and only the top scores per document.

The scores are synthetic; the taxonomy is a forest of depth 7. Run it as
`python benchmarks/bench_sparse.py [--documents 20000] [--labels 98505] [--out FILE]`.
"""

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.decode import DecodeConfig
from hill.predictor import Predictor, ScoredBatch
from hill.sparse import DEFAULT_TOP_K, merge_entries, row_indices
from hill.taxonomy import Label, Taxonomy

ROOTS, BRANCHES, BATCH = 22, 5, 64


class Given(Predictor):
    """A predictor with given scores."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self.taxonomy, self.decode_config, self.thresholds = taxonomy, DecodeConfig(), None

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        """Nothing is computed here."""
        raise NotImplementedError


def make_taxonomy(labels: int) -> Taxonomy:
    """A forest in which label i has the children ROOTS + BRANCHES i, ..."""
    parents = [() if i < ROOTS else (str((i - ROOTS) // BRANCHES),) for i in range(labels)]
    return Taxonomy([Label(str(i), f"Label {i}", above) for i, above in enumerate(parents)])


def make_scores(taxonomy: Taxonomy, documents: int) -> tuple[csr_array[Any], csr_array[Any]]:
    """Labels of two paths per document, skewed to few labels; high scores for most of them, low for many others."""
    draw, labels = np.random.default_rng(0), len(taxonomy)
    share = 1 / np.arange(1, labels + 1) ** 0.9
    often, order = share / share.sum(), draw.permutation(labels)
    own = order[draw.choice(labels, (documents, 2), p=often)]
    given = csr_array((np.ones(own.size, bool), own.ravel(), np.arange(documents + 1) * 2), shape=(documents, labels))
    gold = taxonomy.closures(given)
    hit = draw.random(gold.nnz) < 0.85
    near = row_indices(gold)[hit], gold.indices[hit], draw.normal(1, 2, hit.sum())
    count = documents * (DEFAULT_TOP_K - 14)
    far = (
        np.repeat(np.arange(documents), DEFAULT_TOP_K - 14),
        order[draw.choice(labels, count, p=often)],
        draw.normal(-5, 1.5, count),
    )
    document, label, logit = (np.concatenate(each) for each in zip(near, far, strict=True))
    scores = (1 / (1 + np.exp(-logit))).astype(np.float32)
    return gold, merge_entries(document, label.astype(np.int64), scores, (documents, labels), np.maximum)


def batches(scores: csr_array[Any]) -> Iterator[ScoredBatch]:
    """Yield the scores in batches."""
    for start in range(0, scores.shape[0], BATCH):
        places = np.arange(start, min(start + BATCH, scores.shape[0]))
        yield places, scores[places]


def main() -> None:
    """Tune and measure; print one line each, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--labels", type=int, default=98_505)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    taxonomy = make_taxonomy(asked.labels)
    gold, scores = make_scores(taxonomy, asked.documents)
    predictor = Given(taxonomy)
    result: dict[str, Any] = {"benchmark": "sparse", "documents": asked.documents, "labels": asked.labels}
    result |= {"depth": len(taxonomy.levels), "scores_a_document": round(scores.nnz / asked.documents, 1)}
    for name, work in (("tune", predictor.tune), ("measure", predictor.measure)):
        start = time.perf_counter()
        work(batches(scores), gold)
        result[f"{name}_seconds"] = round(time.perf_counter() - start, 1)
        result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{name:8}{result[f'{name}_seconds']:7.1f} s, {result['peak_mib']:,} MiB at most so far", flush=True)
    result["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, numpy {np.__version__}"
    print(json.dumps(result))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
