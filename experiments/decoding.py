"""Compare all decoding strategies, tunings and calibrations on the same scores: chosen on dev, measured on test.

Run it as `python experiments/decoding.py --taxonomy TAXONOMY --scores FOLDER --out experiments/results/decoding`.
FOLDER has one NAME-SEED.npz per run with dev_scores, dev_labels, test_scores and test_labels, (documents, L) each; a
file with only scores and labels is split at random into halves. With `--models OUT/models --data DATA` the files are
made first, from the models of `hill research main-table --keep-models --out OUT`, each in a folder NAME-SEED.
"""

import argparse
import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.classifier import HillClassifier
from hill.data import Documents, read_data
from hill.decode import CollectedScores, DecodeConfig, Tuned, tune
from hill.metrics import Scorer
from hill.metrics.scores import mean_over_levels
from hill.taxonomy import Taxonomy, read_taxonomy

THRESHOLDED = ("closure", "ancestors", "top-down", "safe", "raw")
TUNINGS = (("off", "micro_f1"), *product(("global", "level", "label"), ("micro_f1", "macro_f1", "mean_f1")))
CALIBRATIONS = ("off", "temperature", "isotonic")
SHOWN = ("micro_f1", "macro_f1", "hierarchical_f1", "violations", "ece", "ece_levels")
TITLES = ("micro F1", "macro F1", "hierarchical F1", "violations %", "ECE %", "ECE, levels %")


def rules() -> Iterator[DecodeConfig]:
    """All decodings that are compared; the first is that of the paper."""
    for calibrate in CALIBRATIONS:
        for strategy, (tuning, metric) in product(("raw", *THRESHOLDED[:-1]), TUNINGS):
            yield DecodeConfig(strategy, tune=tuning, tune_metric=metric, calibrate=calibrate)
        for k in (1, 2, 3):
            yield DecodeConfig("path", k=k, calibrate=calibrate)
    for calibrate in (*CALIBRATIONS, "auto"):
        yield DecodeConfig("auto", calibrate=calibrate)


def name_of(config: DecodeConfig) -> tuple[str, str, str]:
    """The names of strategy, tuning and calibration."""
    if config.strategy == "auto":
        return "auto", "chosen", config.calibrate
    if config.strategy == "path":
        return f"path, k={config.k}", "", config.calibrate
    return config.strategy, "off" if config.tune == "off" else f"{config.tune}, {config.tune_metric}", config.calibrate


def measure(taxonomy: Taxonomy, tuned: Tuned, test: CollectedScores) -> dict[str, float]:
    """The metrics on test; calibration metrics use the scores after calibration."""
    scorer, decoder = Scorer(taxonomy), tuned.decoder(taxonomy)
    for labels, scores in test.blocks():
        scorer.update(labels, *decoder.decide(scores))
    result = scorer.result()
    result["ece_levels"] = mean_over_levels(result["levels"])
    return {name: float(result[name]) for name in SHOWN}


def read_scores(file: Path) -> tuple[CollectedScores, CollectedScores]:
    """Read dev and test from a file of scores."""
    arrays = np.load(file)
    if "scores" in arrays:
        order = np.random.default_rng(0).permutation(len(arrays["scores"]))
        dev, test = np.array_split(order, 2)
        scores, labels = arrays["scores"].astype(np.float32), arrays["labels"].astype(bool)
        return CollectedScores(scores[dev], csr_array(labels[dev])), CollectedScores(
            scores[test], csr_array(labels[test])
        )
    first, second = (
        CollectedScores(arrays[f"{split}_scores"].astype(np.float32), csr_array(arrays[f"{split}_labels"].astype(bool)))
        for split in ("dev", "test")
    )
    return first, second


def write_scores(models: Path, data: Path, scores: Path) -> None:
    """Write the scores of every model that has no file of scores yet."""
    scores.mkdir(parents=True, exist_ok=True)
    for folder in sorted(folder for folder in models.iterdir() if folder.is_dir()):
        if (scores / f"{folder.name}.npz").exists():
            continue
        classifier = HillClassifier.load(folder)
        splits = read_data(data, classifier.taxonomy)
        arrays: dict[str, Any] = {}
        for split in ("dev", "test"):
            arrays[f"{split}_scores"] = score_texts(classifier, splits[split])
            arrays[f"{split}_labels"] = splits[split].labels.toarray()
        np.savez_compressed(scores / f"{folder.name}.npz", **arrays)
        print(f"scored {folder.name}", flush=True)


def score_texts(classifier: HillClassifier, documents: Documents) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The scores of the model: (documents, L)."""
    found = np.zeros((len(documents), len(classifier.taxonomy)), dtype=np.float32)
    for numbers, part in classifier.scores(documents.texts):
        found[numbers] = part
    return found


def compare(taxonomy: Taxonomy, files: list[Path]) -> list[dict[str, Any]]:
    """One row per decoding: metrics on test per seed, mean and standard deviation, and the choice of `auto`."""
    runs = [read_scores(file) for file in files]
    rows = []
    for config in rules():
        tuned = [tune(taxonomy, config, dev) for dev, _ in runs]
        found = [measure(taxonomy, each, test) for each, (_, test) in zip(tuned, runs, strict=True)]
        strategy, tuning, calibration = name_of(config)
        row: dict[str, Any] = {"strategy": strategy, "tuning": tuning, "calibration": calibration, "runs": found}
        for name in SHOWN:
            values = [each[name] for each in found]
            row[name] = {"mean": float(np.mean(values)), "sd": float(np.std(values, ddof=1)) if found[1:] else 0.0}
        if config.strategy == "auto":
            row["chosen"] = [" ".join(name_of(each.config)) for each in tuned]
        rows.append(row)
        print(line(row), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    cells = [f"{100 * row[name]['mean']:.2f} ± {100 * row[name]['sd']:.2f}" for name in SHOWN]
    return f"| {' | '.join([row['strategy'], row['tuning'], row['calibration'], *cells])} |"


def page(name: str, files: list[Path], rows: list[dict[str, Any]]) -> str:
    """The table of a model, and the choice of `auto` in each of its runs."""
    titles = ("strategy", "tuning", "calibration", *TITLES)
    table = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *map(line, rows)]
    chosen = [f"- `auto`, {row['calibration']}: {'; '.join(row['chosen'])}" for row in rows if "chosen" in row]
    seeds = f"{len(files)} run{'s' if files[1:] else ''}, mean ± sd"
    return "\n".join(
        [f"# Decoding: {name}", "", f"Decided on dev, measured on test; {seeds}.", "", *table, "", *chosen]
    )


def main() -> None:
    """Compare, print each row, and write JSON and Markdown per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--taxonomy", type=Path, required=True)
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("experiments/results/decoding"))
    parser.add_argument("--models", type=Path)
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    if arguments.models:
        if not arguments.data:
            parser.error("--models needs --data, the documents to score")
        write_scores(arguments.models, arguments.data, arguments.scores)
    groups: dict[str, list[Path]] = {}
    for file in sorted(arguments.scores.glob("*.npz")):
        groups.setdefault(re.sub(r"-\d+$", "", file.stem), []).append(file)
    if not groups:
        parser.error(f"'{arguments.scores}' has no .npz files; make them with --models and --data")
    taxonomy = read_taxonomy(arguments.taxonomy)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, files in groups.items():
        print(f"# {name}: {', '.join(file.name for file in files)}", flush=True)
        rows = compare(taxonomy, files)
        document = {"name": name, "runs": [file.stem for file in files], "rows": rows}
        (arguments.out / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        (arguments.out / f"{name}.md").write_text(page(name, files, rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
