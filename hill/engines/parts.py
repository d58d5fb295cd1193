"""Parts: what of the input makes one file of the output. A large file is cut into several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hill.data.files import format_of
from hill.engines.piece import Piece
from hill.engines.source import Source, find_sources, open_source
from hill.errors import DataError
from hill.extras import need


@dataclass(frozen=True)
class Cut:
    """Where large files are cut into parts."""

    rows: int = 100_000
    """Most rows of a part; of Parquet, up to the end of a row group."""
    whole: int = 256 << 20
    """Bytes up to which a JSONL or CSV file is one part however many rows it has, so that it need not be read twice."""


@dataclass(frozen=True)
class Part:
    """Rows of one file, and the file they are written to."""

    name: str
    """Path of the written file below the folder of the output."""
    source: str
    size: int
    version: str
    first: int = 0
    """Number of its first row in the source."""
    rows: int | None = None
    """How many rows it has, where that is known before it is read."""
    offset: int = 0
    """Byte of the source at which it begins, of JSONL and CSV."""
    groups: tuple[int, ...] | None = None
    """Its row groups, of Parquet."""

    def document(self) -> dict[str, Any]:
        """The part as plain values."""
        return asdict(self) | {"groups": None if self.groups is None else list(self.groups)}

    @classmethod
    def read(cls, document: dict[str, Any]) -> Part:
        """The part that `document` gave."""
        groups = document["groups"]
        return cls(**document | {"groups": None if groups is None else tuple(groups)})


def find_parts(given: str, cut: Cut, folder: Path) -> list[Part]:
    """The parts of all files that a path, folder, glob or URI names, in order, but for what is in the output itself."""
    sources = [source for source in find_sources(given) if not Path(source.address).is_relative_to(folder)]
    parts = [part for source in sources for part in _parts(source, cut)]
    doubled = [name for name, count in Counter(part.name for part in parts).items() if count > 1]
    if doubled:
        raise DataError(f"two files of '{given}' would both be written to '{doubled[0]}'; rename one of them")
    return parts


def _parts(source: Source, cut: Cut) -> Iterator[Part]:
    name = source.path if source.path.endswith(".parquet") else f"{source.path}.parquet"
    cuts: list[dict[str, Any]] = [{}]
    if format_of(Path(source.path)) == "parquet":
        cuts = _row_groups(source, cut.rows)
    elif source.size > cut.whole:
        cuts = _offsets(source, cut.rows)
    for number, values in enumerate(cuts):
        below = name if len(cuts) == 1 else f"{name}/{number:05}.parquet"
        yield Part(below, source.address, source.size, source.version, **values)


def _row_groups(source: Source, most: int) -> list[dict[str, Any]]:
    """Row groups that stand together, as many as have no more rows than a part, but at least one."""
    arrow = need("pyarrow", "data", "reading Parquet")
    parquet = need("pyarrow.parquet", "data", "reading Parquet")
    try:
        with open_source(source.address) as file:
            found = parquet.ParquetFile(file).metadata
            sizes = [found.row_group(group).num_rows for group in range(found.num_row_groups)]
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"'{source.address}' cannot be read: {' '.join(str(error).split())[:200]}") from None
    cuts: list[dict[str, Any]] = [{"first": 0, "rows": 0, "groups": ()}]
    for group, rows in enumerate(sizes):
        last = cuts[-1]
        if last["rows"] and last["rows"] + rows > most:
            cuts.append({"first": last["first"] + last["rows"], "rows": rows, "groups": (group,)})
        else:
            last |= {"rows": last["rows"] + rows, "groups": (*last["groups"], group)}
    return cuts


def _offsets(source: Source, most: int) -> list[dict[str, Any]]:
    """Where in a file of lines every part begins: the file is read once for it."""
    piece = Piece(source.address)
    cuts: list[dict[str, Any]] = [{"first": 0, "rows": 0, "offset": 0}]
    end = 0
    for row, _ in enumerate(piece.records()):
        if cuts[-1]["rows"] == most:
            cuts.append({"first": row, "rows": 0, "offset": end})
        cuts[-1]["rows"] += 1
        end = piece.end
    return cuts
