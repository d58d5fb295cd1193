"""The demo: code diagnoses into ICD-10-CM, beside the linear model on the same data."""

import json
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from hill.classifier import HillClassifier
from hill.data import Documents
from hill.data.icd import icd_data, icd_taxonomy
from hill.settings import Groups
from hill.taxonomy import Taxonomy, write_taxonomy
from hill.train.bar import training_bar
from hill.train.run import Fitted, check_out

SETTINGS: Groups = {
    "model": {"encoder": "minilm", "loss": "softmax", "height": 2, "method": "refined", "contrast": 0.01},
    "train": {"epochs": 2, "batch_size": 32, "freeze": 3, "encoder_lr": 5e-4, "lr": 5e-4, "head_epochs": 4},
    "data": {"max_length": 48},
    "decode": {"strategy": "path"},
}
LINEAR: Groups = {"model": {"min_count": 1}, "data": SETTINGS["data"], "decode": {"strategy": "path"}}
"""Chosen on dev as the other settings were: the texts are short, and words that only one of them has help."""
SHOWN = {
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "hierarchical_f1": "hier. F1",
    "path_micro_f1": "path F1",
    "violations": "violations",
}
EXAMPLES = ("heart attack", "broken left collar bone after a fall", "pain in the ear with fluid behind the drum")


def run_demo(categories: bool, out: Path, settings: Groups = SETTINGS, per_block: int = 40) -> None:
    """Everything, with a word on each step; the model goes to `out` and the data beside it."""
    console, start = Console(), time.perf_counter()
    if (out / "log.jsonl").exists():
        shutil.rmtree(out)  # an earlier demo
    check_out(out, resume=False)
    taxonomy = icd_taxonomy(categories)
    data = icd_data(taxonomy, per_block)
    _write_data(data, taxonomy, out.with_name(f"{out.name}-data"))
    console.print(
        f"ICD-10-CM: {len(taxonomy):,} labels in {len(taxonomy.levels)} levels. Training texts: {len(data['train']):,} "
        f"official descriptions. Test texts: {len(data['test']):,} inclusion terms,\nother words for the same things, "
        "never trained on.",
        highlight=False,
    )
    linear = score_linear(data, taxonomy)
    classifier = HillClassifier(taxonomy, "hill", settings)
    with training_bar(classifier.train_config.metric) as bar:
        for report in classifier.training(data, out):
            bar.show(report)
    classifier.metrics = classifier.evaluate(data["test"]) | {"split": "test"}
    classifier.save(out)
    console.print(_table({"TF-IDF + linear SVM": linear, "HILL": classifier.metrics}))
    _show_examples(classifier, console)
    console.print(f"\ndone in {time.perf_counter() - start:.0f} s. Next:")
    for command in (
        f'hill predict {out} "your own diagnosis"',
        f"hill evaluate {out} {out}-data/test.jsonl",
        f"hill tree {out}-data/taxonomy.json --compare",
        f"hill train {out}-data --taxonomy {out}-data/taxonomy.json --out runs/mine",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)


def _write_data(data: dict[str, Documents], taxonomy: Taxonomy, folder: Path) -> None:
    """The same data as files, for commands that take files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in data.items():
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for i, text in enumerate(documents.texts):
                rows = documents.labels.indices[documents.labels.indptr[i] : documents.labels.indptr[i + 1]]
                file.write(json.dumps({"id": documents.ids[i], "text": text, "labels": taxonomy.decode(rows)}) + "\n")
    write_taxonomy(taxonomy, folder / "taxonomy.json")


def score_linear(data: dict[str, Documents], taxonomy: Taxonomy) -> dict[str, Any]:
    """The linear model, which predicts the best path as HILL does."""
    classifier = HillClassifier(taxonomy, "linear", LINEAR)
    with TemporaryDirectory() as scratch, training_bar(classifier.train_config.metric) as bar:
        for report in classifier.training(data, Path(scratch)):
            if isinstance(report, Fitted):  # dev before decoding, which follows, would belittle the model
                bar.show(report)
    return classifier.evaluate(data["test"])


def _table(results: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="test", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in SHOWN.values():
        table.add_column(column, justify="right")
    for name, result in results.items():
        table.add_row(name, *(f"{100 * result[metric]:.1f} %" for metric in SHOWN))
    return table


def _show_examples(classifier: HillClassifier, console: Console) -> None:
    taxonomy = classifier.taxonomy
    for text, prediction in zip(EXAMPLES, classifier.predictions(EXAMPLES), strict=True):
        console.print(f"[bold]{text}[/bold]")
        for path in prediction.paths:
            console.print("  " + " > ".join(taxonomy[taxonomy.row(label)].name for label in path), highlight=False)
