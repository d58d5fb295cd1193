"""The runs that a table asks for: what is done is kept, what is missing is carried out."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from hill.errors import CheckpointError, ConfigError, HillError
from hill.experiment.facts import Source
from hill.experiment.pool import Ended, run_together
from hill.experiment.rows import Row
from hill.experiment.run import Extra, Run, carry_out
from hill.models import MODELS
from hill.settings import Groups, one_of
from hill.train import Epoch
from hill.train.bar import training_bar

NO_EXTRA = Extra()


@dataclass(frozen=True)
class Plan:
    """The runs that a table asks for: every row with every seed, a run that two rows share once."""

    rows: list[Row]
    seeds: list[int]
    out: Path

    def run(self, row: Row, seed: int) -> Run:
        """The run of a row with a seed."""
        return Run(row, seed, self.out / "runs" / f"{row.run}-{seed}")

    def runs(self, only: Iterable[str] = ()) -> list[Run]:
        """All runs, a seed of every row before the next seed, so that a table can be looked at early."""
        wanted = list(only)
        for name in wanted:
            one_of(name, [row.name for row in self.rows], "row")
        chosen = [row for row in self.rows if row.name in wanted or not wanted]
        found = {run.folder: run for seed in self.seeds for run in (self.run(row, seed) for row in chosen)}
        return list(found.values())

    def records(self, source: Source) -> dict[str, dict[int, dict[str, Any]]]:
        """What is done of each row, by seed; a run with other settings or data is an error."""
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for row in self.rows:
            runs = {seed: self.run(row, seed) for seed in self.seeds}
            found[row.name] = {seed: record for seed, run in runs.items() if (record := done(run, source))}
        return found


def read_seeds(text: str) -> list[int]:
    """The seeds 1 to n of a count n, or those of a list such as 7,8,9.

    >>> read_seeds("3"), read_seeds("7,9"), read_seeds("42,")
    ([1, 2, 3], [7, 9], [42])
    """
    with suppress(ValueError):
        if "," not in text:
            seeds = list(range(1, int(text) + 1))
        else:
            seeds = [int(part) for part in text.split(",") if part.strip()]
        if seeds and len(set(seeds)) == len(seeds):
            return seeds
    raise ConfigError(f"--seeds is '{text}'; expected a count such as 5, or different seeds such as 7,8,9")


def done(run: Run, source: Source) -> dict[str, Any] | None:
    """The record of a finished run, if it is one of these settings and this data."""
    record = run.record()
    if record is None:
        return None
    if record["data"]["sha256"] != source.sum:
        raise CheckpointError(f"'{run.folder}' was made from other data; choose another --out, or remove it")
    for group, values in run.config.items():
        if group == "train" and MODELS[run.row.model].closed:
            continue  # a model that is fitted at once has no use for them
        for key, value in values.items():
            found = record["config"].get(group, {}).get(key, value)
            if found != value:
                raise CheckpointError(
                    f"'{run.folder}' was made with {group}.{key} = {found!r}, not {value!r}; "
                    "choose another --out, or remove it"
                )
    return record


def run_missing(
    plan: Plan, source: Source, only: Iterable[str] = (), extra: Extra = NO_EXTRA, workers: int = 1
) -> Iterator[Ended]:
    """Carry out the runs that are not done, so many at a time, and yield each when it has ended.

    A run that cannot be done, for example because it does not fit the device's memory, does not stop the others.
    """
    wanted = plan.runs(only)
    missing = [run for run in wanted if not done(run, source)]
    console = Console(stderr=True)
    console.print(f"runs: {len(wanted)}; done: {len(wanted) - len(missing)}", highlight=False)
    together = workers > 1 and len(missing) > 1
    ended = run_together(missing, source, extra, workers) if together else _run_each(missing, source, extra, console)
    for number, (run, problem, seconds) in enumerate(ended, 1):
        outcome = f"failed: {problem}" if problem else _outcome(run)
        line = f"[{number}/{len(missing)}] {run.folder.name}: {outcome} ({seconds:,.0f} s)"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        yield Ended(run, problem, seconds)


def _run_each(runs: list[Run], source: Source, extra: Extra, console: Console) -> Iterator[Ended]:
    """One after the other, each with a progress bar."""
    for run in runs:
        start, problem = time.perf_counter(), ""
        try:
            _follow(run, source, extra)
        except (HillError, torch.OutOfMemoryError) as error:
            problem = str(error).split("\n")[0]
        except KeyboardInterrupt:
            console.print(f"stopped in {run.folder.name}; the same command goes on", highlight=False, soft_wrap=True)
            raise
        yield Ended(run, problem, time.perf_counter() - start)


def _follow(run: Run, source: Source, extra: Extra) -> None:
    with training_bar(run.settings["train"]["metric"]) as bar:
        for report in carry_out(run, source, extra):
            if not isinstance(report, Epoch):
                bar.show(report)


def _outcome(run: Run) -> str:
    test: Groups = (run.record() or {})["test"]
    return "  ".join(
        f"{name} {100 * test[name]['micro_f1']:.2f} / {100 * test[name]['macro_f1']:.2f}" for name in ("raw", "tuned")
    )
