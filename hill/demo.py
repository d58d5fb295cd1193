"""The demo: train a model with the preset auto to classify diagnoses into ICD-10-CM."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hill.classifier import HillClassifier
from hill.data import Documents
from hill.data.icd import icd_data, icd_phrases, icd_taxonomy
from hill.io import PREFIX, make_folder, remove_saved, save_folder, write_json
from hill.settings import Groups
from hill.taxonomy import Taxonomy, write_taxonomy
from hill.train.checkpoint import check_output_folder, remove_training
from hill.train.progress import training_progress

MARK = f"{PREFIX}demo.json"
"""A file that marks the folder of a demo; the next demo may replace it."""
SETTINGS: Groups = {"train": {"minutes": 3.0}, "decode": {"strategy": "path"}}
"""Each diagnosis has one path. The preset auto chooses the rest, so that training and scoring take three minutes."""
COLUMNS = {
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "hierarchical_f1": "hier. F1",
    "path_micro_f1": "path F1",
    "violations": "violations",
}
ALTERNATIVES = 3
"""How many runner-up labels are shown per example."""
EXAMPLES = ("heart attack with a blocked coronary artery", "sugar diabetes with kidney trouble", "swollen appendix")


def run_demo(categories: bool, out: Path, settings: Groups = SETTINGS, per_block: int = 25) -> None:
    """Train, evaluate and use a model; it is saved to `out`, and the data to a folder beside it."""
    console, start = Console(), time.perf_counter()
    if (out / MARK).is_file():  # the model of an earlier demo
        remove_training(out)
        for name in ("log.jsonl", MARK):
            (out / name).unlink(missing_ok=True)
        remove_saved(out)
    check_output_folder(out, resume=False)
    make_folder(out)
    write_json(out / MARK, {"format": "hill-demo"})
    taxonomy = icd_taxonomy(categories)
    data = icd_data(taxonomy, per_block)
    _write_data(data, taxonomy, out.with_name(f"{out.name}-data"))
    console.print(
        f"ICD-10-CM: {len(taxonomy):,} labels in {len(taxonomy.levels)} levels. Training texts: {len(data['train']):,} "
        f"official descriptions, notes and inclusion terms (synonyms). Test texts: {len(data['test']):,} other "
        "inclusion terms. Many of them have siblings in the training data: other terms of the same diagnosis.",
        highlight=False,
    )
    classifier = HillClassifier(taxonomy, settings=settings)
    with training_progress(classifier.train_config.metric) as bar:
        for event in classifier.training(data, out):
            bar.show(event)
    classifier.metrics = classifier.evaluate(data["test"], include_seen=True) | {"split": "test"}
    classifier.save(out)
    table = Table(title="test", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in COLUMNS.values():
        table.add_column(column, justify="right")
    for name, result in score_members(classifier, data["test"]).items():
        table.add_row(name, *(f"{100 * result[metric]:.1f} %" for metric in COLUMNS))
    console.print(table)
    phrases = icd_phrases()
    found = classifier.predict([text for text, _ in phrases])
    right = sum(block in labels for labels, (_, block) in zip(found, phrases, strict=True))
    console.print(f"everyday phrases, never trained on: the block of {right} of {len(phrases)} is right\n")
    console.print("Examples, chosen among those that are right; scores are per label and need not add up to one:")
    show_examples(classifier, console)
    console.print(f"\ndone in {time.perf_counter() - start:.0f} s. Next:")
    for command in (
        f'hill predict {out} "your own diagnosis"',
        f"hill evaluate {out} {out}-data/test.jsonl",
        f"hill tree {out}-data/taxonomy.json --compare",
        f"hill train {out}-data --taxonomy {out}-data/taxonomy.json --out runs/mine",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)
    console.print("No labels yet? docs/start.md goes from a taxonomy to a classifier.", highlight=False)


def show_examples(classifier: HillClassifier, console: Console) -> None:
    """Print the predicted path of each example with its score, and the labels with the next highest scores."""
    taxonomy, proba = classifier.taxonomy, classifier.predict_proba(EXAMPLES)
    deepest = taxonomy.levels[-1]
    for text, labels, scores in zip(EXAMPLES, classifier.predict(EXAMPLES), proba, strict=True):
        console.print(f"[bold]{text}[/bold]")
        path = [taxonomy.row(label) for label in labels]
        names = " > ".join(taxonomy[row].name for row in path)
        console.print(f"  {names}: {scores[path[-1]]:.0%}", highlight=False)
        others = [row for row in deepest[np.argsort(-scores[deepest])].tolist() if row not in path]
        runners_up = "; ".join(f"{taxonomy[row].name}: {scores[row]:.0%}" for row in others[:ALTERNATIVES])
        console.print(f"  or {runners_up}", style="dim", highlight=False)


def _write_data(data: dict[str, Documents], taxonomy: Taxonomy, folder: Path) -> None:
    """Write the data as files, for the commands."""
    with save_folder(folder) as draft:
        for name, documents in data.items():
            with (draft / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                for i, text in enumerate(documents.texts):
                    rows = documents.labels.indices[documents.labels.indptr[i] : documents.labels.indptr[i + 1]]
                    record = {"id": documents.ids[i], "text": text, "labels": taxonomy.decode(rows)}
                    file.write(json.dumps(record) + "\n")
        write_taxonomy(taxonomy, draft / "taxonomy.json")


def score_members(classifier: HillClassifier, test: Documents) -> dict[str, dict[str, Any]]:
    """The metrics of the linear model alone, which predicts the best path too, and of the ensemble."""
    scored = {}
    for member in classifier.members:
        member.decode_config = classifier.decode_config
        scored["TF-IDF + linear SVM"] = member.evaluate(test, include_seen=True)
    return scored | {"encoder + linear" if scored else "encoder": classifier.metrics}
