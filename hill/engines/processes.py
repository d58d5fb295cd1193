"""The local engine: parts predicted in this process, or shared among several on this machine."""

from __future__ import annotations

import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from hill.engines.columns import Columns
from hill.engines.parts import Part
from hill.engines.write import Written, write_part
from hill.errors import HillError
from hill.predictor import Predictor

TRIES = 3
"""How often a part is begun whose processes die."""
Load = Callable[[], Predictor]
Pipe = connection.Connection


def run_local(load: Load, parts: Sequence[Part], folder: Path, workers: int) -> Iterator[int | Written]:
    """Write these parts, yielding rows as they are done and each part that is written."""
    if workers > 1 and len(parts) > 1:
        yield from _share(load, parts, folder, min(workers, len(parts)))
    elif parts:
        columns = Columns(load())
        for part in parts:
            yield from write_part(columns, part, folder)


@dataclass
class _Worker:
    process: BaseProcess
    share: tuple[int, int]
    part: Part
    rows: int = 0
    """Rows of the part that were reported."""


def _share(load: Load, parts: Sequence[Part], folder: Path, workers: int) -> Iterator[int | Written]:
    waiting, tries = deque(parts), Counter[str]()
    crew: dict[Pipe, _Worker] = {}
    try:
        for number in range(workers):
            _hire(crew, waiting.popleft(), load, folder, (number, workers))
        while crew:
            for pipe in connection.wait(list(crew)):
                assert isinstance(pipe, Pipe)
                worker = crew[pipe]
                step = _receive(pipe)
                if step is None:
                    yield -worker.rows
                    crew.pop(pipe).process.join()
                    tries[worker.part.name] += 1
                    _refuse_dying(worker, tries[worker.part.name])
                    _hire(crew, worker.part, load, folder, worker.share)
                    continue
                if isinstance(step, HillError):
                    raise step
                yield step
                worker.rows += step if isinstance(step, int) else 0
                if isinstance(step, Written):
                    _next(crew, pipe, waiting)
    finally:
        for worker in crew.values():
            worker.process.kill()
            worker.process.join()


def _hire(crew: dict[Pipe, _Worker], part: Part, load: Load, folder: Path, share: tuple[int, int]) -> None:
    """Start a process, with its first part."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, load, folder, share), daemon=True)
    process.start()
    theirs.close()
    crew[ours] = _Worker(process, share, part)
    ours.send(part)


def _next(crew: dict[Pipe, _Worker], pipe: Pipe, waiting: deque[Part]) -> None:
    """Give a process its next part, or let it go."""
    if waiting:
        crew[pipe].part, crew[pipe].rows = waiting.popleft(), 0
        pipe.send(crew[pipe].part)
    else:
        pipe.close()
        crew.pop(pipe).process.join()


def _receive(pipe: Pipe) -> int | Written | HillError | None:
    """What a process reports; None where it has died."""
    try:
        step: int | Written | HillError = pipe.recv()
        return step
    except (EOFError, OSError):
        return None


def _refuse_dying(worker: _Worker, tries: int) -> None:
    if tries == TRIES:
        raise HillError(
            f"{TRIES} processes died on '{worker.part.source}' (exit code {worker.process.exitcode}), perhaps for want "
            "of memory; what is written stays: run it again with fewer --workers"
        )


def _work(pipe: Pipe, load: Load, folder: Path, share: tuple[int, int]) -> None:
    """Write parts until none comes, in a process that has its share of the cores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[share[0] % len(cores) :: share[1]])
    try:
        columns = Columns(load())
        while True:
            for step in write_part(columns, pipe.recv(), folder):
                pipe.send(step)
    except HillError as error:
        pipe.send(error)
    except (EOFError, BrokenPipeError):
        pass
