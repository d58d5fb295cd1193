"""A trained model and later documents: F1 of old labels before and after, of new labels, and of training once on all.

`labels`: a tenth of the leaves, with their documents, is hidden in training (before); then the whole taxonomy is
applied without training (apply), and the training continues on 1, 2, 4, 8 and all documents of each hidden label (add).
`documents`: 70 % of the documents come first (before) and the rest later (add). `whole`: all documents at once. All by
`hill train` with its defaults, `hill taxonomy apply`, and `hill train --warm-start --add`.

`old` is F1 over labels that are not hidden, on documents without hidden labels; `new` that of hidden labels, on all
documents; `all` that of all labels on all documents. Macro F1 is over labels that the documents have. Run it as `python
experiments/continual.py --data DIR --sets wos attack --split test --seeds 3 --workers 6 --out FILE`.
"""

import argparse
import json
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from frozen import read_set
from jobs import Run, add_arguments, run_all

from hill.classifier import HillClassifier
from hill.data import Documents
from hill.label_errors import most_specific
from hill.revision import apply_taxonomy
from hill.taxonomy import Taxonomy
from hill.train.warm_start import REPEATS, warm_settings, with_replay

HIDDEN, LATER = 0.1, 0.3
"""Share of the leaves that are hidden, and of the documents that come later."""
SIZES = (1, 2, 4, 8, 0)
"""Documents per hidden label; 0: all."""
MIN_DOCUMENTS = 8
"""Training documents that a leaf needs to be hidden."""
read = cache(read_set)


class Problem:
    """A data set, and what is hidden from it at first."""

    def __init__(self, data: Path, name: str, split: str, scenario: str, seed: int) -> None:
        self.taxonomy, self.splits = read(data, name)
        self.test, self.seed, self.scenario = self.splits[split], seed, scenario
        self.random = np.random.default_rng(seed)
        self.gold = self.test.labels.toarray().astype(bool)
        self.hidden = self._hidden() if scenario != "documents" else np.arange(0)
        self.kept = np.setdiff1d(np.arange(len(self.taxonomy)), self.hidden)

    def _hidden(self) -> Any:
        """Random leaves with enough training documents, and documents of test."""
        leaves = self.taxonomy.leaves
        counts = np.asarray(self.splits["train"].labels.sum(axis=0)).ravel()[leaves]
        usable = leaves[(counts >= MIN_DOCUMENTS) & self.gold[:, leaves].any(axis=0)]
        return np.sort(self.random.permutation(usable)[: round(HIDDEN * len(leaves))])

    def is_new(self, documents: Documents) -> Any:
        """Which documents have hidden labels."""
        return np.asarray(documents.labels[:, self.hidden].sum(axis=1)).ravel() > 0

    def old_taxonomy(self) -> Taxonomy:
        """The taxonomy without the hidden labels."""
        return Taxonomy([self.taxonomy[row] for row in self.kept])

    def old_documents(self, documents: Documents) -> Documents:
        """Documents without hidden labels, labelled by the old taxonomy."""
        old = documents.take(np.flatnonzero(~self.is_new(documents)))
        return Documents(old.ids, old.texts, old.labels[:, self.kept], old.added)

    def measure(self, classifier: HillClassifier) -> dict[str, Any]:
        """F1 of old labels, new labels and all labels."""
        found = np.asarray(classifier.predict_indicator(self.test.texts)).astype(bool)
        if found.shape[1] < len(self.taxonomy):
            whole = np.zeros(self.gold.shape, dtype=bool)
            whole[:, self.kept] = found
            found = whole
        old, everything = np.flatnonzero(~self.is_new(self.test)), np.arange(len(self.test))
        result = {
            "all": _f1(found, self.gold),
            "old": _f1(found[np.ix_(old, self.kept)], self.gold[np.ix_(old, self.kept)]),
        }
        if len(self.hidden):
            result["new"] = _f1(found[:, self.hidden], self.gold[:, self.hidden])
        return result | {"documents_old": len(old), "documents": len(everything)}


def _f1(found: Any, gold: Any) -> dict[str, float]:
    """Micro and macro F1, and micro precision and recall, of predicted labels (documents, L)."""
    hits, predicted, wanted = (each.sum(axis=0) for each in (found & gold, found, gold))
    used = wanted > 0
    macro = (2 * hits[used] / (predicted + wanted)[used]).mean()
    values = {
        "micro_f1": 2 * hits.sum() / max(predicted.sum() + wanted.sum(), 1),
        "macro_f1": macro,
        "precision": hits.sum() / max(predicted.sum(), 1),
        "recall": hits.sum() / max(wanted.sum(), 1),
    }
    return {name: round(float(value), 5) for name, value in values.items()}


