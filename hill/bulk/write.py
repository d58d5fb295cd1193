"""The output of bulk prediction: tables of predictions, parts on disk, and the manifest of the output folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hill.bulk.source import CHUNK, Cut, InputRow, Part, need_parquet, read_rows, version_of
from hill.errors import CheckpointError, ConfigError, DataError
from hill.io import PREFIX, cannot_write, lock_folder, other_names, sha256, sync, write_json
from hill.predictor import Predictor, predicted_entries, runners_up
from hill.types import BoolArray, IntArray

# Tables

MAX_PATH_IDS = 10_000
"""Maximum number of labels in the paths of a row. Deep paths repeat ancestors; `labels` has each label once."""

_Labels = tuple[IntArray, IntArray, npt.NDArray[np.float32], BoolArray]
"""Document, label, score, and whether it is the most specific label of a path, per label."""


@dataclass(frozen=True)
class RowOptions:
    """Which column has the texts, and what the rows of the output have besides the prediction."""

    text_column: str = "text"
    with_text: bool = False
    top: int = 0
    """How many of the best labels that are not predicted."""


class Columns:
    """Turns rows into tables with the columns id, labels, names, scores, paths and error, and those of the options."""

    def __init__(self, predictor: Predictor, options: RowOptions | None = None) -> None:
        self._arrow, _ = need_parquet()
        self.options = options or RowOptions()
        self._predictor, self._decoder, taxonomy = predictor, predictor.decoder(), predictor.taxonomy
        self._ids = self._arrow.array(taxonomy.ids, self._arrow.string())
        self._names = self._arrow.array([label.name for label in taxonomy], self._arrow.string())
        self._parents = taxonomy.parent_table.astype(np.int32)
        self._first_parent = taxonomy.first_parents
        self._path_lengths = np.ones(len(taxonomy), dtype=np.int64)
        for rows in taxonomy.levels[1:]:
            self._path_lengths[rows] += self._path_lengths[self._first_parent[rows]]
        text, list_of = self._arrow.string(), self._arrow.list_
        texts, numbers = list_of(text), list_of(self._arrow.float32())
        types = {"id": text} | ({"text": text} if self.options.with_text else {})
        types |= {"labels": texts, "names": texts, "scores": numbers, "paths": list_of(texts)}
        if self.options.top:
            types |= {"runners_up": texts, "runner_up_names": texts, "runner_up_scores": numbers}
        self.schema = self._arrow.schema(types | {"error": text})

    def table(self, rows: Sequence[InputRow]) -> Any:
        """Predict rows. The table has the same rows in the same order; rows with an error have no labels."""
        valid = np.flatnonzero([row.error is None for row in rows])
        (document, label, score, is_end), others = self._predict([rows[index].text for index in valid.tolist()])
        document = valid[document]
        values: list[list[Any]] = [[row.id for row in rows]]
        if self.options.with_text:
            values.append([row.text for row in rows])
        columns = [self._arrow.array(column, self._arrow.string()) for column in values]
        columns += self._label_arrays(document, label, score, len(rows))
        columns.append(self._path_array(document[is_end], label[is_end], score[is_end], len(rows)))
        if self.options.top:
            columns += self._label_arrays(valid[others[0]], *others[1:3], len(rows))
        columns.append(self._arrow.array([row.error for row in rows], self._arrow.string()))
        return self._arrow.Table.from_arrays(columns, schema=self.schema)

    def _label_arrays(self, document: IntArray, label: IntArray, score: npt.NDArray[Any], n_rows: int) -> list[Any]:
        """The ids, names and scores of the labels of each row."""
        order, offsets = np.argsort(document, kind="stable"), _offsets(document, n_rows)
        rows = self._arrow.array(label[order])
        values = self._ids.take(rows), self._names.take(rows), self._arrow.array(score[order].astype(np.float32))
        return [self._list_array(offsets, each) for each in values]

    def _predict(self, texts: list[str]) -> tuple[_Labels, _Labels]:
        """The predicted labels, and the best of the others; the latter have no paths."""
        no_int = np.zeros(0, dtype=np.int64)
        batches: list[_Labels] = [(no_int, no_int, np.zeros(0, dtype=np.float32), np.zeros(0, dtype=bool))]
        other_batches = batches.copy()
        for documents, scores in self._predictor.scores(texts) if texts else ():
            chosen, effective = self._decoder.decide(scores)
            row, label, score = predicted_entries(chosen, effective)
            # (n, L): the number of predicted children per label; a label without any ends a path
            inner = (csr_array(chosen.astype(np.int32)) @ self._parents).tocoo()
            n_labels = len(self._ids)
            is_end = ~np.isin(row * n_labels + label, inner.row.astype(np.int64) * n_labels + inner.col)
            batches.append((documents[row], label, score, is_end))
            for i, document in enumerate(documents.tolist() if self.options.top else ()):
                others = runners_up(chosen, effective, i, self.options.top, self._predictor.taxonomy)
                n_others = len(others[0])
                other_batches.append((np.full(n_others, document), *others, np.zeros(n_others, dtype=bool)))
        return _concatenate(batches), _concatenate(other_batches)

    def _path_array(self, document: IntArray, label: IntArray, score: npt.NDArray[Any], n_rows: int) -> Any:
        """The names on the path to each label, highest score first: one path, or more with up to `MAX_PATH_IDS`."""
        order = np.lexsort((label, -score, document))
        lengths = self._path_lengths[label[order]]
        is_first = np.diff(document[order], prepend=-1) != 0
        total = np.cumsum(lengths)
        total -= (total - lengths)[is_first][np.cumsum(is_first) - 1]  # ids of the row up to and with this path
        order = order[is_first | (total <= MAX_PATH_IDS)]
        ends = label[order]
        offsets = np.append(0, np.cumsum(self._path_lengths[ends]))
        # Walk from all ends up to their roots at the same time, and write each path from its last position backwards.
        path_labels = np.empty(offsets[-1], dtype=np.int64)
        current, position = ends, offsets[1:] - 1
        while len(current):
            path_labels[position] = current
            parent = self._first_parent[current]
            has_parent = parent >= 0
            current, position = parent[has_parent], position[has_parent] - 1
        paths = self._list_array(offsets, self._names.take(self._arrow.array(path_labels)))
        return self._list_array(_offsets(document[order], n_rows), paths)

    def _list_array(self, offsets: IntArray, values: Any) -> Any:
        return self._arrow.ListArray.from_arrays(self._arrow.array(offsets.astype(np.int32)), values)


def _concatenate(batches: list[_Labels]) -> _Labels:
    document, label, score, is_end = (np.concatenate(values) for values in zip(*batches, strict=True))
    return document, label, score, is_end


def _offsets(document: IntArray, n_rows: int) -> IntArray:
    """Where the values of each row begin and end (rows + 1)."""
    return np.append(0, np.cumsum(np.bincount(document, minlength=n_rows)))


# Parts

DRAFT_SUFFIX = ".draft"
METADATA_KEY = b"hill"


@dataclass(frozen=True)
class Written:
    """A part on disk: its number of rows, how many of them have an error, and the first of these errors."""

    name: str
    rows: int = 0
    bad: int = 0
    example: str = ""


def write_part(columns: Columns, part: Part, folder: Path) -> Iterator[int | Written]:
    """Predict a part and write it, complete or not at all. Yields numbers of rows, and at the end the part.

    Before the draft is renamed, it is checked: it must have the rows that were read, in the same order, and the source
    must not have changed.
    """
    _, parquet = need_parquet()
    target = folder / part.name
    draft = target.with_name(f"{PREFIX}{target.name}.{os.getpid()}-{os.urandom(4).hex()}{DRAFT_SUFFIX}")
    ids, rows, bad, example = hashlib.sha256(), 0, 0, ""
    ids_on_disk, rows_on_disk = hashlib.sha256(), 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with parquet.ParquetWriter(draft, columns.schema) as out:
            for chunk in read_rows(part, columns.options.text_column):
                out.write_table(columns.table(chunk))
                ids.update("".join(f"{row.id}\0" for row in chunk).encode())
                errors = [row for row in chunk if row.error]
                if errors and not example:
                    example = f"'{errors[0].id}' of '{part.source}': {errors[0].error}"
                rows, bad = rows + len(chunk), bad + len(errors)
                yield len(chunk)
            out.add_key_value_metadata({METADATA_KEY: json.dumps({"rows": rows, "bad": bad, "example": example})})
        if version_of(part.source) != (part.size, part.version):
            raise DataError(f"'{part.source}' changed while it was read; run it again when the file is complete")
        with parquet.ParquetFile(draft) as file:
            for batch in file.iter_batches(CHUNK, columns=["id"]):
                rows_on_disk += batch.num_rows
                ids_on_disk.update("".join(f"{key}\0" for key in batch["id"].to_pylist()).encode())
        if rows_on_disk != rows or ids_on_disk.digest() != ids.digest() or part.rows not in (None, rows):
            raise DataError(
                f"the part '{part.name}' has {rows_on_disk} rows on disk, but {rows} were read; run it again"
            )
        sync(draft)
        draft.replace(target)
        sync(target.parent)
    except OSError as error:
        raise DataError(f"{cannot_write(target, error)}; finished parts are kept: run it again to continue") from None
    finally:
        draft.unlink(missing_ok=True)
    yield Written(part.name, rows, bad, example)


def read_written(file: Path, name: str) -> Written | None:
    """The part in a file; None if the file does not exist or is not a complete part."""
    arrow, parquet = need_parquet()
    try:
        metadata = parquet.read_metadata(file).metadata or {}
        return Written(name, **json.loads(metadata[METADATA_KEY]))
    except (OSError, arrow.ArrowException, KeyError, TypeError, ValueError):
        return None


def count_drafts(target: Path) -> int:
    """How often a process was killed while it wrote a part: each leaves its draft."""
    return sum(
        path.name.startswith(f"{PREFIX}{target.name}.") for path in target.parent.glob(f"{PREFIX}*{DRAFT_SUFFIX}")
    )


# The output folder

MANIFEST = "_manifest.json"
DONE = "_done.json"
FORMAT = {"format": "hill-predictions", "version": 1}
REMEDY = "give another --output, or remove this folder to start again"


@contextmanager
def lock_predictions(folder: Path) -> Iterator[None]:
    """Lock the output folder for one run, and remove the drafts of runs that were killed."""
    others = other_names(folder)
    if others and not (folder / MANIFEST).exists():
        raise ConfigError(
            f"'{folder}' has files that are not predictions, such as '{others[0]}'; give an empty or a new folder"
        )
    with lock_folder(folder, reentrant=False):
        _remove_drafts(folder)
        try:
            yield
        finally:
            _remove_drafts(folder)


def _remove_drafts(folder: Path) -> None:
    for draft in folder.rglob(f"{PREFIX}*{DRAFT_SUFFIX}"):
        draft.unlink(missing_ok=True)


def write_manifest(folder: Path, model: Path, cut: Cut, parts: Sequence[Part], options: RowOptions) -> None:
    """Write the manifest. Raises if the folder has one of another model, settings or input; new files are accepted."""
    try:
        model_sum = sha256(model / "files.json")
    except OSError:
        raise CheckpointError(f"'{model}' is not a saved model: it has no files.json") from None
    part_fields = {part.name: asdict(part) for part in parts}
    settings = asdict(cut) | asdict(options)
    file = folder / MANIFEST
    if file.exists():
        try:
            old = dict(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ConfigError(f"'{file}' cannot be read: {error}; {REMEDY}") from None
        if any(old.get(key) != value for key, value in FORMAT.items()):
            raise ConfigError(f"'{folder}' was written by another version of this program; {REMEDY}")
        if old["model"] != model_sum:
            raise ConfigError(f"'{folder}' has predictions of another model; {REMEDY}")
        if asdict(RowOptions()) | old["settings"] != settings:
            raise ConfigError(
                f"'{folder}' was started with the settings {old['settings']}, now they are {settings}; {REMEDY}"
            )
        for name, part in old["parts"].items():
            if name not in part_fields:
                raise ConfigError(
                    f"'{folder}' was started with '{part['source']}', which is not in the input; {REMEDY}"
                )
            if part != part_fields[name]:
                raise ConfigError(f"'{part['source']}' has changed since '{folder}' was started; {REMEDY}")
    (folder / DONE).unlink(missing_ok=True)
    write_json(file, FORMAT | {"model": model_sum, "settings": settings, "parts": part_fields})


def write_done(folder: Path, written: Sequence[Written]) -> None:
    """Write the totals to the file that marks a complete run."""
    totals = {"parts": len(written), "rows": sum(w.rows for w in written), "errors": sum(w.bad for w in written)}
    write_json(folder / DONE, totals)
