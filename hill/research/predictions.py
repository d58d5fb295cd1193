"""The predictions of a run on the test documents, with the gold labels, in one compact file. No torch is needed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file
from scipy.sparse import csr_array

from hill.errors import CheckpointError
from hill.taxonomy import Label, Taxonomy
from hill.types import BoolArray, IntArray

PREDICTIONS_FILE = "predictions.safetensors"
DECODINGS = ("raw", "tuned")
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Predictions:
    """The ids of documents, their gold labels and the labels predicted with each decoding: (documents, L) each."""

    taxonomy: Taxonomy
    ids: list[str]
    gold: csr_array[Any]
    predicted: Mapping[str, csr_array[Any]]

    def arrays(self) -> Arrays:
        """Everything as named arrays, in the form of the file."""
        labels = [[label.id, label.name, list(label.parents)] for label in self.taxonomy]
        arrays = {"taxonomy": _bytes(labels), "ids": _bytes(self.ids)}
        for name, table in {"gold": self.gold, **self.predicted}.items():
            arrays[f"{name}.rows"] = table.indices.astype(np.int32)
            arrays[f"{name}.counts"] = np.diff(table.indptr).astype(np.int32)
        return arrays

    @classmethod
    def read(cls, path: Path) -> Predictions:
        """Read the predictions of a run from its folder or from the file itself."""
        file = path / PREDICTIONS_FILE if path.is_dir() else path
        try:
            arrays = load_file(file)
            entries = json.loads(arrays["taxonomy"].tobytes())
            labels = [Label(label, name, tuple(parents)) for label, name, parents in entries]
            ids = json.loads(arrays["ids"].tobytes())
            shape = len(ids), len(labels)
            tables = {name: _table(arrays, name, shape) for name in ("gold", *DECODINGS)}
        except FileNotFoundError:
            raise CheckpointError(
                f"'{path}' has no predictions; expected the folder of a run of `hill research`, such as runs/hill-1"
            ) from None
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(f"'{file}' cannot be read: {error}; run the experiment again") from None
        return cls(Taxonomy(labels), ids, tables.pop("gold"), tables)


class CollectedLabels:
    """Collects the label sets of documents that arrive in any order."""

    def __init__(self, documents: int, labels: int) -> None:
        self._rows: list[IntArray] = [np.zeros(0, dtype=np.int64)] * documents
        self._labels = labels

    def add(self, documents: Iterable[int], predicted: BoolArray) -> None:
        """Add the predicted labels (n, L) of documents (n)."""
        for document, mask in zip(documents, predicted, strict=True):
            self._rows[document] = np.flatnonzero(mask)

    def table(self) -> csr_array[Any]:
        """The label sets of all documents: (documents, L)."""
        starts = np.cumsum([0, *map(len, self._rows)])
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *self._rows])
        return csr_array((np.ones(len(rows), dtype=bool), rows, starts), shape=(len(self._rows), self._labels))


def _bytes(value: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value, ensure_ascii=False).encode(), dtype=np.uint8).copy()


def _table(arrays: Arrays, name: str, shape: tuple[int, int]) -> csr_array[Any]:
    rows, starts = arrays[f"{name}.rows"], np.concatenate([[0], np.cumsum(arrays[f"{name}.counts"])])
    return csr_array((np.ones(len(rows), dtype=bool), rows, starts), shape=shape)
