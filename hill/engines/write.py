"""Writing a part: read, predicted, checked and then named, so that a part is whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hill.disk import cannot_write, sync
from hill.engines.columns import Columns
from hill.engines.parts import Part
from hill.engines.rows import CHUNK, Row, read_rows
from hill.engines.source import version_of
from hill.errors import DataError
from hill.extras import need

DRAFT = ".draft"
KEY = b"hill"


@dataclass(frozen=True)
class Written:
    """A part that is on disk: its rows, how many of them have an error, and the first such."""

    name: str
    rows: int = 0
    bad: int = 0
    example: str = ""


def write_part(columns: Columns, part: Part, folder: Path) -> Iterator[int | Written]:
    """Predict a part, yielding rows as they are done and, when the file has its name, what was written."""
    target = folder / part.name
    draft = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}{DRAFT}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        written = yield from _fill(columns, part, draft)
        sync(draft)
        draft.replace(target)
        sync(target.parent)
    except OSError as error:
        raise DataError(f"{cannot_write(target, error)}; what is written stays: run it again to go on") from None
    finally:
        draft.unlink(missing_ok=True)
    yield written


def count_drafts(target: Path) -> int:
    """How often a part was begun and not ended: a process that is killed leaves its draft."""
    return sum(path.name.startswith(f".{target.name}.") for path in target.parent.glob(f".*{DRAFT}"))


def read_written(file: Path, name: str) -> Written | None:
    """What a part on disk says of itself; None where there is none, or not a whole one."""
    arrow = need("pyarrow", "data", "reading Parquet")
    parquet = need("pyarrow.parquet", "data", "reading Parquet")
    try:
        kept = parquet.read_metadata(file).metadata or {}
        return Written(name, **json.loads(kept[KEY]))
    except (OSError, arrow.ArrowException, KeyError, TypeError, ValueError):
        return None


def _fill(columns: Columns, part: Part, draft: Path) -> Generator[int, None, Written]:
    """The draft of a part, checked against what was read."""
    parquet = need("pyarrow.parquet", "data", "writing Parquet")
    ids, rows, bad, example = hashlib.sha256(), 0, 0, ""
    with parquet.ParquetWriter(draft, columns.schema) as out:
        for chunk in read_rows(part):
            out.write_table(columns.table(chunk))
            _add(ids, [row.id for row in chunk])
            wrong = [row for row in chunk if row.error]
            rows, bad, example = rows + len(chunk), bad + len(wrong), example or _example(part, wrong)
            yield len(chunk)
        written = Written(part.name, rows, bad, example)
        out.add_key_value_metadata({KEY: json.dumps({k: v for k, v in asdict(written).items() if k != "name"})})
    _check(part, draft, rows, ids.hexdigest())
    return written


def _check(part: Part, draft: Path, rows: int, ids: str) -> None:
    """Raise unless the draft on disk has one row for each row that was read, in order, and the source is as it was."""
    parquet = need("pyarrow.parquet", "data", "reading Parquet")
    found, count = hashlib.sha256(), 0
    with parquet.ParquetFile(draft) as file:
        for batch in file.iter_batches(CHUNK, columns=["id"]):
            count += batch.num_rows
            _add(found, batch["id"].to_pylist())
    if version_of(part.source) != (part.size, part.version):
        raise DataError(f"'{part.source}' changed while it was read; start again when it is complete")
    if count != rows or found.hexdigest() != ids or part.rows not in (None, rows):
        raise DataError(f"the part '{part.name}' has {count} rows on disk, {rows} were read; start again")


def _add(digest: Any, ids: list[str]) -> None:
    digest.update("".join(f"{key}\0" for key in ids).encode())


def _example(part: Part, wrong: list[Row]) -> str:
    return f"'{wrong[0].id}' of '{part.source}': {wrong[0].error}" if wrong else ""
