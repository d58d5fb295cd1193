"""The input of bulk prediction: files are found, cut into parts, and read row by row."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast

from hill.data.readers import EXPECTED, FORMATS, READERS, format_of
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
    groups: tuple[int, ...] | None = None
    """Row groups of the part, for Parquet."""

    def to_dict(self) -> dict[str, Any]:
        """The part as plain values."""
        return asdict(self) | {"groups": None if self.groups is None else list(self.groups)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Part:
        """The part that `to_dict` returned."""
        groups = values["groups"]
        return cls(**values | {"groups": None if groups is None else tuple(groups)})


class InputRow(NamedTuple):
    """A row of the input. Without an id, the id is the index of the row in its file."""

    id: str
    text: str
    error: str | None
    """Why the text cannot be predicted."""


def find_parts(source: str, cut: Cut, output: Path) -> list[Part]:
    """The parts of all files that a path, folder, glob or URI names, except for those in the output folder."""
    files = [file for file in _find_files(source) if not Path(file.address).is_relative_to(output)]
    parts = [part for file in files for part in _cut_file(file, cut)]
    duplicates = [name for name, count in Counter(part.name for part in parts).items() if count > 1]
    if duplicates:
        raise DataError(f"two files of '{source}' would both be written to '{duplicates[0]}'; rename one of them")
    return parts


def read_rows(part: Part) -> Iterator[list[InputRow]]:
    """The rows of a part in chunks."""
    records = _read_parquet(part) if format_of(Path(part.source)) == "parquet" else _read_lines(part)
    rows = (_make_row(index if key is None else key, text) for index, (key, text) in enumerate(records, part.first))
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


class _InputFile(NamedTuple):
    address: str
    path: str
    """Path relative to the folder, or to the part of a glob before its first wildcard."""
    size: int
    version: str


def _find_files(source: str) -> list[_InputFile]:
    """The data files that a path, folder, glob or URI names, sorted; hidden files are left out."""
    filesystem, path = _open_filesystem(source)
    try:
        root, names = _list_files(filesystem, path)
        files = []
        for name in sorted(names):
            relative = name.removeprefix(root).lstrip("/")
            if any(step.startswith((".", "_")) for step in PurePosixPath(relative).parts):
                continue
            address = filesystem.unstrip_protocol(name).removeprefix("file://").removeprefix("local://")
            files.append(_InputFile(address, relative, *version_of(address)))
    except OSError as error:
        raise DataError(f"cannot read '{source}': {error.strerror or error}") from None
    if not files:
        raise DataError(f"'{source}' names no data file; expected {EXPECTED}, a folder of them, or a glob in quotes")
    return files


def _list_files(filesystem: Any, path: str) -> tuple[str, list[str]]:
    """A root folder and the files below it that a path means."""
    if filesystem.isfile(path):
        format_of(Path(path))
        return path.rpartition("/")[0], [path]
    if filesystem.isdir(path):
        suffixes = {name: Path(name.lower().removesuffix(".gz")).suffix for name in filesystem.find(path)}
        return path, [name for name, suffix in suffixes.items() if suffix in FORMATS]
    if wildcard := re.search(r"[*?\[]", path):
        names = [name for name in filesystem.glob(path) if filesystem.isfile(name)]
        for name in names:
            format_of(Path(name))
        return path[: wildcard.start()].rpartition("/")[0], names
    raise DataError(f"'{path}' does not exist; give a data file, a folder, or a glob in quotes")


def _open_filesystem(address: str) -> tuple[Any, str]:
    """The file system of an address, from fsspec or else from pyarrow, and the path on it."""
    core = need("fsspec.core", "data", "reading files in bulk")
    try:
        filesystem, path = core.url_to_fs(address)
    except (ImportError, ValueError) as reason:
        arrow = need("pyarrow", "data", "reading files in bulk")
        arrow_fs = need("pyarrow.fs", "data", "reading files in bulk")
        wrapper = need("fsspec.implementations.arrow", "data", "reading files in bulk")
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


def _cut_file(file: _InputFile, cut: Cut) -> Iterator[Part]:
    name = file.path if file.path.endswith(".parquet") else f"{file.path}.parquet"
    pieces: list[dict[str, Any]] = [{}]
    if format_of(Path(file.path)) == "parquet":
        pieces = _cut_parquet(file, cut.rows)
    elif file.size > cut.whole:
        pieces = _cut_lines(file, cut.rows)
    for number, fields in enumerate(pieces):
        output = name if len(pieces) == 1 else f"{name}/{number:05}.parquet"
        yield Part(output, file.address, file.size, file.version, **fields)


def _cut_parquet(file: _InputFile, max_rows: int) -> list[dict[str, Any]]:
    """Consecutive row groups, as many as fit into a part, but at least one."""
    arrow = need("pyarrow", "data", "reading Parquet")
    parquet = need("pyarrow.parquet", "data", "reading Parquet")
    try:
        with _open_file(file.address) as content:
            metadata = parquet.ParquetFile(content).metadata
            sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"'{file.address}' cannot be read: {' '.join(str(error).split())[:200]}") from None
    pieces: list[dict[str, Any]] = [{"first": 0, "rows": 0, "groups": ()}]
    for group, rows in enumerate(sizes):
        last = pieces[-1]
        if last["rows"] and last["rows"] + rows > max_rows:
            pieces.append({"first": last["first"] + last["rows"], "rows": rows, "groups": (group,)})
        else:
            last |= {"rows": last["rows"] + rows, "groups": (*last["groups"], group)}
    return pieces


def _cut_lines(file: _InputFile, max_rows: int) -> list[dict[str, Any]]:
    """The offset of each part of a JSONL or CSV file; this reads the file once."""
    lines = _LineFile(file.address)
    pieces: list[dict[str, Any]] = [{"first": 0, "rows": 0, "offset": 0}]
    end = 0
    for row, _ in enumerate(lines.records()):
        if pieces[-1]["rows"] == max_rows:
            pieces.append({"first": row, "rows": 0, "offset": end})
        pieces[-1]["rows"] += 1
        end = lines.end
    return pieces


# Reading parts


class _UnreadableRecord(str):
    """Why a record cannot be read, in place of its text."""


def _make_row(key: Any, text: Any) -> InputRow:
    error = None
    if isinstance(text, _UnreadableRecord):
        error = _replace_surrogates(text)
    elif text is None:
        error = "there is no text"
    elif not isinstance(text, str):
        error = f"the text is {type(text).__name__}; expected a string"
    elif not text.strip():
        error = "the text is empty"
    elif _replace_surrogates(text) != text:
        error = "the text has a lone surrogate; expected valid Unicode text"
    return InputRow(_replace_surrogates(str(key)), "" if error else text, error)


def _replace_surrogates(text: str) -> str:
    """The text with "?" for each lone surrogate, which JSON can contain and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _read_lines(part: Part) -> Iterator[tuple[Any, Any]]:
    """Id and text per record of a part of a JSONL or CSV file."""
    lines = _LineFile(part.source, part.offset)
    for fields in islice(lines.records(), part.rows):
        if isinstance(fields, str):
            yield None, _UnreadableRecord(fields)
            continue
        if lines.format == "table" and "text" not in fields:
            raise _missing_text_column(part, list(fields))
        yield fields.get("id"), fields.get("text")


