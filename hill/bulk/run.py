"""Bulk prediction: from a file to a file, or from many files to a folder of Parquet files.

`Bulk` cuts its input into parts and gives those that are not written yet to an engine: processes on this machine, or
Ray. Each part becomes one file, complete or not at all, so a run that was stopped continues with the missing parts.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hill.bulk import write
from hill.bulk.source import CHUNK, Cut, InputRow, Part, find_parts, need_parquet
from hill.bulk.write import Columns, RowOptions, Written, read_written, write_part
from hill.data import find_splits
from hill.data.readers import read_fields
from hill.errors import ConfigError, DataError, HillError, need
from hill.io import atomic_file
from hill.predictor import Predictor
from hill.settings import check_at_least, check_one_of
from hill.taxonomy import Taxonomy
from hill.taxonomy.taxonomy import SEPARATOR
from hill.types import Prediction

MAX_ATTEMPTS = 3
"""How often a part is started if the processes that write it die."""
MAX_BLOCKS = 10_000
"""Maximum number of blocks of the Ray dataset of parts."""

Load = Callable[[], Predictor]
LoadColumns = Callable[[], Columns]

# From a file to a file

CELL_SEPARATOR = "|"
"""Between the values in a cell of a CSV file, as `hill train` reads labels."""


def predict_file(
    predictor: Predictor,
    source: Path,
    target: Path,
    tick: Callable[[int], None] = lambda documents: None,
    options: RowOptions | None = None,
) -> int:
    """Predict every record of a data file, and return their number.

    The ending of the target is its format: JSONL, CSV or Parquet. It is written completely or not at all. `tick` is
    called with the number of documents of each chunk.
    """
    options = options or RowOptions()
    check_target(target)
    files = [file for split in find_splits(source).values() for file in split]
    if any(target.exists() and os.path.samefile(file, target) for file in files):
        raise DataError(f"--output is the input file '{target}'; give another --output")
    records, count = read_fields(files, options.text_column), 0
    with atomic_file(target) as draft, WRITERS[target.suffix.lower()](draft, predictor, options) as write_rows:
        while chunk := list(islice(records, CHUNK)):
            write_rows(chunk)
            count += len(chunk)
            tick(len(chunk))
    return count


def check_target(target: Path) -> None:
    """Raise if this is not the name of a file in a format that predictions can be written in."""
    if target.suffix.lower() not in WRITERS:
        raise ConfigError(f"--output is '{target}'; expected a name that ends in {', '.join(WRITERS)}, or a folder")


def prediction_document(prediction: Prediction, taxonomy: Taxonomy) -> dict[str, Any]:
    """A prediction as plain values."""

    def names(labels: Iterable[str]) -> list[str]:
        return [taxonomy[taxonomy.row(label)].name for label in labels]

    document: dict[str, Any] = {
        "labels": list(prediction.labels),
        "names": names(prediction.labels),
        "scores": [round(score, 6) for score in prediction.scores],
        "paths": [names(path) for path in prediction.paths],
    }
    if prediction.runners_up is not None:
        labels = [label for label, _ in prediction.runners_up]
        scores = [round(score, 6) for _, score in prediction.runners_up]
        document |= {"runners_up": labels, "runner_up_names": names(labels), "runner_up_scores": scores}
    return document


Rows = list[tuple[str, str]]
"""The id and text of each document."""


def _documents(rows: Rows, predictor: Predictor, options: RowOptions) -> Iterator[dict[str, Any]]:
    predictions = predictor.predictions([text for _, text in rows], options.top)
    for (key, text), prediction in zip(rows, predictions, strict=True):
        carried = {"id": key, "text": text} if options.with_text else {"id": key}
        yield carried | prediction_document(prediction, predictor.taxonomy)


@contextmanager
def _write_jsonl(file: Path, predictor: Predictor, options: RowOptions) -> Iterator[Callable[[Rows], None]]:
    with file.open("w", encoding="utf-8") as out:

        def write_rows(rows: Rows) -> None:
            for document in _documents(rows, predictor, options):
                out.write(json.dumps(document, ensure_ascii=False) + "\n")

        yield write_rows


@contextmanager
def _write_csv(file: Path, predictor: Predictor, options: RowOptions) -> Iterator[Callable[[Rows], None]]:
    """One cell per value; lists are joined, or are JSON if one of their items has the separator."""

    def cell(value: Any) -> str:
        items = [SEPARATOR.join(item) if isinstance(item, list) else str(item) for item in value]
        has_separator = any(CELL_SEPARATOR in item for item in items)
        return json.dumps(items, ensure_ascii=False) if has_separator else CELL_SEPARATOR.join(items)

    with file.open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        header = {"id": "", "text": ""} if options.with_text else {"id": ""}
        table.writerow(header | prediction_document(Prediction((), (), (), () if options.top else None), Taxonomy([])))

        def write_rows(rows: Rows) -> None:
            for document in _documents(rows, predictor, options):
                table.writerow([value if isinstance(value, str) else cell(value) for value in document.values()])

        yield write_rows


@contextmanager
def _write_parquet(file: Path, predictor: Predictor, options: RowOptions) -> Iterator[Callable[[Rows], None]]:
    columns = Columns(predictor, options)
    _, parquet = need_parquet()
    with parquet.ParquetWriter(file, columns.schema) as out:
        yield lambda rows: out.write_table(columns.table([InputRow(key, text, None) for key, text in rows]))


WRITERS = {
    ".csv": _write_csv,
    **dict.fromkeys((".jsonl", ".json"), _write_jsonl),
    ".parquet": _write_parquet,
}


# To a folder


class Bulk:
    """A job that predicts every row of the input and writes the predictions to a folder of Parquet files.

    Args:
        load: loads the model; called in each process or actor that predicts.
        model: folder of the model. Its checksum ensures that a run is continued with the same model.
        source: a file, a folder, a glob or a URI of JSONL, CSV or Parquet.
        folder: the output folder.
        engine: `local` or `ray`.
        workers: number of processes or actors. 0: one process; or one actor per GPU, or per core if there is no GPU.
        cut: how large files are cut into parts.
        options: which column has the texts, and what is written besides the predictions.
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
        options: RowOptions | None = None,
    ) -> None:
        check_one_of(engine, ENGINES, "engine")
        check_at_least(workers, 0, "workers")
        self._options = options or RowOptions()
        self._load = partial(_load_columns, load, self._options)
        self._model, self._cut = Path(model), cut or Cut()
        self._engine, self._workers = ENGINES[engine], workers
        self.folder = Path(folder).resolve()
        self.parts = find_parts(source, self._cut, self.folder)
        self.written: list[Written] = []
        """The parts on disk."""

    def run(self) -> Iterator[int]:
        """Write the missing parts. Yields numbers of new rows; negative ones take back those of a process that died."""
        with write.lock_predictions(self.folder):
            write.write_manifest(self.folder, self._model, self._cut, self.parts, self._options)
            missing, self.written = [], []
            for part in self.parts:
                file = self.folder / part.name
                if written := read_written(file, part.name):
                    self.written.append(written)
                elif os.path.lexists(file):
                    raise ConfigError(f"'{file}' is damaged or not from hill; move it, or give another --output")
                else:
                    missing.append(part)
            yield self.rows
            for step in self._engine(self._load, missing, self.folder, self._workers):
                if isinstance(step, Written):
                    self.written.append(step)
                else:
                    yield step
            write.write_done(self.folder, self.written)

    @property
    def rows(self) -> int:
        """Number of rows on disk."""
        return sum(written.rows for written in self.written)

    @property
    def bad(self) -> int:
        """Number of rows with an error instead of labels."""
        return sum(written.bad for written in self.written)

    @property
    def example(self) -> str:
        """One of these errors."""
        return next((written.example for written in self.written if written.bad), "")


