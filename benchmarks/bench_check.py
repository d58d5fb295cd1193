"""Run `hill check` on a million short documents: seconds and peak memory of the command.

Run it as `python benchmarks/bench_check.py [--documents 1000000] [--out FILE]`.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

WORDS = [f"word{i}" for i in range(5_000)]


def write_data(folder: Path, documents: int) -> None:
    """A taxonomy of 500 labels in 20 groups and a train file of short documents with two labels each."""
    rows = ["id\tparents\tname"] + [f"g{i}\t\tGroup {i}" for i in range(20)]
    rows += [f"l{i}\tg{i % 20}\tLabel {i}" for i in range(480)]
    (folder / "taxonomy.tsv").write_text("\n".join(rows) + "\n")
    draw = random.Random(0)
    with (folder / "train.jsonl").open("w") as file:
        for number in range(documents):
            text = " ".join(draw.choices(WORDS, k=20))
            labels = [f"l{draw.randrange(480)}", f"l{draw.randrange(480)}"]
            file.write(json.dumps({"id": str(number), "text": text, "labels": labels}) + "\n")


def run_check(folder: Path) -> tuple[float, int, float]:
    """Seconds, documents reported and peak MiB of `hill check --json`."""
    command = [sys.executable, "-m", "hill", "check", str(folder), "--taxonomy", str(folder / "taxonomy.tsv"), "--json"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    output = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    return seconds, json.loads(output)["splits"]["train"]["documents"], usage.ru_maxrss / 1024


def main() -> None:
    """Run and print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), arguments.documents)
        seconds, documents, peak = run_check(Path(folder))
    result = {
        "benchmark": "check",
        "documents": documents,
        "seconds": round(seconds, 2),
        "peak_mib": round(peak),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    }
    table = Table(title="hill check --json")
    for column in ("documents", "seconds", "peak MiB"):
        table.add_column(column, justify="right")
    table.add_row(f"{documents:,}", f"{seconds:.1f}", f"{peak:,.0f}")
    Console().print(table)
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
