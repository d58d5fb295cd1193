"""Measure the time of the coding-tree builders on random trees, a star and taxonomies; with --quality, their entropy.

Each row is measured in a separate process, after compilation, so that its peak memory is not affected by other rows.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tree_quality import BUILDERS, graph_of, quality, random_tree

from hill.tree import Graph, structural_entropy

SIZES = (166, 1_000, 2_000, 4_000, 16_000, 64_000, 250_000, 1_000_000)
QUICK = 4_000
# The builder of the released code takes quadratic time on these graphs.
AUTHORS_MAX = 4_000
FIT_MIN = 1_000
GRAPHS = 1_000

FIRST_CALL = """
import time
from tree_quality import BUILDERS, random_tree
start = time.perf_counter()
for build in BUILDERS.values():
    build(random_tree(9), 3)
print(time.perf_counter() - start)
"""

Row = dict[str, Any]


def star(leaves: int) -> Graph:
    """Return a star graph: one vertex with this many neighbours."""
    return graph_of(leaves + 1, np.stack([np.zeros(leaves, np.int64), np.arange(1, leaves + 1)], axis=1))


def label_pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Yield label and parent per line of a taxonomy file; the parent is empty for roots."""
    for line in path.read_text(encoding="utf-8").splitlines():
        first, *rest = line.split("\t")
        if path.suffix == ".taxonomy":
            yield from ((child, "" if first == "Root" else first) for child in rest if child)
        else:
            yield from ((first, parent) for parent in (rest[0].split("|") if rest else [""]))


def read_taxonomy(path: Path) -> Graph:
    """Return the label graph: an edge between each label and each of its parents."""
    pairs = list(label_pairs(path))
    ids: dict[str, int] = {}
    for label, parent in pairs:
        ids.setdefault(label, len(ids))
        if parent:
            ids.setdefault(parent, len(ids))
    edges = {tuple(sorted((ids[label], ids[parent]))) for label, parent in pairs if parent and parent != label}
    return graph_of(len(ids), np.array(sorted(edges), dtype=np.int64).reshape(-1, 2))


def load_graph(name: str, data: Path | None) -> Graph:
    """Return the graph with this name."""
    kind, _, size = name.partition(" of ")
    if kind == "tree":
        return random_tree(int(size))
    return star(int(size)) if kind == "star" else read_taxonomy((data or Path()) / name)


def measure(name: str, data: Path | None, method: str, height: int) -> Row:
    """Measure seconds (the best of a few runs), entropy, level sizes and peak memory of one builder on one graph."""
    graph, build = load_graph(name, data), BUILDERS[method]
    build(random_tree(20), 3)
    runs = 5 if len(graph) <= 100_000 else 3 if len(graph) <= 250_000 else 1
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        tree = build(graph, height)
        seconds.append(time.perf_counter() - start)
    return {
        "graph": name,
        "vertices": len(graph),
        "edges": len(graph.weights) // 2,
        "method": method,
        "height": height,
        "seconds": round(min(seconds), 5),
        "runs": runs,
        "entropy": round(structural_entropy(graph, tree), 6),
        "sizes": list(tree.sizes),
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def cases(data: Path | None, quick: bool) -> Iterator[tuple[str, Path | None, str, int]]:
    """Yield graph name, data folder, method and height of each row."""
    sizes = [size for size in SIZES if size <= QUICK or not quick]
    yield from ((f"tree of {size}", data, method, 3) for size in sizes for method in ("paper", "refined"))
    yield from ((f"tree of {size}", data, "authors", 3) for size in sizes if size <= AUTHORS_MAX)
    yield from ((f"star of {1_000 if quick else 100_000}", data, method, 3) for method in ("paper", "refined"))
    files = sorted(path for path in data.iterdir() if path.suffix in (".tsv", ".taxonomy")) if data else []
    for path, height in product(files, (2, 3)):
        yield from ((path.name, data, method, height) for method in ("paper", "refined"))
        if path.stat().st_size < 50_000:
            yield path.name, data, "authors", height


def measure_all(pending: Iterable[tuple[str, Path | None, str, int]]) -> list[Row]:
    """Measure the cases one after another, each in its own process."""
    rows = []
    for case in track(list(pending), description="timing", console=Console(stderr=True)):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            rows.append(pool.submit(measure, *case).result())
    return rows


def exponents(rows: list[Row]) -> dict[str, float]:
    """Return the growth exponent of the time per method on random trees: the slope in logarithms."""
    result = {}
    for method in BUILDERS:
        chosen = [row for row in rows if row["method"] == method and row["graph"].startswith("tree of")]
        points = [(row["vertices"], row["seconds"]) for row in chosen if row["vertices"] >= FIT_MIN]
        if len(points) > 1:
            sizes, seconds = np.log(points).T
            result[method] = round(float(np.polyfit(sizes, seconds, 1)[0]), 3)
    return result


def first_call() -> float:
    """Return the seconds of the first call of all builders, including compilation."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", FIRST_CALL], env=environment, check=True, capture_output=True)
    return round(float(done.stdout), 2)


def show(rows: list[Row], facts: Row) -> None:
    """Print the table."""
    keys = "graph", "vertices", "edges", "method", "height", "seconds", "runs", "entropy", "peak_memory_mib", "sizes"
    table = Table(*keys)
    for row in rows:
        table.add_row(*(str(row[key]) for key in keys))
    console = Console(width=160)
    console.print(table)
    for name, value in facts.items():
        console.print(f"{name}: {value}")


def main() -> None:
    """Measure, print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of taxonomies: *.tsv (id, parents, name) and *.taxonomy")
    parser.add_argument("--quick", action="store_true", help=f"graphs of up to {QUICK} vertices only")
    parser.add_argument(
        "--quality", action="store_true", help="compare with the optimum and the other builders on random graphs"
    )
    parser.add_argument("--out", type=Path, help="file for the JSON line")
    arguments = parser.parse_args()
    rows = measure_all(cases(arguments.data, arguments.quick))
    facts: Row = {"growth_exponent": exponents(rows), "first_call_seconds": first_call(), "processors": os.cpu_count()}
    if arguments.quality:
        facts["quality"] = quality(100 if arguments.quick else GRAPHS)
    show(rows, facts)
    line = json.dumps({"benchmark": "tree", **facts, "rows": rows})
    print(line)
    if arguments.out:
        arguments.out.write_text(line + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
