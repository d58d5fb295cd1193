"""Predict many files into a folder: rows per second and memory of both engines. Memory must not grow with the input.

The encoder has random weights; the input are synthetic short texts in files of 10,000; each job is one `hill predict`.
Memory and processor time are those of all its processes, shared pages counted once; the load average shows how busy the
machine was. Run it as `python benchmarks/bench_bulk.py [--encoder tiny] [--sizes 20000 200000] [--out FILE]`.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from bench_predict import SHAPES, make_model, write_texts
from rich.console import Console
from rich.table import Table

from hill.errors import need

FILE = 10_000
JOBS = {
    "local, 1 process": [],
    "local, 2 processes": ["--workers", "2"],
    "ray, 2 actors": ["--engine", "ray", "--workers", "2"],
}
COLUMNS = ("engine", "rows", "seconds", "rows_s", "cpu_seconds", "peak_mib", "load")
MARK = "HILL_BENCH_BULK"


def marked(mark: str) -> list[Path]:
    """The processes of a job: all that have its marker in their environment, also if they are not children."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(process)
        except OSError:
            continue
    return found


def look(process: Path) -> tuple[float, float]:
    """The proportional memory of a process in MiB and its processor time in seconds."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    memory = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return memory, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def predict_once(folder: Path, options: list[str], mark: str) -> dict[str, Any]:
    """Run a job and measure the memory and processor time of its processes."""
    command = [sys.executable, "-m", "hill", "predict", str(folder / "model"), "--input", str(folder / "in")]
    start, peak, spent = time.perf_counter(), 0.0, dict[Path, float]()
    job = subprocess.Popen(
        [*command, "--output", str(folder / mark), "--json", *options],
        env=os.environ | {MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    while job.poll() is None:
        seen = {process: look(process) for process in marked(mark)}
        peak = max(peak, sum(memory for memory, _ in seen.values()))
        spent |= {process: max(cpu, spent.get(process, 0.0)) for process, (_, cpu) in seen.items()}
        time.sleep(1)
    seconds = time.perf_counter() - start
    rows = json.loads(job.communicate()[0])["rows"]
    found = {"rows": rows, "seconds": round(seconds, 1), "rows_s": round(rows / seconds)}
    return found | {"cpu_seconds": round(sum(spent.values()), 1), "peak_mib": round(peak)}


def main() -> None:
    """Measure every engine at every size and print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", default="tiny", choices=list(SHAPES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[20_000, 200_000])
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_model(folder, arguments.encoder)
        (folder / "in").mkdir()
        for size in sorted(arguments.sizes):
            for number in range(size // FILE):
                write_texts(folder / "in" / f"{number:05}.jsonl", FILE, arguments.words)
            for place, (engine, options) in enumerate(JOBS.items()):
                result = predict_once(folder, options, f"out-{size}-{place}")
                rows.append({"engine": engine, **result, "load": round(os.getloadavg()[0], 1)})
    table = Table(title=f"hill predict into a folder, {arguments.encoder}, up to {arguments.words} words a text")
    for column in COLUMNS:
        table.add_column(column.replace("_", " "), justify="left" if column == "engine" else "right")
    for row in rows:
        table.add_row(*(value if isinstance(value := row[column], str) else f"{value:,}" for column in COLUMNS))
    Console(width=120).print(table)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"
    facts = {"encoder": arguments.encoder, "words": arguments.words, "machine": machine}
    result = {"benchmark": "bulk", **facts, "ray": need("ray", "ray", "the engine ray").__version__, "rows": rows}
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
