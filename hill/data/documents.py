"""Labelled documents in memory: from files (`read_data`) or from Python lists (`label_documents`)."""

import hashlib
import json
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, MappingView, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from hill.data.readers import (
    DEFAULT_COLUMNS,
    MAX_EXAMPLES,
    ColumnNames,
    OnProblem,
    Problem,
    Record,
    find_splits,
    raise_error,
    read_records,
)
from hill.data.seen import are_seen, text_hashes
from hill.errors import ConfigError, DataError, counted
from hill.io import is_utf8
from hill.taxonomy import Taxonomy
from hill.taxonomy.taxonomy import check_taxonomy, has_words
from hill.types import IntArray

SEPARATORS = ("|", ";", ",")
"""Separators between labels in one string, in the order in which they are tried."""
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?![a-z])")
MIN_WORDS = 5
"""Words that a sentence of a description needs to become a document."""
LABEL_AS_STRING = "each a string: the id, the name or the path of a label"


@dataclass(frozen=True)
class Documents:
    """The documents of a split; `labels` (documents, L) is true for the labels of a document and their ancestors."""

    ids: list[str]
    texts: list[str]
    labels: csr_array[Any]
    added: int
    """The number of labels that were added as ancestors."""

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: IntArray) -> "Documents":
        """The documents at these indices."""
        ids, texts = ([values[i] for i in indices] for values in (self.ids, self.texts))
        return Documents(ids, texts, self.labels[indices], self.added)

    def sample(self, count: int) -> "Documents":
        """A random sample of at most this many documents, the same each time."""
        order = np.random.default_rng(0).permutation(len(self))
        return self if len(self) <= count else self.take(np.sort(order[:count]))

    def split(self, share: float, seed: int) -> tuple["Documents", "Documents"]:
        """Split off a random share of the documents; both parts have at least one document.

        Documents with the same text, up to case and white space, are in the same part.
        """
        if len(self) < 2:
            raise DataError(f"{len(self)} document cannot be split into train and dev; give more, or a dev split")
        order = np.random.default_rng(seed).permutation(len(self))
        _, first, text = np.unique(text_hashes(self.texts)[order], return_index=True, return_inverse=True)
        if len(first) < 2:
            raise DataError(f"all {len(self):,} documents have the same text; train and dev need different ones")
        rank = np.argsort(np.argsort(first))[text]  # numbers the texts in random order
        sizes = np.cumsum(np.bincount(rank))
        n_second = min(int(np.searchsorted(sizes, max(1, round(share * len(self))))) + 1, len(sizes) - 1)
        second = rank < n_second
        return self.take(np.sort(order[~second])), self.take(np.sort(order[second]))

    def check(self, taxonomy: Taxonomy) -> None:
        """Raise a `DataError` unless the labels have one column per label of this taxonomy."""
        if self.labels.shape != (len(self), len(taxonomy)):
            raise DataError(
                f"the documents have labels of the shape {self.labels.shape}; expected ({len(self)}, {len(taxonomy)}): "
                "read them with the taxonomy of the model"
            )

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the ids, the texts and the labels, each in order."""
        strings = {"ids": self.ids, "texts": self.texts}
        contents = {
            name: "".join(f"{len(value)} {value}" for value in values).encode("utf-8", "surrogatepass")
            for name, values in strings.items()
        }
        counts = np.diff(self.labels.indptr)
        contents["labels"] = counts.astype("<i8").tobytes() + self.labels.indices.astype("<i8").tobytes()
        return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def read_data(
    path: str | os.PathLike[str],
    taxonomy: Taxonomy,
    text_column: str = "text",
    labels_column: str | Sequence[str] = "labels",
    separator: str = "",
) -> dict[str, Documents]:
    """Read every split of a data file or folder.

    Args:
        path: JSONL, CSV, Excel, Parquet, a folder of them, or a folder that `save_to_disk` of `datasets` wrote.
        taxonomy: the labels.
        text_column: the column with the texts.
        labels_column: the column with the labels; or several columns, which are the levels of a path.
        separator: what is between labels in one string; by default `|`, `;` or `,`.
    """
    check_taxonomy(taxonomy)
    columns = column_names(text_column, labels_column, separator)
    return {split: read_documents(files, taxonomy, columns) for split, files in find_splits(path).items()}


def column_names(text: str = "text", labels: str | Sequence[str] | None = None, separator: str = "") -> ColumnNames:
    """The columns to read, from the values that a user gave."""
    given = [labels or "labels"] if isinstance(labels, str | None) else list(labels) or ["labels"]
    for name in (text, separator, *given):
        if not isinstance(name, str):
            raise ConfigError(f"a column is {reprlib.repr(name)}; expected its name, a string")
    return ColumnNames(text, tuple(given), separator)


def join_splits(splits: Mapping[str, Documents]) -> Documents:
    """All documents of several splits."""
    parts = list(splits.values())
    ids, texts = ([value for part in parts for value in getattr(part, name)] for name in ("ids", "texts"))
    return Documents(ids, texts, csr_array(vstack([part.labels for part in parts])), sum(part.added for part in parts))


def read_documents(files: Iterable[Path], taxonomy: Taxonomy, columns: ColumnNames = DEFAULT_COLUMNS) -> Documents:
    """Read the documents of these files; raise a `DataError` at the first unusable one. The default id is the index."""
    return _collect(read_records(files, raise_error, columns), taxonomy)


def label_documents(texts: Iterable[str], labels: Iterable[str | Iterable[str]], taxonomy: Taxonomy) -> Documents:
    """Make documents of texts with the labels of each: one or several ids, names or paths. Ancestors are added."""
    texts, label_sets = check_texts(texts), check_label_sets(labels)
    if len(texts) != len(label_sets):
        raise DataError(
            f"there are {counted(len(texts), 'text')} but {counted(len(label_sets), 'set')} of labels; expected one "
            "set per text"
        )
    records = (
        Record(text, label_set, "", f"labels[{i}]", 0)
        for i, (text, label_set) in enumerate(zip(texts, label_sets, strict=True))
    )
    return _collect(records, taxonomy)


def describe_labels(taxonomy: Taxonomy, splits: Iterable[Documents] = ()) -> Documents:
    """Texts that the taxonomy has about its labels as documents: their names, and the sentences of descriptions.

    Each has its label and the ancestors. Names without words, such as codes, sentences of fewer than five words, and
    texts of these splits are left out.
    """
    texts, labels = [], []
    for label in taxonomy:
        sentences = [part for part in SENTENCE_END.split(label.description) if len(part.split()) >= MIN_WORDS]
        own = [label.name, *sentences] if has_words(label.name) else sentences
        texts += own
        labels += [[label.id]] * len(own)
    known = np.unique(text_hashes(text for documents in splits for text in documents.texts))
    return label_documents(texts, labels, taxonomy).take(np.flatnonzero(~are_seen(texts, known)))


def _collect(records: Iterable[Record], taxonomy: Taxonomy) -> Documents:
    """Look up the labels of records, and add ancestors."""
    lookup = LabelLookup(taxonomy)
    ids, texts, rows, starts, n_added = list[str](), list[str](), list[int](), [0], 0
    for record in records:
        closed, added = lookup.rows(record, raise_error)
        ids.append(record.id or str(len(ids)))
        texts.append(record.text)
        rows.extend(sorted(closed))
        starts.append(len(rows))
        n_added += added
    shape = (len(texts), len(taxonomy))
    return Documents(ids, texts, csr_array((np.ones(len(rows), dtype=bool), rows, starts), shape=shape), n_added)


# Labels of records


class LabelLookup:
    """Finds the labels of records in the taxonomy; results are cached, because labels repeat."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy = taxonomy
        self._find = cache(taxonomy.find)
        self._closure = cache(lambda row: taxonomy.closure([row]).tolist())
        self._nearest: dict[str, str | None] = {}
        self.n_labels = 0
        """The number of labels of all records."""
        self.n_unknown = 0
        """The number of labels that are not in the taxonomy."""
        self.first_unknown = ""

    def rows(self, record: Record, report: OnProblem) -> tuple[set[int], int]:
        """The rows of a record's labels and their ancestors, and the number of ancestors that were added."""
        labels = record.labels if isinstance(record.labels, list) else self._split(record.labels)
        rows: set[int] = set()
        for label in labels:
            matches = self._find(label)
            if len(matches) == 1:
                rows.add(matches[0])
            else:
                report(self._problem(label, matches, record))
            if not matches:
                self.first_unknown = self.first_unknown or label
                self.n_unknown += 1
        self.n_labels += len(labels)
        if not labels:
            report(Problem("no-labels", record.file, record.line, "the document has no labels"))
        closed = set[int]().union(*(self._closure(row) for row in rows))
        return closed, len(closed) - len(rows)

    def _split(self, text: str) -> list[str]:
        return split_labels(text, lambda label: bool(self._find(label)))

    def _problem(self, label: str, matches: list[int], record: Record) -> Problem:
        if matches:
            ids = ", ".join(f"'{self._taxonomy[row].id}'" for row in matches[:3])
            message = f"the name '{label}' belongs to {len(matches)} labels; use an id ({ids}) or a path"
            return Problem("ambiguous-label", record.file, record.line, message)
        if label not in self._nearest and len(self._nearest) < MAX_EXAMPLES:
            self._nearest[label] = self._taxonomy.nearest(label)
        near = self._nearest.get(label)
        hint = f"; did you mean '{near}'?" if near else ""
        return Problem("unknown-label", record.file, record.line, f"label '{label[:80]}' is not in the taxonomy{hint}")


