"""F1 by number of labelled documents per label: 0, 1, 2, 4, 8, 16, 32; drawn at random, at least one per used label.

Rows on frozen MiniLM vectors (`start`, `ridge`, `ridge+start`, `linear`, `linear+start`) need seconds. `auto` is `hill
train` with its defaults, `fast` the same without training the encoder, and `setfit` the package setfit; they want a GPU
and are run by several processes at a time. `start` is the cold start, and rows with `+start` begin with it. Run it as
`python experiments/learning_curve.py --data DIR --sets wos attack --rows auto auto+start --split test --seeds 3

Frozen rows predict the best path. `micro_f1` and `macro_f1` of `auto` and `fast` are those of the predicted label sets,
with the thresholds that were tuned on the documents that they hold out; `path_micro_f1` and `path_macro_f1` are those
of the best path. Macro F1 is over the labels that documents of the split have.
"""

import argparse
import json
from collections.abc import Iterator
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from frozen import LENGTHS, Vectors, read_set
from jobs import Run, add_arguments, run_all
from scipy.special import softmax

from hill.classifier import HillClassifier
from hill.cold_start import cold_start
from hill.data import Documents
from hill.decode.calibration import logits
from hill.encoders.transformer import _find_folder
from hill.label_errors import most_specific
from hill.taxonomy import Taxonomy
from hill.train.warm_start import warm_settings

SIZES = (0, 1, 2, 4, 8, 16, 32)
PENALTY, START_WEIGHT = 1.0, 0.5
ROWS = {
    "start": "`hill start`, no labels",
    "ridge": "ridge regression",
    "ridge+start": "ridge regression + start",
    "linear": "`linear`",
    "linear+start": "`linear` + start",
    "fast": "`hill train --preset fast`",
    "fast+start": "`hill train --preset fast`, from start",
    "auto": "`hill train`",
    "auto+start": "`hill train`, from start",
    "setfit": "SetFit",
}
SETFIT_STEPS = 1_000
"""SetFit has its defaults, but at most this many steps of 16 pairs; all pairs of 8 documents of each of 134 labels
would be 72,000 steps."""


def draw_documents(labels: Any, taxonomy: Taxonomy, per_label: int, seed: int) -> Any:
    """Up to this many documents of each label as their most specific one."""
    random, specific = np.random.default_rng(seed), most_specific(labels, taxonomy)
    chosen: set[int] = set()
    for label in np.flatnonzero(specific.any(axis=0)):
        own = np.flatnonzero(specific[:, label])
        chosen |= set(random.permutation(own)[:per_label].tolist())
    return np.sort(np.array(sorted(chosen), dtype=np.int64))


