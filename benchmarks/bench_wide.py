"""Test what must not be quadratic in the labels: a label with very many children, and a report on very many labels.

Run it as `python benchmarks/bench_wide.py [--children 20000 1000000] [--labels 98505] [--documents 1000] [--out FILE]`.
Every row runs in its own process; times are processor times, which depend less on other jobs.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.sparse import csr_array

from hill.data import Documents
from hill.decode import DecodeConfig
from hill.predictor import Predictor, ScoredBatch
from hill.report import make_report
from hill.sparse import DEFAULT_TOP_K, top_k_matrix
from hill.taxonomy import Label, Taxonomy, read_taxonomy
from hill.tree import Graph, build_authors, build_tree
from hill.tree.plot import draw_tree

ROOTS, BRANCHES, BATCH = 22, 5, 64


class Given(Predictor):
    """A predictor with scores of some labels per document: its gold labels, and others at random."""

    name = "given"

    def __init__(self, taxonomy: Taxonomy, gold: csr_array[Any]) -> None:
        self.taxonomy, self.thresholds, self._gold = taxonomy, None, gold
        self.decode_config = DecodeConfig(strategy="closure", calibrate="off")

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        """The same scores in every pass."""
        draw, labels = np.random.default_rng(0), len(self.taxonomy)
        for start in range(0, len(texts), BATCH):
            documents = np.arange(start, min(start + BATCH, len(texts)))
            rows = (
                draw.integers(0, labels, (len(documents), 1)) + np.arange(DEFAULT_TOP_K) * (labels // DEFAULT_TOP_K)
            ) % labels
            others = top_k_matrix(draw.random(rows.shape, dtype=np.float32) ** 6, rows, labels)
            yield documents, others.maximum(self._gold[documents].astype(np.float32) * np.float32(0.6)).tocsr()


def star(children: int) -> Taxonomy:
    """One root and its children."""
    return Taxonomy([Label("root", "Root"), *(Label(f"l{i}", f"label {i}", ("root",)) for i in range(children))])


def forest(labels: int) -> Taxonomy:
    """A forest in which label i has the children ROOTS + BRANCHES i, ..."""
    parents = [() if i < ROOTS else (str((i - ROOTS) // BRANCHES),) for i in range(labels)]
    return Taxonomy([Label(str(i), f"Label {i}", above) for i, above in enumerate(parents)])


def reading(children: int, folder: Path) -> Callable[[], Any]:
    """A table of a label and its children."""
    file = folder / "taxonomy.tsv"
    lines = ["id\tparents\tname", "root\t\tRoot", *(f"l{i}\troot\tlabel {i}" for i in range(children))]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return lambda: read_taxonomy(file)


def drawing(children: int, folder: Path) -> Callable[[], Any]:
    """The plot of a label with its children next to their coding tree."""
    taxonomy = star(children)
    built = build_tree(taxonomy, 2)
    return lambda: draw_tree(taxonomy, built, folder / "tree.png")


def authors(children: int, folder: Path) -> Callable[[], Any]:
    """The authors' coding tree of a label with its children."""
    build_authors(Graph.from_adjacency([[0, 1], [1, 0]]), 3)
    graph = Graph.from_adjacency(star(children).graph())
    return lambda: build_authors(graph, 3)


def report(labels: int, documents: int, folder: Path) -> Callable[[], Any]:
    """The report of an evaluation, as HTML page and as JSON."""
    taxonomy = forest(labels)
    own = np.random.default_rng(1).integers(0, labels, documents)
    given = csr_array((np.ones(documents, bool), own, np.arange(documents + 1)), shape=(documents, labels))
    gold = taxonomy.closures(given)
    data = Documents([str(i) for i in range(documents)], ["a text"] * documents, gold, 0)

    def make() -> None:
        found = make_report(Given(taxonomy, gold), data)
        found.write(folder / "report.html")
        found.write(folder / "report.json")

    return make


def measure(what: str, size: int, documents: int) -> dict[str, Any]:
    """One row, in this process."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        kinds = {"read": reading, "draw": drawing, "authors": authors}
        work = kinds[what](size, folder) if what in kinds else report(size, documents, folder)
        before, start = _mib(), time.process_time()
        work()
        seconds = time.process_time() - start
    return {"what": what, "size": size, "seconds": round(seconds, 2), "mib": _mib(), "mib_before": before}


def _mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    """Measure all rows and print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--children", type=int, nargs="+", default=[20_000, 1_000_000])
    parser.add_argument("--labels", type=int, default=98_505)
    parser.add_argument("--documents", type=int, default=1_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--row", nargs=2, help="one row, in this process: what and how many labels")
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(measure(arguments.row[0], int(arguments.row[1]), arguments.documents)))
        return
    todo = [(what, size) for what in ("read", "draw", "authors") for size in arguments.children]
    rows = []
    for what, size in [*todo, ("report", arguments.labels)]:
        command = [sys.executable, __file__, "--row", what, str(size), "--documents", str(arguments.documents)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    table = Table(title=f"a label with so many children; a report on {arguments.documents:,} documents")
    for column in ("what", "children or labels", "seconds", "MiB", "MiB before"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    Console().print(table)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    result = {"benchmark": "wide", "documents": arguments.documents, "rows": rows, "machine": machine}
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
