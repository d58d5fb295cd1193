"""What is known of a trained model, from the files of its folder."""

import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from hill.data import Documents
from hill.errors import CheckpointError
from hill.guard import check_model, read_object
from hill.models.base import COUNTS_FILE
from hill.settings import Groups
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.train.files import read_json
from hill.train.store import FORMAT
from hill.types import IntArray

FILE = "training.json"
LOG = "log.jsonl"
PACKAGES = ("hill-htc", "torch", "transformers", "tokenizers", "numpy", "scipy")


@dataclass(frozen=True)
class Facts:
    """A model's name, settings, taxonomy and metrics, and what was noted when it was trained."""

    name: str
    settings: Groups
    taxonomy: Taxonomy
    metrics: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=dict)
    """Splits, versions, metrics of dev after each epoch and at the end; what was not noted is not there."""
    support: IntArray | None = None
    """Training documents of each label (L)."""


def read_facts(folder: Path) -> Facts:
    """The facts of a saved model, without reading its weights."""
    check_model(folder)
    config = read_object(folder / "config.json")
    if config.get("format") != FORMAT:
        raise CheckpointError(
            f"'{folder}' is of format {config.get('format')!r}; expected a trained model ({FORMAT!r})"
        )
    noted = read_object(folder / FILE) if (folder / FILE).exists() else {"epochs": _logged(folder / LOG)}
    counts = np.array(read_json(folder / COUNTS_FILE)) if (folder / COUNTS_FILE).exists() else None
    taxonomy = read_taxonomy(folder / "taxonomy.json")
    return Facts(config["model"], config["settings"], taxonomy, read_object(folder / "metrics.json"), noted, counts)


def training_facts(splits: Mapping[str, Documents], held_out: bool) -> dict[str, Any]:
    """What is noted of a training: its splits, whether dev was held out of train, and the versions in use."""
    return {
        "splits": {name: _split(documents) for name, documents in splits.items()},
        "held_out": held_out,
        "versions": package_versions(),
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and of what computes, where it is installed: hill itself may lie in a checkout."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _split(documents: Documents) -> dict[str, Any]:
    """Documents, labels of a document (ancestors included), and documents of each label."""
    sizes = np.asarray(documents.labels.sum(axis=1))  # (documents)
    return {
        "documents": len(documents),
        "labels_per_document": float(sizes.mean()),
        "fewest_labels": int(sizes.min()),
        "most_labels": int(sizes.max()),
        "support": np.asarray(documents.labels.sum(axis=0)).tolist(),
    }


def _logged(log: Path) -> list[dict[str, Any]]:
    """The metrics of dev after each epoch; of a resumed training the last word on each epoch."""
    if not log.exists():
        return []
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    epochs = {line["epoch"]: {"epoch": line["epoch"], **line["dev"]} for line in lines if "dev" in line}
    return list(epochs.values())
