"""Every reader of the package, with its seeds and how it is called."""

import contextlib
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy
from rich.console import Console

from hill.data import read_data
from hill.data.check import check, print_check
from hill.data.readers import read_fields, read_xlsx
from hill.errors import DataError
from hill.research.datasets import prepare
from hill.settings import make, read_settings
from hill.taxonomy import Taxonomy, read_taxonomy, write_taxonomy
from hill.tree import build_tree
from tests.conftest import animals_taxonomy
from tests.fuzz import drawn, seeds
from tests.fuzz.seeds import Files


@dataclass(frozen=True)
class Reader:
    """A reader of files in a folder."""

    name: str
    seeds: Callable[[], list[Files]]
    read: Callable[[Path], Any]
    drawn: Callable[[], SearchStrategy[Files]] | None = None
    weight: float = 1.0
    """Relative share of the inputs."""


def _one(folder: Path) -> Path:
    return next(path for path in folder.iterdir() if path.is_file())


def _taxonomy(folder: Path) -> None:
    """A taxonomy that is accepted can be searched, encoded in a tree, written, and read again."""
    taxonomy = read_taxonomy(_one(folder))
    repr(taxonomy)
    for label in taxonomy.labels[:20]:
        taxonomy.path_name(taxonomy.row(label.id))
        taxonomy.find(f"{label.name} > {label.id}")
        taxonomy.nearest(f"{label.name}x")
    if len(taxonomy) < 200:
        build_tree(taxonomy, 2, ("paper", "authors")[len(taxonomy) % 2])
    (folder / "again").mkdir()
    write_taxonomy(taxonomy, folder / "again" / "t.json")
    assert read_taxonomy(folder / "again" / "t.json") == taxonomy


def _data(taxonomy: Taxonomy, folder: Path) -> None:
    """A check reports all problems and can be printed; reading for training or prediction refuses them."""
    found = check(folder, taxonomy)
    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8") as terminal:
        terminal.write(json.dumps(found.to_dict(), ensure_ascii=False))
        print_check(found, Console(file=terminal))
    for problem in found.to_dict()["problems"]:
        for example in problem["examples"]:
            assert "\n" not in example["message"], "the message has several lines"
    with contextlib.suppress(DataError):
        list(read_fields([_one(folder)]))
    for documents in read_data(folder, taxonomy).values():
        "".join([*documents.ids, *documents.texts]).encode()


def _prepare(name: str, folder: Path) -> None:
    prepare(name, folder, folder / "out")


def _sheet(folder: Path) -> None:
    for _ in read_xlsx(_one(folder)):
        pass


def _book() -> list[Files]:
    return [{"a.xlsx": seeds.workbook([["a", "#0", "b"], ["#1"]], ["x", "y_x000D_"])}]


def _parquet() -> list[Files]:
    rows = seeds.RECORDS[:2]
    columns = {key: [row.get(key) for row in rows] for key in ("id", "text")}
    return [drawn._parquet({**columns, "labels": [["bat"], ["m"]]})]


def _arrow() -> list[Files]:
    from tests.data.test_columns import save_dataset

    return [seeds.written(lambda folder, _: save_dataset(folder), "")]


def _gzipped() -> list[Files]:
    return [{f"{name}.gz": gzip.compress(files[name], mtime=0) for name in files} for files in _jsonl() + _table()]


def _jsonl() -> list[Files]:
    return [{"train.jsonl": "\n".join(map(json.dumps, seeds.RECORDS)).encode()}]


def _table() -> list[Files]:
    return [{"train.csv": seeds.CSV.encode()}, {"train.tsv": seeds.TSV.encode()}]


def _rcv1() -> list[Files]:
    from tests.research.test_rcv1 import write_rcv1

    return [seeds.written(write_rcv1, "tar.xz"), seeds.written(write_rcv1, "folder")]


def _nyt() -> list[Files]:
    from tests.research.test_nyt import write_nyt

    return [seeds.written(write_nyt, "flat"), seeds.written(write_nyt, "tgz")]


def _kinds() -> dict[str, type]:
    from hill.classifier import DataConfig
    from hill.decode import DecodeConfig
    from hill.models import MODELS
    from hill.train import TrainConfig

    return {"model": MODELS["hill"].Config, "train": TrainConfig, "data": DataConfig, "decode": DecodeConfig}


def _settings(folder: Path) -> None:
    """Read settings like `hill train` (a file and `--set`) and like a classifier (a dictionary)."""
    kinds = _kinds()
    assignments = (folder / "set").read_bytes().decode("utf-8", "surrogateescape").split("\n")
    found = read_settings(folder / "run.toml", filter(str.strip, assignments), kinds)
    for group, values in found.items():
        make(kinds[group], values, group)


def _known() -> list[str]:
    return [f"{group}.{name}" for group, kind in _kinds().items() for name in kind.__dataclass_fields__]


def _models() -> list[Files]:
    from tests.fuzz.stored import model_seeds

    return model_seeds()


def _model(folder: Path) -> None:
    from tests.fuzz.stored import model

    model(folder)


def _states() -> list[Files]:
    from tests.fuzz.stored import state_seeds

    return state_seeds()


def _checkpoint(folder: Path) -> None:
    from tests.fuzz.stored import checkpoint

    checkpoint(folder)


def _requests() -> list[Files]:
    from tests.fuzz.served import REQUESTS

    return [{"request": request.encode()} for request in REQUESTS]


def _served(folder: Path) -> None:
    from tests.fuzz.served import server

    server(folder)


def readers() -> dict[str, Reader]:
    """All readers by name."""
    animals, found = animals_taxonomy(), list[Reader]()
    strategies, documents = drawn.taxonomies(), drawn.data()
    for form, files in seeds.taxonomies().items():
        found.append(Reader(f"taxonomy-{form}", lambda f=files: f, _taxonomy, lambda f=form: strategies[f], 4))
    read = partial(_data, animals)
    found += [
        Reader("data-jsonl", _jsonl, read, lambda: documents["jsonl"], 4),
        Reader("data-csv", _table, read, lambda: documents["csv"] | documents["tsv"], 4),
        Reader("data-gzip", _gzipped, read, None, 2),
        Reader("data-parquet", _parquet, read, lambda: documents["parquet"], 2),
        Reader("data-arrow", _arrow, read),
        Reader("xlsx", _book, _sheet, None, 4),
        Reader("prepare-wos", seeds.wos, partial(_prepare, "wos"), None, 2),
        Reader("prepare-rcv1", _rcv1, partial(_prepare, "rcv1"), None, 1),
        Reader("prepare-nyt", _nyt, partial(_prepare, "nyt"), None, 1),
        Reader("settings", seeds.settings, _settings, lambda: drawn.settings(_known()), 6),
        Reader("model", _models, _model, lambda: drawn.operations(_models()), 1),
        Reader("checkpoint", _states, _checkpoint, lambda: drawn.operations(_states()), 1),
        Reader("http", _requests, _served, drawn.requests, 6),
    ]
    return {reader.name: reader for reader in found}
