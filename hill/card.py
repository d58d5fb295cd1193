"""Model cards: a Markdown page about a trained model for its users. Facts that were not recorded are left out."""

import json
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import ModelCardData

from hill.data import Documents
from hill.encoders.transformer import PACKAGED_ENCODERS
from hill.errors import CheckpointError, HillError
from hill.io import check_model, read_json, read_object, unusable
from hill.models.base import COUNTS_FILE
from hill.models.inference import MODEL_FORMAT, upgrade_settings
from hill.settings import Groups
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.types import IntArray

TRAINING_FILE = "training.json"
LOG = "log.jsonl"
PACKAGES = ("hill-htc", "torch", "transformers", "tokenizers", "numpy", "scipy")
N_EXAMPLES = 3
"""Labels that are named as examples."""
METRICS = {
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "hierarchical_f1": "hierarchical F1",
    "path_micro_f1": "micro F1 of complete paths",
    "subset_accuracy": "documents with exactly the right labels",
    "precision_at_1": "documents whose highest-scoring label is right",
    "violations": "documents with a label but not all of its ancestors",
    "raw_micro_f1": "micro F1 of raw scores above 0.5",
    "raw_violations": "documents with a label but not all of its ancestors, of raw scores above 0.5",
    "ece": "expected calibration error",
}
USAGE = """```python
from hill import HillClassifier

classifier = HillClassifier.from_pretrained("REPOSITORY OR FOLDER")
classifier.predict(["a text"])  # label ids, ancestors included
classifier.predict_paths(["a text"])  # from a root down to each most specific label
classifier.predict_proba(["a text"])  # scores of all labels
```

It needs the Python package `hill-htc`. Loading runs no code from this repository."""

# Facts


@dataclass(frozen=True)
class ModelFacts:
    """Everything that a card states: name, settings, taxonomy and metrics of a model, and a record of its training."""

    name: str
    settings: Groups
    taxonomy: Taxonomy
    metrics: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=dict)
    """Splits, versions, and dev metrics after each epoch and at the end, as far as they were recorded."""
    support: IntArray | None = None
    """Training documents per label (L)."""


def read_facts(folder: Path) -> ModelFacts:
    """Read the facts of a saved model without its weights."""
    check_model(folder)
    config = read_object(folder / "config.json")
    if config.get("format") != MODEL_FORMAT:
        raise CheckpointError(
            f"'{folder}' has the format {config.get('format')!r}; expected a trained model ({MODEL_FORMAT!r})"
        )
    if (folder / TRAINING_FILE).exists():
        training = read_object(folder / TRAINING_FILE)
    else:
        log = (folder / LOG).read_text(encoding="utf-8").splitlines() if (folder / LOG).exists() else []
        entries = [entry for line in log if "dev" in (entry := json.loads(line))]
        # The last entry per epoch, because a resumed training may repeat an epoch.
        epochs = {entry["epoch"]: {"epoch": entry["epoch"], **entry["dev"]} for entry in entries}
        training = {"epochs": list(epochs.values())}
    counts = np.array(read_json(folder / COUNTS_FILE)) if (folder / COUNTS_FILE).exists() else None
    taxonomy = read_taxonomy(folder / "taxonomy.json")
    if counts is not None and (counts.shape != (len(taxonomy),) or counts.dtype.kind not in "iu"):
        raise CheckpointError(
            f"'{folder / COUNTS_FILE}' has no whole number for each of the {len(taxonomy):,} labels; copy it again"
        )
    settings, metrics = (
        upgrade_settings(config["model"], config["settings"], folder),
        read_object(folder / "metrics.json"),
    )
    return ModelFacts(config["model"], settings, taxonomy, metrics, training, counts)


def describe_training(splits: Mapping[str, Documents], held_out: bool) -> dict[str, Any]:
    """The record of a training: its splits, whether dev was held out from train, and package versions."""
    described = {}
    for name, documents in splits.items():
        sizes = np.asarray(documents.labels.sum(axis=1))  # labels per document, ancestors included
        described[name] = {
            "documents": len(documents),
            "labels_per_document": float(sizes.mean()),
            "fewest_labels": int(sizes.min()),
            "most_labels": int(sizes.max()),
            "support": np.asarray(documents.labels.sum(axis=0)).tolist(),
        }
    return {"splits": described, "held_out": held_out, "versions": package_versions()}


