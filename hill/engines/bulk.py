"""Prediction in bulk: many files in, a folder of Parquet out, part by part, going on where a run was stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hill.engines.manifest import claimed, finish, settle
from hill.engines.parts import Cut, Part, find_parts
from hill.engines.processes import Load, run_local
from hill.engines.ray import run_ray
from hill.engines.write import Written, read_written
from hill.settings import at_least, one_of

Engine = Callable[[Load, Sequence[Part], Path, int], Iterator[int | Written]]
ENGINES: dict[str, Engine] = {"local": run_local, "ray": run_ray}


class Bulk:
    """A job: what a model says of every row of the input, as parts in a folder.

    Args:
        load: gives the model, in each process or actor that predicts.
        model: folder of the model, by whose sum a job knows that it goes on with the same.
        source: a file, a folder, a glob or a URI of JSONL, CSV or Parquet.
        folder: where the parts go, with a manifest beside them.
        engine: `local` or `ray`.
        workers: processes or actors; 0: one process, or an actor for each GPU, else for each core.
        cut: where large files are cut.
    """

    def __init__(
        self,
        load: Load,
        model: str | os.PathLike[str],
        source: str,
        folder: str | os.PathLike[str],
        engine: str = "local",
        workers: int = 0,
        cut: Cut | None = None,
    ) -> None:
        one_of(engine, ENGINES, "engine")
        at_least(workers, 0, "workers")
        self._load, self._model, self._cut = load, Path(model), cut or Cut()
        self._run, self._workers = ENGINES[engine], workers
        self.folder = Path(folder).resolve()
        self.parts = find_parts(source, self._cut, self.folder)
        self.written: list[Written] = []
        """The parts that are on disk."""

    def run(self) -> Iterator[int]:
        """Write what is not there yet, yielding rows as they are done; those of a process that died are taken back."""
        with claimed(self.folder):
            settle(self.folder, self._model, self._cut, self.parts)
            found = [read_written(self.folder / part.name, part.name) for part in self.parts]
            self.written = [written for written in found if written]
            yield self.rows
            left = [part for part, written in zip(self.parts, found, strict=True) if not written]
            for step in self._run(self._load, left, self.folder, self._workers):
                if isinstance(step, Written):
                    self.written.append(step)
                else:
                    yield step
            finish(self.folder, self.written)

    @property
    def rows(self) -> int:
        """Rows of the parts that are on disk."""
        return sum(written.rows for written in self.written)

    @property
    def bad(self) -> int:
        """How many of them have an error in place of labels."""
        return sum(written.bad for written in self.written)

    @property
    def example(self) -> str:
        """One of these errors."""
        return next((written.example for written in self.written if written.bad), "")
