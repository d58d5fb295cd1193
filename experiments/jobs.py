"""Runs of an experiment by several processes at a time, each run with a time limit; shared by programs that train.

A run is a dictionary that names it, such as {"data": "wos", "seed": 1}. It yields results, and each is written at once
as a JSON line that begins with the name of the run. Runs whose last result is in the file are not repeated.
"""

import argparse
import json
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from frozen import append

Run = dict[str, Any]
THREADS = 2
"""Threads of PyTorch per process beside a GPU."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `run_all`."""
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds per run; a longer one is stopped")
    parser.add_argument("--seconds", type=float, default=1e6, help="seconds for all runs; then all are stopped")
    parser.add_argument("--out", type=Path, required=True, help="file that gets a JSON line per result")


def run_all(
    execute: Callable[[Run], Iterable[Run]],
    runs: Iterable[Run],
    given: argparse.Namespace,
    is_last: Callable[[Run], bool] = bool,
) -> None:
    """Execute the runs whose last result is not in the file yet, in this order."""
    lines = given.out.read_text(encoding="utf-8").splitlines() if given.out.exists() else []
    done = [row for row in map(json.loads, lines) if is_last(row)]
    missing = [run for run in runs if not any(contains(row, run) for row in done)]
    end = time.time() + given.seconds
    work = partial(_execute, execute, given.out, given.limit, end)
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        futures = {pool.submit(work, run): run for run in missing}
        for future in as_completed(futures):
            if error := future.exception():  # a run that fails does not stop the others
                print(futures[future], f"{type(error).__name__}: {error}", flush=True)


def contains(row: Run, part: Run) -> bool:
    """Whether a row has these values."""
    return all(key in row and row[key] == value for key, value in part.items())


def _execute(execute: Callable[[Run], Iterable[Run]], out: Path, limit: float, end: float, run: Run) -> None:
    if torch.cuda.is_available():
        torch.set_num_threads(THREADS)
    start = time.time()
    if (seconds := min(limit, end - start)) <= 0:
        raise TimeoutError("there is no time left")
    signal.signal(signal.SIGALRM, partial(_stop, seconds))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        for result in execute(run):
            append(out, run | result | {"seconds": round(time.time() - start, 1)})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _stop(seconds: float, *_: object) -> None:
    raise TimeoutError(f"stopped after {seconds:.0f} seconds")
