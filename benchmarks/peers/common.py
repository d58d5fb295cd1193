"""What the programs of this folder share: data, the grid, the rule that makes label sets, and what is measured.

A program has one or several peers. `main` fits each setting of a peer's grid on train, keeps the one with the highest
micro F1 on dev, reads test once and appends one JSON line per peer to --out.
"""

import argparse
import json
import os
import platform
import resource
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from hill.data import Documents, read_data
from hill.metrics import flat_scores, hierarchical_scores
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.taxonomy.propagate import AnyEdges

SEED = 1
"""Draws the sample of the training documents, as in experiments/presets.py, and seeds every peer."""
MEASURES = ("micro_f1", "macro_f1", "hierarchical_f1", "violations")
Scores = npt.NDArray[np.float32]
Sets = npt.NDArray[np.bool_]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Task:
    """A data set with the training documents that are used, and the options of the program."""

    name: str
    taxonomy: Taxonomy
    train: Documents
    dev: Documents
    test: Documents
    device: str
    """cpu or cuda."""
    threads: int
    encoder: str
    """The folder of the sentence encoder."""
    minutes: float
    """The time limit of hill on a CPU."""

    @property
    def one_path(self) -> bool:
        """Whether all training documents have exactly one most specific label."""
        return bool((np.diff(specific(self.train.labels, self.taxonomy).indptr) == 1).all())


def read_task(folder: Path, size: int, device: str, encoder: str = "", minutes: float = 4.0, rows: int = 0) -> Task:
    """Read a data set; of train, a random sample of this size, or all with 0. Tests use few rows of each split."""
    taxonomy = read_taxonomy(next(folder.glob("taxonomy.*")))
    splits = read_data(folder, taxonomy)
    if rows:
        splits = {name: split.sample(rows) for name, split in splits.items()}
    if size:
        chosen = np.random.default_rng(SEED).permutation(len(splits["train"]))[:size]
        splits["train"] = splits["train"].take(np.sort(chosen))
    threads = len(os.sched_getaffinity(0))
    train, dev, test = (splits[name] for name in ("train", "dev", "test"))
    return Task(folder.name, taxonomy, train, dev, test, device, threads, encoder, minutes)


def specific(labels: Any, taxonomy: Taxonomy) -> Any:
    """The most specific labels of documents: those without a child among the labels of the same document."""
    edges = AnyEdges(taxonomy).of(labels)
    own = edges.enter(labels)
    return edges.leave(own > edges.with_child(own)).tocsr()


def close(values: Any, taxonomy: Taxonomy) -> Any:
    """Label sets with all ancestors; or scores, in which each label gets the highest score of its descendants."""
    edges = AnyEdges(taxonomy).of(values)
    return edges.leave(edges.close(edges.enter(values)))


# Peers


class Peer(ABC):
    """A program that users could choose: it learns from documents and scores labels."""

    PACKAGES: ClassVar[tuple[str, ...]] = ()
    """Packages whose versions the row names."""

    def __init__(self, task: Task, shared: dict[Any, tuple[Any, float]]) -> None:
        self.task = task
        self.reused = 0.0
        """Seconds that something took which was computed before."""
        self.borrowed = 0.0
        """Seconds that values took which another peer of the same program computed."""
        self._shared = shared
        self._used: set[Any] = set()

    @abstractmethod
    def grid(self) -> list[dict[str, Any]]:
        """The settings that are tried on dev."""

    def grid_documents(self) -> int:
        """On how many training documents the grid is tried; the best setting is then fitted on all. 0 for all."""
        return 0

    @abstractmethod
    def fit(self, train: Documents, settings: Mapping[str, Any]) -> Any:
        """A model."""

    @abstractmethod
    def scores(self, model: Any, texts: Sequence[str]) -> Scores:
        """Scores (texts, L); higher is more likely."""

    def sets(self, model: Any, texts: Sequence[str]) -> Sets | None:
        """Label sets (texts, L), if the peer decides them itself; else None."""
        return None

    @abstractmethod
    def save(self, model: Any, folder: Path) -> None:
        """Write all that a prediction needs."""

    def once(self, key: Any, compute: Callable[[], Value]) -> Value:
        """A value that several settings or peers share; the seconds that it took count for each of them."""
        if key in self._shared:
            self.reused += self._shared[key][1]
            self.borrowed += self._shared[key][1] * (key not in self._used)
        else:
            start = time.perf_counter()
            self._shared[key] = compute(), time.perf_counter() - start
        self._used.add(key)
        value: Value = self._shared[key][0]
        return value

    def forget(self) -> None:
        """Drop the shared values."""
        self._shared.clear()


