"""Try settings on dev; test is never read.

A TOML file has a table `base` of settings (groups model, train, data, decode) and a table `trials` with the settings of
each trial, which override the base. --out gets one JSON line per trial; trials that it already has are not repeated.
Run it as
`python experiments/tune.py TRIALS.toml --data DIR --out FILE.jsonl [--encoder E] [--workers N] [--seeds 1 2]`.
"""

import argparse
import json
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hill.classifier import GROUPS, HillClassifier
from hill.data import Documents, read_documents
from hill.sparse import assemble_rows, to_dense
from hill.taxonomy import read_taxonomy
from hill.train import Epoch

CURVE = ("micro_f1", "macro_f1")
KEPT = ("micro_f1", "macro_f1", "hierarchical_f1", "threshold", "raw_micro_f1", "raw_macro_f1", "raw_violations")


def merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of a trial, by group. Model settings of the base apply only to its own model."""
    found = {group: {**base.get(group, {}), **own.get(group, {})} for group in GROUPS}
    other = "name" in own.get("model", {})
    return {**found, "model": dict(own["model"])} if other else found


def read_dev(folder: Path, taxonomy: Any) -> dict[str, Documents]:
    """The train and dev splits."""
    return {split: read_documents([folder / f"{split}.jsonl"], taxonomy) for split in ("train", "dev")}


def carry_out(
    name: str, settings: dict[str, dict[str, Any]], data: Path, count: int = 0, scores: Path | None = None
) -> dict[str, Any]:
    """Train once, on a random sample of `count` documents if it is given; returns the metrics on dev."""
    taxonomy = read_taxonomy(next(data.glob("taxonomy.*")))
    documents = read_dev(data, taxonomy)
    if count:
        chosen = np.random.default_rng(0).permutation(len(documents["train"]))[:count]
        documents["train"] = documents["train"].take(np.sort(chosen))
    model = settings["model"].pop("name", "hill")
    classifier = HillClassifier(taxonomy, model, settings, preset=None)
    start, curve = time.perf_counter(), []
    with TemporaryDirectory() as scratch:
        for report in classifier.training(documents, Path(scratch)):
            if isinstance(report, Epoch):
                curve.append([round(100 * report.metrics[key], 2) for key in CURVE])
    found = classifier.metrics
    if scores:
        dev = documents["dev"]
        matrix = assemble_rows(classifier.scores(dev.texts), (len(dev), len(taxonomy)))
        np.savez_compressed(
            scores / f"{data.name}-{name}-{count}-{settings['train']['seed']}.npz",
            scores=to_dense(matrix).astype(np.float16),
        )
    settings["model"]["name"] = model
    settings["model"].pop("encoder", None)
    return {
        "trial": name,
        "documents": len(documents["train"]),
        "settings": settings,
        "seconds": round(time.perf_counter() - start, 1),
        "dev": {key: round(float(found[key]), 4) for key in KEPT},
        "curve": curve,
    }


def main() -> None:
    """Run the missing trials, several at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trials", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--only", nargs="+", help="names of trials")
    parser.add_argument("--documents", type=int, default=0, help="train on a random sample of this many documents")
    parser.add_argument("--scores", type=Path, help="folder for the scores of dev")
    arguments = parser.parse_args()
    given = tomllib.loads(arguments.trials.read_text(encoding="utf-8"))
    done = set()
    if arguments.out.exists():
        lines = [json.loads(line) for line in arguments.out.read_text(encoding="utf-8").splitlines()]
        done = {
            (line["trial"], line["settings"]["train"]["seed"])
            for line in lines
            if not arguments.documents or line.get("documents") == arguments.documents
        }
    jobs = []
    for seed in arguments.seeds:
        for name, own in given["trials"].items():
            if (name, seed) not in done and (not arguments.only or name in arguments.only):
                settings = merged(given["base"], own)
                settings["train"]["seed"] = seed
                if settings["model"].get("name") not in ("linear", "textrcnn"):
                    settings["model"].setdefault("encoder", arguments.encoder)
                jobs.append((name, settings))
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        futures = {
            pool.submit(carry_out, name, settings, arguments.data, arguments.documents, arguments.scores): name
            for name, settings in jobs
        }
        for future in as_completed(futures):
            name = futures[future]
            if error := future.exception():  # one that fails does not stop the others
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            line = future.result()
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            dev = line["dev"]
            print(
                f"{name:24} raw {100 * dev['raw_micro_f1']:.2f} / {100 * dev['raw_macro_f1']:.2f}  tuned "
                f"{100 * dev['micro_f1']:.2f} / {100 * dev['macro_f1']:.2f}  {line['seconds']} s  {line['curve'][-1:]}",
                flush=True,
            )


if __name__ == "__main__":
    main()
