"""The rows of a part: id, text, and what is wrong with a row that cannot be predicted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from hill.data.files import format_of
from hill.engines.parts import Part
from hill.engines.piece import Piece
from hill.engines.source import open_source
from hill.errors import DataError
from hill.extras import need

CHUNK = 4_096
"""Rows that are read and predicted at a time."""


class Row(NamedTuple):
    """A row of the input; one without an id has its number in the file."""

    id: str
    text: str
    error: str | None


def read_rows(part: Part) -> Iterator[list[Row]]:
    """The rows of a part, some at a time."""
    pairs = _parquet(part) if format_of(Path(part.source)) == "parquet" else _lines(part)
    rows = (
        _row(str(number) if key is None else str(key), text) for number, (key, text) in enumerate(pairs, part.first)
    )
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


class Unreadable(str):
    """Stands for a text: why there is none."""


def _lines(part: Part) -> Iterator[tuple[Any, Any]]:
    """The id and text of each record of a part of a JSONL or CSV file."""
    piece = Piece(part.source, part.offset)
    for fields in islice(piece.records(), part.rows):
        if isinstance(fields, str):
            yield None, Unreadable(fields)
            continue
        if piece.format == "table" and "text" not in fields:
            raise _no_text(part, list(fields))
        yield fields.get("id"), fields.get("text")


def _parquet(part: Part) -> Iterator[tuple[Any, Any]]:
    """The id and text of each row of a part of a Parquet file."""
    arrow = need("pyarrow", "data", "reading Parquet")
    parquet = need("pyarrow.parquet", "data", "reading Parquet")
    try:
        with open_source(part.source) as raw, parquet.ParquetFile(raw) as file:
            names = file.schema_arrow.names
            if "text" not in names:
                raise _no_text(part, names)
            columns = [name for name in ("id", "text") if name in names]
            for batch in file.iter_batches(CHUNK, row_groups=list(part.groups or ()), columns=columns):
                texts = batch["text"].to_pylist()
                ids = batch["id"].to_pylist() if "id" in columns else [None] * len(texts)
                yield from zip(ids, texts, strict=True)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"'{part.source}' breaks off: {' '.join(str(error).split())[:200]}; repair it") from None


def _row(key: str, text: Any) -> Row:
    error = _wrong(text)
    return Row(_clean(key), "" if error else text, error)


def _wrong(text: Any) -> str | None:
    """Why a text cannot be predicted, or None."""
    if isinstance(text, Unreadable):
        return _clean(text)
    if text is None:
        return "there is no text"
    if not isinstance(text, str):
        return f"the text is {type(text).__name__}; expected a string"
    if not text.strip():
        return "the text is empty"
    return None if _clean(text) == text else "the text has half of a character (a lone surrogate)"


def _clean(text: str) -> str:
    """The text, with a mark in place of what is no character: JSON can name such, UTF-8 cannot hold them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _no_text(part: Part, names: list[str]) -> DataError:
    held = ", ".join(f"'{name}'" for name in names[:6])
    return DataError(f"'{part.source}' has no column 'text' but {held}; rename the one with the texts")
