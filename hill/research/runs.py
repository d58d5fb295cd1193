"""The runs of a table: each row is trained with each seed. Finished runs are kept, missing ones are trained."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Generator, Iterable, Iterator
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

from hill.card import package_versions
from hill.classifier import HillClassifier
from hill.data import Documents, read_data
from hill.errors import CheckpointError, ConfigError, DataError, HillError
from hill.io import is_training, read_json, save_folder, write_json
from hill.metrics import Scorer
from hill.models import MODELS
from hill.models.inference import write_tensors
from hill.research.predictions import PREDICTIONS_FILE, CollectedLabels, Predictions
from hill.research.rows import ExperimentRow
from hill.settings import Groups, check_one_of
from hill.sparse import to_dense
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.train import Epoch, Step
from hill.train.checkpoint import remove_training
from hill.train.config import LARGEST_SEED
from hill.train.progress import training_progress
from hill.train.trainer import TrainingEvent

CHECKOUT = Path(__file__).parents[2]


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
    labels = read_taxonomy(taxonomy or _find_taxonomy(data))
    documents = read_data(data, labels)
    for split in ("train", "test"):
        if not documents.get(split):
            raise DataError(
                f"'{data}' has no {split} documents; an experiment needs train and test, and dev if possible"
            )
    return DatasetInfo(data.resolve().name, labels, documents)


def _find_taxonomy(data: Path) -> Path:
    found = sorted(data.glob("taxonomy.*")) if data.is_dir() else []
    if len(found) != 1:
        names = ", ".join(f"'{file.name}'" for file in found) or "none"
        raise DataError(f"expected one file called taxonomy in '{data}', found {names}; name it with --taxonomy")
    return found[0]


@cache
def versions() -> dict[str, Any]:
    """Versions of packages, the device, and the commit if the package is in a git checkout."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {**package_versions(), "device": device, **_commit()}


def _commit() -> dict[str, Any]:
    """The commit and if files differ from it; empty outside of a git checkout."""
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
            self._write(event.epoch)
        self._start, self._complete = time.perf_counter(), False
        return False

    def _write(self, epoch: int) -> None:
        now = time.perf_counter()
        line = {"epoch": epoch, "seconds": self._seconds, "wall": now - self._written}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._written, self._seconds = now, None

    def to_dict(self) -> dict[str, float | list[float] | None]:
        """Seconds of each measured epoch, their mean, and all seconds including evaluation and preparation."""
        written = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        lines = [json.loads(line) for line in written]
        last = {line["epoch"]: line["seconds"] for line in lines}
        epochs = [round(seconds, 4) for seconds in last.values() if seconds is not None]
        mean = sum(epochs) / len(epochs) if epochs else None
        return {"epochs": epochs, "epoch": mean, "training": round(sum(line["wall"] for line in lines), 4)}


HalfArray = npt.NDArray[np.float16]
RECORD = "run.json"
LOG = "log.jsonl"
CLOCK = "clock.jsonl"


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
        model = {key: _name(value) for key, value in self.settings["model"].items()}
        return {**self.settings, "model": {"name": self.row.model, **model}}

    def record(self) -> dict[str, Any] | None:
        """The record of the run, or None if it is not finished."""
        found: dict[str, Any] | None = read_json(self.folder / RECORD) if self.folder.is_dir() else None
        return found


@dataclass(frozen=True)
class Extra:
    """Optional folders for the trained models and the scores of runs."""

    models: Path | None = None
    scores: Path | None = None
    """One file NAME-SEED.npz per run with dev_scores, dev_labels, test_scores and test_labels, (documents, L) each."""


