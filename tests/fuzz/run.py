"""Giving inputs to readers: some of the seeds mutated, some drawn; in processes of their own, which may die."""

import multiprocessing
import multiprocessing.connection
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.strategies import SearchStrategy

from hill.tree import build_tree
from tests.conftest import animals_taxonomy
from tests.fuzz.law import Verdict, judge
from tests.fuzz.mutate import mutated
from tests.fuzz.readers import Reader, readers
from tests.fuzz.seeds import Files

TELL = 50
"""Inputs after which a process tells how far it is."""
BATCH = 500
"""Inputs that are drawn at a time."""
KEPT = 3
"""Inputs that are kept of each kind of finding."""
Tick = Callable[[int], None]


@dataclass
class Row:
    """What became of the inputs of one reader; findings by what broke the law, with how often it did."""

    reader: str
    accepted: int = 0
    refused: int = 0
    found: dict[str, int] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """How many there were."""
        return self.accepted + self.refused + sum(self.found.values())

    def add(self, verdict: Verdict) -> None:
        """Count one more."""
        if verdict.kind == "found":
            self.found[verdict.reason] = self.found.get(verdict.reason, 0) + 1
        else:
            setattr(self, verdict.kind, getattr(self, verdict.kind) + 1)


def shares(inputs: int, names: list[str]) -> dict[str, int]:
    """How many inputs each reader gets."""
    every = readers()
    whole = sum(every[name].weight for name in names)
    return {name: max(2, round(inputs * every[name].weight / whole)) for name in names}


def run(inputs: int, seed: int, names: list[str], jobs: int, out: Path, tick: Tick = lambda done: None) -> list[Row]:
    """Give so many inputs to these readers; those that break the law are kept below `out`."""
    counts = shares(inputs, names)
    rows = {name: Row(name) for name in names}
    waiting = [Task(name, 0, counts[name]) for name in sorted(names, key=lambda name: counts[name])]
    with tempfile.TemporaryDirectory() as scratch:
        helpers = [Helper(seed, Path(scratch) / str(number), out) for number in range(min(jobs, len(names)))]
        while going := [helper for helper in helpers if helper.take(waiting)]:
            ready = multiprocessing.connection.wait([helper.pipe for helper in going])
            for helper in [helper for helper in going if helper.pipe in ready]:
                verdicts = helper.hear(rows)
                tick(len(verdicts))
    return list(rows.values())


class Task(NamedTuple):
    """Inputs for a reader: numbers from the first up to the last."""

    reader: str
    first: int
    last: int


class Helper:
    """A process that gives inputs to readers; where it dies, another goes on after the input that killed it."""

    def __init__(self, seed: int, scratch: Path, out: Path) -> None:
        self._seed, self._scratch, self._out = seed, scratch, out
        self._task: Task | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._at = context.Value("q", 0)
        self.pipe, end = context.Pipe()
        self._process = context.Process(target=work, args=(self._seed, self._scratch, self._out, self._at, end))
        self._process.start()
        end.close()

    def take(self, waiting: list[Task]) -> bool:
        """Go on, or begin with the next task; false when there is none, and the process is at its end."""
        if self._task is None and waiting:
            self._task = waiting.pop()
            self.pipe.send(self._task)
        elif self._task is None and self._process.is_alive():
            self.pipe.send(None)
            self._process.join()
        return self._task is not None

    def hear(self, rows: dict[str, Row]) -> list[Verdict]:
        """What became of some inputs."""
        assert self._task
        row, verdicts = rows[self._task.reader], list[Verdict]()
        try:
            verdicts = self.pipe.recv()
        except EOFError:
            verdicts = [self._bury(row)]
        for verdict in verdicts:
            row.add(verdict)
        if not verdicts:
            self._task = None
        return verdicts

    def _bury(self, row: Row) -> Verdict:
        """Keep the input that killed the process, and start another with what is left of the task."""
        assert self._task
        self._process.join()
        verdict = Verdict("found", f"the process ended with {self._process.exitcode}")
        keep(self._scratch, self._out / row.reader, verdict, row.found)
        task = self._task._replace(first=self._at.value + 1)
        self._start()
        self._task = task if task.first < task.last else None
        if self._task:
            self.pipe.send(self._task)
        return verdict


def work(seed: int, scratch: Path, out: Path, at: Any, pipe: Any) -> None:
    """Take tasks, give readers their inputs, and tell what became of them; an empty list ends a task."""
    every = readers()
    for method in ("paper", "authors"):
        build_tree(animals_taxonomy(), 2, method)  # compiles, which no input is to wait for
    while task := pipe.recv():
        told = list[Verdict]()
        for verdict in _verdicts(every[task.reader], seed, task, scratch, out, at):
            told.append(verdict if verdict.kind == "found" else Verdict(verdict.kind))
            if len(told) >= TELL:
                pipe.send(told)
                told = []
        if told:
            pipe.send(told)
        pipe.send([])


def _verdicts(reader: Reader, seed: int, task: Task, folder: Path, out: Path, at: Any) -> Iterator[Verdict]:
    _warm(reader, folder)
    found: dict[str, int] = {}
    for number, files in enumerate(_inputs(reader, seed, task), start=task.first):
        at.value = number
        verdict = judge_files(reader, files, folder)
        if verdict.kind == "found":
            keep(folder, out / reader.name, verdict, found)
            found[verdict.reason] = found.get(verdict.reason, 0) + 1
        yield verdict


def _inputs(reader: Reader, seed: int, task: Task) -> Iterator[Files]:
    """The first half mutated and the second drawn, where a reader has what to draw from."""
    middle = task.last if reader.drawn is None else task.last // 2
    for number in range(task.first, middle):
        yield mutation(reader, seed, number)
    start = max(task.first, middle)
    while reader.drawn and start < task.last:
        batch = drawn_inputs(reader.drawn(), f"{seed}/{reader.name}/{start}", min(BATCH, task.last - start))
        yield from batch
        start += BATCH


def _warm(reader: Reader, folder: Path) -> None:
    """What a reader imports and compiles is no input's fault; and what it is to begin with is good."""
    for files in reader.seeds():
        put(folder, files)
        reader.read(folder)


def judge_files(reader: Reader, files: Files, folder: Path) -> Verdict:
    """What becomes of an input."""
    put(folder, files)
    return judge(lambda: reader.read(folder))


def mutation(reader: Reader, seed: int, number: int) -> Files:
    """The input of this number: one file of a seed changed."""
    draw = Random(f"{seed}/{reader.name}/{number}")
    files = draw.choice(reader.seeds())
    name = draw.choice(list(files))
    others = [each[name] for each in reader.seeds() if name in each] + [files[draw.choice(list(files))]]
    return files | {name: mutated(files[name], others, name, draw)}


def drawn_inputs(strategy: SearchStrategy[Files], seed: str, most: int) -> list[Files]:
    """So many inputs of a strategy, or fewer where it has no more."""
    found: list[Files] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=most,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def examples(files: Files) -> None:
        found.append(files)

    examples()
    return found[:most]


def put(folder: Path, files: Files) -> None:
    """Make a folder that holds these files and no others."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def keep(folder: Path, out: Path, verdict: Verdict, found: dict[str, int]) -> None:
    """Copy an input that broke the law, unless enough of its kind are kept."""
    if found.get(verdict.reason, 0) < KEPT:
        target = next(place for number in count() if not (place := out / str(number)).exists())
        shutil.copytree(folder, target)
        (target / "REASON").write_text(verdict.reason + "\n", encoding="utf-8", errors="replace")
