"""Which batches and learning rates are best if only few documents can be read, as with a time limit on a CPU.

Trains the preset auto without its linear model on a number of documents, with other batch sizes, learning rates and
weights of label names, and scores dev; test is never read. The number of steps is that of documents by the batch size.
Run it as `python experiments/short_training.py --data DIR --sets attack --read 10000 --batches 64 16 --out FILE.jsonl`;
a run that the file has is not repeated.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from jobs import Run, add_arguments, run_all

from hill.classifier import HillClassifier
from hill.data import read_data
from hill.taxonomy import read_taxonomy

KEPT = ("micro_f1", "macro_f1", "hierarchical_f1", "threshold")


def execute(data: Path, encoder: str, run: Run) -> Iterator[Run]:
    """Train once and score dev."""
    folder = data / run["data"]
    taxonomy = read_taxonomy(next(folder.glob("taxonomy.*")))
    splits = read_data(folder, taxonomy)
    settings = {
        "model": {"encoder": encoder, "name_weight": run["name_weight"]},
        "train": {
            "batch_size": run["batch"],
            "steps": max(run["read"] // run["batch"], 1),
            "evaluations": 1,
            "encoder_lr": run["encoder_lr"],
            "classifier_lr": run["classifier_lr"],
            "ensemble": False,
            "seed": run["seed"],
            "checkpoint_seconds": 1e9,
        },
    }
    classifier = HillClassifier(taxonomy, "hill", settings, "auto")
    with TemporaryDirectory() as scratch:
        for _ in classifier.training({"train": splits["train"], "dev": splits["dev"]}, Path(scratch)):
            pass
    yield {"dev": {name: round(float(classifier.metrics[name]), 5) for name in KEPT if name in classifier.metrics}}


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--sets", nargs="+", default=["wos", "attack", "icd"])
    parser.add_argument("--read", type=int, nargs="+", default=[10_000], help="documents that are read")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 32, 16])
    parser.add_argument("--encoder-lr", type=float, nargs="+", default=[2e-4])
    parser.add_argument("--classifier-lr", type=float, nargs="+", default=[3e-3])
    parser.add_argument("--name-weight", type=float, nargs="+", default=[10.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--encoder", default="minilm")
    add_arguments(parser)
    given = parser.parse_args()
    names = ("seed", "data", "read", "batch", "encoder_lr", "classifier_lr", "name_weight")
    values = (given.seeds, given.sets, given.read, given.batches, given.encoder_lr, given.classifier_lr)
    runs = [dict(zip(names, each, strict=True)) for each in product(*values, given.name_weight)]
    run_all(partial(execute, given.data, given.encoder), lambda results: runs, given)


if __name__ == "__main__":
    main()
