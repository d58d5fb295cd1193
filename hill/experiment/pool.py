"""Several runs at a time, each in a process of its own: small models do not fill a GPU, or all cores."""

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

import torch

from hill.errors import HillError
from hill.experiment.facts import Source
from hill.experiment.run import Extra, Run, carry_out


class Ended(NamedTuple):
    """A run that has ended, with a word on how it went wrong, or none, and how long it took."""

    run: Run
    problem: str
    seconds: float


class Worker:
    """What a process of the pool holds between runs."""

    source: Source
    extra: Extra


def run_together(runs: list[Run], source: Source, extra: Extra, workers: int) -> Iterator[Ended]:
    """Carry out runs, so many at a time; yields each when it has ended."""
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(source, extra, workers))
    with pool:
        for future in as_completed([pool.submit(_carry_out, run) for run in runs]):
            yield future.result()


def _begin(source: Source, extra: Extra, workers: int) -> None:
    Worker.source, Worker.extra = source, extra
    torch.set_num_threads(max(torch.get_num_threads() // workers, 1))


def _carry_out(run: Run) -> Ended:
    start, problem = time.perf_counter(), ""
    try:
        for _ in carry_out(run, Worker.source, Worker.extra):
            pass
    except (HillError, torch.OutOfMemoryError) as error:
        problem = str(error).split("\n")[0]
    return Ended(run, problem, time.perf_counter() - start)
