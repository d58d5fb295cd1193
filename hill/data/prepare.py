"""From the original distributions of the research data sets to a folder that this package reads."""

import difflib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hill.data.corpus import Corpus, Entry, Tick
from hill.data.nyt import read_nyt
from hill.data.rcv1 import read_rcv1
from hill.data.spool import Spool
from hill.data.wos import read_wos
from hill.errors import ConfigError, DataError
from hill.taxonomy import write_taxonomy

DATASETS: dict[str, Callable[[Path, Spool, Tick], Corpus]] = {"wos": read_wos, "rcv1": read_rcv1, "nyt": read_nyt}


@dataclass(frozen=True)
class Prepared:
    """What was written: the documents of each split, the labels of the taxonomy, and what was done to the data."""

    documents: dict[str, int]
    labels: int
    notes: list[str]


def prepare(name: str, source: Path, out: Path, tick: Tick = lambda documents: None) -> Prepared:
    """Write a research data set to a new folder: `train.jsonl`, `dev.jsonl`, `test.jsonl` and `taxonomy.json`.

    Args:
        name: wos, rcv1 or nyt.
        source: the folder with the files of the original distribution.
        out: the folder to make; nothing is there until all of it is.
        tick: hears now and then how many documents were read since.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ConfigError(f"unknown data set '{name}'; known are {', '.join(DATASETS)}{hint}")
    if not source.is_dir():
        raise DataError(f"'{source}' is not a folder; give the folder with the files of the original distribution")
    try:
        with _draft(out) as folder, Spool(folder) as texts:
            corpus = DATASETS[name](source, texts, tick)
            documents = {
                split: _write(entries, texts, folder / f"{split}.jsonl") for split, entries in corpus.splits.items()
            }
            _check_documents(documents, source)
            write_taxonomy(corpus.taxonomy, folder / "taxonomy.json")
    except OSError as error:
        raise DataError(f"cannot prepare {name} in '{out}': {error}") from None
    return Prepared(documents, len(corpus.taxonomy), corpus.notes)


@contextmanager
def _draft(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place at the end, or goes if the work fails."""
    out = out.resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"'{out}' is there and not empty; give a new folder, or remove this one")
    folder = out.with_name(f".{out.name}.{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        yield folder
        if out.exists():
            out.rmdir()
        folder.rename(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(entries: Iterable[Entry], texts: Spool, path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for entry in entries:
            count += 1
            record = {"id": entry.id, "text": texts[entry.text], "labels": list(entry.labels)}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return count


def _check_documents(documents: dict[str, int], source: Path) -> None:
    for split, count in documents.items():
        if not count:
            counts = ", ".join(f"{name} {number:,}" for name, number in documents.items())
            raise DataError(f"the split {split} of '{source}' has no document ({counts}); are the lists complete?")
