"""Test if fast training reduces quality: dev F1 after the same epochs, fast and with the plain fp32 loop.

Run it as `python benchmarks/bench_quality.py DATA [--encoder minilm] [--seeds 1 2 3] [--epochs 3] [--workers 3]`; the
folder DATA has taxonomy.tsv, train.jsonl and dev.jsonl. Test is never read.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hill.classifier import HillClassifier
from hill.data import read_documents
from hill.taxonomy import read_taxonomy

MEASURES = ("raw_micro_f1", "raw_macro_f1", "micro_f1", "macro_f1")


def train(data: Path, model: str, encoder: str, plain: bool, seed: int, epochs: int, most: int) -> dict[str, Any]:
    """Train once on the first documents, at most this many; returns the metrics on dev."""
    taxonomy = read_taxonomy(data / "taxonomy.tsv")
    documents = {split: read_documents([data / f"{split}.jsonl"], taxonomy) for split in ("train", "dev")}
    documents["train"] = documents["train"].take(np.arange(min(most, len(documents["train"]))))
    rates = {"batch_size": 128, "encoder_lr": 2e-4, "lr": 1e-3, "epochs": epochs, "patience": epochs, "plain": plain}
    settings: dict[str, dict[str, Any]] = {
        "model": {"encoder": encoder},
        "train": {**rates, "seed": seed},
        "data": {"max_length": 320},
    }
    classifier = HillClassifier(taxonomy, model, settings, preset=None)
    start = time.perf_counter()
    with TemporaryDirectory() as scratch:
        for _ in classifier.training(documents, Path(scratch)):
            pass
    found = {name: round(float(classifier.metrics[name]), 4) for name in MEASURES}
    return {"plain": plain, "seed": seed, **found, "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    """Train all, print a table of means and deviations, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="hill")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--documents", type=int, default=1_000_000, help="documents to train on, at most")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.workers, get_context("spawn")) as pool:
        jobs = [
            pool.submit(train, asked.data, asked.model, asked.encoder, plain, seed, asked.epochs, asked.documents)
            for plain in (False, True)
            for seed in asked.seeds
        ]
        rows = []
        for job in as_completed(jobs):
            rows.append(job.result())
            print(json.dumps(rows[-1]), flush=True)
    table = Table(title=f"{asked.model}, {asked.epochs} epochs, {len(asked.seeds)} seeds: F1 on dev, mean ± deviation")
    for column in ("", *MEASURES):
        table.add_column(column, justify="right")
    for plain in (False, True):
        each = [np.array([100 * row[name] for row in rows if row["plain"] == plain]) for name in MEASURES]
        table.add_row("plain" if plain else "fast", *(f"{of.mean():.2f} ± {of.std(ddof=1):.2f}" for of in each))
    Console(width=120).print(table)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    result = {"benchmark": "quality", "model": asked.model, "epochs": asked.epochs, "documents": asked.documents}
    result |= {"machine": machine, "rows": rows}
    print(json.dumps(result))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
