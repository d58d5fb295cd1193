"""What a run predicted for the test documents: a compact file with gold labels, which two runs are compared by."""

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

FILE = "predictions.safetensors"
DECODINGS = ("raw", "tuned")
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Predictions:
    """The ids of documents, their gold labels and those predicted by each decoding: (documents, L) each."""

    taxonomy: Taxonomy
    ids: list[str]
    gold: csr_array[Any]
    predicted: Mapping[str, csr_array[Any]]

    def arrays(self) -> Arrays:
        """Everything as arrays under names, as they are written."""
        known = [[label.id, label.name, list(label.parents)] for label in self.taxonomy]
        found = {"taxonomy": _bytes(known), "ids": _bytes(self.ids)}
        for name, table in {"gold": self.gold, **self.predicted}.items():
            found[f"{name}.rows"] = table.indices.astype(np.int32)
            found[f"{name}.counts"] = np.diff(table.indptr).astype(np.int32)
        return found

    @classmethod
    def read(cls, path: Path) -> Predictions:
        """The predictions of a run's folder, or in a file."""
        file = path / FILE if path.is_dir() else path
        try:
            arrays = load_file(file)
            known = json.loads(arrays["taxonomy"].tobytes())
            labels = [Label(label, name, tuple(parents)) for label, name, parents in known]
            ids = json.loads(arrays["ids"].tobytes())
            shape = len(ids), len(labels)
            tables = {name: _table(arrays, name, shape) for name in ("gold", *DECODINGS)}
        except FileNotFoundError:
            raise CheckpointError(
                f"'{path}' holds no predictions; expected a run's folder, such as runs/hill-1 of `hill experiment`"
            ) from None
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(f"'{file}' cannot be read: {error}; run the experiment again") from None
        return cls(Taxonomy(labels), ids, tables.pop("gold"), tables)


class Collected:
    """Label sets of documents that come in any order, some at a time."""

    def __init__(self, documents: int, labels: int) -> None:
        self._rows: list[IntArray] = [np.zeros(0, dtype=np.int64)] * documents
        self._labels = labels

    def add(self, documents: Iterable[int], chosen: BoolArray) -> None:
        """Keep the labels chosen (n, L) for these documents (n)."""
        for document, mask in zip(documents, chosen, strict=True):
            self._rows[document] = np.flatnonzero(mask)

    def table(self) -> csr_array[Any]:
        """All of them: (documents, L)."""
        starts = np.cumsum([0, *map(len, self._rows)])
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *self._rows])
        return csr_array((np.ones(len(rows), dtype=bool), rows, starts), shape=(len(self._rows), self._labels))


def _bytes(value: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value, ensure_ascii=False).encode(), dtype=np.uint8).copy()


def _table(arrays: Arrays, name: str, shape: tuple[int, int]) -> csr_array[Any]:
    rows, starts = arrays[f"{name}.rows"], np.concatenate([[0], np.cumsum(arrays[f"{name}.counts"])])
    return csr_array((np.ones(len(rows), dtype=bool), rows, starts), shape=shape)
