"""Reading data files record by record: JSONL, CSV, Parquet and answers, with the line of every problem.

One reader per format yields (line, fields), or (line, message) if a line cannot be read. `read_records` calls a
function with each `Problem`: `raise_error` raises at the first error, `Problems.add` collects all problems.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import json
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from hill.data.answers import read_answers
from hill.errors import DataError, need, one_line
from hill.io import as_path, is_utf8

SPLITS = {"train": "train", "dev": "dev", "val": "dev", "valid": "dev", "validation": "dev", "test": "test"}
FORMATS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".csv", ".tsv"), "table"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".sqlite": "answers",
}
EXPECTED = (
    "JSONL (.jsonl), CSV (.csv, .tsv), Parquet (.parquet) or answers (.sqlite); text formats may be gzipped (.gz)"
)
PARQUET_COLUMNS = ("id", "text", "labels")
PARQUET_BATCH = 128
"""Rows per batch; small, because a small file can contain many copies of a long text."""
LONGEST_LINE = 2**26
"""Maximum number of bytes per line; a text of a million characters needs a tenth of it in any script."""
LONGEST_FIELD = 2**26
"""Maximum number of characters per CSV field; without it, an open quote would read the whole file into memory."""


# Problems


ERRORS = {
    "wrong-taxonomy": "taxonomy that does not fit the data",
    "unreadable": "records that cannot be read",
    "missing-field": "records without a text or labels field",
    "wrong-type": "records whose text or labels have the wrong type",
    "empty-text": "empty texts",
    "unknown-label": "labels that are not in the taxonomy",
    "ambiguous-label": "names that belong to several labels",
    "no-documents": "splits without documents",
    "no-train": "no split to train on",
}
WARNINGS = {
    "no-labels": "documents without labels",
    "duplicate-text": "texts that occur again in the same split",
    "shared-text": "texts that occur in another split too",
    "duplicate-id": "ids that occur again",
    "untrained-label": "labels used in dev or test but never in train",
}
MAX_EXAMPLES = 20
"""Examples per kind of problem."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a data set: its kind, the file and line, and a message."""

    kind: str
    file: str
    line: int
    message: str

    def __str__(self) -> str:
        place = f"line {self.line} of {self.file}" if self.line and self.file else self.file
        return f"{self.message} ({place})" if place else self.message


OnProblem = Callable[[Problem], None]


def raise_error(problem: Problem) -> None:
    """Raise a `DataError` for an error; ignore warnings."""
    if problem.kind in ERRORS:
        raise DataError(str(problem))