def split_labels(text: str, is_known: Callable[[str], bool]) -> list[str]:
    """Split a string into labels: one label, a JSON list, or the first separator that gives a known label.

    >>> split_labels("a|b, c", "b, c".__eq__), split_labels("a, b", "a".__eq__), split_labels('["a", "b"]', "a".__eq__)
    (['a', 'b, c'], ['a', 'b'], ['a', 'b'])
    """
    if not text.strip() or is_known(text):
        return [text] if text.strip() else []
    if text.lstrip().startswith("["):
        try:
            return [str(label) for label in json.loads(text)]
        except (ValueError, RecursionError):
            pass
    candidates = [
        [part.strip() for part in text.split(separator) if part.strip()]
        for separator in SEPARATORS
        if separator in text
    ]
    with_match = (labels for labels in candidates if any(map(is_known, labels)))
    return next(with_match, candidates[0] if candidates else [text])


# Checks of texts and labels that are given in Python


def check_texts(texts: Iterable[str]) -> list[str]:
    """The texts as a list, or a `DataError` that names the first unusable text."""
    result = as_list(texts, "texts")
    for i, text in enumerate(result):
        if problem := text_problem(text):
            raise DataError(f"texts[{i}] {problem}")
    return result


def text_problem(text: Any) -> str:
    """What is wrong with a text; empty if it is a string with at least one word that can be encoded as UTF-8."""
    if not isinstance(text, str):
        return f"is {reprlib.repr(text)}; expected a string"
    if not text.strip():
        return "is empty; expected at least one word"
    return "" if is_utf8(text) else "has half of a character (a lone surrogate); expected Unicode text"


