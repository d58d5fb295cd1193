"""Train every model once on a part of a data set, to see if it learns. Writes one JSON file per model.

Run it as `python experiments/smoke.py --data DIR --out experiments/results/smoke [--models hill flat]`. DIR has train
and dev files and a taxonomy.tsv; test is never read.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from hill.classifier import HillClassifier
from hill.data import Documents, read_data
from hill.metrics import score
from hill.settings import Groups
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.train import Epoch

SEED = 42
RCNN = {"text": "rcnn"}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {}),
    "textrcnn": ("textrcnn", RCNN),
    "hiagm-tp-rcnn": ("hiagm", RCNN),
    "hiagm-la-rcnn": ("hiagm", {**RCNN, "fusion": "la"}),
    "hiagm-tp-treelstm-rcnn": ("hiagm", {**RCNN, "structure": "treelstm"}),
    "htcinfomax-rcnn": ("htcinfomax", RCNN),
    "himatch-rcnn": ("himatch", RCNN),
    "hitin-rcnn": ("hitin", RCNN),
    "flat": ("flat", {}),
    "flat-conditional": ("flat", {"loss": "conditional-softmax", "adjust": 1.0}),
    "hiagm-tp": ("hiagm", {}),
    "hiagm-la": ("hiagm", {"fusion": "la"}),
    "htcinfomax": ("htcinfomax", {}),
    "himatch": ("himatch", {}),
    "hgclr": ("hgclr", {}),
    "hitin": ("hitin", {}),
    "hill": ("hill", {}),
    "hill-gcn": ("hill", {"structure": "gcn"}),
    "hill-gat": ("hill", {"structure": "gat"}),
    "hill-gin": ("hill", {"structure": "gin"}),
    "hill-no-contrast": ("hill", {"contrast": 0.0}),
    "hill-height-1": ("hill", {"height": 1}),
}
SHOWN = ("micro_f1", "macro_f1", "hierarchical_f1")


def settings_of(name: str, encoder: str) -> Groups:
    """The settings of a row. Word vectors from scratch and a single linear layer need more epochs."""
    model = ROWS[name][1]
    rcnn = model.get("text") == "rcnn"
    train: dict[str, Any] = {
        "epochs": 15 if rcnn or name in ("flat", "hgclr") else 5,
        "batch_size": 64,
        "patience": 20,
        "seed": SEED,
    }
    train |= {"lr": 1e-3} if rcnn else {"encoder_lr": 2e-4, "lr": 1e-3, "head_start": "off"}
    return {"model": {**model, **({} if rcnn else {"encoder": encoder})}, "train": train, "data": {"max_length": 128}}


def frequency_guess(train: Documents, dev: Documents, taxonomy: Taxonomy) -> dict[str, float]:
    """The best score of predicting the k most frequent labels for every document, over all k."""
    order = np.argsort(-train.labels.sum(axis=0))
    gold, best = dev.labels.toarray(), dict.fromkeys(SHOWN, 0.0)
    for count in range(1, 11):
        guess = np.zeros_like(gold)
        guess[:, order[:count]] = True
        found = score(gold, guess, None, taxonomy)
        best = {name: max(best[name], float(found[name])) for name in SHOWN}
    return best


def run(name: str, data: dict[str, Documents], taxonomy: Taxonomy, encoder: str) -> dict[str, Any]:
    """Train a row; returns its settings, dev curve and time."""
    model = ROWS[name][0]
    classifier = HillClassifier(taxonomy, model, settings_of(name, encoder), preset=None)
    start, curve = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as scratch:
        for report in classifier.training(data, Path(scratch)):
            if isinstance(report, Epoch):
                curve.append({"epoch": report.epoch} | {key: round(report.metrics[key], 4) for key in SHOWN})
    config = classifier.settings()
    config["model"]["encoder"] = Path(encoder).name
    return {
        "row": name,
        "config": {"name": model, **config},
        "seed": SEED,
        "documents": {split: len(documents) for split, documents in data.items()},
        "dev_curve_at_0.5": curve,
        "dev_tuned": {key: round(classifier.metrics[key], 4) for key in (*SHOWN, "threshold")},
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    """Run the rows, print a line per row, and write one JSON file per row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("experiments/results/smoke"))
    parser.add_argument("--models", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--documents", type=int, default=5_000)
    parser.add_argument("--dev", type=int, default=2_000)
    arguments = parser.parse_args()
    taxonomy = read_taxonomy(arguments.data / "taxonomy.tsv")
    found = read_data(arguments.data, taxonomy)
    sizes = {"train": arguments.documents, "dev": arguments.dev}
    data = {split: found[split].take(np.arange(min(size, len(found[split])))) for split, size in sizes.items()}
    guess = {key: round(value, 4) for key, value in frequency_guess(data["train"], data["dev"], taxonomy).items()}
    print(f"{'guess by frequency':26}", *(f"{100 * guess[key]:6.1f}" for key in SHOWN), flush=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "device": device}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        result = run(name, data, taxonomy, arguments.encoder) | {"frequency_guess": guess, "versions": versions}
        values = (f"{100 * result['dev_tuned'][key]:6.1f}" for key in SHOWN)
        print(f"{name:26}", *values, f"{result['seconds']:7.1f} s", flush=True)
        (arguments.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
