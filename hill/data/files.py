"""Which files make up a data set: one file, or a folder with train, dev (or val) and test."""

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hill.errors import DataError

SPLITS = {"train": "train", "dev": "dev", "val": "dev", "valid": "dev", "validation": "dev", "test": "test"}
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "table",
    ".tsv": "table",
    ".parquet": "parquet",
    ".pq": "parquet",
}
LONGEST_LINE = 2**26
"""Bytes of a line: a text of a million characters in any script takes a tenth of it."""
EXPECTED = "JSONL (.jsonl), CSV (.csv, .tsv) or Parquet (.parquet); text formats may be gzipped (.gz)"


def find_splits(path: str | os.PathLike[str]) -> dict[str, list[Path]]:
    """The files of each split, in the order train, dev, test; a single file of another name is the split `data`."""
    path = Path(path)
    if path.is_file():
        format_of(path)
        return {_split_of(path) or "data": [path]}
    if not path.is_dir():
        raise DataError(f"'{path}' does not exist; give a data file or a folder with train, dev and test files")
    splits: dict[str, list[Path]] = {"train": [], "dev": [], "test": []}
    for file in sorted(path.iterdir()):
        if file.is_file() and _suffix(file) in FORMATS and (split := _split_of(file)):
            splits[split].append(file)
    for split, files in splits.items():
        if len({_shard_family(file) for file in files}) > 1:
            names = ", ".join(f"'{file.name}'" for file in files)
            raise DataError(f"the split {split} of '{path}' has several files ({names}); keep one, or shards of one")
    if not any(splits.values()):
        held = ", ".join(f"'{file.name}'" for file in sorted(path.iterdir())[:5]) or "nothing"
        raise DataError(f"'{path}' has no train, dev or test file but {held}; expected {EXPECTED}")
    return {split: files for split, files in splits.items() if files}


def format_of(path: Path) -> str:
    """`jsonl`, `table` or `parquet`, by the file's name."""
    if _suffix(path) not in FORMATS:
        raise DataError(f"'{path}' is of an unknown format; expected {EXPECTED}")
    return FORMATS[_suffix(path)]


def open_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that may be gzipped, numbered from 1, with their ends."""
    with path.open("rb") as file:
        lines: IO[bytes] = gzip.GzipFile(fileobj=file) if path.suffix.lower() == ".gz" else file  # type: ignore[assignment]
        number = 0
        while line := lines.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise OSError(f"line {number} has more than {LONGEST_LINE:,} bytes; split it, or the text in it")
            yield number, line


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _split_of(path: Path) -> str | None:
    """`train.jsonl`, `train.jsonl.gz` and `train-00001-of-00004.parquet` all belong to train."""
    return SPLITS.get(path.name.lower().split(".")[0].split("-")[0])


def _shard_family(path: Path) -> tuple[str, str]:
    """Equal for shards of one file, different for two files that each claim to be the split."""
    stem, _, shard = path.name.lower().split(".")[0].partition("-")
    return (stem, _suffix(path)) if shard else (path.name, "")
