"""The input of bulk prediction: files are found, cut into parts, and read row by row."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast

from hill.data.readers import EXPECTED, FORMATS, LINE_READERS, find_column, format_of, missing_column
from hill.errors import ConfigError, DataError, need

CHUNK = 4_096
"""Number of rows that are read and predicted at a time."""
VERSION_KEYS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated")
"""Names that file systems use for a value that changes with the file."""


@dataclass(frozen=True)
class Cut:
    """How large files are cut into parts."""

    rows: int = 100_000
    """Maximum number of rows per part. Parquet files are only cut between row groups."""
    whole: int = 256 << 20
    """Maximum size in bytes of a JSONL or CSV file that is not cut; cutting needs to read the file twice."""


@dataclass(frozen=True)
class Part:
    """Rows of one input file, and the output file for their predictions."""

    name: str
    """Path of the output file in the output folder."""
    source: str
    size: int
    version: str
    first: int = 0
    """Index of the first row in the source."""
    rows: int | None = None
    """Number of rows, if it is known before the part is read."""
    offset: int = 0
    """Byte of the source at which the part begins, for JSONL and CSV."""
    groups: list[int] | None = None
    """Row groups of the part, for Parquet."""


class InputRow(NamedTuple):
    """A row of the input. Without an id, the id is the index of the row in its file."""

    id: str
    text: str
    error: str | None
    """Why the text cannot be predicted."""


def find_parts(source: str, cut: Cut, output: Path) -> list[Part]:
    """The parts of all files that a path, folder, glob or URI names, except for those in the output folder."""
    parts: list[Part] = []
    for file in _find_files(source):
        if Path(file.source).is_relative_to(output):
            continue
        pieces: list[dict[str, Any]] = [{}]
        if format_of(Path(file.source)) == "parquet":
            pieces = _cut_parquet(file, cut.rows)
        elif file.size > cut.whole:
            pieces = _cut_lines(file, cut.rows)
        name = file.name if file.name.endswith(".parquet") else f"{file.name}.parquet"
        names = [name] if len(pieces) == 1 else [f"{name}/{number:05}.parquet" for number in range(len(pieces))]
        parts += [replace(file, name=name, **fields) for name, fields in zip(names, pieces, strict=True)]
    duplicates = [name for name, times in Counter(part.name for part in parts).items() if times > 1]
    if duplicates:
        raise DataError(f"two files of '{source}' would both be written to '{duplicates[0]}'; rename one of them")
    return parts


def read_rows(part: Part, text_column: str = "text") -> Iterator[list[InputRow]]:
    """The rows of a part in chunks."""
    read = _read_parquet if format_of(Path(part.source)) == "parquet" else _read_lines
    rows = read(part, text_column)
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def version_of(address: str) -> tuple[int, str]:
    """The size of a file, and a value that changes with the file."""
    filesystem, path = _open_filesystem(address)
    try:
        info = filesystem.info(path)
    except OSError as error:
        raise DataError(f"cannot read '{address}': {error.strerror or error}") from None
    return int(info["size"]), next((str(info[key]) for key in VERSION_KEYS if info.get(key) is not None), "")


# Files


def _find_files(source: str) -> list[Part]:
    """The data files that a path, folder, glob or URI names, sorted; hidden files are left out.

    Their names are relative to the folder, or to the part of a glob before its first wildcard.
    """
    filesystem, path = _open_filesystem(source)
    try:
        if filesystem.isfile(path):
            root, paths = path.rpartition("/")[0], [path]
        elif filesystem.isdir(path):
            root, paths = (
                path,
                [name for name in filesystem.find(path) if _is_bulk_format(name)],
            )
        elif wildcard := re.search(r"[*?\[]", path):
            root = path[: wildcard.start()].rpartition("/")[0]
            paths = [name for name in filesystem.glob(path) if filesystem.isfile(name)]
        else:
            raise DataError(f"'{path}' does not exist; give a data file, a folder, or a glob in quotes")
        files = []
        for path in sorted(paths):
            if format_of(Path(path)) == "answers":
                raise DataError(f"'{path}' has answers; write them to a JSONL file first: hill export-labels")
            if format_of(Path(path)) and not _is_bulk_format(path):
                raise DataError(
                    f"'{path}' cannot be cut into parts; save it as Parquet, or give a file as --output, such as "
                    "labels.csv"
                )
            name = path.removeprefix(root).lstrip("/")
            if not any(step.startswith((".", "_")) for step in PurePosixPath(name).parts):
                address = filesystem.unstrip_protocol(path).removeprefix("file://").removeprefix("local://")
                files.append(Part(name, address, *version_of(address)))
    except OSError as error:
        raise DataError(f"cannot read '{source}': {error.strerror or error}") from None
    if not files:
        raise DataError(f"'{source}' names no data file; expected {EXPECTED}, a folder of them, or a glob in quotes")
    return files


def _is_bulk_format(path: str) -> bool:
    """Whether this is the name of a JSONL, CSV or Parquet file."""
    return FORMATS.get(Path(path.lower().removesuffix(".gz")).suffix) in (*LINE_READERS, "parquet")


def _open_filesystem(address: str) -> tuple[Any, str]:
    """The file system of an address, from fsspec or else from pyarrow, and the path on it."""
    core = need("fsspec.core", "data", "reading files in bulk")
    try:
        filesystem, path = core.url_to_fs(address)
    except (ImportError, ValueError) as reason:
        arrow, arrow_fs, wrapper = (
            need(module, "data", "reading files in bulk")
            for module in ("pyarrow", "pyarrow.fs", "fsspec.implementations.arrow")
        )
        try:
            filesystem, path = arrow_fs.FileSystem.from_uri(address)
        except (arrow.ArrowException, OSError, ValueError):
            raise ConfigError(
                f"cannot open '{address}': {reason}; give a path, or install the package for this protocol"
            ) from None
        filesystem = wrapper.ArrowFSWrapper(filesystem)
    return filesystem, str(path)


@contextmanager
def _open_file(address: str) -> Iterator[Any]:
    """The decompressed bytes of a file, seekable."""
    filesystem, path = _open_filesystem(address)
    with filesystem.open(path, "rb") as raw:
        if address.lower().endswith(".gz"):
            with gzip.GzipFile(fileobj=raw) as file:
                yield file
        else:
            yield raw


# Cutting files into parts


def _cut_parquet(file: Part, max_rows: int) -> list[dict[str, Any]]:
    """Consecutive row groups, as many as fit into a part, but at least one."""
    arrow, parquet = need_parquet()
    try:
        with _open_file(file.source) as content:
            metadata = parquet.ParquetFile(content).metadata
            sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"'{file.source}' cannot be read: {' '.join(str(error).split())[:200]}") from None
    pieces: list[dict[str, Any]] = [{"first": 0, "rows": 0, "groups": []}]
    for group, rows in enumerate(sizes):
        last = pieces[-1]
        if last["rows"] and last["rows"] + rows > max_rows:
            pieces.append({"first": last["first"] + last["rows"], "rows": rows, "groups": [group]})
        else:
            last["rows"] += rows
            last["groups"].append(group)
    return pieces


def _cut_lines(file: Part, max_rows: int) -> list[dict[str, Any]]:
    """The offset of each part of a JSONL or CSV file; this reads the file once."""
    lines = _LineFile(file.source)
    pieces: list[dict[str, Any]] = [{"first": 0, "rows": 0, "offset": 0}]
    end = 0
    for row, _ in enumerate(lines.records()):
        if pieces[-1]["rows"] == max_rows:
            pieces.append({"first": row, "rows": 0, "offset": end})
        pieces[-1]["rows"] += 1
        end = lines.end
    return pieces


# Reading parts


def need_parquet() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet."""
    arrow, parquet = (need(name, "data", "reading and writing Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    return arrow, parquet


def _read_lines(part: Part, text_column: str) -> Iterator[InputRow]:
    lines = _LineFile(part.source, part.offset)
    for index, fields in enumerate(islice(lines.records(), part.rows), part.first):
        if isinstance(fields, str):
            yield InputRow(str(index), "", _replace_surrogates(fields))
            continue
        column = find_column(text_column, fields)
        if column is None and lines.format == "table":
            raise _missing_text_column(part, text_column, list(fields))
        yield _make_row(index, fields.get(find_column("id", fields) or ""), fields.get(column or ""))


def _read_parquet(part: Part, text_column: str) -> Iterator[InputRow]:
    arrow, parquet = need_parquet()
    indices = count(part.first)
    try:
        with _open_file(part.source) as raw, parquet.ParquetFile(raw) as file:
            names = file.schema_arrow.names
            column, key = find_column(text_column, names), find_column("id", names)
            if column is None:
                raise _missing_text_column(part, text_column, names)
            columns = [column, *([key] if key else [])]
            for batch in file.iter_batches(CHUNK, row_groups=part.groups or [], columns=columns):
                for fields in batch.to_pylist():
                    yield _make_row(next(indices), fields.get(key), fields[column])
    except (arrow.ArrowException, OSError) as error:
        raise _truncated(part.source, " ".join(str(error).split())[:200]) from None


def _make_row(index: int, key: Any, text: Any) -> InputRow:
    error = None
    if text is None:
        error = "there is no text"
    elif not isinstance(text, str):
        error = f"the text is {type(text).__name__}; expected a string"
    elif not text.strip():
        error = "the text is empty"
    elif _replace_surrogates(text) != text:
        error = "the text has a lone surrogate; expected valid Unicode text"
    return InputRow(_replace_surrogates(str(index if key is None else key)), "" if error else text, error)


def _replace_surrogates(text: str) -> str:
    """The text with "?" for each lone surrogate, which JSON can contain and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _missing_text_column(part: Part, text_column: str, names: list[str]) -> DataError:
    return DataError(f"'{part.source}' has {missing_column(text_column, names, '--text-column')}")


def _truncated(address: str, reason: object) -> DataError:
    return DataError(f"'{address}' cannot be read to its end: {reason}; repair it, or remove it from the input")


class _LineFile:
    """A JSONL or CSV file from an offset on, with the header line first if the file is a table.

    It has the attributes of `Path` and of open files that the readers in `hill.data.readers` use.
    """

    suffix = ""
    """Not `.gz`: a compressed file is decompressed here, not by the reader."""

    def __init__(self, source: str, offset: int = 0) -> None:
        self.name, self.format = Path(source).name, format_of(Path(source))
        self._source, self._offset = source, offset
        self.end = offset
        """Byte after the last line that was read."""
        self._header, self._complete = b"", False

    def records(self) -> Iterator[Mapping[str, Any] | str]:
        """The fields per record, or a sentence on why it cannot be read; raises if the file is truncated."""
        fields: Mapping[str, Any] | str = "it has no lines"
        for _, fields in LINE_READERS[self.format](cast(Path, self)):
            yield fields
        if not self._complete:
            raise _truncated(self._source, fields)

    @contextmanager
    def open(self, mode: str) -> Iterator[_LineFile]:
        """Open the file for `readline`."""
        with _open_file(self._source) as self._file:
            if self._offset:
                self._header = self._file.readline() if self.format == "table" else b""
                self._file.seek(self._offset)
            yield self

    def readline(self, size: int = -1) -> bytes:
        """The next line, empty at the end. It is complete, because remote files of fsspec do not support `size`."""
        if self._header:
            header, self._header = self._header, b""
            return header
        try:
            line: bytes = self._file.readline()
        except (OSError, EOFError, zlib.error) as error:
            raise _truncated(self._source, error) from None
        self.end += len(line)
        self._complete = not line
        return line
