"""Every row of the tables with the same number of trials: draws settings, chooses on dev, reads test once.

`--phase tune` draws `--trials` settings per row at random from the row's space below (the first trial is the row's
default) and measures each on dev with seed 1. The seed of the draws is the row's name, so they are the same on every
machine. `--phase test` takes the settings of each row with the highest mean of micro and macro F1 on dev, trains with
`--seeds`, and reads test. All rows have the same batch size, number of steps, schedule, maximum length and decoding;
rows on TextRCNN train `RCNN_EPOCHS` epochs. Run it as
`python experiments/equal_tuning.py --phase tune --data DIR/wos --trials 12 --workers 6 --out FILE.jsonl`, then with
`--phase test --seeds 1 2 3 4 5` and the same FILE.jsonl; `--chosen OTHER.jsonl` takes the settings from another file.
"""

import argparse
import hashlib
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from hill.classifier import HillClassifier
from hill.data import read_data
from hill.presets import choose, describe
from hill.settings import Groups
from hill.taxonomy import read_taxonomy

KEPT = ("micro_f1", "macro_f1", "hierarchical_f1", "threshold", "raw_micro_f1", "raw_macro_f1")
BATCH, LENGTH, RCNN_EPOCHS, NEVER = 64, 512, 20, 1_000_000
TRAIN = {
    "batch_size": BATCH,
    "warmup": 0.1,
    "schedule": "linear",
    "clip": 1.0,
    "head_start": "off",
    "ensemble": False,
    "evaluations": 4,
    "patience": NEVER,
    "checkpoint_seconds": 1e9,
}
DECODE = {"strategy": "closure", "tune": "global", "calibrate": "off"}

Space = dict[str, tuple[Any, ...]]
RATES: Space = {
    "train.encoder_lr": (1e-4, 2e-4, 3e-4),
    "train.lr": (5e-4, 1e-3, 3e-3),
    "train.classifier_lr": (1e-3, 3e-3, 1e-2),
    "model.dropout": (0.1, 0.2),
}
"""What is drawn for every row on a transformer; the middle of each is the default."""
RCNN_RATES: Space = {"train.lr": (1e-4, 3e-4, 1e-3, 2e-3), "model.dropout": (0.1, 0.3, 0.5)}
"""What is drawn for every row on TextRCNN, instead of `RATES`."""


@dataclass(frozen=True)
class Row:
    """A row: its title, its model, the settings that define it, and what is drawn besides the rates."""

    title: str
    model: str
    fixed: Groups = field(default_factory=dict)
    space: Space = field(default_factory=dict)
    on_rcnn: bool = False


def on_text(**model: Any) -> Groups:
    """HILL without its tree and contrast: the classifier reads the text vector, as in the preset auto."""
    return {"model": {"classifier": "text", "contrast": 0.0, **model}}


PAPER: Groups = {
    "model": {"pooling": "cls", "method": "authors", "contrast_labels": 0, "whole_label_map": True, "loss": "bce"}
}
RCNN: Groups = {"model": {"text": "rcnn"}}
NAMES: Space = {"model.name_weight": (5.0, 10.0, 20.0)}
HIMATCH: Space = {"model.joint": (0.1, 0.3, 1.0), "model.match": (0.1, 0.3, 1.0)}
INFOMAX: Space = {"model.information": (0.01, 0.1, 1.0), "model.readout_dropout": (0.1, 0.5)}
HIAGM: Space = {"model.recursive": (0.0, 1e-6, 1e-4), "model.readout_dropout": (0.1, 0.5)}
ROWS = {
    "linear": Row("TF-IDF + linear SVM", "linear"),
    "textrcnn": Row("TextRCNN", "textrcnn", on_rcnn=True),
    "hiagm-rcnn": Row("HiAGM", "hiagm", RCNN, HIAGM, on_rcnn=True),
    "htcinfomax-rcnn": Row("HTCInfoMax", "htcinfomax", RCNN, INFOMAX, on_rcnn=True),
    "himatch-rcnn": Row("HiMatch", "himatch", RCNN, HIMATCH, on_rcnn=True),
    "flat": Row("BERT", "flat"),
    "hiagm": Row("BERT+HiAGM", "hiagm", {}, HIAGM),
    "htcinfomax": Row("BERT+HTCInfoMax", "htcinfomax", {}, INFOMAX),
    "himatch": Row("BERT+HiMatch", "himatch", {}, HIMATCH),
    "hgclr": Row(
        "HGCLR",
        "hgclr",
        {"model": {"pooling": "cls"}},
        {"model.keep": (0.001, 0.003, 0.01, 0.02), "model.contrast": (0.01, 0.03, 0.1)},
    ),
    "hitin": Row("BERT+HiTIN", "hitin", {}, {"model.height": (2, 3), "model.readout_dropout": (0.1, 0.5)}),
    "hill-paper": Row("HILL (paper)", "hill", PAPER, {"model.contrast": (0.001, 0.01, 0.1), "model.height": (2, 3)}),
    "flat-names": Row("flat + names", "hill", on_text(loss="bce"), NAMES),
    "flat-zlpr": Row("flat + names + ZLPR", "hill", on_text(loss="zlpr"), NAMES),
    "flat-units": Row("flat + units (wide net)", "hill", on_text(loss="bce"), {"model.leaf_units": (16, 32, 128)}),
    "hill-ours": Row(
        "HILL (ours)", "hill", {**on_text(), "data": {"descriptions": True}}, {"model.loss": ("bce", "zlpr"), **NAMES}
    ),
}


