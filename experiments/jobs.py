"""Runs of an experiment by several processes at a time, each run with a time limit; shared by programs that train.

A run is a dictionary that names it, such as {"data": "wos", "seed": 1}. It yields results, and each is written at once
as a JSON line that begins with the name of the run. Runs whose last result is in the file are not repeated.
"""

import argparse
import json
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from frozen import append

Run = dict[str, Any]
Plan = Callable[[list[Run]], Iterable[Run]]
"""The runs that can be executed, given the results so far; later runs may depend on earlier results."""
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
    plan: Plan,
    given: argparse.Namespace,
    is_last: Callable[[Run], bool] = bool,
) -> None:
    """Execute the planned runs whose last result is not in the file yet, in this order; plan again after each run."""
    end = time.time() + given.seconds
    work = partial(_execute, execute, given.out, given.limit, end)
    started: list[Run] = []
    futures: dict[Future[None], Run] = {}
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        while True:
            results = read_results(given.out)
            done = [row for row in results if is_last(row)]
            for run in plan(results):
                if run not in started and not any(contains(row, run) for row in done):
                    started.append(run)
                    futures[pool.submit(work, run)] = run
            if not futures:
                return
            for future in wait(futures, return_when=FIRST_COMPLETED).done:
                run = futures.pop(future)
                if error := future.exception():  # a run that fails does not stop the others
                    print(run, f"{type(error).__name__}: {error}", flush=True)


def read_results(file: Path) -> list[Run]:
    """The results in a file of JSON lines; none if it does not exist."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


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