def check_label_sets(labels: Iterable[str | Iterable[str]]) -> list[list[str]]:
    """The labels of each text as a list, or a `DataError` that names the first unusable label."""
    result: list[list[str]] = []
    for i, given in enumerate(as_list(labels, "labels")):
        label_set = [given] if isinstance(given, str) else given
        wrong_type = isinstance(label_set, bytes | Mapping) or not isinstance(label_set, Iterable)
        if wrong_type or getattr(label_set, "ndim", 1) != 1:
            raise DataError(
                f"labels[{i}] is {reprlib.repr(given)}; expected a label or a list of labels, {LABEL_AS_STRING}"
            )
        result.append(list(label_set))
        for label in result[-1]:
            if not isinstance(label, str):
                raise DataError(
                    f"labels[{i}] contains {reprlib.repr(label)}; expected labels, {LABEL_AS_STRING}; 0 and 1 per "
                    "label need a matrix, such as numpy.array(labels)"
                )
    return result


def as_list(values: Any, name: str) -> list[Any]:
    """The items of an ordered collection, or a `DataError`: a set has no order that matches texts and labels."""
    unordered = isinstance(values, str | bytes | Set | Mapping | MappingView)
    if not unordered and isinstance(values, Iterable) and len(getattr(values, "shape", (0,))) == 1:
        return list(values)
    if values is None or isinstance(values, str | bytes | int | float):
        description = reprlib.repr(values)
    else:
        shape = f" and shape {tuple(values.shape)}" if hasattr(values, "shape") else ""
        description = f"of type {type(values).__name__}{shape}"
    raise DataError(f"{name} is {description}; expected a list or a one-dimensional array, one item per text in order")
