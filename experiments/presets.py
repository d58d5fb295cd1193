"""Presets against other settings, by number of training documents: trains, then reads test once per run.

Rows: auto; fast; linear; flat, and HILL, with the defaults of all settings; and the settings that docs/training.md
recommended before there were presets. --out gets one JSON line per run; runs that it already has are not repeated. Run
it as `python experiments/presets.py --data DIR --rows auto linear --documents 500 0 --seeds 1 2 3 --out FILE`, where
0 documents are all.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from hill.classifier import HillClassifier
from hill.data import read_data
from hill.decode import DecodeConfig
from hill.settings import Groups
from hill.taxonomy import read_taxonomy
from hill.train.trainer import Notice

RECOMMENDED: Groups = {
    "model": {"height": 2, "leaf_units": 128, "name_weight": 10.0, "contrast": 0.03, "negatives": "others"},
    "train": {
        "batch_size": 128,
        "encoder_lr": 2e-4,
        "lr": 1e-3,
        "classifier_lr": 3e-3,
        "head_start": "off",
        "patience": 100,
    },
}
ROWS: dict[str, tuple[str, Groups, str | None]] = {
    "auto": ("hill", {}, "auto"),
    "fast": ("hill", {}, "fast"),
    "linear": ("linear", {}, None),
    "flat": ("flat", {}, None),
    "hill": ("hill", {}, None),
    "recommended": ("hill", RECOMMENDED, None),
}
KEPT = ("micro_f1", "macro_f1", "hierarchical_f1", "violations", "ece")


def train(data: Path, row: str, documents: int, seed: int, encoder: str) -> dict[str, Any]:
    """Train a row on a random sample of the documents (the seed draws it, too) and evaluate it on test."""
    torch.set_num_threads(2)
    taxonomy = read_taxonomy(next(data.glob("taxonomy.*")))
    splits = read_data(data, taxonomy)
    if documents:
        chosen = np.random.default_rng(seed).permutation(len(splits["train"]))[:documents]
        splits["train"] = splits["train"].take(np.sort(chosen))
    model, own, preset = ROWS[row]
    settings = {group: dict(own.get(group, {})) for group in ("model", "train")}
    settings["train"] |= {"seed": seed, "checkpoint_seconds": 1e9}
    if model != "linear":
        settings["model"]["encoder"] = encoder
    if row == "recommended":
        epochs = 3 if len(splits["train"]) >= 20_000 else 12
        settings["train"]["epochs"] = epochs
        settings["model"]["leaf_units"] = min(128, 25_000 // len(taxonomy))
    classifier = HillClassifier(taxonomy, model, settings, preset)
    start, notices = time.perf_counter(), []
    with TemporaryDirectory() as scratch:
        for event in classifier.training(splits, Path(scratch)):
            if isinstance(event, Notice):
                notices.append(event.text)
    seconds = time.perf_counter() - start
    result: dict[str, Any] = {
        "data": data.name,
        "row": row,
        "encoder": Path(encoder).name if model != "linear" else "",
        "documents": len(splits["train"]),
        "seed": seed,
        "seconds": round(seconds, 1),
        "notices": notices,
    }
    for split in ("dev", "test"):
        metrics = classifier.evaluate(splits[split], include_seen=True)
        result[split] = {name: round(float(metrics[name]), 5) for name in KEPT}
    if classifier.mixture is not None:
        result["weights"] = classifier.mixture.weights.round(3).tolist()
        classifier.mixture, classifier.thresholds, classifier.calibrator = None, None, None
        classifier.decode_config = DecodeConfig()
        classifier.set_thresholds(classifier.own_decoding)
        metrics = classifier.evaluate(splits["test"], include_seen=True)
        result["test_without_linear"] = {name: round(float(metrics[name]), 5) for name in KEPT}
    return result


def main() -> None:
    """Run what is missing, several at a time, those with the most documents first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--documents", type=int, nargs="+", default=[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    lines = arguments.out.read_text(encoding="utf-8").splitlines() if arguments.out.exists() else []
    done = {tuple(json.loads(line)["job"]) for line in lines}
    sizes = sorted(arguments.documents, key=lambda count: -count if count else -(10**9))
    asked = product(sizes, arguments.seeds, arguments.data, arguments.rows)
    jobs = [(data, row, size, seed) for size, seed, data, row in asked if (data.name, row, size, seed) not in done]
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        futures = {pool.submit(train, *job, arguments.encoder): job for job in jobs}
        for future in as_completed(futures):
            data, *rest = futures[future]
            if error := future.exception():  # one that fails does not stop the others
                print(data.name, rest, f"{type(error).__name__}: {error}", flush=True)
                continue
            result = {"job": [data.name, *rest], **future.result()}
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            scores = [f"{100 * result['test'][name]:.2f}" for name in KEPT[:2]]
            print(data.name, *rest, " / ".join(scores), f"{result['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