def varied(labels: Any) -> npt.NDArray[np.int64]:
    """The labels that some, but not all, training documents have: only these can be learned."""
    counts = np.asarray(labels.sum(axis=0)).ravel()
    return np.flatnonzero((counts > 0) & (counts < labels.shape[0]))


def expand(scores: npt.NDArray[Any], columns: npt.NDArray[np.int64], labels: Any) -> Scores:
    """Scores of all labels from those of some; labels of all training documents are above, of none below all others."""
    low, high = (scores.min(), scores.max()) if scores.size else (0.0, 0.0)
    result = np.full((scores.shape[0], labels.shape[1]), low - 1, dtype=np.float32)
    result[:, np.asarray(labels.sum(axis=0)).ravel() == labels.shape[0]] = high + 1
    result[:, columns] = scores
    return result


# From scores to label sets


@dataclass(frozen=True)
class Rule:
    """Labels above a threshold; or, without one, the best of some labels with its ancestors."""

    taxonomy: Taxonomy
    threshold: float | None
    among: npt.NDArray[np.int64]

    def __call__(self, scores: Scores) -> Sets:
        """The label sets of documents with these scores."""
        if self.threshold is not None:
            return scores > np.float32(self.threshold)
        chosen = np.zeros(scores.shape, dtype=bool)
        if len(scores):
            chosen[np.arange(len(scores)), self.among[scores[:, self.among].argmax(axis=1)]] = True
        closed: Sets = close(chosen, self.taxonomy)
        return closed


def choose_rule(scores: Scores, gold: Any, task: Task) -> Rule:
    """The threshold with the highest micro F1 on dev, or the best path if that is better and documents have one path.

    Sets are closed under ancestors before they are compared, as for the F1 on test.
    """
    among = np.unique(specific(task.train.labels, task.taxonomy).indices)
    rules = [Rule(task.taxonomy, best_threshold(close(scores, task.taxonomy), gold.toarray()), among)]
    if task.one_path:
        rules.append(Rule(task.taxonomy, None, among))
    return max(rules, key=lambda rule: evaluate(rule(scores), gold, task.taxonomy)["micro_f1"])


def best_threshold(scores: npt.NDArray[Any], gold: npt.NDArray[Any]) -> float:
    """The threshold that maximises micro F1, exactly: the middle between two scores of dev."""
    order = np.argsort(-scores, axis=None, kind="stable")
    ranked, hits = scores.ravel()[order].astype(np.float64), np.cumsum(gold.ravel()[order])
    last = np.append(ranked[:-1] > ranked[1:], True)  # equal scores are all predicted or none of them
    f1 = np.where(last, 2 * hits / (np.arange(1, len(hits) + 1) + hits[-1]), 0.0)
    best = int(f1.argmax())
    following = ranked[best + 1] if best + 1 < len(ranked) else ranked[best] - 1.0
    return float((ranked[best] + following) / 2)


def evaluate(sets: Any, gold: Any, taxonomy: Taxonomy) -> dict[str, float]:
    """F1 of the sets closed under ancestors; violations of the sets as they were predicted."""
    closed = close(sets, taxonomy)
    found = flat_scores(gold, closed) | hierarchical_scores(gold, closed, taxonomy)
    found["violations"] = hierarchical_scores(gold, sets, taxonomy)["violations"]
    return {name: round(float(found[name]), 5) for name in MEASURES}


# Measurements