class Problem:
    """A data set; vectors and the scores of a cold start are computed when they are first needed."""

    def __init__(self, data: Path, name: str, split: str, cache: Path, encoder: str) -> None:
        self.name, self.encoder, self._cache = name, encoder, cache
        self.taxonomy, self.splits = read_set(data, name)
        self.train, self.new = self.splits["train"], self.splits[split]
        self.labels, self.gold = (each.labels.toarray().astype(bool) for each in (self.train, self.new))
        size = len(self.taxonomy)
        self.closures = np.zeros((size, size), dtype=bool)
        for row in range(size):
            self.closures[row, self.taxonomy.closure([row])] = True
        # labels that documents may end at: leaves, and techniques of attack that have sub-techniques
        self.ends = np.union1d(self.taxonomy.leaves, np.flatnonzero(self.taxonomy.depth >= 3))

    @cached_property
    def vectors(self) -> tuple[Any, Any]:
        """The vectors of train and of the new documents."""
        read = Vectors(self._cache, self.encoder, LENGTHS[self.name])
        train, new = (read(each.texts).astype(np.float64) for each in (self.train, self.new))
        read.use()
        return train, new

    @cached_property
    def start(self) -> tuple[Any, Any]:
        """The scores of the cold start as shares (documents, L), for train and the new documents."""
        vectors = self.vectors
        started = cold_start(self.taxonomy, self.train.texts, self.encoder)
        assert started.mixture is not None
        found = []
        for x, documents in zip(vectors, (self.train, self.new), strict=True):
            own = np.concatenate([scores for _, scores in started._score(torch.from_numpy(x).float())])
            scores = started.mixture([own, started.members[0].score_matrix(documents.texts)])
            shares = np.zeros(scores.shape)
            shares[:, self.ends] = softmax(logits(np.asarray(scores))[:, self.ends], axis=1)
            found.append(shares)
        return found[0], found[1]

    def f1(self, found: Any) -> dict[str, float]:
        """F1 of predicted labels (documents, L)."""
        hits, sizes = (found & self.gold).sum(axis=0), found.sum(axis=0) + self.gold.sum(axis=0)
        used = self.gold.any(axis=0)
        micro, macro = 2 * hits.sum() / sizes.sum(), (2 * hits[used] / sizes[used]).mean()
        return {"micro_f1": float(micro), "macro_f1": float(macro)}

    def path_f1(self, outputs: Any) -> dict[str, float]:
        """F1 of the path to the label with the highest output."""
        return self.f1(self.closures[self.ends[outputs[:, self.ends].argmax(axis=1)]])

    def run(self, row: str, per_label: int, seed: int, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
        """The metrics of a row."""
        kind, _, started = row.partition("+")
        if per_label == 0:
            return self.path_f1(self.start[1])
        rows = draw_documents(self.labels, self.taxonomy, per_label, seed)
        train, weight = self.train.take(rows), START_WEIGHT if started else 0.0
        if kind == "ridge":
            specific = most_specific(self.labels[rows], self.taxonomy)
            targets = specific / np.maximum(specific.sum(axis=1, keepdims=True), 1) - weight * self.start[0][rows]
            x = self.vectors[0][rows]
            weights = np.linalg.solve(x.T @ x + PENALTY * np.eye(x.shape[1]), x.T @ targets)
            return self.path_f1(self.vectors[1] @ weights + weight * self.start[1])
        if kind == "linear":
            model = HillClassifier(self.taxonomy, "linear", preset=None).fit_solver(train)
            outputs = logits(np.asarray(model.score_matrix(self.new.texts)))
            return self.path_f1(outputs + weight * np.log(self.start[1] + 1e-9) if weight else outputs)
        if kind == "setfit":
            return self.run_setfit(train, seed)
        return self.run_trained(kind, train, seed, folder if started else None, settings)

    def run_trained(
        self, preset: str, train: Documents, seed: int, start: Path | None, given: dict[str, Any]
    ) -> dict[str, Any]:
        """Train with a preset and otherwise the defaults, as `hill train` does."""
        train_settings = given.get("train", {}) | {"seed": seed, "checkpoint_seconds": 1e9}
        settings: dict[str, Any] = given | {"train": train_settings}
        name = "hill"
        if start:
            name, settings = warm_settings(start, settings)
        else:
            settings["model"] = {"encoder": self.encoder}
        with TemporaryDirectory() as folder:
            classifier = HillClassifier(self.taxonomy, name, settings, preset)
            for _ in classifier.training({"train": train}, Path(folder) / "run"):
                pass
        scores = np.asarray(classifier.score_matrix(self.new.texts))
        path = {f"path_{key}": value for key, value in self.path_f1(scores).items()}
        weights = None if classifier.mixture is None else classifier.mixture.weights.round(3).tolist()
        facts = {"documents": len(train), "weights": weights, "decoding": classifier.decode_note}
        return self.f1(np.asarray(classifier.decoder().decode(scores)).astype(bool)) | path | facts

    def run_setfit(self, train: Documents, seed: int) -> dict[str, Any]:
        """SetFit on the most specific label of each document."""
        from datasets import Dataset
        from setfit import SetFitModel, Trainer, TrainingArguments

        specific = most_specific(train.labels.toarray().astype(bool), self.taxonomy).argmax(axis=1)
        model = SetFitModel.from_pretrained(str(_find_folder(self.encoder)), local_files_only=True)
        model.model_body.float()  # a folder may have weights in half precision
        data = Dataset.from_dict({"text": train.texts, "label": specific.tolist()})
        with TemporaryDirectory() as folder:
            options = {"output_dir": folder, "save_strategy": "no", "report_to": "none", "show_progress_bar": False}
            arguments = TrainingArguments(seed=seed, max_steps=SETFIT_STEPS, **options)
            Trainer(model=model, args=arguments, train_dataset=data).train()
        found = model.predict(self.new.texts, as_numpy=True, show_progress_bar=False)
        return self.f1(self.closures[np.asarray(found)]) | {"documents": len(train), "steps": SETFIT_STEPS}


# One JSON line per run

load = cache(Problem)


def execute(
    data: Path, cache_folder: Path, starts: Path, encoder: str, settings: dict[str, Any], run: Run
) -> Iterator[Run]:
    """The result of a run."""
    problem = load(data, run["data"], run["split"], cache_folder, encoder)
    folder = starts / run["data"]
    result = problem.run(run["row"], run["per_label"], run["seed"], folder, settings)
    yield {"encoder": Path(encoder).name} | result


def all_runs(given: argparse.Namespace) -> Iterator[Run]:
    """All runs; those with the most documents come first, and a seed is complete before the next one begins."""
    for seed, size, name, row in product(range(given.seeds), sorted(given.sizes, reverse=True), given.sets, given.rows):
        without = size == 0
        if (row == "start") == without and not (without and seed):
            run = {"data": name, "split": given.split, "row": row, "per_label": size, "seed": seed}
            yield run | ({"settings": given.settings} if given.settings else {})


def save_start(given: argparse.Namespace, name: str, folder: Path) -> None:
    """Make a cold start, as `hill start --texts` does."""
    taxonomy, splits = read_set(given.data, name)
    cold_start(taxonomy, splits["train"].texts, given.encoder).save(folder)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="+", default=["wos", "attack"])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["start", "ridge", "ridge+start", "linear"])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--split", default="dev")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings of auto and fast by group, as JSON")
    parser.add_argument("--cache", type=Path, default=Path("build/vectors"))
    add_arguments(parser)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        for name in given.sets:
            if any(row in ("auto+start", "fast+start") for row in given.rows):
                save_start(given, name, Path(folder) / name)
        work = partial(execute, given.data, given.cache, Path(folder), given.encoder, given.settings)
        run_all(work, lambda results: all_runs(given), given)


if __name__ == "__main__":
    main()
