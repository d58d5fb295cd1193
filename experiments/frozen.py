"""Data, and vectors of frozen encoders that are computed once and kept: shared by the programs on few or no labels."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hill import cold_start
from hill.classifier import HillClassifier
from hill.data import Documents, read_data
from hill.taxonomy import Label, Taxonomy, read_taxonomy

LENGTHS = {"wos": 256, "arxiv": 256, "attack": 128, "icd": 64}
"""Tokens that are encoded; longer texts are truncated."""
SAMPLED = {"train": 10_000, "dev": 3_000}
"""Documents of arxiv that are used, a random sample; all of its test set."""


def read_set(data: Path, name: str) -> tuple[Taxonomy, dict[str, Documents]]:
    """The taxonomy and the splits of a data set."""
    taxonomy = read_taxonomy(next((data / name).glob("taxonomy.*")))
    splits = read_data(data / name, taxonomy)
    for split, most in SAMPLED.items() if name == "arxiv" else ():
        splits[split] = splits[split].take(np.random.default_rng(0).permutation(len(splits[split]))[:most])
    return taxonomy, splits


class Vectors:
    """Unit vectors of texts by an encoder, kept in a folder."""

    def __init__(self, cache: Path, encoder: str, max_length: int) -> None:
        self._cache, self._encoder, self._max_length = cache, encoder, max_length
        self._known: dict[str, Any] = {}

    def __call__(self, texts: Sequence[str]) -> Any:
        """The vectors (texts, D)."""
        if not all(text in self._known for text in texts):
            for text, vector in zip(texts, self._read(texts), strict=True):
                self._known[text] = vector
        return np.stack([self._known[text] for text in texts])

    def _read(self, texts: Sequence[str]) -> Any:
        name = Path(self._encoder).name
        key = hashlib.sha256(json.dumps([name, self._max_length, *texts]).encode()).hexdigest()[:16]
        file = self._cache / f"{name}-{key}.npy"
        if not file.exists():
            self._cache.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f"{file.stem}-{os.getpid()}.npy")  # several processes may do this at a time
            np.save(draft, self._encode(texts))
            draft.replace(file)
        return np.load(file)

    def _encode(self, texts: Sequence[str]) -> Any:
        return ENCODE(self._model, texts, self._max_length)

    @property
    def _model(self) -> HillClassifier:
        if "_classifier" not in self.__dict__:
            some = Taxonomy([Label("a", "some label")])
            self._classifier = cold_start.cold_start(some, encoder=self._encoder)
        return self._classifier

    def use(self) -> None:
        """Let `cold_start` take the vectors of texts from here; names of labels are encoded as always."""
        cold_start.encode = self._encode_or_look_up

    def _encode_or_look_up(self, classifier: HillClassifier, texts: Sequence[str], max_length: int) -> Any:
        known = bool(texts) and all(text in self._known for text in texts)
        return self(texts) if known else ENCODE(classifier, texts, max_length)


ENCODE = cold_start.encode


def append(file: Path, row: dict[str, Any]) -> None:
    """Add a JSON line to a file, and print it."""
    row = {key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
