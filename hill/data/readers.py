"""Reading data files record by record: JSONL, CSV, Excel, Parquet, Arrow and answers, with the line of every problem.

One reader per format yields (line, fields), or (line, message) if a line cannot be read. `read_records` calls a
function with each `Problem`: `raise_error` raises at the first error, `Problems.add` collects all problems.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import json
import os
import re
import shlex
import warnings
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import ZipFile

from hill.data.answers import read_answers
from hill.errors import ConfigError, DataError, need, one_line
from hill.io import as_path, is_utf8

SPLITS = {"train": "train", "dev": "dev", "val": "dev", "valid": "dev", "validation": "dev", "test": "test"}
FORMATS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".csv", ".tsv"), "table"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".xlsx": "excel",
    ".arrow": "arrow",
    ".sqlite": "answers",
}
EXPECTED = (
    "JSONL (.jsonl), CSV (.csv, .tsv), Excel (.xlsx), Parquet (.parquet), Arrow (.arrow) or answers (.sqlite); text "
    "formats may be gzipped (.gz)"
)
PARQUET_BATCH = 128
"""Rows per batch; small, because a small file can contain many copies of a long text."""
LONGEST_LINE = 2**26
"""Maximum number of bytes per line; a text of a million characters needs a tenth of it in any script."""
LONGEST_FIELD = 2**26
"""Maximum number of characters per CSV field; without it, an open quote would read the whole file into memory."""


# Problems


ERRORS = {
    "wrong-taxonomy": "taxonomy that does not fit the data",
    "missing-column": "columns that do not exist",
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
        if is_dataset(folder):
            return _find_dataset_splits(folder)
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


DATASET, DATASET_DICT = "state.json", "dataset_dict.json"
"""Files that `save_to_disk` of Hugging Face `datasets` writes beside the Arrow files of a data set or of its splits."""


def is_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` of Hugging Face `datasets` wrote this folder."""
    return any((folder / name).is_file() for name in (DATASET, DATASET_DICT))


def _find_dataset_splits(folder: Path) -> dict[str, list[Path]]:
    """The Arrow files of a `DatasetDict` by split, or those of a single `Dataset` as the split `data`."""
    if (folder / DATASET).is_file():
        return {_split_of(folder) or "data": _dataset_files(folder)}
    names = _read_list(folder / DATASET_DICT, "splits")
    found = {split: name for name in names if (split := _split_of(Path(name)))}
    if not found:
        raise DataError(
            f"'{folder}' has the splits {', '.join(names) or 'none'}; expected train, and dev and test if there are any"
        )
    return {split: _dataset_files(folder / found[split]) for split in ("train", "dev", "test") if split in found}


def _dataset_files(folder: Path) -> list[Path]:
    return [folder / name for name in _read_list(folder / DATASET, "_data_files", "filename")]


def _read_list(file: Path, key: str, inner: str = "") -> list[str]:
    """The names in a list of a JSON file; they must be in the folder of the file."""
    try:
        items = json.loads(file.read_text(encoding="utf-8"))[key]
        names = [item[inner] if inner else item for item in items]
        if all(name == Path(name).name and name not in ("", "..") for name in names):
            return names
        reason = "it names files outside of its folder"
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise DataError(f"'{file}' cannot be used: {reason[:200]}; save the data set again with save_to_disk")


def _quoted(files: list[Path]) -> str:
    return ", ".join(f"'{file.name}'" for file in files)


def format_of(path: Path) -> str:
    """The format of a file by its name: `jsonl`, `table`, `excel`, `parquet` or `arrow`."""
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
            if number == 1 and line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                raise OSError("it is in UTF-16; save the file as UTF-8")
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
        header = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
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