def execute_run(run: Run, source: DatasetInfo, extra: Extra) -> Iterator[TrainingEvent]:
    """Train, or resume training, evaluate on dev and test, and save the record and the predictions."""
    classifier = HillClassifier(source.taxonomy, run.row.model, run.settings)
    splits = _splits(classifier, source.documents)
    clock = Clock(run.scratch / CLOCK, classifier.train_config.epochs)
    peak = yield from _train(classifier, splits, run.scratch, clock)
    scores = {split: np.zeros(splits[split].labels.shape, dtype=np.float16) for split in ("dev", "test")}
    dev, _ = measure(classifier, splits["dev"], splits["train"], scores["dev"])
    start = time.perf_counter()
    test, predictions = measure(classifier, splits["test"], splits["train"], scores["test"])
    record = {
        "row": run.row.run,
        "config": run.config,
        "seed": run.seed,
        "seconds": {**clock.to_dict(), "test": round(time.perf_counter() - start, 4)},
        "data": source.to_dict(),
        "versions": versions(),
        "parameters": count_parameters(classifier.stored.model),
        "peak_memory": peak,
        "threshold": classifier.decode_config.threshold,
        "dev": dev,
        "test": test,
        "dev_curve": _curve(run.scratch / LOG),
    }
    if extra.models:
        classifier.save(extra.models / run.folder.name)
    if extra.scores:
        _write_scores(extra.scores / f"{run.folder.name}.npz", scores, splits)
    tensors = {name: torch.from_numpy(array) for name, array in predictions.arrays().items()}
    with save_folder(run.folder) as draft:
        write_tensors(draft / PREDICTIONS_FILE, tensors)
        write_json(draft / RECORD, record)
    _remove_scratch(run.scratch)


def _remove_scratch(folder: Path) -> None:
    """Remove the files of the unfinished run, and its folder if nothing else is in it."""
    remove_training(folder)
    for name in (LOG, CLOCK):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _train(
    classifier: HillClassifier, splits: dict[str, Documents], scratch: Path, clock: Clock
) -> Generator[TrainingEvent, None, int | None]:
    """Train; returns the peak GPU memory of the training steps, or None on a CPU."""
    _reset_peak()
    peaks: list[int | None] = []
    for event in classifier.training(
        {"train": splits["train"], "dev": splits["dev"]}, scratch, resume=is_training(scratch)
    ):
        if clock.update(event):
            peaks.append(_peak())
        elif isinstance(event, Epoch):
            _reset_peak()  # scoring dev does not count
        yield event
    return max((peak for peak in peaks if peak is not None), default=None)


def measure(
    classifier: HillClassifier, documents: Documents, train: Documents, all_scores: HalfArray
) -> tuple[dict[str, Any], Predictions]:
    """All metrics with both decodings: `raw` (threshold 0.5 as in the paper) and `tuned`.

    The scores are written to `all_scores` (documents, L).
    """
    taxonomy, counts = classifier.taxonomy, train.labels.sum(axis=0)
    decoder = classifier.decoder()
    scorers = {name: Scorer(taxonomy, counts) for name in ("raw", "tuned")}
    collected = {name: CollectedLabels(len(documents), len(taxonomy)) for name in scorers}
    for rows, scores in classifier.scores(documents.texts):
        all_scores[rows] = to_dense(scores)
        gold = documents.labels[rows]
        for name, predicted in (("raw", scores > 0.5), ("tuned", decoder.decode(scores))):
            scorers[name].update(gold, predicted, scores)
            collected[name].add(rows.tolist(), to_dense(predicted))
    tables = {name: labels.table() for name, labels in collected.items()}
    predictions = Predictions(taxonomy, documents.ids, documents.labels, tables)
    return {name: scorer.result() for name, scorer in scorers.items()}, predictions


def count_parameters(model: torch.nn.Module) -> dict[str, int]:
    """The number of weights of the text encoder and of everything else, which is what the paper counts."""
    sizes = {"text": 0, "rest": 0}
    for name, weight in model.named_parameters():
        sizes["text" if name.startswith("text.") else "rest"] += weight.numel()
    return sizes


def _splits(classifier: HillClassifier, documents: dict[str, Documents]) -> dict[str, Documents]:
    if "dev" in documents:
        return documents
    train, dev = documents["train"].split(classifier.data_config.dev_share, classifier.train_config.seed)
    return {**documents, "train": train, "dev": dev}


def _write_scores(file: Path, scores: dict[str, HalfArray], splits: dict[str, Documents]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {f"{split}_scores": found for split, found in scores.items()}
    arrays |= {f"{split}_labels": splits[split].labels.toarray() for split in scores}
    np.savez_compressed(file, **arrays)


def _curve(log: Path) -> list[dict[str, Any]]:
    """The metrics on dev at 0.5 after each epoch. If an epoch was repeated after a stop, the last one counts."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    epochs = {line["epoch"]: line["dev"] for line in lines if "dev" in line}
    names = ("micro_f1", "macro_f1", "hierarchical_f1")
    return [{"epoch": epoch, **{name: dev[name] for name in names}} for epoch, dev in sorted(epochs.items())]


def _name(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) and Path(value).exists() else value


def _reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak() -> int | None:
    """The peak GPU memory in bytes since the last reset; None on a CPU."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


class FinishedRun(NamedTuple):
    """A run that ended, the error message if it failed, and its duration."""

    run: Run
    problem: str
    seconds: float


class Worker:
    """State of a process of the pool."""

    source: DatasetInfo
    extra: Extra


def run_together(runs: list[Run], source: DatasetInfo, extra: Extra, workers: int) -> Iterator[FinishedRun]:
    """Execute runs in parallel processes; yields each when it ends."""
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_initialise, initargs=(source, extra, workers)
    )
    with pool:
        for future in as_completed([pool.submit(_execute, run) for run in runs]):
            yield future.result()


