"""Every row of the tables with the same number of trials: draws settings, chooses on dev, reads test once.

1. `tune`: settings are drawn at random from the row's space below, the first are the row's defaults. The seed of the
   draws is the row's name, so they are the same on every machine. Each is trained for a third of the steps.
2. `full`: the defaults and the best others are trained for all steps. "Best" is the highest mean of micro and macro F1
   on dev, here as everywhere.
3. `test`: the best of these is trained with each seed, and test is read.

All rows of a data set have the same training documents, batch size, number of steps, schedule, maximum length and
decoding. Names of labels, and sentences of their descriptions, are training documents for every row
(data.descriptions), since every row can read them. Rows on TextRCNN train `RCNN_EPOCHS` epochs in all stages; on other
data sets than wos they have the settings that were chosen there, and so have rows with L² · W weights on attack, which
has 939 labels. Rows with `shuffled` in their names are their twin with permuted leaves of the coding tree, and have its
settings.

Run it as `python experiments/equal_tuning.py --data DIR --sets wos attack --workers 6 --out FILE.jsonl`. A run that is
in the file is not repeated. `--untuned` skips 1 and 2 and trains the defaults, `--documents` uses fewer documents.

`--protocol paper` is for larger encoders: it skips 1 and 2, and trains each row with batches of 24, the learning rate
3e-5 for the encoder, and early stopping, as in the paper; the other settings are those that were chosen with MiniLM.
"""

import argparse
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import designs
import numpy as np
from jobs import Run, add_arguments, contains, run_all

from hill.classifier import HillClassifier
from hill.data import Documents, read_data
from hill.errors import HillError
from hill.models.inference import find_device
from hill.settings import Groups
from hill.taxonomy import Taxonomy, read_taxonomy

designs.register()

KEPT = ("micro_f1", "macro_f1", "hierarchical_f1", "threshold", "raw_micro_f1", "raw_macro_f1")
SEEDS = (1, 2, 3, 4, 5)
SLOW_SEEDS = (1, 2, 3)
"""Of slow rows."""
STEPS = {"wos": 768, "attack": 1_536, "arxiv": 1_152}
"""Steps of 64 documents, somewhat fewer than those of the preset auto."""
TRIALS = {"wos": 12, "attack": 12, "arxiv": 6}
FULL_TRIALS = 2
"""How many settings are trained for all steps; one of them is the default."""
SHORT = 3
"""The first trials have this part of the steps."""
RCNN_TRIALS, TUNED_SET, TUNED_ENCODER = 4, "wos", "minilm"
RCNN_EPOCHS = {"wos": 20, "attack": 20, "arxiv": 10}
BATCH, LENGTH, RCNN_LENGTH, NEVER = 64, 512, 256, 1_000_000
TRAIN = {
    "batch_size": BATCH,
    "warmup": 0.1,
    "schedule": "linear",
    "clip": 1.0,
    "head_start": "off",
    "ensemble": False,
    "patience": NEVER,
    "checkpoint_seconds": 1e9,
}
PAPER_TRAIN = {
    "batch_size": 24,
    "encoder_lr": 3e-5,
    "warmup": 0.0,
    "schedule": "constant",
    "epochs": 20,
    "patience": 6,
}
"""What is different with `--protocol paper`."""
DECODE = {"strategy": "closure", "tune": "global", "calibrate": "off"}

Space = dict[str, tuple[Any, ...]]
RATES: Space = {
    "train.encoder_lr": (1e-4, 2e-4, 3e-4),
    "train.lr": (5e-4, 1e-3, 3e-3),
    "train.classifier_lr": (1e-3, 3e-3, 1e-2),
    "model.dropout": (0.05, 0.1, 0.2),
    "model.pooling": ("cls", "mean"),
}
"""What is drawn for every row on a transformer; the value at the middle, of two the second, is the default."""
RCNN_RATES: Space = {"train.lr": (1e-3, 3e-3, 1e-2), "model.dropout": (0.1, 0.3, 0.5)}
"""What is drawn for every row on TextRCNN, instead of `RATES`."""


