"""Compute all metrics for as many predictions as RCV1-v2's test set has: 781,265 documents, 103 labels; in batches."""

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from hill.metrics import Scorer
from hill.taxonomy import Label, Taxonomy
from hill.types import BoolArray

DOCUMENTS = 781_265
LABELS = 103
BATCH = 8_192
WIDTHS = (4, 51, 43, 5)
SECOND_LABEL = 0.35


def forest(rng: np.random.Generator) -> Taxonomy:
    """A random forest with RCV1's number of labels at each of four levels."""
    labels: list[Label] = []
    above: list[str] = []
    for level, width in enumerate(WIDTHS):
        rows = [f"{level}.{i}" for i in range(width)]
        labels += [Label(row, row, (str(rng.choice(above)),) if above else ()) for row in rows]
        above = rows
    return Taxonomy(labels)


def batches(
    rng: np.random.Generator, taxonomy: Taxonomy, documents: int
) -> Iterator[tuple[BoolArray, BoolArray, npt.NDArray[np.float32]]]:
    """Gold sets of about three labels with ancestors, and scores: high for gold labels, most others near 0."""
    closed = np.zeros((LABELS, LABELS), dtype=bool)
    for row in range(LABELS):
        closed[row, taxonomy.closure([row])] = True
    for start in range(0, documents, BATCH):
        size = min(BATCH, documents - start)
        labels = closed[rng.integers(LABELS, size=size)]
        labels |= closed[rng.integers(LABELS, size=size)] & (rng.random((size, 1)) < SECOND_LABEL)
        logits = rng.standard_normal((size, LABELS), dtype=np.float32) * 1.5 - 4 + 6 * labels
        scores = 1 / (1 + np.exp(-logits))
        yield labels, scores > 0.5, scores


def measure(documents: int) -> dict[str, float]:
    """Seconds of generating and scoring, the peak memory, and some of the metrics."""
    rng = np.random.default_rng(0)
    taxonomy = forest(rng)
    scorer = Scorer(taxonomy, train_counts=rng.permutation(LABELS))
    began = time.perf_counter()
    scoring = 0.0
    for batch in batches(rng, taxonomy, documents):
        before = time.perf_counter()
        scorer.update(*batch)
        scoring += time.perf_counter() - before
    before = time.perf_counter()
    result = scorer.result()
    ended = time.perf_counter()
    scoring += ended - before
    return {
        "documents": documents,
        "labels": LABELS,
        "gold_labels_a_document": round(float(scorer.label_table()["gold"].sum() / documents), 2),
        "scoring_seconds": round(scoring, 3),
        "generating_seconds": round(ended - began - scoring, 3),
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        **{name: round(value, 6) for name, value in result.items() if name != "levels"},
    }


def main() -> None:
    """Measure, print a table and then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    options = parser.parse_args()
    report = measure(options.documents)
    table = Table("measured", "value", title="All metrics on predictions of the RCV1-v2 test size")
    for name, value in report.items():
        table.add_row(name, f"{value:,}")
    Console().print(table)
    line = json.dumps({"name": "metrics", **report})
    print(line)
    if options.out:
        options.out.write_text(line + "\n")


if __name__ == "__main__":
    main()