def _initialise(source: DatasetInfo, extra: Extra, workers: int) -> None:
    Worker.source, Worker.extra = source, extra
    torch.set_num_threads(max(torch.get_num_threads() // workers, 1))


def _execute(run: Run) -> FinishedRun:
    start, problem = time.perf_counter(), ""
    try:
        for _ in execute_run(run, Worker.source, Worker.extra):
            pass
    except (HillError, torch.OutOfMemoryError) as error:
        problem = str(error).split("\n")[0]
    return FinishedRun(run, problem, time.perf_counter() - start)


NO_EXTRA = Extra()
MAX_SEEDS = 1_000


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
        """All runs, seed by seed, so that a first table is complete early."""
        wanted = list(only)
        for name in wanted:
            check_one_of(name, [row.name for row in self.rows], "row")
        chosen = [row for row in self.rows if row.name in wanted or not wanted]
        found = {run.folder: run for seed in self.seeds for run in (self.run(row, seed) for row in chosen)}
        return list(found.values())

    def records(self, source: DatasetInfo) -> dict[str, dict[int, dict[str, Any]]]:
        """The records of finished runs per row and seed; a run with other settings or data is an error."""
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for row in self.rows:
            runs = {seed: self.run(row, seed) for seed in self.seeds}
            found[row.name] = {seed: record for seed, run in runs.items() if (record := finished_record(run, source))}
        return found


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
            found = record["config"].get(group, {}).get(key, value)
            if found != value:
                raise CheckpointError(
                    f"'{run.folder}' was made with {group}.{key} = {found!r}, not {value!r}; "
                    "choose another --out, or remove it"
                )
    return record


def run_missing(
    plan: RunPlan, source: DatasetInfo, only: Iterable[str] = (), extra: Extra = NO_EXTRA, workers: int = 1
) -> Iterator[FinishedRun]:
    """Execute the missing runs, several at a time, and yield each when it ends.

    A run that fails, for example because it does not fit into memory, does not stop the others.
    """
    runs = plan.runs(only)
    missing = [run for run in runs if not finished_record(run, source)]
    console = Console(stderr=True)
    console.print(f"runs: {len(runs)}; done: {len(runs) - len(missing)}", highlight=False)
    together = workers > 1 and len(missing) > 1
    ended = run_together(missing, source, extra, workers) if together else _run_each(missing, source, extra, console)
    for number, (run, problem, seconds) in enumerate(ended, 1):
        outcome = f"failed: {problem}" if problem else _outcome(run)
        line = f"[{number}/{len(missing)}] {run.folder.name}: {outcome} ({seconds:,.0f} s)"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        yield FinishedRun(run, problem, seconds)


def _run_each(runs: list[Run], source: DatasetInfo, extra: Extra, console: Console) -> Iterator[FinishedRun]:
    """Execute runs one by one, each with a progress bar."""
    for run in runs:
        start, problem = time.perf_counter(), ""
        try:
            _follow(run, source, extra)
        except (HillError, torch.OutOfMemoryError) as error:
            problem = str(error).split("\n")[0]
        except KeyboardInterrupt:
            console.print(
                f"stopped in {run.folder.name}; run the same command again to continue", highlight=False, soft_wrap=True
            )
            raise
        yield FinishedRun(run, problem, time.perf_counter() - start)


def _follow(run: Run, source: DatasetInfo, extra: Extra) -> None:
    with training_progress(run.settings["train"]["metric"]) as bar:
        for event in execute_run(run, source, extra):
            if not isinstance(event, Epoch):
                bar.show(event)


def _outcome(run: Run) -> str:
    test: Groups = (run.record() or {})["test"]
    return "  ".join(
        f"{name} {100 * test[name]['micro_f1']:.2f} / {100 * test[name]['macro_f1']:.2f}" for name in ("raw", "tuned")
    )