@dataclass(frozen=True)
class Row:
    """A row: its model, the settings that define it, and what is drawn besides the rates."""

    model: str
    fixed: Groups = field(default_factory=dict)
    space: Space = field(default_factory=dict)
    on_rcnn: bool = False
    squared: bool = False
    """Whether its head has L² · W weights."""
    base: str = ""
    """A row whose trials this one tries, too, each with settings of its own."""
    twin: str = ""
    """The row whose settings are used."""

    def draws(self) -> Space:
        """The settings that are drawn, with their values; without those of its base."""
        rates = {} if self.base or self.model == "linear" else RCNN_RATES if self.on_rcnn else RATES
        return rates | self.space

    def is_slow(self, data: str) -> bool:
        """Whether it has fewer seeds on this data set, and settings of `TUNED_SET`."""
        return self.on_rcnn or (self.squared and data == "attack")


def on_text(**model: Any) -> Groups:
    """HILL without its tree and contrast: the classifier reads the text vector, as in the preset auto."""
    return {"model": {"classifier": "text", "contrast": 0.0, **model}}


PAPER: Groups = {"model": {"method": "authors", "contrast_labels": 0, "whole_label_map": True, "loss": "bce"}}
RCNN: Groups = {"model": {"text": "rcnn"}}
CLS: Space = {"model.pooling": ("mean", "cls")}
"""The pooling of the released code as the default."""
LINEAR: Space = {"train.classifier_lr": (3e-3, 1e-2, 3e-2)}
"""A linear layer alone needs higher rates."""
NAMES: Space = {"model.name_weight": (5.0, 10.0, 20.0)}
HIMATCH: Space = {"model.joint": (0.1, 0.3, 1.0), "model.match": (0.1, 0.3, 1.0)}
INFOMAX: Space = {"model.information": (0.01, 0.1, 1.0), "model.readout_dropout": (0.5, 0.1)}
HIAGM: Space = {"model.recursive": (0.0, 1e-6, 1e-4), "model.readout_dropout": (0.5, 0.1)}
NODES: Space = {"model.weight": (0.03, 0.1, 0.3), "model.sharpness": (5.0, 10.0, 20.0), "model.height": (3, 2)}
ZLPR = on_text(loss="zlpr")
ROWS = {
    "linear": Row("linear"),
    "textrcnn": Row("textrcnn", on_rcnn=True),
    "hiagm-rcnn": Row("hiagm", RCNN, HIAGM, on_rcnn=True, squared=True),
    "htcinfomax-rcnn": Row("htcinfomax", RCNN, INFOMAX, on_rcnn=True, squared=True),
    "himatch-rcnn": Row("himatch", RCNN, HIMATCH, on_rcnn=True, squared=True),
    "flat": Row("flat", {}, LINEAR),
    "hiagm": Row("hiagm", {}, HIAGM, squared=True),
    "htcinfomax": Row("htcinfomax", {}, INFOMAX, squared=True),
    "himatch": Row("himatch", {}, HIMATCH, squared=True),
    "hgclr": Row(
        "hgclr",
        {},
        CLS | LINEAR | {"model.keep": (0.001, 0.003, 0.01, 0.02), "model.contrast": (0.01, 0.03, 0.1)},
    ),
    "hitin": Row("hitin", {}, {"model.height": (3, 2), "model.readout_dropout": (0.5, 0.1)}),
    "hill-paper": Row("hill", PAPER, CLS | {"model.contrast": (0.001, 0.01, 0.1), "model.height": (2, 3)}),
    "flat-names": Row("hill", on_text(loss="bce"), NAMES),
    "flat-zlpr": Row("hill", ZLPR, NAMES),
    "flat-units": Row("hill", on_text(loss="bce"), {"model.leaf_units": (16, 128, 32)}),
    "flat-attention": Row(
        "design-attention",
        ZLPR,
        NAMES | {"model.sharpness": (5.0, 10.0, 20.0)},
    ),
    "hill-ours": Row("design-nodes", ZLPR, NODES, base="flat-zlpr"),
    "hill-ours-shuffled": Row("design-nodes", ZLPR, twin="hill-ours"),
    "path": Row("design-path", ZLPR, {"model.weight": (0.1, 0.3, 1.0)}, base="flat-zlpr"),
    "path-shuffled": Row("design-path", ZLPR, twin="path"),
}


