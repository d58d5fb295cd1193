"""F1 by number of labelled documents per label: 0, 1, 2, 4, 8, 16, 32; drawn at random, at least one per used label.

Rows on frozen MiniLM vectors (`--rows start ridge ridge+start linear`) need seconds; rows that train the encoder
(`auto`, `auto+start`, `setfit`) want a GPU, and `setfit` the package setfit. `start` is the cold start, and rows with
`+start` begin with it. Run it as `python experiments/learning_curve.py --data DIR --sets wos attack --rows ridge linear
--split test --seeds 5 --out FILE`.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from frozen import LENGTHS, Vectors, append, read_set
from scipy.special import softmax

from hill.classifier import HillClassifier
from hill.cold_start import cold_start
from hill.data import Documents
from hill.decode.calibration import logits
from hill.label_errors import most_specific
from hill.taxonomy import Taxonomy
from hill.train.warm_start import warm_settings

SIZES = (0, 1, 2, 4, 8, 16, 32)
PENALTY, START_WEIGHT = 1.0, 0.5
FAST = ("start", "ridge", "ridge+start", "linear", "linear+start")


def draw(labels: Any, taxonomy: Taxonomy, per_label: int, seed: int) -> Any:
    """Up to this many documents of each label as their most specific one."""
    random, specific = np.random.default_rng(seed), most_specific(labels, taxonomy)
    chosen: set[int] = set()
    for label in np.flatnonzero(specific.any(axis=0)):
        own = np.flatnonzero(specific[:, label])
        chosen |= set(random.permutation(own)[:per_label].tolist())
    return np.sort(np.array(sorted(chosen), dtype=np.int64))


class Problem:
    """A data set, its vectors, and the scores of a cold start."""

    def __init__(self, data: Path, name: str, split: str, cache: Path) -> None:
        self.taxonomy, self.splits = read_set(data, name)
        self.train, self.new = self.splits["train"], self.splits[split]
        vectors = Vectors(cache, "minilm", LENGTHS[name])
        self.x, self.new_x = (vectors(each.texts).astype(np.float64) for each in (self.train, self.new))
        vectors.use()
        self.started = cold_start(self.taxonomy, self.train.texts)
        self.labels, self.gold = (each.labels.toarray().astype(bool) for each in (self.train, self.new))
        size = len(self.taxonomy)
        self.closures = np.zeros((size, size), dtype=bool)
        for row in range(size):
            self.closures[row, self.taxonomy.closure([row])] = True
        # labels that documents may end at: leaves, and techniques of attack that have sub-techniques
        self.ends = np.union1d(self.taxonomy.leaves, np.flatnonzero(self.taxonomy.depth >= 3))
        self.start, self.new_start = (self._start(*each) for each in ((self.x, self.train), (self.new_x, self.new)))

    def _start(self, x: Any, documents: Documents) -> Any:
        """The scores of the cold start as shares (documents, L)."""
        own = np.concatenate([scores for _, scores in self.started._score(torch.from_numpy(x).float())])
        assert self.started.mixture is not None
        scores = self.started.mixture([own, self.started.members[0].score_matrix(documents.texts)])
        shares = np.zeros(scores.shape)
        shares[:, self.ends] = softmax(logits(np.asarray(scores))[:, self.ends], axis=1)
        return shares

    def f1(self, outputs: Any) -> dict[str, float]:
        """F1 of the path to the label with the highest output."""
        found = self.closures[outputs.argmax(axis=1)]
        hits, sizes = (found & self.gold).sum(axis=0), found.sum(axis=0) + self.gold.sum(axis=0)
        used = self.gold.any(axis=0)
        micro, macro = 2 * hits.sum() / sizes.sum(), (2 * hits[used] / sizes[used]).mean()
        return {"micro_f1": float(micro), "macro_f1": float(macro)}

    def run(self, row: str, per_label: int, seed: int) -> dict[str, float] | None:
        """The metrics of a row; None if it cannot be run with so few documents."""
        if row == "start" or (per_label == 0 and row.endswith("+start")):
            return self.f1(self.new_start)
        if per_label == 0:
            return None
        rows = draw(self.labels, self.taxonomy, per_label, seed)
        weight = START_WEIGHT if row.endswith("+start") else 0.0
        if row.startswith("ridge"):
            specific = most_specific(self.labels[rows], self.taxonomy)
            targets = specific / np.maximum(specific.sum(axis=1, keepdims=True), 1) - weight * self.start[rows]
            x = self.x[rows]
            weights = np.linalg.solve(x.T @ x + PENALTY * np.eye(x.shape[1]), x.T @ targets)
            return self.f1(self.new_x @ weights + weight * self.new_start)
        if row.startswith("linear"):
            model = HillClassifier(self.taxonomy, "linear", preset=None).fit_solver(self.train.take(rows))
            outputs = np.full(self.new_start.shape, -np.inf)
            outputs[:, self.ends] = logits(np.asarray(model.score_matrix(self.new.texts)))[:, self.ends]
            return self.f1(outputs + weight * np.log(self.new_start + 1e-9) if weight else outputs)
        return self.run_trained(row, rows, seed)

    def run_trained(self, row: str, rows: Any, seed: int) -> dict[str, float]:
        """Rows that train the encoder. A fifth of the documents, at most 1,000, is dev."""
        train = self.train.take(rows)
        if row == "setfit":
            return self.run_setfit(train, seed)
        settings: dict[str, Any] = {"train": {"seed": seed}, "data": {"dev_share": min(0.2, 1_000 / len(train))}}
        name = "hill"
        with TemporaryDirectory() as folder:
            if row == "auto+start":
                self.started.save(Path(folder) / "start")
                name, settings = warm_settings(Path(folder) / "start", settings)
            classifier = HillClassifier(self.taxonomy, name, settings)
            for _ in classifier.training({"train": train}, Path(folder) / "run"):
                pass
            measured = classifier.evaluate(self.new, include_seen=True)
        return {key: measured[key] for key in ("micro_f1", "macro_f1")}

    def run_setfit(self, train: Documents, seed: int) -> dict[str, float]:
        """SetFit with its defaults on the most specific label of each document."""
        from datasets import Dataset
        from setfit import SetFitModel, Trainer, TrainingArguments

        specific = most_specific(train.labels.toarray().astype(bool), self.taxonomy).argmax(axis=1)
        model = SetFitModel.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
        data = Dataset.from_dict({"text": train.texts, "label": specific.tolist()})
        Trainer(model=model, args=TrainingArguments(seed=seed), train_dataset=data).train()
        outputs = np.zeros(self.new_start.shape)
        outputs[np.arange(len(self.new)), np.asarray(model.predict(self.new.texts))] = 1
        return self.f1(outputs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["wos", "attack"])
    parser.add_argument("--rows", nargs="+", default=list(FAST))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--split", default="dev")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path("build/vectors"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    for each in given.sets:
        problem = Problem(given.data, each, given.split, given.cache)
        for row in given.rows:
            for size in (0,) if row == "start" else given.sizes:
                for seed in range(given.seeds if size else 1):
                    if result := problem.run(row, size, seed):
                        common = {"data": each, "split": given.split, "row": row, "per_label": size, "seed": seed}
                        append(given.out, common | {"encoder": "minilm"} | result)
