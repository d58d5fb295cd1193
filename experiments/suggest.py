"""Labels that `hill suggest` saves: F1 by number of labelled documents, chosen by it or at random.

The classifier is ridge regression on vectors of the frozen encoder; it predicts the best path. The first queue uses the
scores of a cold start, the later ones those of the classifier. The seed draws four fifths of the training documents as
the pool. Run it as `python experiments/suggest.py --data DIR --sets wos attack --split test --seeds 5 --out FILE`;
`--figure FILE.svg` then draws the curves.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from frozen import LENGTHS, Vectors, append, read_set

from hill.cold_start import cold_start
from hill.suggest import best_leaves, choose

BATCH, MOST = 50, 2_400
"""Documents per queue, and in total."""
PENALTY = 1.0


class Problem:
    """Vectors and labels of a data set."""

    def __init__(self, data: Path, name: str, split: str, cache: Path) -> None:
        self.taxonomy, splits = read_set(data, name)
        self.vectors = Vectors(cache, "minilm", LENGTHS[name])
        train, new = splits["train"], splits[split]
        self.x, self.new = (self.vectors(each.texts).astype(np.float64) for each in (train, new))
        self.vectors.use()
        started = cold_start(self.taxonomy, train.texts)
        own = np.concatenate([scores for _, scores in started._score(torch.from_numpy(self.x).float())])
        assert started.mixture is not None
        self.scores: Any = started.mixture([own, started.members[0].score_matrix(train.texts)])
        self.labels, self.gold = (each.labels.toarray().astype(bool) for each in (train, new))
        child, parent = self.taxonomy.edge_array.T
        inner = np.zeros_like(self.labels)
        for a, b in zip(child.tolist(), parent.tolist(), strict=True):
            inner[:, b] |= self.labels[:, a]
        self.specific = self.labels & ~inner
        self.targets = self.specific / np.maximum(self.specific.sum(axis=1, keepdims=True), 1)
        size = len(self.taxonomy)
        self.closures = np.zeros((size, size), dtype=bool)
        for row in range(size):
            self.closures[row, self.taxonomy.closure([row])] = True

    def fit(self, rows: list[int]) -> Any:
        """The weights (D, L) of a ridge regression on these documents."""
        x = self.x[rows]
        return np.linalg.solve(x.T @ x + PENALTY * np.eye(x.shape[1]), x.T @ self.targets[rows])

    def f1(self, weights: Any) -> tuple[float, float]:
        """Micro and macro F1 of the path to the label with the highest output; macro over labels with documents."""
        found = self.closures[(self.new @ weights).argmax(axis=1)]
        hits, sizes = (found & self.gold).sum(axis=0), found.sum(axis=0) + self.gold.sum(axis=0)
        used = self.gold.any(axis=0)
        return float(2 * hits.sum() / sizes.sum()), float((2 * hits[used] / sizes[used]).mean())

    def run(self, strategy: str, seed: int) -> dict[str, list[float]]:
        """F1 after each queue."""
        random = np.random.default_rng(seed)
        pool = np.sort(random.choice(len(self.x), int(0.8 * len(self.x)), replace=False))
        free, labelled, result = np.isin(np.arange(len(self.x)), pool), list[int](), defaultdict(list)
        scores = self.scores
        while len(labelled) < MOST:
            rows = np.flatnonzero(free)
            if strategy == "random":
                queue = random.choice(rows, BATCH, replace=False)
            else:
                support = self.labels[labelled].sum(axis=0)
                queue = rows[choose(*best_leaves(scores[rows], self.taxonomy), support, BATCH)]
            free[queue] = False
            labelled += queue.tolist()
            weights = self.fit(labelled)
            scores = self.x @ weights if strategy == "suggest" else scores
            for key, value in zip(("micro_f1", "macro_f1"), self.f1(weights), strict=True):
                result[key].append(round(value, 5))
        return result


def needed(curve: Any, goals: Any) -> list[float]:
    """The number of labels at which a curve first reaches each goal, between two queues by interpolation."""
    counts = BATCH * np.arange(1, len(curve) + 1)
    highest = np.maximum.accumulate(curve)
    return [float(np.interp(goal, highest, counts)) if goal <= highest[-1] else float("inf") for goal in goals]


def draw(file: Path, out: Path) -> None:
    """Draw the mean curves of all data sets, with one standard deviation."""
    import matplotlib.pyplot as plt

    rows = [json.loads(line) for line in out.read_text().splitlines()]
    rows = [row for row in rows if "micro_f1" in row]
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = plt.subplots(2, len(names), figsize=(9, 6), sharex=True, squeeze=False)
    for column, name in enumerate(names):
        for line, metric in enumerate(("micro_f1", "macro_f1")):
            for strategy, colour in (("suggest", "tab:blue"), ("random", "tab:gray")):
                chosen = [row[metric] for row in rows if (row["data"], row["strategy"]) == (name, strategy)]
                values = 100 * np.array(chosen)
                counts, mean, spread = (
                    BATCH * np.arange(1, values.shape[1] + 1),
                    values.mean(axis=0),
                    values.std(axis=0),
                )
                name_of = {"suggest": "hill suggest", "random": "random"}[strategy]
                axes[line, column].plot(counts, mean, color=colour, label=name_of)
                axes[line, column].fill_between(counts, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
            axes[line, column].set_title(f"{name}: {metric.replace('_f1', ' F1')}", fontsize=10)
            axes[line, column].grid(alpha=0.3)
            axes[line, column].set_ylabel("%")
        axes[1, column].set_xlabel("labelled documents")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="*", default=["wos", "attack"])
    parser.add_argument("--split", default="dev")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path("build/vectors"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    for each in given.sets if given.data else ():
        problem = Problem(given.data, each, given.split, given.cache)
        common = {"data": each, "split": given.split, "encoder": "minilm", "batch": BATCH, "penalty": PENALTY}
        curves: dict[str, dict[str, Any]] = {}
        for strategy in ("random", "suggest"):
            runs = [problem.run(strategy, seed) for seed in range(given.seeds)]
            for seed, result in enumerate(runs):
                append(given.out, common | {"strategy": strategy, "seed": seed} | result)
            curves[strategy] = {key: np.mean([run[key] for run in runs], axis=0) for key in runs[0]}
        for metric, random_curve in curves["random"].items():
            at = [400, 800, 1_200, 1_600, 2_000, 2_400]
            goals = [random_curve[count // BATCH - 1] for count in at]
            ratios = [
                round(n / count, 3) for n, count in zip(needed(curves["suggest"][metric], goals), at, strict=True)
            ]
            append(given.out, common | {"metric": metric, "random_labels": at, "share_needed": ratios})
    if given.figure:
        draw(given.figure, given.out)