def run(peer: Peer) -> dict[str, Any]:
    """Search the grid on dev, fit the best setting, and predict test once."""
    task, grid = peer.task, peer.grid()
    few = task.train.sample(peer.grid_documents()) if peer.grid_documents() else task.train
    trials: list[dict[str, Any]] = []
    best: tuple[float, dict[str, Any], Any, Rule | None, dict[str, float], float] | None = None
    begin = time.perf_counter()
    sampled = len(few) < len(task.train) and len(grid) > 1
    for settings in grid:
        model, rule, dev, seconds = fit(peer, few if sampled else task.train, settings)
        trials.append({**settings, "micro_f1": dev["micro_f1"], "seconds": round(seconds, 2)})
        print(task.name, len(task.train), type(peer).__name__, trials[-1], file=sys.stderr, flush=True)
        if best is None or dev["micro_f1"] > best[0]:
            best = dev["micro_f1"], settings, model, rule, dev, seconds
    assert best is not None, "a grid has at least one setting"
    _, settings, model, rule, dev, seconds = best
    if sampled:
        peer.forget()
        best = None
        model, rule, dev, seconds = fit(peer, task.train, settings)
    with_grid = time.perf_counter() - begin + peer.borrowed
    start, peer.reused = time.perf_counter(), 0.0
    predicted = predict(peer, model, rule, task.test.texts)
    predicting = time.perf_counter() - start + peer.reused
    row: dict[str, Any] = {
        "settings": settings,
        "trials": trials,
        "grid_documents": len(few) if sampled else len(task.train),
        "threshold": None if rule is None else rule.threshold,
        "rule": "own" if rule is None else "threshold" if rule.threshold is not None else "best path",
        "dev": dev,
        "test": evaluate(predicted, task.test.labels, task.taxonomy),
        "seconds": round(seconds, 2),
        "seconds_with_grid": round(with_grid, 2),
        "documents_per_second": round(len(task.test) / predicting, 1),
        "mib": {"process": memory()},
    }
    if task.device == "cuda":
        import torch

        row["mib"]["gpu"] = torch.cuda.max_memory_allocated() // 2**20
    with TemporaryDirectory() as folder:
        peer.save(model, Path(folder))
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return row | {"model_mib": round(size / 2**20, 4)}


def fit(peer: Peer, train: Documents, settings: Mapping[str, Any]) -> tuple[Any, Rule | None, dict[str, float], float]:
    """A model, its rule, its scores on dev, and the seconds for all of that."""
    start, peer.reused = time.perf_counter(), 0.0
    model = peer.fit(train, settings)
    dev = peer.task.dev
    sets, rule = peer.sets(model, dev.texts), None
    if sets is None:
        scores = peer.scores(model, dev.texts)
        rule = choose_rule(scores, dev.labels, peer.task)
        sets = rule(scores)
    seconds = time.perf_counter() - start + peer.reused
    return model, rule, evaluate(sets, dev.labels, peer.task.taxonomy), seconds


def predict(peer: Peer, model: Any, rule: Rule | None, texts: Sequence[str]) -> Sets:
    """The label sets of texts."""
    if rule is not None:
        return rule(peer.scores(model, texts))
    sets = peer.sets(model, texts)
    assert sets is not None, "a peer that decides sets does so for all texts"
    return sets


def memory() -> int:
    """The peak memory of this process and of the largest process that it started, in MiB."""
    return sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) // 1024


def machine(task: Task, packages: Sequence[str]) -> dict[str, Any]:
    """The device, the number of cores, and the versions of packages."""
    names = {name: version(name) for name in ("scikit-learn", *packages)}
    device = "CPU"
    if task.device == "cuda":
        import torch

        device = torch.cuda.get_device_name()
    return {"device": device, "cores": task.threads, "versions": {"python": platform.python_version(), **names}}


def main(peers: Mapping[str, type[Peer]]) -> None:
    """Run peers on one data set and append their rows to a file."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of one data set")
    parser.add_argument("--peers", nargs="+", choices=peers, default=list(peers))
    parser.add_argument("--size", type=int, default=0, help="training documents; 0 for all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--encoder", default="", help="the folder of the sentence encoder")
    parser.add_argument("--minutes", type=float, default=4.0, help="the time limit of hill on a CPU")
    parser.add_argument("--rows", type=int, default=0, help="use at most this many documents of each split: for tests")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    task = read_task(given.data, given.size, given.device, given.encoder, given.minutes, given.rows)
    shared: dict[Any, tuple[Any, float]] = {}
    for name in given.peers:
        peer = peers[name](task, shared)
        row = {"data": task.name, "peer": name, "size": given.size, "on": task.device, "documents": len(task.train)}
        row |= run(peer) | machine(task, peer.PACKAGES)
        with given.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
