"""The runs of a table: each row is trained with each seed. Finished runs are kept, missing ones are trained."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from scipy.sparse import csr_array, vstack

from hill.card import package_versions
from hill.classifier import HillClassifier
from hill.data import Documents, read_data
from hill.errors import CheckpointError, ConfigError, DataError, HillError
from hill.io import is_training, read_json, save_folder, write_json
from hill.metrics import Scorer
from hill.models import MODELS
from hill.models.inference import write_tensors
from hill.research.compare import DECODINGS, METRICS, PREDICTIONS_FILE, Predictions
from hill.research.rows import ExperimentRow
from hill.settings import Groups, check_one_of
from hill.sparse import to_dense
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.train import Epoch, Step
from hill.train.checkpoint import remove_training
from hill.train.config import LARGEST_SEED
from hill.train.progress import training_progress
from hill.train.trainer import TrainingEvent
from hill.types import IntArray

CHECKOUT = Path(__file__).parents[2]
RECORD = "run.json"
LOG = "log.jsonl"
CLOCK = "clock.jsonl"
MAX_SEEDS = 1_000

HalfArray = npt.NDArray[np.float16]


# What is recorded with a run


@dataclass(frozen=True)
class DatasetInfo:
    """A data set: its name, its taxonomy and its splits."""

    name: str
    taxonomy: Taxonomy
    documents: dict[str, Documents]

    @cached_property
    def sha256(self) -> str:
        """A hash of all labels, ids and texts, which is the same on any machine."""
        digest = hashlib.sha256("\n".join(self.taxonomy.ids).encode())
        for split, documents in self.documents.items():
            digest.update(f"\0{split}\0".encode())
            for part in (documents.labels.indptr, documents.labels.indices):
                digest.update(part.astype("<i8").tobytes())
            for values in (documents.ids, documents.texts):
                for value in values:
                    digest.update(value.encode() + b"\0")
        return digest.hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Name, sizes and hash."""
        sizes = {split: len(documents) for split, documents in self.documents.items()}
        return {"name": self.name, "documents": sizes, "labels": len(self.taxonomy), "sha256": self.sha256}


def read_source(data: Path, taxonomy: Path | None) -> DatasetInfo:
    """Read a data folder with its taxonomy: the given file, or the file taxonomy.* of the folder."""
    if taxonomy is None:
        files = sorted(data.glob("taxonomy.*")) if data.is_dir() else []
        if len(files) != 1:
            names = ", ".join(f"'{file.name}'" for file in files) or "none"
            raise DataError(f"expected one file called taxonomy in '{data}', found {names}; name it with --taxonomy")
        taxonomy = files[0]
    labels = read_taxonomy(taxonomy)
    documents = read_data(data, labels)
    for split in ("train", "test"):
        if not documents.get(split):
            raise DataError(
                f"'{data}' has no {split} documents; an experiment needs train and test, and dev if possible"
            )
    return DatasetInfo(data.resolve().name, labels, documents)