def _load_columns(load: Load, options: RowOptions) -> Columns:
    return Columns(load(), options)


# The local engine


@dataclass
class _Worker:
    """A process, the part that it writes, and the number of rows of this part that it has predicted."""

    process: BaseProcess
    cores: slice
    part: Part
    rows: int = 0


def _run_local(load: LoadColumns, parts: Sequence[Part], folder: Path, workers: int) -> Iterator[int | Written]:
    """Write parts on this machine; yields numbers of rows, and each part when it is written."""
    if workers > 1 and len(parts) > 1:
        yield from _run_processes(load, parts, folder, min(workers, len(parts)))
    elif parts:
        columns = load()
        for part in parts:
            yield from write_part(columns, part, folder)


def _run_processes(load: LoadColumns, parts: Sequence[Part], folder: Path, n_workers: int) -> Iterator[int | Written]:
    """Write parts in several processes. A process that dies is replaced, and its part starts again.

    `concurrent.futures.ProcessPoolExecutor` does not suffice: if one process dies it ends all others, without saying
    which part was the cause, and before Python 3.14 it cannot stop a running part on Ctrl-C.
    """
    context, pending, deaths = get_context("spawn"), iter(parts), Counter[str]()
    workers: dict[Any, _Worker] = {}  # by connection

    def start(cores: slice, part: Part) -> None:
        pipe, child_pipe = context.Pipe()
        process = context.Process(target=_run_worker, args=(child_pipe, load, folder, cores), daemon=True)
        process.start()
        child_pipe.close()
        pipe.send(part)
        workers[pipe] = _Worker(process, cores, part)

    try:
        for index, part in enumerate(islice(pending, n_workers)):
            start(slice(index, None, n_workers), part)
        while workers:
            ready: list[Any] = connection.wait(list(workers))
            for pipe in ready:
                worker = workers[pipe]
                try:
                    step: int | Written | HillError = pipe.recv()
                except (EOFError, OSError):  # the process has died
                    del workers[pipe]
                    worker.process.join()
                    yield -worker.rows
                    part = worker.part
                    deaths[part.name] += 1
                    if deaths[part.name] == MAX_ATTEMPTS:
                        raise HillError(
                            f"{MAX_ATTEMPTS} processes died on '{part.source}' (exit code {worker.process.exitcode}), "
                            "perhaps because of too little memory; finished parts are kept: run it again with fewer "
                            "--workers"
                        ) from None
                    start(worker.cores, part)
                    continue
                if isinstance(step, HillError):
                    raise step
                yield step
                if isinstance(step, int):
                    worker.rows += step
                elif next_part := next(pending, None):
                    worker.part, worker.rows = next_part, 0
                    pipe.send(next_part)
                else:
                    del workers[pipe]
                    pipe.close()
                    worker.process.join()
    finally:
        for worker in workers.values():
            worker.process.kill()
            worker.process.join()