def package_versions() -> dict[str, str]:
    """The versions of Python and of the packages that compute; packages that are not installed are left out."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


# The card


def read_card(folder: Path) -> str:
    """The card of a saved model, without reading its weights."""
    try:
        return make_card(read_facts(folder))
    except (HillError, OSError):
        raise
    except Exception as error:  # any type: the files may come from anywhere
        raise unusable(folder, error) from error


def make_card(facts: ModelFacts) -> str:
    """The card: YAML front matter, then Markdown."""
    settings = public_settings(facts.settings)
    model, given_encoder = settings["model"], facts.settings["model"].get("encoder")
    encoder = f" on the text encoder `{model['encoder']}`" if model.get("text") == "transformer" else ""
    base_model = given_encoder if encoder and not _is_path(given_encoder) else None
    front_matter = ModelCardData(  # metadata that the hub shows and searches; the publisher adds licence and language
        library_name="hill",
        pipeline_tag="text-classification",
        tags=["hierarchical-text-classification", "multi-label-classification", facts.name],
        metrics=["f1"] if "micro_f1" in facts.metrics else None,
        base_model=PACKAGED_ENCODERS[base_model].hub if base_model in PACKAGED_ENCODERS else base_model,
    )
    sections = {
        "How to use": USAGE,
        "Labels": _labels(facts),
        "Training data": _training_data(facts),
        "Metrics": _metrics(facts),
        "Intended use and limits": _limits(facts),
        "Settings": f"```toml\n{_toml(settings | {'model': {'name': facts.name, **model}})}```",
        "Versions": _table(("", ""), facts.training.get("versions", {}).items()),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items() if text)
    title = f"# Text classification into {len(facts.taxonomy):,} labels"
    made = "made by `hill start`" if "cold_start" in facts.training else "trained with `hill-htc`"
    summary = f"A `{facts.name}` model{encoder}, {made}."
    return f"---\n{str(front_matter.to_yaml()).strip()}\n---\n\n{title}\n\n{summary}\n\n{body}\n"


def _labels(facts: ModelFacts) -> str:
    taxonomy, support = facts.taxonomy, facts.support
    parents = "some labels have several parents" if taxonomy.is_dag else "every label has at most one parent"
    summary = (
        f"{len(taxonomy):,} labels on {len(taxonomy.levels)} levels; {parents}. `taxonomy.json` lists all of them."
    )
    rows = []
    for number, level in enumerate(taxonomy.levels, 1):
        order = level if support is None else level[np.argsort(-support[level], kind="stable")]
        examples = ", ".join(_escape(taxonomy[row].name) for row in order[:N_EXAMPLES].tolist())
        trained = [] if support is None else [f"{(support[level] > 0).sum():,}"]
        rows.append([number, f"{len(level):,}", examples, *trained])
    head = ["level", "labels", "for example", *(() if support is None else ("with training documents",))]
    return f"{summary}\n\n{_table(head, rows)}"


def _training_data(facts: ModelFacts) -> str:
    splits = facts.training.get("splits", {})
    if cold := facts.training.get("cold_start"):
        texts = f", and {cold['texts']:,} unlabelled texts" if cold["texts"] else ""
        return f"No labelled document was used: only the names and descriptions of the labels{texts}."
    if not splits:
        return ""
    rows = []
    for name, split in splits.items():
        labels = f"{split['labels_per_document']:.2f}", split["fewest_labels"], split["most_labels"]
        rows.append([name, f"{split['documents']:,}", *labels, f"{np.count_nonzero(split['support']):,}"])
    head = ("split", "documents", "labels per document", "minimum", "maximum", "labels in use")
    counts = np.array(splits["train"]["support"], dtype=np.float64)  # (L)
    quartiles = np.percentile(counts, (0, 25, 50, 75, 100)).astype(int).tolist()
    text = (
        "Labels include all ancestors. Training documents per label: minimum {:,}, quartiles {:,}, {:,} and {:,}, "
        "maximum {:,}."
    ).format(*quartiles)
    if facts.training.get("held_out"):
        text += "\n\nThe dev documents were held out at random from the training documents."
    return f"{_table(head, rows)}\n\n{text}"


def _metrics(facts: ModelFacts) -> str:
    dev, split = facts.training.get("dev", {}), facts.metrics.get("split")
    parts = []
    if "documents" in facts.metrics:
        split_name, decode = f" of {split}" if split else "", facts.settings["decode"]
        decoding = f"`{decode['strategy']}`"
        if decode["tune"] in ("level", "label"):
            decoding += f", thresholds per {decode['tune']}"
        elif decode["strategy"] != "path":
            decoding += f", threshold {decode['threshold']:g}"
        note = facts.training.get("decoding")
        chosen = f" Tuning on {_escape(str(note))}." if note else ""
        parts.append(f"Measured on {facts.metrics['documents']:,} documents{split_name}. Decoding: {decoding}.{chosen}")
    columns = {split or "value": facts.metrics} | ({"dev": dev} if dev and split != "dev" else {})
    names = [name for name in METRICS if any(name in values for values in columns.values())]
    rows = [[METRICS[name], *(_percent(values.get(name)) for values in columns.values())] for name in names]
    parts.append(_table(("%", *columns), rows))
    levels = [
        [level["level"], _percent(level["micro_f1"]), _percent(level["macro_f1"])]
        for level in facts.metrics.get("levels", ())
    ]
    parts.append(_table(("level", "micro F1 %", "macro F1 %"), levels))
    if epochs := [[epoch["epoch"], _percent(epoch.get("micro_f1"))] for epoch in facts.training.get("epochs", [])]:
        parts.append("Dev after each epoch, before decoding was tuned:\n\n" + _table(("epoch", "micro F1 %"), epochs))
    return "\n\n".join(part for part in parts if part)


def _limits(facts: ModelFacts) -> str:
    data, decode, support = facts.settings["data"], facts.settings["decode"], facts.support
    lines = [
        "It predicts labels of this taxonomy only.",
        "Its metrics do not hold for texts that differ from the training texts in language, kind or length.",
    ]
    if applied := facts.training.get("applied"):
        lines.append(
            f"Its taxonomy was changed after training: {applied['added']:,} labels are new and were not trained."
        )
    if "cold_start" in facts.training:
        lines[1:] = [
            "It has not been evaluated: label some documents, and run `hill evaluate`.",
            "It predicts one path per document. Its scores are only roughly calibrated.",
        ]
        support = None
    if not data.get("windows"):
        lines.append(f"It reads at most the first {data['max_length']:,} tokens of a text.")
    if decode["strategy"] != "raw":
        lines.append(f"Its predictions respect the taxonomy (decoding `{decode['strategy']}`).")
    if facts.metrics.get("split") == "dev":
        lines.append("The dev set also selected the epoch and thresholds; expect slightly lower scores on new data.")
    if support is not None and (unseen := facts.taxonomy.decode(np.flatnonzero(support == 0))):
        codes = [_escape(label) if "`" in label else f"`{' '.join(label.split())}`" for label in unseen[:N_EXAMPLES]]
        examples = ", ".join(codes) + (", …" if len(unseen) > N_EXAMPLES else "")
        count = "1 label" if len(unseen) == 1 else f"{len(unseen):,} labels"
        lines.append(f"{count} had no training documents; predictions of such labels are not reliable: {examples}")
    return "\n".join(f"- {line}" for line in lines)


# Settings


def public_settings(settings: Groups) -> Groups:
    """Settings without the folders of this machine: paths become `./` and their last name."""
    return {
        group: {
            key: "./" + value.replace("\\", "/").rstrip("/").split("/")[-1] if _is_path(value) else value
            for key, value in values.items()
        }
        for group, values in settings.items()
    }


def _is_path(value: Any) -> bool:
    """Whether a setting is a path; names on the hub have at most one slash, and not at the start."""
    return isinstance(value, str) and (value.startswith((".", "/", "~")) or "\\" in value or value.count("/") > 1)


def _toml(settings: Groups) -> str:
    """Settings as a TOML file for `hill train --config`; JSON writes strings and booleans in the same way."""
    groups = []
    for group, values in settings.items():
        lines = [
            f"{key} = {json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)}\n"
            for key, value in values.items()
            if value is not None
        ]
        groups.append(f"[{group}]\n{''.join(lines)}")
    return "\n".join(groups)


# Markdown


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table; empty if there are no rows."""
    lines = [list(map(str, row)) for row in rows]
    columns = list(head)
    body = [f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *lines]]
    return "\n".join(body) if lines else ""


def _escape(text: str) -> str:
    """Text without meaning in Markdown or HTML: labels may come from anywhere, and cards are shown as web pages."""
    escaped = escape(" ".join(text.split()), quote=False)
    for character in "\\`*_|[]":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"