def draw(name: str, count: int) -> list[Groups]:
    """The settings of the trials of a row: its defaults, then random ones."""
    row = ROWS[name]
    if row.model == "linear":
        return [{}]
    space = (RCNN_RATES if row.on_rcnn else RATES) | row.space
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))
    drawn = [{key: values[len(values) // 2] for key, values in space.items()}]
    while len(drawn) < count:
        trial = {key: values[int(random.integers(len(values)))] for key, values in space.items()}
        if trial not in drawn:
            drawn.append(trial)
    return [_nested(trial) for trial in drawn]


def _nested(flat: dict[str, Any]) -> Groups:
    """Settings by group from names such as train.lr."""
    groups: Groups = {}
    for key, value in flat.items():
        group, _, name = key.partition(".")
        groups.setdefault(group, {})[name] = value
    return groups


def carry_out(data: Path, name: str, own: Groups, seed: int, encoder: str, reads_test: bool) -> dict[str, Any]:
    """Train a row once and measure it on dev, and on test if asked for."""
    torch.set_num_threads(1)
    row, taxonomy = ROWS[name], read_taxonomy(next(data.glob("taxonomy.*")))
    splits = read_data(data, taxonomy)
    settings: Groups = {
        group: {**row.fixed.get(group, {}), **own.get(group, {})} for group in ("model", "train", "data", "decode")
    }
    settings["decode"] |= DECODE
    settings["data"].setdefault("max_length", LENGTH)
    settings["train"] |= {"seed": seed}
    if row.model != "linear":
        settings["train"] |= TRAIN
        if row.on_rcnn:
            settings["train"] |= {"epochs": RCNN_EPOCHS}
        else:
            settings["model"]["encoder"] = encoder
            facts = describe(splits["train"], taxonomy, (6, 384), "cuda")
            steps = choose("auto", facts, (), {}).settings["train"]
            settings["train"]["steps"] = steps["steps"] * steps["batch_size"] // BATCH
    if "leaf_units" in settings["model"]:
        settings["model"]["leaf_units"] = min(settings["model"]["leaf_units"], 25_000 // len(taxonomy))
    classifier = HillClassifier(taxonomy, row.model, settings, preset=None)
    start = time.perf_counter()
    with TemporaryDirectory() as scratch:
        for _ in classifier.training({split: splits[split] for split in ("train", "dev")}, Path(scratch)):
            pass
    result: dict[str, Any] = {"seconds": round(time.perf_counter() - start, 1)}
    result["dev"] = {key: round(float(classifier.metrics[key]), 5) for key in KEPT if key in classifier.metrics}
    if reads_test:
        metrics = classifier.evaluate(splits["test"], include_seen=True)
        result["test"] = {key: round(float(metrics[key]), 5) for key in KEPT if key in metrics}
    return result


def best(lines: list[dict[str, Any]], data: str, row: str) -> Groups:
    """The settings of the trial with the highest mean of micro and macro F1 on dev."""
    found = [line for line in lines if line["job"][:3] == ["tune", data, row]]
    if not found:
        raise SystemExit(f"there is no trial of {row} on {data}; run --phase tune first")
    chosen: Groups = max(found, key=lambda line: line["dev"]["micro_f1"] + line["dev"]["macro_f1"])["job"][4]
    return chosen


def main() -> None:
    """Run what is missing, several at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", choices=("tune", "test"), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--chosen", type=Path, help="file with the trials that settings are chosen from, and its data")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    text = given.out.read_text(encoding="utf-8") if given.out.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    tuned = lines
    if given.chosen:
        tuned = [json.loads(line) for line in given.chosen.read_text(encoding="utf-8").splitlines()]
    done = {json.dumps(line["job"], sort_keys=True) for line in lines}
    jobs = []
    for row in given.rows:
        if given.phase == "tune":
            jobs += [["tune", given.data.name, row, 1, own] for own in draw(row, given.trials)]
        else:
            data = given.data.name if not given.chosen else next(line["job"][1] for line in tuned)
            jobs += [["test", given.data.name, row, seed, best(tuned, data, row)] for seed in given.seeds]
    jobs = [job for job in jobs if json.dumps(job, sort_keys=True) not in done]
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        futures = {
            pool.submit(carry_out, given.data, row, own, seed, given.encoder, phase == "test"): job
            for job in jobs
            for phase, _, row, seed, own in [job]
        }
        for future in as_completed(futures):
            job = futures[future]
            if error := future.exception():  # one that fails does not stop the others
                print(job, f"{type(error).__name__}: {error}", flush=True)
                continue
            line = {"job": job, "encoder": Path(given.encoder).name, **future.result()}
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            shown = line.get("test", line["dev"])
            print(*job, f"{100 * shown['micro_f1']:.2f} / {100 * shown['macro_f1']:.2f}", line["seconds"], flush=True)


if __name__ == "__main__":
    main()