@cache
def versions() -> dict[str, Any]:
    """Versions of packages, the device, and the commit if the package is in a git checkout."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {**package_versions(), "device": device, **_commit()}


def _commit() -> dict[str, Any]:
    """The commit, and whether files differ from it; empty outside of a git checkout."""
    if not (CHECKOUT / ".git").exists():
        return {}
    try:
        sha, changes = (
            subprocess.run(["git", *words], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": sha, "changed": bool(changes)}


class Clock:
    """Measures the time per epoch, without evaluation, and appends one line per epoch to a file.

    The time of an epoch starts when the work before it (tokenising, scoring dev) ends, and stops at its last step. The
    clock waits for that step, because a GPU lags behind. An epoch that was resumed has no time.
    """

    def __init__(self, file: Path, epochs: int) -> None:
        self._file = file
        self._epochs = epochs
        self._start = self._written = time.perf_counter()
        self._complete = False
        self._seconds: float | None = None

    def update(self, event: TrainingEvent) -> bool:
        """Process a training event; returns True at the last step of an epoch."""
        if isinstance(event, Step):
            steps = event.steps // self._epochs
            place = (event.step - 1) % steps + 1
            self._complete |= place == 1
            if place == steps:
                event.loss.item()
                self._seconds = time.perf_counter() - self._start if self._complete else None
            return place == steps
        if isinstance(event, Epoch):
            now = time.perf_counter()
            line = {"epoch": event.epoch, "seconds": self._seconds, "wall": now - self._written}
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self._written, self._seconds = now, None
        self._start, self._complete = time.perf_counter(), False
        return False

    def to_dict(self) -> dict[str, float | list[float] | None]:
        """Seconds of each measured epoch, their mean, and all seconds including evaluation and preparation."""
        lines = _read_jsonl(self._file)
        last = {line["epoch"]: line["seconds"] for line in lines}
        epochs = [round(seconds, 4) for seconds in last.values() if seconds is not None]
        mean = sum(epochs) / len(epochs) if epochs else None
        return {"epochs": epochs, "epoch": mean, "training": round(sum(line["wall"] for line in lines), 4)}


def _read_jsonl(file: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file; none if it does not exist."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


# One run


@dataclass(frozen=True)
class Run:
    """A row with a seed, and the folder of its results."""

    row: ExperimentRow
    seed: int
    folder: Path

    @property
    def scratch(self) -> Path:
        """The folder of the checkpoints until the run is finished."""
        return self.folder.with_name(f"{self.folder.name}.unfinished")

    @property
    def settings(self) -> Groups:
        """All settings with this seed."""
        return {**self.row.settings, "train": {**self.row.settings["train"], "seed": self.seed}}

    @property
    def config(self) -> dict[str, Any]:
        """Settings as they are recorded: paths are reduced to file names, which mean the same on any machine."""
        model = {
            key: Path(value).name if isinstance(value, str) and Path(value).exists() else value
            for key, value in self.settings["model"].items()
        }
        return {**self.settings, "model": {"name": self.row.model, **model}}

    def record(self) -> dict[str, Any] | None:
        """The record of the run, or None if it is not finished."""
        return dict(read_json(self.folder / RECORD)) if self.folder.is_dir() else None


@dataclass(frozen=True)
class Extra:
    """Optional folders for the trained models and the scores of runs."""

    models: Path | None = None
    scores: Path | None = None
    """One file NAME-SEED.npz per run with dev_scores, dev_labels, test_scores and test_labels, (documents, L) each."""


NO_EXTRA = Extra()


def execute_run(run: Run, source: DatasetInfo, extra: Extra) -> Iterator[TrainingEvent]:
    """Train, or resume training, evaluate on dev and test, and save the record and the predictions."""
    classifier = HillClassifier(source.taxonomy, run.row.model, run.settings, preset=None)
    splits = dict(source.documents)
    if "dev" not in splits:
        seed = classifier.train_config.seed
        splits["train"], splits["dev"] = splits["train"].split(classifier.data_config.dev_share, seed)
    clock = Clock(run.scratch / CLOCK, classifier.train_config.epochs)
    peak = yield from _train(classifier, splits, run.scratch, clock)
    scores = {split: np.zeros(splits[split].labels.shape, dtype=np.float16) for split in ("dev", "test")}
    dev, _ = measure(classifier, splits["dev"], splits["train"], scores["dev"])
    start = time.perf_counter()
    test, predictions = measure(classifier, splits["test"], splits["train"], scores["test"])
    seconds = {**clock.to_dict(), "test": round(time.perf_counter() - start, 4)}
    # If an epoch was repeated after a stop, its last line counts.
    epochs = {line["epoch"]: line["dev"] for line in _read_jsonl(run.scratch / LOG) if "dev" in line}
    record = {
        "row": run.row.run,
        "config": run.config,
        "seed": run.seed,
        "seconds": seconds,
        "data": source.to_dict(),
        "versions": versions(),
        "parameters": count_parameters(classifier.stored.model),
        "peak_memory": peak,
        "threshold": classifier.decode_config.threshold,
        "dev": dev,
        "test": test,
        "dev_curve": [
            {"epoch": epoch, **{name: metrics[name] for name in METRICS}} for epoch, metrics in sorted(epochs.items())
        ],
    }
    if extra.models:
        classifier.save(extra.models / run.folder.name)
    if extra.scores:
        extra.scores.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {f"{split}_scores": values for split, values in scores.items()}
        arrays |= {f"{split}_labels": splits[split].labels.toarray() for split in scores}
        np.savez_compressed(extra.scores / f"{run.folder.name}.npz", **arrays)
    tensors = {name: torch.from_numpy(array) for name, array in predictions.arrays().items()}
    with save_folder(run.folder) as draft:
        write_tensors(draft / PREDICTIONS_FILE, tensors)
        write_json(draft / RECORD, record)
    remove_training(run.scratch)
    for name in (LOG, CLOCK):
        (run.scratch / name).unlink(missing_ok=True)
    with suppress(OSError):  # it has files of somebody else
        run.scratch.rmdir()


def _train(
    classifier: HillClassifier, splits: dict[str, Documents], scratch: Path, clock: Clock
) -> Generator[TrainingEvent, None, int | None]:
    """Train; returns the peak GPU memory of the training steps, or None on a CPU."""
    _reset_peak()
    peaks: list[int | None] = []
    data = {split: splits[split] for split in ("train", "dev")}
    for event in classifier.training(data, scratch, resume=is_training(scratch)):
        if clock.update(event):
            peaks.append(_peak())
        elif isinstance(event, Epoch):
            _reset_peak()  # scoring dev does not count
        yield event
    return max((peak for peak in peaks if peak is not None), default=None)


def _reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak() -> int | None:
    """The peak GPU memory in bytes since the last reset; None on a CPU."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