def _run_worker(pipe: Any, load: LoadColumns, folder: Path, cores: slice) -> None:
    """Write parts until the pipe is closed; runs in a worker process on some of the cores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the main process ends this one
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[cores.start % len(allowed) :: cores.step])
    try:
        columns = load()
        while True:
            for step in write_part(columns, pipe.recv(), folder):
                pipe.send(step)
    except HillError as error:
        pipe.send(error)
    except (EOFError, BrokenPipeError):
        pass


# The Ray engine


def _run_ray(load: LoadColumns, parts: Sequence[Part], folder: Path, workers: int) -> Iterator[int | Written]:
    """Write parts with Ray; yields the number of rows of each part, and the part."""
    ray = need("ray", "ray", "the engine ray")
    need("ray.data", "ray", "the engine ray")
    if not parts:
        return
    initialized_here = not ray.is_initialized()
    if initialized_here:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    n_gpus = int(ray.cluster_resources().get("GPU", 0))
    n_actors = min(workers or n_gpus or int(ray.cluster_resources().get("CPU", 1)), len(parts))
    try:
        items = [{"part": json.dumps(asdict(part))} for part in parts]
        dataset = ray.data.from_items(items, override_num_blocks=min(len(items), MAX_BLOCKS))
        dataset.context.enable_progress_bars = False
        results = dataset.map_batches(
            _PartWriter,
            fn_constructor_args=(load, folder),
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=n_actors, max_tasks_in_flight_per_actor=1),
            num_cpus=1,
            num_gpus=1 if n_gpus else 0,
        )
        for result in (json.loads(row["result"]) for row in results.iter_rows()):
            if "error" in result:
                raise HillError(result["error"])
            yield result["rows"]
            yield Written(**result)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().split("\n")[-1][:300]
        raise HillError(f"Ray failed: {reason}; finished parts are kept: run it again to continue") from None
    finally:
        if initialized_here:
            ray.shutdown()


class _PartWriter:
    """A Ray actor that loads the model once and writes one part after the other."""

    def __init__(self, load: LoadColumns, folder: Path) -> None:
        self._columns, self._folder = load(), folder

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Write a part. An expected error is returned, because Ray would retry if it were raised."""
        part = Part(**json.loads(batch["part"].item()))
        try:
            if write.count_drafts(self._folder / part.name) >= MAX_ATTEMPTS:  # Ray itself retries without limit
                raise HillError(
                    f"{MAX_ATTEMPTS} actors died on '{part.source}', perhaps because of too little memory; finished "
                    "parts are kept"
                )
            # The part is on disk if an actor died right after it wrote it.
            written = read_written(self._folder / part.name, part.name)
            steps = [written] if written else write_part(self._columns, part, self._folder)
            result = next(asdict(step) for step in steps if isinstance(step, Written))
        except HillError as error:
            result = {"error": str(error)}
        return {"result": [json.dumps(result)]}


Engine = Callable[[LoadColumns, Sequence[Part], Path, int], Iterator[int | Written]]

ENGINES: dict[str, Engine] = {"local": _run_local, "ray": _run_ray}