# Settings of the runs


def draw(name: str, count: int) -> list[Groups]:
    """The settings of the trials of a row: its defaults, then random ones."""
    row = ROWS[name]
    space, base = row.draws(), draw(row.base, count) if row.base else []
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))
    drawn = [{key: values[len(values) // 2] for key, values in space.items()}]
    while len(drawn) < count and space:
        trial = {key: values[int(random.integers(len(values)))] for key, values in space.items()}
        if base or trial not in drawn:
            drawn.append(trial)
    trials = [_nested(trial) for trial in drawn]
    for trial, shared in zip(trials, base, strict=False):
        for group, values in shared.items():
            trial[group] = values | trial.get(group, {})
    return trials


def _nested(flat: dict[str, Any]) -> Groups:
    """Settings by group from names such as train.lr."""
    groups: Groups = {}
    for key, value in flat.items():
        group, _, name = key.partition(".")
        groups.setdefault(group, {})[name] = value
    return groups


def best(results: list[Run]) -> list[Groups]:
    """The settings of these results, the highest mean of micro and macro F1 on dev first; without failed runs."""
    found = [row for row in results if "dev" in row]
    found.sort(key=lambda row: row["dev"]["micro_f1"] + row["dev"]["macro_f1"], reverse=True)
    return [row["settings"] for row in found]


def plan(given: argparse.Namespace, results: list[Run]) -> Iterator[Run]:
    """The runs of all rows on all data sets that can be executed now."""
    for data in given.sets:
        for name in given.rows:
            run = {"data": data, "row": name, "documents": given.documents, "encoder": given.encoder_name}
            if given.protocol == "paper":
                settings = choose(run | {"encoder": TUNED_ENCODER}, given, results)
                if isinstance(settings, list):
                    raise SystemExit(f"first choose the settings of {name} on {data} with {TUNED_ENCODER}")
                yield from test_runs(run | {"protocol": "paper"}, settings, given)
                continue
            settings = choose(run, given, results)
            yield from settings if isinstance(settings, list) else test_runs(run, settings, given)


def test_runs(run: Run, settings: Groups, given: argparse.Namespace) -> Iterator[Run]:
    """The runs of the last stage."""
    few = ROWS[run["row"]].is_slow(run["data"])
    for seed in given.seeds or (SLOW_SEEDS if few else SEEDS):
        yield run | {"stage": "test", "seed": seed, "settings": settings}


def choose(run: Run, given: argparse.Namespace, results: list[Run]) -> Groups | list[Run]:
    """The settings of a row that were chosen on dev, or the trials that are still missing for that."""
    row = ROWS[run["row"]]
    if row.twin:
        run = run | {"row": row.twin}
    if row.is_slow(run["data"]):
        run = run | {"data": TUNED_SET}
    data, name = run["data"], run["row"]
    count = 1 if given.untuned or row.model == "linear" else RCNN_TRIALS if row.on_rcnn else TRIALS[data]
    drawn = draw(name, count)
    if len(drawn) == 1:
        return drawn[0]
    stages: dict[str, list[Groups]] = {"full": drawn} if row.on_rcnn else {"tune": drawn}
    if not row.on_rcnn:
        first = [found for found in results if contains(found, run | {"stage": "tune"}) and found["settings"] in drawn]
        if len(first) == count:
            others = [settings for settings in best(first) if settings != drawn[0]]
            stages["full"] = [drawn[0], *others[: FULL_TRIALS - 1]]
    wanted = [run | {"stage": stage, "seed": 1, "settings": own} for stage in stages for own in stages[stage]]
    missing = [each for each in wanted if not any(contains(found, each) for found in results)]
    if missing or "full" not in stages:
        return missing
    chosen = best([found for found in results if contains(found, run | {"stage": "full"})])
    if not chosen:
        raise SystemExit(f"no trial of {name} on {data} succeeded")
    return chosen[0]


# Execution


@cache
def read(folder: Path) -> tuple[Taxonomy, dict[str, Documents]]:
    """The taxonomy and the splits of a data set."""
    taxonomy = read_taxonomy(next(folder.glob("taxonomy.*")))
    return taxonomy, read_data(folder, taxonomy)


def execute(data: Path, encoder: str, vectors: str, run: Run) -> Iterator[Run]:
    """Train a row once and measure it on dev, and on test in the last stage."""
    row, (taxonomy, splits) = ROWS[run["row"]], read(data / run["data"])
    train = splits["train"]
    if run["documents"]:
        train = train.take(np.sort(np.random.default_rng(run["seed"]).permutation(len(train))[: run["documents"]]))
    own = run["settings"]
    settings: Groups = {name: {**row.fixed.get(name, {}), **own.get(name, {})} for name in ("model", "train")}
    longest = RCNN_LENGTH if row.on_rcnn else LENGTH
    settings |= {"data": {"max_length": longest, "descriptions": True}, "decode": DECODE}
    settings["train"] |= {"seed": run["seed"]}
    if row.model != "linear":
        settings["train"] |= TRAIN
        is_paper = run.get("protocol") == "paper"
        settings["train"] |= PAPER_TRAIN if is_paper else length(row, run, len(train) + len(taxonomy))
    if row.on_rcnn:
        settings["model"] |= {"vectors": vectors, "word_width": 50} if vectors else {}
    elif row.model != "linear":
        settings["model"]["encoder"] = encoder
    if row.twin:
        settings["model"]["shuffle"] = run["seed"]
    if "leaf_units" in settings["model"]:
        settings["model"]["leaf_units"] = min(settings["model"]["leaf_units"], 25_000 // len(taxonomy))
    known = HillClassifier(taxonomy, row.model, preset=None).settings()["model"]
    settings["model"] = {name: value for name, value in settings["model"].items() if name in known}
    classifier = HillClassifier(taxonomy, row.model, settings, preset=None)
    try:
        with TemporaryDirectory() as scratch:
            for _ in classifier.training({"train": train, "dev": splits["dev"]}, Path(scratch)):
                pass
    except HillError as error:  # such as a loss that is not finite
        yield {"error": str(error)}
        return
    result = {"dev": kept(classifier.metrics)}
    if run["stage"] == "test":
        result["test"] = kept(classifier.evaluate(splits["test"], include_seen=True))
    yield result | {"device": find_device(classifier.train_config.device).type}


def length(row: Row, run: Run, documents: int) -> dict[str, int]:
    """How long a run trains, and how often dev is scored."""
    if row.on_rcnn:
        return {"epochs": RCNN_EPOCHS[run["data"]], "evaluations": 4}
    steps = STEPS[run["data"]]
    if run["documents"]:  # at most 20 epochs, as the preset auto
        steps = min(steps, 20 * documents // BATCH)
    short = run["stage"] == "tune"
    return {"steps": steps // SHORT if short else steps, "evaluations": 1 if short else 4}


def kept(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics that are recorded."""
    return {key: round(float(metrics[key]), 5) for key in KEPT if key in metrics}


def main() -> None:
    """Run what is missing, several at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--sets", nargs="+", choices=STEPS, default=["wos"])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="default: 1 to 5, 1 to 3 for slow rows")
    parser.add_argument("--documents", type=int, default=0, help="training documents, drawn by the seed; 0 for all")
    parser.add_argument("--untuned", action="store_true", help="train the defaults of each row")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--protocol", choices=["equal", "paper"], default="equal", help="see above")
    parser.add_argument("--vectors", default="", help="file of word vectors, 50 wide, for rows on TextRCNN")
    add_arguments(parser)
    given = parser.parse_args()
    given.encoder_name = Path(given.encoder).name
    run_all(partial(execute, given.data, given.encoder, given.vectors), partial(plan, given), given)


if __name__ == "__main__":
    main()
