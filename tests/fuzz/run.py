"""Give inputs to readers, mutated seeds and drawn ones, in processes that may die."""

import itertools
import multiprocessing
import multiprocessing.connection
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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

REPORT_EVERY = 50
"""Number of inputs after which a process reports its results."""
BATCH = 500
"""Number of inputs that are drawn at a time."""
MAX_EXAMPLES = 3
"""Number of inputs that are stored per kind of finding."""
Tick = Callable[[int], None]


@dataclass
class Row:
    """The results of one reader; `found` counts findings by reason."""

    reader: str
    accepted: int = 0
    refused: int = 0
    found: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    """The longest processor time of one input."""
    megabytes: float = 0.0
    """How much the memory of the process grew after the first input."""

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.accepted + self.refused + sum(self.found.values())

    def add(self, verdict: Verdict) -> None:
        """Count a verdict."""
        if verdict.kind == "found":
            self.found[verdict.reason] = self.found.get(verdict.reason, 0) + 1
        else:
            setattr(self, verdict.kind, getattr(self, verdict.kind) + 1)


def shares(inputs: int, names: list[str]) -> dict[str, int]:
    """Number of inputs per reader."""
    weights = {name: readers()[name].weight for name in names}
    total = sum(weights.values())
    return {name: max(2, round(inputs * weight / total)) for name, weight in weights.items()}


def run(inputs: int, seed: int, names: list[str], jobs: int, out: Path, tick: Tick = lambda done: None) -> list[Row]:
    """Give this many inputs to these readers; inputs with findings are stored in `out`."""
    counts = shares(inputs, names)
    rows = {name: Row(name) for name in names}
    pending = [Task(name, 0, counts[name]) for name in sorted(names, key=lambda name: counts[name])]
    with tempfile.TemporaryDirectory() as scratch:
        workers = [Worker(seed, Path(scratch) / str(number), out) for number in range(min(jobs, len(names)))]
        while running := [worker for worker in workers if worker.take(pending)]:
            ready = multiprocessing.connection.wait([worker.pipe for worker in running])
            for worker in [worker for worker in running if worker.pipe in ready]:
                verdicts = worker.receive(rows)
                tick(len(verdicts))
    return list(rows.values())


class Task(NamedTuple):
    """The inputs of a reader from number `first` to `last` (exclusive)."""

    reader: str
    first: int
    last: int


class Report(NamedTuple):
    """Verdicts on some inputs of a reader, the longest time of one so far, and the memory added so far."""

    verdicts: list[Verdict]
    seconds: float = 0.0
    megabytes: float = 0.0


class Worker:
    """A process that gives inputs to readers. If it dies, another one continues after the input that killed it."""

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

    def take(self, pending: list[Task]) -> bool:
        """Continue, or start the next task; if there is none, end the process and return false."""
        if self._task is None and pending:
            self._task = pending.pop()
            self.pipe.send(self._task)
        elif self._task is None and self._process.is_alive():
            self.pipe.send(None)
            self._process.join()
        return self._task is not None

    def receive(self, rows: dict[str, Row]) -> list[Verdict]:
        """The verdicts on some inputs."""
        assert self._task
        row = rows[self._task.reader]
        try:
            report: Report = self.pipe.recv()
        except EOFError:
            report = Report([self._replace_process(row)])
        for verdict in report.verdicts:
            row.add(verdict)
        row.seconds, row.megabytes = max(row.seconds, report.seconds), max(row.megabytes, report.megabytes)
        if not report.verdicts:
            self._task = None
        return report.verdicts

    def _replace_process(self, row: Row) -> Verdict:
        """Store the input that killed the process, and start another one with the rest of the task."""
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
    """Run tasks and send reports; one without verdicts ends a task."""
    all_readers = readers()
    for method in ("paper", "authors"):
        build_tree(animals_taxonomy(), 2, method)  # compile before the time is measured
    while task := pipe.recv():
        reader, verdicts, slowest = all_readers[task.reader], list[Verdict](), 0.0
        _warm(reader, scratch)
        before = used_memory()
        for verdict, seconds in _verdicts(reader, seed, task, scratch, out, at):
            verdicts.append(verdict if verdict.kind == "found" else Verdict(verdict.kind))
            slowest = max(slowest, seconds)
            if len(verdicts) >= REPORT_EVERY:
                pipe.send(Report(verdicts, slowest, used_memory() - before))
                verdicts = []
        if verdicts:
            pipe.send(Report(verdicts, slowest, used_memory() - before))
        pipe.send(Report([]))


def used_memory() -> float:
    """The memory of this process in megabytes, without mapped files; 0 on systems without /proc."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "VmSwap:"))) / 1024


def _verdicts(
    reader: Reader, seed: int, task: Task, folder: Path, out: Path, at: Any
) -> Iterator[tuple[Verdict, float]]:
    """The verdict on each input, and its processor time in seconds."""
    found: dict[str, int] = {}
    for number, files in enumerate(_inputs(reader, seed, task), start=task.first):
        at.value = number
        started = time.process_time()
        verdict = judge_files(reader, files, folder)
        seconds = time.process_time() - started
        if verdict.kind == "found":
            keep(folder, out / reader.name, verdict, found)
            found[verdict.reason] = found.get(verdict.reason, 0) + 1
        yield verdict, seconds


def _inputs(reader: Reader, seed: int, task: Task) -> Iterator[Files]:
    """The first half is mutated, the second half is drawn if the reader has a strategy."""
    middle = task.last if reader.drawn is None else task.last // 2
    for number in range(task.first, middle):
        yield mutation(reader, seed, number)
    start = max(task.first, middle)
    while reader.drawn and start < task.last:
        batch = drawn_inputs(reader.drawn(), f"{seed}/{reader.name}/{start}", min(BATCH, task.last - start))
        yield from batch
        start += BATCH


def _warm(reader: Reader, folder: Path) -> None:
    """Import and compile before the time is measured, and check that the seeds are valid."""
    for files in reader.seeds():
        put(folder, files)
        reader.read(folder)


def judge_files(reader: Reader, files: Files, folder: Path) -> Verdict:
    """The verdict on an input."""
    put(folder, files)
    return judge(lambda: reader.read(folder))


def mutation(reader: Reader, seed: int, number: int) -> Files:
    """The input with this number: a seed with one mutated file."""
    draw = Random(f"{seed}/{reader.name}/{number}")
    files = draw.choice(reader.seeds())
    name = draw.choice(list(files))
    others = [each[name] for each in reader.seeds() if name in each] + [files[draw.choice(list(files))]]
    return files | {name: mutated(files[name], others, name, draw)}


def drawn_inputs(strategy: SearchStrategy[Files], seed: str, count: int) -> list[Files]:
    """This many inputs from a strategy, or fewer if it has no more."""
    found: list[Files] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
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
    return found[:count]


def put(folder: Path, files: Files) -> None:
    """Write these files to a folder and remove all others."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def keep(folder: Path, out: Path, verdict: Verdict, found: dict[str, int]) -> None:
    """Copy an input with a finding, unless enough with the same reason are stored."""
    if found.get(verdict.reason, 0) < MAX_EXAMPLES:
        target = next(path for number in itertools.count() if not (path := out / str(number)).exists())
        shutil.copytree(folder, target)
        (target / "REASON").write_text(verdict.reason + "\n", encoding="utf-8", errors="replace")