def train(
    taxonomy: Taxonomy, data: dict[str, Documents], out: Path, settings: dict[str, Any], start: Path | None = None
) -> HillClassifier:
    """`hill train`, with `--warm-start` if there is a model to start from; the model is saved."""
    name = "hill"
    if start:
        name, settings = warm_settings(start, settings)
    classifier = HillClassifier(taxonomy, name, settings)
    for _ in classifier.training(data, out):
        pass
    classifier.save(out)
    return classifier


def execute(
    data: Path, encoder: str, steps: int, sizes: tuple[int, ...], variants: dict[str, Any], run: Run
) -> Iterator[Run]:
    """The results of a run: a base model, and what follows from it."""
    problem = Problem(data, run["data"], run["split"], run["scenario"], run["seed"])
    taxonomy, seed, splits = problem.taxonomy, run["seed"], problem.splits
    base: dict[str, Any] = {
        "model": {"encoder": encoder},
        "train": {"seed": seed, "checkpoint_seconds": 1e9} | ({"steps": steps} if steps else {}),
    }
    documents, dev = splits["train"], splits["dev"]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if run["scenario"] == "whole":
            yield {"step": "whole"} | problem.measure(train(taxonomy, {"train": documents, "dev": dev}, folder, base))
            return
        if run["scenario"] == "documents":
            later = problem.random.random(len(documents)) < LATER
            first, rest = (documents.take(np.flatnonzero(chosen)) for chosen in (~later, later))
            known = {"train": first, "dev": dev}
            yield {"step": "before"} | problem.measure(train(taxonomy, known, folder / "old", base))
            start, added = folder / "old", {"add all": rest}
        else:
            old = {name: problem.old_documents(splits[name]) for name in ("train", "dev")}
            classifier = train(problem.old_taxonomy(), old, folder / "old", base)
            yield {"step": "before"} | problem.measure(classifier)
            start = folder / "applied"
            applied, _ = apply_taxonomy(HillClassifier.load(folder / "old"), taxonomy)
            applied.save(start)
            yield {"step": "apply"} | problem.measure(applied)
            known = {
                name: splits[name].take(np.flatnonzero(~problem.is_new(splits[name]))) for name in ("train", "dev")
            }
            new = documents.take(np.flatnonzero(problem.is_new(documents)))
            added = {f"add {size or 'all'}": new.take(_draw(problem, new, size)) for size in sizes}
        for step, more in added.items():
            for variant, own in variants.items():
                settings = {"train": base["train"] | own.get("train", {})}
                replayed = with_replay(known, more, 0.1, seed, own.get("repeats", REPEATS))
                out = folder / f"{step} {variant}"
                classifier = train(taxonomy, replayed, out, settings, start)
                facts = {"step": step, "variant": variant, "added": len(more), "read": len(replayed["train"])}
                yield facts | {"steps": classifier.train_config.steps} | problem.measure(classifier)


def _draw(problem: Problem, new: Documents, size: int) -> Any:
    """Documents of hidden labels: this many of each, or all."""
    if not size:
        return np.arange(len(new))
    specific = most_specific(new.labels.toarray().astype(bool), problem.taxonomy)[:, problem.hidden]
    random = np.random.default_rng(problem.seed)
    rows = [random.permutation(np.flatnonzero(specific[:, label]))[:size] for label in range(specific.shape[1])]
    return np.unique(np.concatenate(rows))


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["wos", "attack"])
    parser.add_argument("--scenarios", nargs="+", default=["labels", "documents", "whole"])
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES), help="none: apply only")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--steps", type=int, default=0, help="train.steps, to try the program; 0: as the preset")
    parser.add_argument("--variants", type=json.loads, default={"": {}}, help="settings of --add by name, as JSON")
    add_arguments(parser)
    given = parser.parse_args()
    runs = [
        {"data": name, "split": given.split, "scenario": scenario, "seed": seed}
        for seed, name, scenario in product(range(given.seeds), reversed(given.sets), given.scenarios)
    ]
    work = partial(execute, given.data, given.encoder, given.steps, tuple(given.sizes), given.variants)
    last = ("whole", "add all") if given.sizes else ("whole", "apply")
    run_all(work, lambda results: runs, given, lambda row: row["step"] in last)


if __name__ == "__main__":
    main()