def read_parquet(path: Path, columns: ColumnNames, with_labels: bool) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The fields of each row, or a message. One batch of rows is in memory at a time."""
    arrow = need("pyarrow", "data", "reading Parquet")
    parquet = need("pyarrow.parquet", "data", "reading Parquet")
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            used = columns.used(file.schema_arrow.names, with_labels)
            class_names = _class_names(file.schema_arrow)
            for batch in file.iter_batches(batch_size=PARQUET_BATCH, columns=used):
                for fields in batch.to_pylist():
                    row += 1
                    yield row, _name_classes(fields, class_names)
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:  # also for text that is not UTF-8
        yield row, f"the file cannot be read further: {' '.join(str(error).split())[:200]}"


def read_labelled(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The documents of an answers file with their current labels; the line is the number of the answer."""
    for answer in read_answers(path):
        if answer.action != "skip":
            yield answer.number, {"id": answer.id, "text": answer.text, "labels": list(answer.labels)}


def read_arrow(path: Path, columns: ColumnNames, with_labels: bool) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The fields of each row of an Arrow IPC stream, as Hugging Face `datasets` writes it, or a message."""
    arrow = need("pyarrow", "data", "reading Arrow")
    row = 0
    try:
        with path.open("rb") as file, arrow.ipc.open_stream(file) as reader:
            used = columns.used(reader.schema.names, with_labels)
            class_names = _class_names(reader.schema)
            for batch in reader:
                batch.validate(full=True)  # the reader itself does not check offsets and text
                chosen = batch.select(used)
                for start in range(0, batch.num_rows, PARQUET_BATCH):
                    for fields in chosen.slice(start, PARQUET_BATCH).to_pylist():
                        row += 1
                        yield row, _name_classes(fields, class_names)
    except (arrow.ArrowException, MemoryError, OSError, ValueError, OverflowError) as error:
        yield row, f"the file cannot be read further: {' '.join(str(error).split())[:200] or 'out of memory'}"


def _class_names(schema: Any) -> dict[str, list[str]]:
    """The names of the classes of each column that Hugging Face `datasets` stores as numbers (`ClassLabel`)."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        inner = {name: feature.get("feature", feature) for name, feature in features.items()}
        return {
            name: [str(each) for each in feature["names"]]
            for name, feature in inner.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return {}


def _name_classes(fields: dict[str, Any], class_names: dict[str, list[str]]) -> dict[str, Any]:
    """Replace the numbers of classes by their names; a negative number means that there is no label."""
    for column, names in class_names.items():
        if column in fields:
            value = fields[column]
            numbers = value if isinstance(value, list) else [value]
            given = [number for number in numbers if isinstance(number, int) and number >= 0]
            fields[column] = [names[number] if number < len(names) else number for number in given]
    return fields


MAX_PART_SIZE = 2**25
MAX_COMPRESSION = 200
"""A part of a workbook that is larger than `MAX_PART_SIZE` and compressed better than this is refused as a zip bomb."""
MAX_ROWS = 2**20
"""The maximum number of rows of a sheet in Excel."""
ESCAPED_CHARACTER = re.compile("_x00([0-7][0-9A-Fa-f])_")


def read_xlsx(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the cells of each row of the first sheet as strings; empty cells are empty strings."""
    openpyxl = need("openpyxl", "data", "reading .xlsx workbooks")
    try:
        with ZipFile(path) as archive:
            for part in archive.infolist():
                if part.file_size > max(MAX_PART_SIZE, MAX_COMPRESSION * part.compress_size):
                    raise ValueError(
                        f"'{part.filename}' has {part.file_size:,} bytes, packed into {part.compress_size:,}"
                    )
        with path.open("rb") as file:  # openpyxl leaves a file open that it cannot read
            with warnings.catch_warnings(action="ignore"):
                workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
            with closing(workbook):
                if not workbook.worksheets:
                    raise ValueError("it has no sheet")
                sheet = workbook.worksheets[0]
                sheet.reset_dimensions()  # programs other than Excel write wrong ones
                rows = sheet.iter_rows(values_only=True)
                for number in count(1):
                    with warnings.catch_warnings(action="ignore"):
                        row = next(rows, None)
                    if row is None:
                        return
                    if number > MAX_ROWS:
                        raise ValueError(f"it has more than {MAX_ROWS:,} rows")
                    cells = ("" if cell is None else str(cell) for cell in row)
                    yield number, [ESCAPED_CHARACTER.sub(lambda match: chr(int(match[1], 16)), cell) for cell in cells]
    except Exception as error:  # openpyxl raises errors of many types for damaged files
        raise DataError(f"'{path}' is not a usable .xlsx workbook: {error}; save it from Excel again") from None


def read_excel(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    """The cells of each row of the first sheet by column name, or a message. Rows without any text are left out."""
    header: list[str] = []
    try:
        for row, cells in read_xlsx(path):
            if not any(cell.strip() for cell in cells):
                continue
            if header:
                yield row, dict(zip(header, [*cells, *[""] * (len(header) - len(cells))], strict=False))
            else:
                header = [cell.strip() for cell in cells]
    except DataError as error:
        yield 0, str(error)


LINE_READERS: dict[str, Callable[[Path], Iterator[tuple[int, Mapping[str, Any] | str]]]] = {
    "jsonl": read_jsonl,
    "table": read_table,
}
"""Readers of formats that can be read line by line."""


def read_file(path: Path, columns: ColumnNames, with_labels: bool) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
    """The fields of each row of a file with its line, or a message; Parquet and Arrow read only the used columns."""
    kind = format_of(path)
    if kind in LINE_READERS:
        return LINE_READERS[kind](path)
    if kind in ("excel", "answers"):
        return (read_excel if kind == "excel" else read_labelled)(path)
    return (read_parquet if kind == "parquet" else read_arrow)(path, columns, with_labels)


# Columns


@dataclass(frozen=True)
class ColumnNames:
    """The columns of a table, or fields of JSON objects, that are read. Case does not matter."""

    text: str = "text"
    labels: tuple[str, ...] = ("labels",)
    """One column with all labels; or several, which are the levels of one path, from the root down."""
    separator: str = ""
    """Between the labels in one string; empty: `|`, `;` or `,`, whichever gives a known label."""

    def __post_init__(self) -> None:
        if self.separator and len(self.labels) > 1:
            raise ConfigError(
                f"--separator is '{self.separator}' and there are {len(self.labels)} label columns, which are the "
                "levels of one path; give one --labels-column, or leave --separator out"
            )

    def used(self, names: Sequence[str], with_labels: bool) -> list[str]:
        """The names of the columns to read; all of them if one is missing, for the error message."""
        wanted = [self.text, *(self.labels if with_labels else ())]
        found = [find_column(name, names) for name in wanted]
        if None in found:
            return list(names)
        return list(dict.fromkeys(name for name in (find_column("id", names), *found) if name is not None))


def find_column(name: str, names: Iterable[Any]) -> str | None:
    """The column with this name, or else with this name in another case; `label` is the same as `labels`.

    >>> find_column("labels", ["Text", "Label"])
    'Label'
    """
    strings = [other for other in names if isinstance(other, str)]
    if name in strings:
        return name
    by_name = {other.strip().casefold(): other for other in strings}
    folded = name.strip().casefold()
    return by_name.get(folded) or (by_name.get("label") if folded == "labels" else None)


def missing_column(name: str, names: Iterable[Any], option: str) -> str:
    """The message for a column that does not exist: the nearest one, or all."""
    strings = [other for other in names if isinstance(other, str)]
    by_folded = {other.casefold(): other for other in strings}
    if near := difflib.get_close_matches(name.casefold(), by_folded, n=1):
        return f"no column '{name}'; did you mean {option} {shlex.quote(by_folded[near[0]])}?"
    listed = ", ".join(f"'{other}'" for other in strings[:12]) + (", …" if len(strings) > 12 else "")
    return f"no column '{name}'{f', only {listed}' if listed else ''}; name the column with {option}"


# Records


class Record(NamedTuple):
    """A document of a file; its labels are not looked up yet."""

    text: str
    labels: str | list[str]
    id: str
    file: str
    line: int


PEEKED = 10
"""Records at the start of a file that tell which columns it has."""
DEFAULT_COLUMNS = ColumnNames()


def read_records(
    files: Iterable[Path], report: OnProblem, columns: ColumnNames = DEFAULT_COLUMNS, with_labels: bool = True
) -> Iterator[Record]:
    """Stream the usable documents of these files; `report` is called with each problem.

    If a file has no such column, this is one problem, and nothing more is read.
    """
    for path in files:
        rows = read_file(path, columns, with_labels)
        first = list(islice(rows, PEEKED))
        readable = [(line, fields) for line, fields in first if not isinstance(fields, str)]
        names = list(dict.fromkeys(name for _, fields in readable for name in fields))
        wanted = [(columns.text, "--text-column")]
        wanted += [(name, "--labels-column") for name in columns.labels if with_labels]
        found = [find_column(name, names) or name for name, _ in wanted]
        for (name, option), column in zip(wanted, found, strict=True):
            if readable and column not in names:
                message = missing_column(name, names, option)
                report(Problem("missing-column", str(path), readable[0][0], message))
                return
        parse = RecordParser(str(path), found[0], found[1:], find_column("id", names) or "id", columns.separator)
        for line, fields in chain(first, rows):
            record = parse(line, fields)
            if isinstance(record, Problem):
                report(record)
            else:
                yield record


def read_fields(files: Iterable[Path], text_column: str = "text") -> Iterator[tuple[str, str]]:
    """The id and text of every record, for prediction. Labels are ignored; a record without text is an error."""
    records = read_records(files, raise_error, ColumnNames(text_column), with_labels=False)
    for index, record in enumerate(records):
        yield record.id or str(index), record.text


@dataclass(frozen=True)
class RecordParser:
    """Makes records of the fields of one file, whose columns have these names."""

    file: str
    text: str
    labels: Sequence[str]
    """None for prediction."""
    id: str
    separator: str

    def __call__(self, line: int, fields: Mapping[str, Any] | str) -> Record | Problem:
        """The record of these fields, or the problem that makes it unusable."""

        def problem(kind: str, message: str) -> Problem:
            return Problem(kind, self.file, line, message)

        if isinstance(fields, str):
            return problem("unreadable", fields)
        for name in (self.text, *self.labels[:1]):
            if name not in fields:
                return problem("missing-field", f"no '{name}'; the record has {_listed(fields)}")
        text, key = fields[self.text], "" if fields.get(self.id) is None else str(fields[self.id])
        if not isinstance(text, str):
            return problem("wrong-type", f"the text is {_type_name(text)}; expected a string")
        if not text.strip():
            return problem("empty-text", "the text is empty; expected at least one word")
        for name, value in (("text", text), ("id", key)):
            if not is_utf8(value):
                return problem("unreadable", f"the {name} has half of a character (a lone surrogate); remove it")
        given = [fields.get(name) for name in self.labels]
        labels = _parse_levels(given) if len(given) > 1 else _parse_labels(given[0] if given else [], self.separator)
        if labels is None:
            wrong = next(value for value in given if _parse_levels([value]) is None or len(given) == 1)
            message = f"the labels are {_type_name(wrong)}; expected a list of names or ids, or one string"
            return problem("wrong-type", message)
        return Record(text, labels, key, self.file, line)


def _listed(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"'{key}'" for key in list(fields)[:6]) or "no fields"


def _parse_levels(values: list[Any]) -> list[str] | None:
    """The path that the values of several columns form, without empty levels. None if a type is wrong."""
    if not all(isinstance(value, str | int | None) and not isinstance(value, bool) for value in values):
        return None
    levels = [str(value).strip() for value in values if value is not None and str(value).strip()]
    return [" > ".join(levels)] if levels else []


def _parse_labels(value: Any, separator: str = "") -> str | list[str] | None:
    """Labels as strings; a list inside the list is a path from the root. None if the type is wrong."""
    if isinstance(value, str) and separator:
        return [label.strip() for label in value.split(separator) if label.strip()]
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
