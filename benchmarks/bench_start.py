"""Cold start: seconds from the shell to the output of short commands, each in a fresh process.

Models: a small `hill` with random weights, and `flat` with MiniLM, trained for one epoch on a few texts, as it is and
exported. One run before the measurement writes bytecode and fills the file cache. Runs of all commands alternate. Run
it as `python benchmarks/bench_start.py [--rounds 5] [--package FOLDER] [--out FILE]`; with a folder, the package `hill`
in it is measured, such as that of another version.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_predict import make_model
from rich.console import Console
from rich.table import Table

from hill.classifier import HillClassifier
from hill.export.onnx import export_onnx
from hill.settings import Groups
from hill.taxonomy import Label, Taxonomy

TARGETS = {"--help": 0.4, "predict, tiny": 2.5, "predict, minilm": 2.5, "predict, ONNX": 1.2, "serve, minilm": 3.0}
"""Maximum seconds on 2 idle cores."""
COLUMNS = ("command", "median_s", "best_s", "cpu_s", "target_s")
PROGRAM = "from hill.cli import main; main()"


def make_models(folder: Path) -> dict[str, list[str]]:
    """Train and export the models, and return the arguments of each command."""
    (folder / "tiny").mkdir()
    make_model(folder / "tiny", "tiny")
    taxonomy = Taxonomy([Label("sport", "sport"), *(Label(name, name, ("sport",)) for name in ("tennis", "golf"))])
    texts = ["the ball is over the net", "the ball is in the hole"] * 8
    settings: Groups = {"model": {"encoder": "minilm"}, "train": {"epochs": 1}}
    classifier = HillClassifier(taxonomy, "flat", settings, preset=None).fit(texts, [["tennis"], ["golf"]] * 8)
    classifier.save(folder / "minilm")
    export_onnx(classifier, folder / "onnx")
    return {
        "--help": ["--help"],
        "predict, tiny": ["predict", str(folder / "tiny" / "model"), "w1 w2"],
        "predict, minilm": ["predict", str(folder / "minilm"), texts[0]],
        "predict, ONNX": ["predict", str(folder / "onnx"), texts[0]],
        "serve, minilm": ["serve", str(folder / "minilm"), "--port", "0"],
    }


def measure(arguments: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall-clock and processor seconds until the process ends, or until the server listens."""
    before, start = _processor_seconds(), time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, *arguments],  # -P: not the package of the working directory
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        if arguments[0] == "serve":
            line = process.stderr.readline()
            wall = time.perf_counter() - start
            process.kill()
            assert "listening" in line, line
        else:
            errors = process.stderr.read()
            assert process.wait() == 0, errors
            wall = time.perf_counter() - start
    return wall, _processor_seconds() - before


def _processor_seconds() -> float:
    """Processor seconds of all processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    """Measure every command and print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--package", type=Path, default=Path(__file__).parents[1], help="the folder of `hill`")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": str(arguments.package.resolve())}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        commands = make_models(Path(scratch))
        for command in commands.values():
            measure(command, environment)
        runs = [
            {name: measure(command, environment) for name, command in commands.items()} for _ in range(arguments.rounds)
        ]
    rows: list[dict[str, Any]] = []
    for name in commands:
        walls, processor = zip(*(run[name] for run in runs), strict=True)
        times = {"median_s": statistics.median(walls), "best_s": min(walls), "cpu_s": min(processor)}
        rounded = {key: round(value, 2) for key, value in times.items()}
        rows.append({"command": f"hill {name}", **rounded, "target_s": TARGETS[name]})
    table = Table(title="cold start")
    for column in COLUMNS:
        table.add_column(column.replace("_", " "), justify="left" if column == "command" else "right")
    for row in rows:
        table.add_row(*(str(row[column]) for column in COLUMNS))
    Console().print(table)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {versions}"
    loads = {"load_before": round(load, 1), "load_after": round(os.getloadavg()[0], 1)}
    result = {"benchmark": "start", "machine": machine, **loads, "rounds": arguments.rounds, "rows": rows}
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