def _read_parquet(part: Part) -> Iterator[tuple[Any, Any]]:
    """Id and text per row of a part of a Parquet file."""
    arrow = need("pyarrow", "data", "reading Parquet")
    parquet = need("pyarrow.parquet", "data", "reading Parquet")
    try:
        with _open_file(part.source) as raw, parquet.ParquetFile(raw) as file:
            names = file.schema_arrow.names
            if "text" not in names:
                raise _missing_text_column(part, names)
            columns = [name for name in ("id", "text") if name in names]
            for batch in file.iter_batches(CHUNK, row_groups=list(part.groups or ()), columns=columns):
                texts = batch["text"].to_pylist()
                ids = batch["id"].to_pylist() if "id" in columns else [None] * len(texts)
                yield from zip(ids, texts, strict=True)
    except (arrow.ArrowException, OSError) as error:
        raise _truncated(part.source, " ".join(str(error).split())[:200]) from None


def _missing_text_column(part: Part, names: list[str]) -> DataError:
    columns = ", ".join(f"'{name}'" for name in names[:6])
    return DataError(f"'{part.source}' has no column 'text', only {columns}; rename the column with the texts")


def _truncated(address: str, reason: object) -> DataError:
    return DataError(f"'{address}' cannot be read to its end: {reason}; repair it, or remove it from the input")


@dataclass
class _LineFile:
    """A JSONL or CSV file from an offset on, with the header line first if the file is a table.

    It has the attributes of `Path` that the readers in `hill.data.readers` use.
    """

    source: str
    offset: int = 0
    end: int = 0
    """Byte after the last line that was read."""
    complete: bool = False
    """Whether the last line was read."""
    suffix = ""
    """Not `.gz`: a compressed file is decompressed here, not by the reader."""

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.source).name

    @property
    def format(self) -> str:
        """`jsonl` or `table`."""
        return format_of(Path(self.name))

    def records(self) -> Iterator[Mapping[str, Any] | str]:
        """The fields per record, or a sentence on why it cannot be read; raises if the file is truncated."""
        fields: Mapping[str, Any] | str = "it has no lines"
        for _, fields in READERS[self.format](cast(Path, self)):
            yield fields
        if not self.complete:
            raise _truncated(self.source, fields)

    @contextmanager
    def open(self, mode: str) -> Iterator[_Lines]:
        """The lines of the file."""
        with _open_file(self.source) as file:
            yield _Lines(self._read(file))

    def _read(self, file: Any) -> Iterator[bytes]:
        try:
            if self.offset and self.format == "table":
                yield file.readline()
            if self.offset:
                file.seek(self.offset)
            self.end = self.offset
            for line in file:
                self.end += len(line)
                yield line
            self.complete = True
        except (OSError, EOFError, zlib.error) as error:
            raise _truncated(self.source, error) from None


class _Lines:
    """An iterator of lines with the interface of a file."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[bytes]:
        return self._lines

    def readline(self, size: int = -1) -> bytes:
        """The next line, however long; empty at the end."""
        return next(self._lines, b"")