class Problems:
    """Counts all problems and keeps the first examples of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: defaultdict[str, list[Problem]] = defaultdict(list)

    def add(self, problem: Problem) -> None:
        """Count a problem."""
        self.counts[problem.kind] += 1
        if len(self.examples[problem.kind]) < MAX_EXAMPLES:
            self.examples[problem.kind].append(problem)

    @property
    def fit(self) -> bool:
        """Whether there is no error."""
        return not any(kind in ERRORS for kind in self.counts)

    def to_dict(self) -> list[dict[str, Any]]:
        """All problems as plain values, errors first."""
        return [
            {
                "kind": kind,
                "severity": "error" if kind in ERRORS else "warning",
                "title": title,
                "count": self.counts[kind],
                "examples": [
                    {"file": one_line(p.file), "line": p.line, "message": one_line(p.message)}
                    for p in self.examples[kind]
                ],
            }
            for kind, title in (ERRORS | WARNINGS).items()
            if self.counts[kind]
        ]


# Files


def find_splits(path: str | os.PathLike[str]) -> dict[str, list[Path]]:
    """The files of each split, in the order train, dev, test. A single file with another name is the split `data`."""
    folder = as_path(path, "data")
    try:
        if folder.is_file():
            format_of(folder)
            return {_split_of(folder) or "data": [folder]}
        if not folder.is_dir():
            raise DataError(f"'{folder}' does not exist; give a data file or a folder with train, dev and test files")
        names = sorted(folder.iterdir())
        files = [file for file in names if file.is_file() and _suffix(file) in FORMATS]
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror}; give a data file or a folder of them") from None
    splits: dict[str, list[Path]] = {"train": [], "dev": [], "test": []}
    for file in files:
        if split := _split_of(file):
            splits[split].append(file)
    if not any(splits.values()):
        content = f"it has {_quoted(names[:5])}" if names else "it is empty"
        suffix = _suffix(files[0]) if files else None
        remedy = (
            f"rename files to train{suffix}, dev{suffix} or test{suffix}"
            if suffix
            else f"expected names such as train.jsonl in a known format: {EXPECTED}"
        )
        raise DataError(f"'{folder}' has no train, dev or test file ({content}); {remedy}")
    for split, parts in splits.items():
        if len({_without_shard(file) for file in parts}) > 1:
            raise DataError(
                f"the split {split} of '{folder}' has several files ({_quoted(parts)}); keep one, or shards of one"
            )
    return {split: parts for split, parts in splits.items() if parts}


def _quoted(files: list[Path]) -> str:
    return ", ".join(f"'{file.name}'" for file in files)


def format_of(path: Path) -> str:
    """The format of a file by its name: `jsonl`, `table` or `parquet`."""
    if _suffix(path) not in FORMATS:
        raise DataError(f"'{path}' is of an unknown format; expected {EXPECTED}")
    return FORMATS[_suffix(path)]


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _split_of(path: Path) -> str | None:
    """`train.jsonl`, `train.jsonl.gz` and `train-00001-of-00004.parquet` all belong to train."""
    return SPLITS.get(path.name.lower().split(".")[0].split("-")[0])


def _without_shard(path: Path) -> tuple[str, str]:
    """The name without a shard number; equal for the shards of one file."""
    stem, _, shard = path.name.lower().split(".")[0].partition("-")
    return (stem, _suffix(path)) if shard else (path.name, "")


def open_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a plain or gzipped file, numbered from 1, with line ends."""
    with path.open("rb") as file:
        lines: IO[bytes] = gzip.GzipFile(fileobj=file) if path.suffix.lower() == ".gz" else file  # type: ignore[assignment]
        number = 0
        while line := lines.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise OSError(f"line {number} has more than {LONGEST_LINE:,} bytes; split it, or the text in it")
            yield number, line


# Formats


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The object of each line, or a message if it cannot be read."""
    line = 0
    try:
        for line, content in open_lines(path):
            if content.strip():
                yield line, _parse_json(line, content)
    except (OSError, EOFError, zlib.error) as error:
        yield line + 1, f"the file cannot be read further: {error}"


def _parse_json(line: int, content: bytes) -> dict[str, Any] | str:
    """The object of a line, or a message."""
    try:
        value = json.loads(content.decode("utf-8-sig" if line == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
    except json.JSONDecodeError as error:
        is_array = line == 1 and content.lstrip().startswith(b"[")
        remedy = "write one object per line, not one array" if is_array else "expected one JSON object per line"
        return f"not JSON: {error.msg} at character {error.pos + 1}; {remedy}"
    except (RecursionError, ValueError) as error:
        return f"not usable JSON: {error}"
    if not isinstance(value, dict):
        return f"a JSON {type(value).__name__}; expected an object with text and labels"
    return value


def read_table(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    """The cells of each CSV row by column name, with the line where it begins, or a message."""
    csv.field_size_limit(LONGEST_FIELD)
    line = 1
    try:
        # Invalid bytes become surrogates, so that one bad row does not hide the rows after it.
        lines = (content.decode("utf-8", "surrogateescape") for _, content in open_lines(path))
        first = next(lines, "").removeprefix("\ufeff")
        delimiter = "\t" if ".tsv" in path.name.lower() else ";" if first.count(";") > first.count(",") else ","
        names = [name.strip().casefold() for name in next(csv.reader([first], delimiter=delimiter), [])]
        header = ["labels" if name == "label" else name for name in names]
        reader = csv.reader(lines, delimiter=delimiter)
        line = 2
        for cells in reader:
            if cells:
                yield line, _parse_row(header, cells)
            line = reader.line_num + 2
    except (csv.Error, OSError, EOFError, zlib.error) as error:
        yield line, f"the file cannot be read further: {error}"


def _parse_row(header: list[str], cells: list[str]) -> dict[str, str] | str:
    if len(cells) != len(header):
        return f"{len(cells)} columns; the header has {len(header)} ({', '.join(header[:6])})"
    for cell in cells:
        try:
            cell.encode()
        except UnicodeEncodeError as error:
            return f"byte 0x{ord(cell[error.start]) - 0xDC00:02x} is not UTF-8; save the file as UTF-8"
    return dict(zip(header, cells, strict=True))


def read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The fields of each row, or a message. One batch of rows is in memory at a time."""
    arrow = need("pyarrow", "data", "reading Parquet")
    parquet = need("pyarrow.parquet", "data", "reading Parquet")
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if name in PARQUET_COLUMNS]
            if "text" not in columns:
                names = ", ".join(file.schema_arrow.names[:6])
                yield 0, f"the columns are {names}; expected text, and labels to train on"
                return
            for batch in file.iter_batches(batch_size=PARQUET_BATCH, columns=columns):
                for fields in batch.to_pylist():
                    row += 1
                    yield row, fields
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:  # also for text that is not UTF-8
        yield row, f"the file cannot be read further: {' '.join(str(error).split())[:200]}"