def measure(
    classifier: HillClassifier, documents: Documents, train: Documents, all_scores: HalfArray
) -> tuple[dict[str, Any], Predictions]:
    """All metrics with both decodings: `raw` (threshold 0.5 as in the paper) and `tuned`.

    The scores are written to `all_scores` (documents, L).
    """
    taxonomy, counts, decoder = classifier.taxonomy, train.labels.sum(axis=0), classifier.decoder()
    scorers = {name: Scorer(taxonomy, counts) for name in DECODINGS}
    order: list[IntArray] = []
    batches: dict[str, list[csr_array[Any]]] = {name: [] for name in DECODINGS}
    for rows, scores in classifier.scores(documents.texts):
        order.append(rows)
        all_scores[rows] = to_dense(scores)
        gold = documents.labels[rows]
        for name, predicted in (("raw", scores > 0.5), ("tuned", decoder.decode(scores))):
            scorers[name].update(gold, predicted, scores)
            batches[name].append(csr_array(to_dense(predicted)))
    positions = np.argsort(np.concatenate(order))
    tables = {name: csr_array(vstack(parts, format="csr")[positions]) for name, parts in batches.items()}
    predictions = Predictions(taxonomy, documents.ids, documents.labels, tables)
    return {name: scorer.result() for name, scorer in scorers.items()}, predictions


def count_parameters(model: torch.nn.Module) -> dict[str, int]:
    """The number of weights of the text encoder and of everything else, which is what the paper counts."""
    sizes = {"text": 0, "rest": 0}
    for name, weight in model.named_parameters():
        sizes["text" if name.startswith("text.") else "rest"] += weight.numel()
    return sizes


# The runs of a table


@dataclass(frozen=True)
class RunPlan:
    """The runs of a table: every row with every seed. A run that two rows share occurs once."""

    rows: list[ExperimentRow]
    seeds: list[int]
    out: Path

    def run(self, row: ExperimentRow, seed: int) -> Run:
        """The run of a row with a seed."""
        return Run(row, seed, self.out / "runs" / f"{row.run}-{seed}")

    def runs(self, only: Iterable[str] = ()) -> list[Run]:
        """All runs, seed by seed, so that a first table is complete early; `only` names the rows, if not all."""
        names = list(only)
        for name in names:
            check_one_of(name, [row.name for row in self.rows], "row")
        rows = [row for row in self.rows if row.name in names or not names]
        by_folder = {run.folder: run for seed in self.seeds for run in (self.run(row, seed) for row in rows)}
        return list(by_folder.values())

    def records(self, source: DatasetInfo) -> dict[str, dict[int, dict[str, Any]]]:
        """The records of finished runs per row and seed; a run with other settings or data is an error."""
        records: dict[str, dict[int, dict[str, Any]]] = {}
        for row in self.rows:
            runs = {seed: self.run(row, seed) for seed in self.seeds}
            records[row.name] = {seed: record for seed, run in runs.items() if (record := finished_record(run, source))}
        return records


