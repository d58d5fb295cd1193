"""One run of a row: trained with a seed, decided on dev, test read once at its end, kept as one folder."""

import json
import shutil
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hill.classifier import HillClassifier
from hill.data import Documents
from hill.experiment.clock import Clock
from hill.experiment.facts import Source, versions
from hill.experiment.predictions import FILE, Collected, Predictions
from hill.experiment.rows import Row
from hill.metrics import Scorer
from hill.settings import Groups
from hill.taxonomy.cells import as_dense
from hill.train import Epoch
from hill.train.files import read_json, write_folder
from hill.train.run import Report

Scores = npt.NDArray[np.float16]
RECORD = "run.json"
LOG = "log.jsonl"


@dataclass(frozen=True)
class Run:
    """A row with a seed, and where it is kept."""

    row: Row
    seed: int
    folder: Path

    @property
    def scratch(self) -> Path:
        """Where an unfinished run has its checkpoints."""
        return self.folder.with_name(f"{self.folder.name}.unfinished")

    @property
    def settings(self) -> Groups:
        """All settings with this seed."""
        return {**self.row.settings, "train": {**self.row.settings["train"], "seed": self.seed}}

    @property
    def config(self) -> dict[str, Any]:
        """Settings as they are kept: files by their names alone, which mean the same on any machine."""
        model = {key: _name(value) for key, value in self.settings["model"].items()}
        return {**self.settings, "model": {"name": self.row.model, **model}}

    def record(self) -> dict[str, Any] | None:
        """What was kept of the run; nothing where it is not finished."""
        found: dict[str, Any] | None = read_json(self.folder / RECORD) if self.folder.is_dir() else None
        return found


@dataclass(frozen=True)
class Extra:
    """Folders for what is kept of runs beside their records, where it is wanted."""

    models: Path | None = None
    scores: Path | None = None
    """For one NAME-SEED.npz a run with dev_scores, dev_labels, test_scores and test_labels, (documents, L) each."""


def carry_out(run: Run, source: Source, extra: Extra) -> Iterator[Report]:
    """Train, or go on training, and keep what came of it."""
    classifier = HillClassifier(source.taxonomy, run.row.model, run.settings)
    splits = _splits(classifier, source.documents)
    clock = Clock(run.scratch / "clock.jsonl", classifier.train_config.epochs)
    peak = yield from _train(classifier, splits, run.scratch, clock)
    scores = {split: np.zeros(splits[split].labels.shape, dtype=np.float16) for split in ("dev", "test")}
    dev, _ = measure(classifier, splits["dev"], splits["train"], scores["dev"])
    start = time.perf_counter()
    test, predictions = measure(classifier, splits["test"], splits["train"], scores["test"])
    record = {
        "row": run.row.run,
        "config": run.config,
        "seed": run.seed,
        "seconds": {**clock.document(), "test": round(time.perf_counter() - start, 4)},
        "data": source.document(),
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
    write_folder(run.folder, {FILE: tensors}, {RECORD: record})
    shutil.rmtree(run.scratch, ignore_errors=True)


def _train(
    classifier: HillClassifier, splits: dict[str, Documents], scratch: Path, clock: Clock
) -> Generator[Report, None, int | None]:
    """The training; returns the peak of memory in its steps, where it is known."""
    _forget_peak()
    peaks: list[int | None] = []
    for report in classifier.training({"train": splits["train"], "dev": splits["dev"]}, scratch, resume=True):
        if clock.hear(report):
            peaks.append(_peak())
        elif isinstance(report, Epoch):
            _forget_peak()  # what scoring dev took
        yield report
    return max((peak for peak in peaks if peak is not None), default=None)


def measure(
    classifier: HillClassifier, documents: Documents, train: Documents, found: Scores
) -> tuple[dict[str, Any], Predictions]:
    """Every metric of documents that are read once: `raw`, each label above 0.5 as in the paper, and `tuned`.

    Their scores are put into `found`: (documents, L).
    """
    taxonomy, counts = classifier.taxonomy, train.labels.sum(axis=0)
    decoder = classifier.decoder()
    scorers = {name: Scorer(taxonomy, counts) for name in ("raw", "tuned")}
    kept = {name: Collected(len(documents), len(taxonomy)) for name in scorers}
    for places, scores in classifier.scores(documents.texts):
        found[places] = as_dense(scores)
        gold = documents.labels[places]
        for name, chosen in (("raw", scores > 0.5), ("tuned", decoder.decode(scores))):
            scorers[name].update(gold, chosen, scores)
            kept[name].add(places.tolist(), as_dense(chosen))
    tables = {name: collected.table() for name, collected in kept.items()}
    predictions = Predictions(taxonomy, documents.ids, documents.labels, tables)
    return {name: scorer.result() for name, scorer in scorers.items()}, predictions


def count_parameters(model: torch.nn.Module) -> dict[str, int]:
    """Weights of the text encoder and of everything else; the paper counts the latter, unused ones included."""
    sizes = {"text": 0, "rest": 0}
    for name, weight in model.named_parameters():
        sizes["text" if name.startswith("text.") else "rest"] += weight.numel()
    return sizes


def _splits(classifier: HillClassifier, documents: dict[str, Documents]) -> dict[str, Documents]:
    if "dev" in documents:
        return documents
    train, dev = documents["train"].split(classifier.data_config.dev_share, classifier.train_config.seed)
    return {**documents, "train": train, "dev": dev}


def _write_scores(file: Path, scores: dict[str, Scores], splits: dict[str, Documents]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {f"{split}_scores": found for split, found in scores.items()}
    arrays |= {f"{split}_labels": splits[split].labels.toarray() for split in scores}
    np.savez_compressed(file, **arrays)


def _curve(log: Path) -> list[dict[str, Any]]:
    """What each epoch gave on dev at 0.5; of an epoch that was repeated after a stop, the last."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    epochs = {line["epoch"]: line["dev"] for line in lines if "dev" in line}
    names = ("micro_f1", "macro_f1", "hierarchical_f1")
    return [{"epoch": epoch, **{name: dev[name] for name in names}} for epoch, dev in sorted(epochs.items())]


def _name(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) and Path(value).exists() else value


def _forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak() -> int | None:
    """Most bytes that were allocated on the GPU since its peak was forgotten; nothing is known of a CPU."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