def read_labelled(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The documents of an answers file with their current labels; the line is the number of the answer."""
    for answer in read_answers(path):
        if answer.action != "skip":
            yield answer.number, {"id": answer.id, "text": answer.text, "labels": list(answer.labels)}


READERS: dict[str, Callable[[Path], Iterator[tuple[int, Mapping[str, Any] | str]]]] = {
    "jsonl": read_jsonl,
    "table": read_table,
    "parquet": read_parquet,
    "answers": read_labelled,
}


# Records


class Record(NamedTuple):
    """A document of a file; its labels are not looked up yet."""

    text: str
    labels: str | list[str]
    id: str
    file: str
    line: int


def read_records(files: Iterable[Path], report: OnProblem, with_labels: bool = True) -> Iterator[Record]:
    """Stream the usable documents of these files; `report` is called with each problem."""
    for path in files:
        for line, fields in READERS[format_of(path)](path):
            if not with_labels and not isinstance(fields, str):
                fields = {**fields, "labels": []}
            record = parse_record(fields, str(path), line)
            if isinstance(record, Problem):
                report(record)
            else:
                yield record


def read_fields(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """The id and text of every record, for prediction. Labels are ignored; a record without text is an error."""
    for index, record in enumerate(read_records(files, raise_error, with_labels=False)):
        yield record.id or str(index), record.text


def parse_record(fields: Mapping[str, Any] | str, file: str, line: int) -> Record | Problem:
    """The record of these fields, or the problem that makes it unusable."""
    if isinstance(fields, str):
        return Problem("unreadable", file, line, fields)
    for name in ("text", "labels"):
        if name not in fields:
            near = difflib.get_close_matches(name, [key for key in fields if isinstance(key, str)], n=1)
            names = ", ".join(f"'{key}'" for key in list(fields)[:6]) or "no fields"
            hint = f"did you mean '{near[0]}'?" if near else f"the record has {names}"
            return Problem("missing-field", file, line, f"no '{name}'; {hint}")
    text, key = fields["text"], "" if fields.get("id") is None else str(fields["id"])
    if not isinstance(text, str):
        return Problem("wrong-type", file, line, f"the text is {_type_name(text)}; expected a string")
    if not text.strip():
        return Problem("empty-text", file, line, "the text is empty; expected at least one word")
    for name, value in (("text", text), ("id", key)):
        if not is_utf8(value):
            message = f"the {name} has half of a character (a lone surrogate); remove it"
            return Problem("unreadable", file, line, message)
    labels = _parse_labels(fields["labels"])
    if labels is None:
        message = f"the labels are {_type_name(fields['labels'])}; expected a list of names or ids, or one string"
        return Problem("wrong-type", file, line, message)
    return Record(text, labels, key, file, line)


def _parse_labels(value: Any) -> str | list[str] | None:
    """Labels as strings; a list inside the list is a path from the root. None if the type is wrong."""
    if value is None or isinstance(value, str):
        return value or []
    items = value if isinstance(value, list | tuple) else [value]
    labels = [" > ".join(map(str, item)) if isinstance(item, list) else item for item in items]
    valid = all(isinstance(label, str | int) and not isinstance(label, bool) for label in labels)
    return [str(label) for label in labels] if valid else None


def _type_name(value: Any) -> str:
    names = {"bool": "a truth value", "dict": "an object", "list": "a list", "NoneType": "null"}
    name = type(value).__name__
    return names.get(name, "a number" if isinstance(value, int | float) else name)