def read_seeds(text: str) -> list[int]:
    """The seeds 1 to n of a count n, or those of a list such as 7,8,9.

    >>> read_seeds("3"), read_seeds("7,9"), read_seeds("42,")
    ([1, 2, 3], [7, 9], [42])
    """
    with suppress(ValueError):
        if "," not in text:
            seeds = list(range(1, int(text) + 1)) if int(text) <= MAX_SEEDS else []
        else:
            seeds = [int(part) for part in text.split(",") if part.strip()]
        if seeds and len(set(seeds)) == len(seeds) and 0 <= min(seeds) <= max(seeds) <= LARGEST_SEED:
            return seeds
    raise ConfigError(
        f"--seeds is '{text}'; expected a count such as 5, or different seeds such as 7,8,9, from 0 to {LARGEST_SEED}"
    )


def finished_record(run: Run, source: DatasetInfo) -> dict[str, Any] | None:
    """The record of a run if it is finished; raises if its settings or data differ from these."""
    record = run.record()
    if record is None:
        return None
    if record["data"]["sha256"] != source.sha256:
        raise CheckpointError(f"'{run.folder}' was made from other data; choose another --out, or remove it")
    for group, values in run.config.items():
        if group == "train" and MODELS[run.row.model].has_solver:
            continue  # a model that is fitted in closed form ignores them
        for key, value in values.items():
            recorded = record["config"].get(group, {}).get(key, value)
            if recorded != value:
                raise CheckpointError(
                    f"'{run.folder}' was made with {group}.{key} = {recorded!r}, not {value!r}; "
                    "choose another --out, or remove it"
                )
    return record


class FinishedRun(NamedTuple):
    """A run that ended, the error message if it failed, and its duration."""

    run: Run
    problem: str
    seconds: float


def run_missing(
    plan: RunPlan, source: DatasetInfo, only: Iterable[str] = (), extra: Extra = NO_EXTRA, workers: int = 1
) -> Iterator[FinishedRun]:
    """Execute the missing runs, several at a time, and yield each when it ends.

    A run that fails, for example because it does not fit into memory, does not stop the others.
    """
    runs = plan.runs(only)
    missing = [run for run in runs if not finished_record(run, source)]
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"runs: {len(runs)}; done: {len(runs) - len(missing)}")
    in_parallel = workers > 1 and len(missing) > 1
    ended = (
        _run_parallel(missing, source, extra, workers) if in_parallel else _run_each(missing, source, extra, console)
    )
    for number, finished in enumerate(ended, 1):
        run, outcome = finished.run, f"failed: {finished.problem}"
        if not finished.problem:
            test: Groups = (run.record() or {})["test"]
            f1 = {name: (100 * test[name]["micro_f1"], 100 * test[name]["macro_f1"]) for name in DECODINGS}
            outcome = "  ".join(f"{name} {micro:.2f} / {macro:.2f}" for name, (micro, macro) in f1.items())
        line = f"[{number}/{len(missing)}] {run.folder.name}: {outcome} ({finished.seconds:,.0f} s)"
        console.print(line, markup=False)
        yield finished


def _run_parallel(runs: list[Run], source: DatasetInfo, extra: Extra, workers: int) -> Iterator[FinishedRun]:
    """Execute runs in parallel processes; yields each when it ends."""
    threads = max(torch.get_num_threads() // workers, 1)
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        for future in as_completed([pool.submit(_execute, run, source, extra) for run in runs]):
            yield future.result()


def _run_each(runs: list[Run], source: DatasetInfo, extra: Extra, console: Console) -> Iterator[FinishedRun]:
    """Execute runs one by one, each with a progress bar."""
    for run in runs:
        try:
            with training_progress(run.settings["train"]["metric"]) as bar:
                finished = _execute(run, source, extra, bar.show)
        except KeyboardInterrupt:
            console.print(f"stopped in {run.folder.name}; run the same command again to continue")
            raise
        yield finished


def _execute(
    run: Run, source: DatasetInfo, extra: Extra, show: Callable[[TrainingEvent], None] = lambda event: None
) -> FinishedRun:
    """Execute a run; `show` is called with its events, except for the ends of epochs."""
    start, problem = time.perf_counter(), ""
    try:
        for event in execute_run(run, source, extra):
            if not isinstance(event, Epoch):
                show(event)
    except (HillError, torch.OutOfMemoryError) as error:
        problem = str(error).split("\n")[0]
    return FinishedRun(run, problem, time.perf_counter() - start)
