"""Parquet with columns text, labels, and if there is one id; a row's number stands for its line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hill.extras import need

COLUMNS = ("id", "text", "labels")
BATCH = 128
"""Rows at a time: a file of a few kilobytes may name one long text in each of them."""


def read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Each row's fields, a batch of rows in memory at a time."""
    arrow = need("pyarrow", "data", "reading Parquet")
    parquet = need("pyarrow.parquet", "data", "reading Parquet")
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if name in COLUMNS]
            if "text" not in columns:
                names = ", ".join(file.schema_arrow.names[:6])
                yield 0, f"the columns are {names}; expected text, and labels to train on"
                return
            for batch in file.iter_batches(batch_size=BATCH, columns=columns):
                for fields in batch.to_pylist():
                    row += 1
                    yield row, fields
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:  # also of text that is no UTF-8
        yield row, f"the file cannot be read on: {' '.join(str(error).split())[:200]}"
