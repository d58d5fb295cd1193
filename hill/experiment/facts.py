"""What a run is made from, beside its settings: the data, and the versions of all that computes."""

import hashlib
import subprocess
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from hill.data import Documents, read_data
from hill.errors import DataError
from hill.hub.facts import package_versions
from hill.taxonomy import Taxonomy, read_taxonomy

CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Source:
    """A data set: its name, its taxonomy and its splits."""

    name: str
    taxonomy: Taxonomy
    documents: dict[str, Documents]

    @cached_property
    def sum(self) -> str:
        """SHA-256 of all labels, ids and texts: the same on any machine."""
        found = hashlib.sha256("\n".join(self.taxonomy.ids).encode())
        for split, documents in self.documents.items():
            found.update(f"\0{split}\0".encode())
            for part in (documents.labels.indptr, documents.labels.indices):
                found.update(part.astype("<i8").tobytes())
            for values in (documents.ids, documents.texts):
                for value in values:
                    found.update(value.encode() + b"\0")
        return found.hexdigest()

    def document(self) -> dict[str, Any]:
        """The facts as plain values."""
        sizes = {split: len(documents) for split, documents in self.documents.items()}
        return {"name": self.name, "documents": sizes, "labels": len(self.taxonomy), "sha256": self.sum}


def read_source(data: Path, taxonomy: Path | None) -> Source:
    """A data folder with its taxonomy: the file given, or the one called taxonomy in the folder."""
    labels = read_taxonomy(taxonomy or _find_taxonomy(data))
    documents = read_data(data, labels)
    for split in ("train", "test"):
        if not documents.get(split):
            raise DataError(
                f"'{data}' has no {split} documents; an experiment needs train and test, and dev if possible"
            )
    return Source(data.resolve().name, labels, documents)


def _find_taxonomy(data: Path) -> Path:
    found = sorted(data.glob("taxonomy.*")) if data.is_dir() else []
    if len(found) != 1:
        names = ", ".join(f"'{file.name}'" for file in found) or "none"
        raise DataError(f"expected one file called taxonomy in '{data}', found {names}; name it with --taxonomy")
    return found[0]


@cache
def versions() -> dict[str, Any]:
    """Versions of what computes, the device, and the commit where the package lies in a repository."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {**package_versions(), "device": device, **_commit()}


def _commit() -> dict[str, Any]:
    """The commit, and whether files differ from it; nothing where the package does not lie in its repository."""
    if not (CHECKOUT / ".git").exists():
        return {}
    try:
        sha, changes = (
            subprocess.run(["git", *words], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": sha, "changed": bool(changes)}
