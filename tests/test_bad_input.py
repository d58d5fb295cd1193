"""Bad input: what fuzzing found and how it is refused, characters of every kind, texts and taxonomies of every size."""

import contextlib
import gzip
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
import zipfile
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from typer.testing import CliRunner

from hill.classifier import HillClassifier
from hill.cli.common import app
from hill.data import read_data
from hill.data import readers as files
from hill.data.check import check
from hill.data.documents import label_documents
from hill.decode import STRATEGIES, DecodeConfig, Decoder
from hill.encoders.transformer import load_pretrained
from hill.errors import ConfigError, DataError, HillError, TaxonomyError, enough_memory
from hill.metrics import score
from hill.models import MODELS
from hill.research.datasets import prepare, read_xlsx
from hill.settings import make, read_settings
from hill.taxonomy import Label, Taxonomy, read_taxonomy, write_taxonomy
from hill.train import TrainConfig
from hill.tree import METHODS, CodingTree, build_tree
from hill.tree.plot import draw_tree
from tests.command import hill
from tests.conftest import ROOT, animals_taxonomy, toy_documents
from tests.fuzz.law import SECONDS, judge
from tests.fuzz.run import mutation
from tests.fuzz.seeds import RDF, workbook

SKOS = "http://www.w3.org/2004/02/skos/core#"
LAUGHS = "".join(f'<!ENTITY l{i + 1} "{f"&l{i};" * 10}">' for i in range(9))
LAUGHS = f'<!DOCTYPE a [<!ENTITY l0 "lol">{LAUGHS}]>'


# The law itself


def broken(kind: str) -> None:
    """A reader that breaks the law in one way."""
    match kind:
        case "error":
            {}["key"]
        case "warning":
            warnings.warn("look", stacklevel=1)
        case "log":
            logging.getLogger("some.library").warning("look")
        case "print":
            sys.stdout.write("look")
        case "hang":
            while True:
                pass
        case "memory":
            bytearray(2**31)
        case "swallowed":
            with contextlib.suppress(Exception):
                time.sleep(60)
        case "empty":
            raise HillError("")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("error", "KeyError at"),
        ("warning", "warned: UserWarning"),
        ("log", "logged: 'look'"),
        ("print", "printed: 'look'"),
        ("hang", "no answer within 0.2 s"),
        ("swallowed", "no answer within 0.2 s"),
        ("memory", "MemoryError"),
        ("empty", "a message of 0 characters"),
    ],
)
def test_the_law_finds_what_breaks_it(kind: str, reason: str) -> None:
    verdict = judge(lambda: broken(kind), seconds=0.2)
    assert verdict.kind == "found" and reason in verdict.reason


def refuse(message: str) -> None:
    error = DataError()
    error.args = (message,)
    raise error


@pytest.mark.parametrize("message", ["two\nlines", "\x1b[31mred", "half \ud800", "turned \u202e", "x" * 2_001])
def test_the_law_wants_messages_that_can_be_read(message: str) -> None:
    assert judge(lambda: refuse(message)).kind == "found"


def test_the_law_lets_pass_what_is_good() -> None:
    assert judge(lambda: None).kind == "accepted"
    assert judge(lambda: refuse("label 'é' of 'שלום' has no 👩‍👧")) == ("refused", "label 'é' of 'שלום' has no 👩‍👧")


def test_errors_are_one_line_whatever_they_quote() -> None:
    assert str(DataError("label 'a\x1b\ud800'\n  of a file")) == "label 'a\\x1b\\ud800' of a file"
    long = str(DataError("first words " + "x" * 10**6 + " last words"))
    assert len(long) < 2_000 and long.startswith("first words") and long.endswith("last words")


def test_a_number_gives_the_same_input_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzz.readers import readers

    every = [reader for name, reader in readers().items() if name not in ("model", "checkpoint")]
    once = [[mutation(reader, 3, n) for n in range(5)] for reader in every]
    monkeypatch.setattr(time, "time", lambda: 2e9)
    assert once == [[mutation(reader, 3, n) for n in range(5)] for reader in every], "the time is not in it"
    reader = readers()["taxonomy-json"]
    assert len({str(mutation(reader, 3, n)) for n in range(20)}) > 15


def test_two_thousand_inputs_are_accepted_or_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "2000", "--seed", "0", "--jobs", "1", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    rows = json.loads(ran.stdout.splitlines()[-1])
    assert {row["reader"]: row["found"] for row in rows if row["found"]} == {}
    assert ran.returncode == 0
    assert sum(row["inputs"] for row in rows) >= 1_900
    assert sum(row["accepted"] for row in rows) > 100
    assert [row["reader"] for row in rows if not row["refused"]] == []
    assert all(0 < row["seconds"] < SECONDS and row["megabytes"] < 200 for row in rows)


# What fuzzing found


FOUND: list[tuple[str, str, bytes, str]] = [
    ("an integer of 5,000 digits", "t.json", b'[{"name": ' + b"9" * 5_000 + b"}]", "not usable JSON"),
    ("lists in lists", "t.json", b"[" * 600 + b"]" * 600, "contains no labels|nested too deep"),
    ("names in lists", "t.json", b"[" * 600 + b'"a"' + b"]" * 600, "nested too deep|is nested"),
    (
        "a wrong value that is deep",
        "t.json",
        b'[{"name": ' + b"[" * 900 + b"]" * 900 + b"}]",
        "expected text as name",
    ),
    ("a path of 100,000 steps", "t.txt", b"a > " * 100_000 + b"a", "is 400,001 characters long"),
    ("a path of long keys", "t.json", b'{"' + b"a" * 900 + b'": {"' + b"b" * 900 + b'": 0}}', "give it an id"),
    ("nothing in quotes", "t.csv", b'""\r\n', "contains no labels, only empty cells"),
    ("a cursor that moves", "t.tsv", b"id\tparents\na\t\x1b[2J\n", r"parent '\\x1b\[2J'"),
    ("a line that turns", "t.tsv", "id\tparents\na\t\u202eb\n".encode(), r"parent '\\u202eb'"),
    ("a parent without end", "t.tsv", b"id\tparents\na\t" + b"x" * 10**6 + b"\n", "which is not in the taxonomy"),
]


@pytest.mark.parametrize(("what", "name", "content", "message"), FOUND, ids=[found[0] for found in FOUND])
def test_taxonomies_that_were_found(tmp_path: Path, what: str, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    verdict = judge(lambda: read_taxonomy(tmp_path / name))
    assert verdict.kind == "refused", verdict
    with pytest.raises(TaxonomyError, match=message):
        read_taxonomy(tmp_path / name)


def test_labels_far_down_have_short_places(tmp_path: Path) -> None:
    """Each of 40,000 labels under 300 others once kept its whole place in the document: 100 million characters."""
    inner = json.dumps([{"name": f"n{i}", "id": f"x{i}"} for i in range(40_000)])
    nested = "".join(f'[{{"name": "n", "id": "{i}", "children": ' for i in range(300)) + inner + "}]" * 300
    (tmp_path / "t.json").write_text(nested)
    verdict = judge(lambda: read_taxonomy(tmp_path / "t.json"), memory=2**27)
    assert verdict.kind == "accepted", verdict


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[train]\nlr = " + "9" * 400, "train.lr is 9{200}; expected a finite number of at most 1e.18"),
        ("[train]\nlr = " + "9" * 5_000, "is not TOML"),
        ("[train]\nlr = nan", "train.lr is nan; expected a finite number of at most 1e.18"),
        ("[train]\nlr = inf", "train.lr is inf; expected a finite number of at most 1e.18"),
        ("[train]\nlr = -1e300", "train.lr is -1e.300; expected a finite number of at most 1e.18"),
        ("[train]\nepochs = " + "[" * 5_000 + "]" * 5_000, "is not TOML"),
        ("[train]\nepochs = '" + "x" * 10**6 + "'", "train.epochs is 'xxx"),
        ("['" + "x" * 10**5 + "']\n", "unknown group"),
        ('["tra\\u001bin"]\n', r"unknown group 'tra\\x1bin'; did you mean 'train'"),
    ],
)
def test_settings_that_were_found(tmp_path: Path, toml: str, message: str) -> None:
    (tmp_path / "run.toml").write_text(toml)

    def read() -> None:
        make(TrainConfig, read_settings(tmp_path / "run.toml", [], ["train"])["train"], "train")

    assert judge(read).kind == "refused"
    with pytest.raises(ConfigError, match=message):
        read()


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 5_000, "\udcff", "1\n[train]\nlr = 2"])
def test_what_is_no_toml_after_set_is_a_word(value: str) -> None:
    assert read_settings(None, [f"train.device={value}"], ["train"])["train"]["device"] == value


@pytest.mark.parametrize("values", [{3: 1}, {None: 1}, {("a",): 1}])
def test_settings_of_odd_kinds(values: dict[Any, Any]) -> None:
    with pytest.raises(ConfigError, match="unknown setting of train"):
        make(TrainConfig, values, "train")


def test_whole_numbers_that_fit_no_machine() -> None:
    for number, shown in ((10**18 + 1, "1000000000000000001"), (-(2**64), "-18446744073709551616"), (10**5_000, "too")):
        with pytest.raises(ConfigError, match=f"train.epochs is {shown}.*; expected a finite number of at most 1e.18"):
            make(TrainConfig, {"epochs": number}, "train")
    assert make(TrainConfig, {"epochs": 10**18}, "train").epochs == 10**18


@pytest.mark.parametrize("model", MODELS)
def test_sizes_that_no_model_has(model: str) -> None:
    """Widths and layers ended in errors of the allocator, or in hours; dropouts above 1 in an error of torch."""
    sizes = {
        **{f"model.{name}": 1 for name in ("dropout", "readout_dropout")},
        **{f"model.{name}": 100 for name in ("layers", "height")},
        **{f"model.{name}": 10**6 for name in ("word_width", "gru_width", "filters", "node_width", "joint_width")},
        **{f"model.{name}": 10**6 for name in ("hidden", "leaf_units")},
    }
    for name, most in sizes.items():
        key, kind = name.removeprefix("model."), MODELS[model].Config
        if hasattr(kind, key):
            for value in (-1, most + 1):
                with pytest.raises(ConfigError, match=rf"{name} is {value}.*; expected a number from [012] to {most}"):
                    make(kind, {key: value}, "model")
            make(kind, {key: most}, "model")


def test_a_model_that_is_too_large_for_any_machine() -> None:
    """A GRU with 3 x 10^12 weights, which are 12 TB."""
    settings: dict[str, Any] = {"model": {"text": "rcnn", "word_width": 10**6, "gru_width": 10**6}}
    with pytest.raises(ConfigError, match=r"not enough memory \(.*memory.*\); lower train.batch_size, .* the widths"):
        HillClassifier(animals_taxonomy(), settings=settings, preset=None).fit(*toy_documents(8, 0))


def test_which_errors_are_for_want_of_memory() -> None:
    for fail in (lambda: torch.empty(2**61), lambda: torch.empty(2**58), lambda: np.empty(2**62, dtype=np.int8)):
        with pytest.raises(ConfigError, match=r"^there is not enough memory \(.*\); lower"), enough_memory():
            fail()
    with pytest.raises(RuntimeError, match="size of tensor"), enough_memory():
        torch.ones(2) + torch.ones(3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "half \\ud800", "labels": []}', "the text has half of a character"),
        ('{"id": "\\ud800", "text": "t", "labels": []}', "the id has half of a character"),
        ('{"text": "t", "labels": ["\\ud800"]}', r"label '\\ud800' is not in the taxonomy"),
        ('{"\\ud800": 1}', r"no column 'text', only '\\ud800'; name the column with --text-column \(line 1 of"),
    ],
)
def test_half_characters_in_documents(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "train.jsonl").write_text(line)
    with pytest.raises(DataError, match=message):
        read_data(tmp_path, animals_taxonomy())
    found = check(tmp_path, animals_taxonomy()).to_dict()
    json.dumps(found, ensure_ascii=False).encode()
    assert any(problem["severity"] == "error" for problem in found["problems"])


def test_parquet_whose_text_is_no_text(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    text = pyarrow.array([b"good", b"\xe3("], pyarrow.binary()).cast(pyarrow.string(), safe=False)
    pyarrow.parquet.write_table(pyarrow.table({"text": text, "labels": [["m"], ["m"]]}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"cannot be read further: .*utf-8"):
        read_data(tmp_path, animals_taxonomy())


def test_half_characters_in_texts_at_hand() -> None:
    with pytest.raises(DataError, match=r"texts\[1\] has half of a character"):
        label_documents(["good", "half \ud800"], [["m"], ["m"]], animals_taxonomy())


def test_an_unknown_label_without_end_is_compared_by_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "t", "labels": ["Mammals x" * 200_000]}))
    verdict = judge(lambda: read_data(tmp_path, animals_taxonomy()), seconds=2)
    assert verdict.kind == "refused", verdict


def test_numbers_of_stories_without_end(tmp_path: Path) -> None:
    from tests.research.test_rcv1 import write_rcv1

    write_rcv1(tmp_path, "folder")
    (tmp_path / "rcv1v2-ids.dat").write_text("9" * 5_000)
    with pytest.raises(DataError, match="expected the number of a story"):
        prepare("rcv1", tmp_path, tmp_path / "out")


# Values of the wrong kind, in Python


ANIMALS = animals_taxonomy()
ONES = np.ones((3, 7))
NO_PATHS = (None, 3, "", b"x", ["x"], "a\0b")
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "taxonomy of None": (lambda: Taxonomy(None), "labels is None; expected a list of Label"),  # type: ignore[arg-type]
    "taxonomy of a string": (lambda: Taxonomy("ab"), "labels is 'ab'; expected a list of Label"),  # type: ignore[arg-type]
    "taxonomy of a set": (lambda: Taxonomy({Label("a", "A")}), "expected a list of Label: rows are in its order"),
    "taxonomy of strings": (lambda: Taxonomy(["a"]), r"labels\[0\] is 'a'; expected a Label"),  # type: ignore[list-item]
    "number as id": (lambda: Taxonomy([Label(1, "A")]), r"the id is 1 \(labels\[0\]\); expected a string"),  # type: ignore[arg-type]
    "no name": (lambda: Taxonomy([Label("a", None)]), r"the name is None \(labels\[0\]\); expected a string"),  # type: ignore[arg-type]
    "bytes as id": (lambda: Taxonomy([Label(b"a", "A")]), r"the id is b'a' \(labels\[0\]\); expected"),  # type: ignore[arg-type]
    "number as description": (
        lambda: Taxonomy([Label("a", "A", (), 3)]),  # type: ignore[arg-type]
        r"the description is 3 \(labels\[0\]\); expected a string",
    ),
    "empty id": (lambda: Taxonomy([Label("a", "A"), Label("", "B")]), r"the id is empty \(labels\[1\]\); every label"),
    "endless name": (lambda: Taxonomy([Label("a", "x" * 2_000)]), r"2,000 characters long \(labels\[0\]\); at most"),
    "two of one id": (
        lambda: Taxonomy([Label("a", "A")] * 2),
        r"occurs twice, first as labels\[0\]; ids must be unique",
    ),
    "parents in one string": (
        lambda: Taxonomy([Label("a", "A"), Label("b", "B", "a")]),  # type: ignore[arg-type]
        r"label 'b' has the parents 'a'; expected a tuple of ids, for example \('a',\)",
    ),
    "no parents": (lambda: Taxonomy([Label("a", "A", None)]), "has the parents None; expected a tuple"),  # type: ignore[arg-type]
    "number as parent": (lambda: Taxonomy([Label("a", "A", (1,))]), "parent '1', which is not in"),  # type: ignore[arg-type]
    "row of a number": (lambda: ANIMALS.row(3), "label 3 is not a string; expected the id"),  # type: ignore[arg-type]
    "row of a list": (lambda: ANIMALS.row(["p"]), r"label \['p'\] is not a string"),  # type: ignore[arg-type]
    "encode None": (lambda: ANIMALS.encode(None), "labels is None; expected a list of labels"),  # type: ignore[arg-type]
    "encode a string": (lambda: ANIMALS.encode("bat"), "labels is 'bat'; expected a list of labels"),
    "encode numbers": (lambda: ANIMALS.encode([1]), "label 1 is not a string"),  # type: ignore[list-item]
    "encode bytes": (lambda: ANIMALS.encode([b"p"]), "label b'p' is not a string"),  # type: ignore[list-item]
    "indicator of None": (
        lambda: HillClassifier(ANIMALS, preset=None).indicator(None),
        "labels is None; expected a list",
    ),  # type: ignore[arg-type]
    "indicator of numbers": (
        lambda: HillClassifier(ANIMALS, preset=None).indicator([1]),
        r"labels\[0\] is 1; expected a label",
    ),  # type: ignore[list-item]
    "indicator of a matrix": (
        lambda: HillClassifier(ANIMALS, preset=None).indicator(ONES),
        "labels is of type ndarray and shape",
    ),  # type: ignore[arg-type]
    "language": (lambda: read_taxonomy("t.tsv", 3), "language is 3; expected a code such as 'en'"),  # type: ignore[arg-type]
    "data without a taxonomy": (lambda: read_data("x.jsonl", None), "taxonomy is None; expected a Taxonomy"),  # type: ignore[arg-type]
    "writing no taxonomy": (lambda: write_taxonomy(None, "t.json"), "taxonomy is None; expected a Taxonomy"),  # type: ignore[arg-type]
    "tree of no taxonomy": (lambda: build_tree(None, 2), "taxonomy is None; expected a Taxonomy"),  # type: ignore[arg-type]
    "height in words": (lambda: build_tree(ANIMALS, "3"), "height is '3'; expected a whole number from 1"),  # type: ignore[arg-type]
    "height with a comma": (lambda: build_tree(ANIMALS, 2.5), "height is 2.5; expected a whole number"),  # type: ignore[arg-type]
    "height without end": (lambda: build_tree(ANIMALS, 10**9, "paper"), "height is 1000000000; .* to 100"),
    "tree of None": (lambda: CodingTree(None), "parents is None; expected a list of arrays"),  # type: ignore[arg-type]
    "scores without a taxonomy": (lambda: score(ONES, ONES, None, None), "taxonomy is None; expected"),  # type: ignore[arg-type]
    "rows of different lengths": (lambda: score([[1], [1, 0]], ONES, None, ANIMALS), "labels have rows of different"),
    "no labels to score": (lambda: score(None, ONES, None, ANIMALS), "labels have the dtype object"),  # type: ignore[arg-type]
    "counts in words": (lambda: score(ONES, ONES, None, ANIMALS, ["x"] * 7), "expected one number for each of the 7"),
    "counts that are none": (lambda: score(ONES, ONES, None, ANIMALS, [np.nan] * 7), "expected one number for each"),
    "one k": (lambda: score(ONES, ONES, ONES, ANIMALS, None, 3), "k is 3; expected a list of whole numbers"),  # type: ignore[arg-type]
    "bins without end": (
        lambda: score(ONES, ONES, ONES, ANIMALS, None, (1,), 10**12),
        "bins is 1000000000000; expected",
    ),
    **{
        f"{name} {given!r}": (partial(use, given), f"{re.escape(f'{name} is {given!r}')}; expected .*path of a")
        for given in NO_PATHS
        for name, use in {
            "taxonomy": read_taxonomy,
            "path": partial(write_taxonomy, ANIMALS),
            "data": lambda given: read_data(given, ANIMALS),
            "folder": HillClassifier.load,
            "pretrained_model_name_or_path": HillClassifier.from_pretrained,
            "out": lambda given: HillClassifier(ANIMALS, "linear", preset=None).fit(*toy_documents(9, 0), out=given),
        }.items()
        if (name, given) != ("out", None)
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_values_of_the_wrong_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    use, message = WRONG[name]
    with pytest.raises(HillError, match=message):
        use()
    assert not list(tmp_path.iterdir())


def test_labels_that_are_no_strings_are_not_in_a_taxonomy() -> None:
    for label in (None, 3, b"p", ["p"], {}):
        assert label not in ANIMALS and ANIMALS.find(label) == [] and ANIMALS.nearest(label) is None  # type: ignore[arg-type]


def test_names_that_are_too_long_for_the_disk(tmp_path: Path) -> None:
    long, model = tmp_path / ("x" * 300), HillClassifier(ANIMALS, "linear", preset=None).fit(*toy_documents(20, 0))
    for use in (
        lambda: read_taxonomy(long),
        lambda: read_data(long, ANIMALS),
        lambda: write_taxonomy(ANIMALS, long),
        lambda: HillClassifier.load(long),
        lambda: model.save(long),
        lambda: model.evaluate(long),
        lambda: HillClassifier(ANIMALS, "linear", preset=None).fit(*toy_documents(20, 0), out=long),
        lambda: load_pretrained(str(long)),
    ):
        with pytest.raises(HillError, match=r"File name too long|does not exist"):
            use()


# Requests of the command line that cannot be met


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a taxonomy, a model, and what is none of these."""
    folder = tmp_path_factory.mktemp("place")
    texts, labels = toy_documents(40, 0)
    HillClassifier(ANIMALS, "linear", preset=None).fit(texts, labels).save(folder / "model")
    write_taxonomy(ANIMALS, folder / "t.json")
    records = ({"text": text, "labels": given} for text, given in zip(texts, labels, strict=True))
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (folder / "none.jsonl").write_text("")
    (folder / "bytes.jsonl").write_bytes(b'{"text": "\xff"}\n')
    (folder / "bytes.tsv").write_bytes(b"id\tparents\n\xff\n")
    (folder / "bytes.toml").write_bytes(b"[train]\nmetric = '\xff'\n")
    (folder / "empty").mkdir()
    return folder


LONG = "x" * 300
TRAIN = "train train.jsonl --taxonomy t.json --model linear --out out"
REFUSED = {
    f"{TRAIN} --set train.device=cuda:99": "the device is 'cuda:99', which cannot be used here",
    f"{TRAIN} --set train.device=mps": "the device is 'mps', which cannot be used here",
    f"{TRAIN} --set train.device=meta": "the device is 'meta', which cannot be used here",
    f"{TRAIN} --set train.device=": "the device is '', which cannot be used here",
    f"{TRAIN} --set train.seed=-1": "train.seed is -1; expected a number from 0 to 4294967295",
    f"{TRAIN} --set train.seed={'1' * 23}": "train.seed is 1{23}; expected a finite number of at most 1e.18",
    f"{TRAIN} --set train.lr=nan": "train.lr is nan; expected a finite number",
    f"{TRAIN} --set decode.threshold=nan": "decode.threshold is nan; expected a finite number",
    f"{TRAIN} --set data.dev_share=-inf": "data.dev_share is -inf; expected a finite number",
    f"{TRAIN} --set train.epochs=1{'0' * 30}": "train.epochs is 1000.*; expected a finite number of at most",
    f"{TRAIN} --set model.dropout=1.5": "model.dropout is 1.5; expected a number from 0 to 1",
    f"{TRAIN} --set model.name=3": "unknown model 3; expected flat",
    f"{TRAIN} --set =": "'=' is not a setting",
    "train train.jsonl --taxonomy t.json --out out --encoder=": "the encoder has no name; give a folder, a hub name",
    f"{TRAIN} --config bytes.toml": "'bytes.toml' is not TOML",
    f"{TRAIN} --config empty": "cannot read 'empty': Is a directory",
    f"{TRAIN} --warm-start none": "'none' is not a folder; give the folder of a saved model",
    f"{TRAIN} --warm-start t.json": "'t.json' is not a folder; give the folder of a saved model",
    f"{TRAIN} --warm-start {LONG}": "cannot be used: File name too long; give another path",
    f"{TRAIN[:-3]}t.json": "'t.json' is a file; choose another --out",
    f"{TRAIN[:-3]}{LONG}": "File name too long",
    "train none.jsonl --taxonomy t.json --model linear --out out": "there is nothing to train on",
    "train bytes.jsonl --taxonomy t.json --model linear --out out": r"byte 0xff is not UTF-8; .*line 1 of bytes.jsonl",
    "train train.jsonl --taxonomy bytes.tsv --out out": "'bytes.tsv' is not UTF-8 text: byte 0xff on line 2",
    "train train.jsonl --taxonomy empty --out out": "'empty' is a directory; give the taxonomy file",
    "train empty --taxonomy t.json --out out": r"'empty' has no train, dev or test file \(it is empty\); expected",
    f"train {LONG} --taxonomy t.json --out out": "cannot be read: File name too long; give a data file",
    f"check train.jsonl --taxonomy {LONG}": "File name too long",
    "predict t.json wing": "'t.json' is a file; give the folder of a saved model",
    "predict none wing": "'none' does not exist; give the folder of a saved model",
    f"predict {LONG} wing": "'x*' cannot be used: File name too long; give another path",
    "predict model wing --workers -1": "--workers is -1; expected at least 0",
    "predict model wing --workers 3": "--output is missing; for several workers or Ray give it a folder",
    "predict model --input= --output=": "--input is empty; expected a file, a folder",
    f"predict model --input train.jsonl --output {LONG}": "File name too long",
    f"predict model --input train.jsonl --output {LONG}.jsonl": "File name too long",
    "predict model --input bytes.jsonl --output out.jsonl": "byte 0xff is not UTF-8",
    "evaluate model none.jsonl": "there are no documents to evaluate",
    f"evaluate model train.jsonl --report {LONG}.html": "File name too long",
    "evaluate model train.jsonl --report r.html --explained -1": "explained is -1; expected at least 0",
    "explain model wing --steps -1": "steps is -1; expected a whole number from 0 to 10,000",
    f"explain model wing --steps {10**12}": "steps is 1000000000000; expected a whole number from 0 to 10,000",
    "explain model wing --label=": "label '' is not in the taxonomy",
    "card none": "'none' is not a folder; give the folder of a saved model",
    "card t.json": "'t.json' is not a folder; give the folder of a saved model",
    f"card {LONG}": "cannot be used: File name too long",
    f"export model --onnx {LONG}": "File name too long",
    "tree t.json --height 0": "height is 0; expected a whole number from 1",
    f"tree t.json --height {10**12}": "height is 1000000000000; expected a whole number from 1, .* to 100",
    "taxonomy diff t.json t.json --most -1": "--most is -1; expected at least 0",
    f"research prepare wos --source {LONG} --out out": "cannot be used: File name too long",
    f"research compare {LONG} {LONG}": "cannot be used: File name too long",
    f"research heights --data . --taxonomy t.json --out out --seeds {10**30}": "--seeds is '10*'; expected a count",
    "research heights --data . --taxonomy t.json --out out --seeds=-1,2": "--seeds is '-1,2'; expected a count",
    f"research heights --data . --taxonomy t.json --out out --seeds {2**32},1": "expected .* from 0 to 4294967295",
    f"serve {LONG} --port 0": "cannot be used: File name too long",
}


@pytest.mark.parametrize("request_", REFUSED, ids=lambda words: words.replace(LONG, "LONG")[:80])
def test_requests_that_cannot_be_met(place: Path, monkeypatch: pytest.MonkeyPatch, request_: str) -> None:
    monkeypatch.chdir(place)
    ran = hill(*request_.split(" "))
    message = ran.stderr.strip()
    assert ran.returncode == 2 and "\n" not in message, message
    assert re.match(f"hill: .*{REFUSED[request_]}", message), message
    shutil.rmtree(place / "out", ignore_errors=True)


def test_an_error_of_the_machine_is_no_error_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("hill.cli.common.app", fail)
    with pytest.raises(OSError, match="Input/output error"):
        hill("tree")


@pytest.mark.parametrize("content", ["[]", "null", "{}", "[1.5, 2, 3, 4, 5, 6, 7]", '["a", "b"]'])
def test_a_card_of_counts_that_are_none(place: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(place / "model", tmp_path / "model")
    (tmp_path / "model" / "label_counts.json").write_text(content)
    ran = hill("card", tmp_path / "model")
    assert ran.returncode == 2 and "has no whole number for each of the 7 labels" in ran.stderr


@pytest.mark.parametrize("name", ["config.json", "training.json", "metrics.json"])
@pytest.mark.parametrize("content", ["{}", '{"splits": 3}', '{"format": "hill-model", "settings": {"data": 3}}'])
def test_cards_and_warm_starts_of_files_that_hold_anything(
    place: Path, tmp_path: Path, name: str, content: str
) -> None:
    shutil.copytree(place / "model", tmp_path / "model")
    (tmp_path / "model" / name).write_text(content)
    card = hill("card", tmp_path / "model")
    assert card.returncode in (0, 2) and card.stderr.startswith("hill: ") is (card.returncode == 2), card.stderr
    options = ("--taxonomy", place / "t.json", "--out", tmp_path / "out", "--warm-start", tmp_path / "model")
    warm = hill("train", place / "train.jsonl", *options)
    assert warm.returncode == 2 and warm.stderr.strip().startswith("hill: "), warm.stderr


# Archives and XML made to fill up memory


def book(parts: dict[str, bytes]) -> bytes:
    """A workbook with some of its parts replaced."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(workbook([["a"]], ["x"]))) as good:
        whole = {name: good.read(name) for name in good.namelist()} | parts
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in whole.items():
            archive.writestr(name, content)
    return packed.getvalue()


SHEET = "xl/worksheets/sheet1.xml"
ROWS = b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>%s</sheetData></worksheet>'
BOMBS: dict[str, tuple[bytes, str]] = {
    "spaces": (book({SHEET: b"<a>" + b" " * 2**26 + b"</a>"}), "bytes, packed into"),
    "sheets": (book({"xl/workbook.xml": b"<a>" + b" " * 2**26 + b"</a>"}), "bytes, packed into"),
    "laughs": (book({SHEET: f"{LAUGHS}<a>&l9;</a>".encode()}), "amplification"),
    "laughs of strings": (book({"xl/sharedStrings.xml": f"{LAUGHS}<a>&l9;</a>".encode()}), "amplification"),
    "laughs of sheets": (book({"xl/workbook.xml": f"{LAUGHS}<a>&l9;</a>".encode()}), "amplification"),
    "laughs in UTF-16": (book({SHEET: f"{LAUGHS}<a>&l9;</a>".encode("utf-16")}), "amplification"),
    "deep": (book({SHEET: b"<c>" * 10**5}), "no element found"),
    "locked": (
        workbook([["a"]], []).replace(b"PK\x01\x02\x14\x03\x14\0\0\0", b"PK\x01\x02\x14\x03\x14\0\1\0"),
        "password",
    ),
    "new": (workbook([["a"]], []).replace(b"PK\x01\x02\x14\x03\x14\0", b"PK\x01\x02\x14\x03\x63\0"), "version"),
    "far strings": (book({SHEET: ROWS % b'<row><c t="s"><v>99</v></c></row>'}), "list index out of range"),
    "far rows": (book({SHEET: ROWS % b'<row r="99999999999"><c><v>1</v></c></row>'}), "more than 1,000 rows"),
    "a lost sheet": (book({"xl/workbook.xml": b"<a/>"}), "it has no sheet"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_workbooks_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # The limit of Excel, 2**20 rows, takes seconds.
    monkeypatch.setitem(read_xlsx.__globals__, "MAX_ROWS", 1_000)
    content, message = BOMBS[name]
    (tmp_path / "a.xlsx").write_bytes(content)
    assert judge(lambda: deque(read_xlsx(tmp_path / "a.xlsx"), 0), memory=2**28).kind == "refused"
    with pytest.raises(DataError, match=message):
        list(read_xlsx(tmp_path / "a.xlsx"))


def rdf(document_type: str, name: str) -> str:
    head, _, tail = RDF.partition("<!DOCTYPE")
    return head + document_type + tail[tail.index("]>") + 2 :].replace("&x;", "http://x.org/").replace("Bats", name)


@pytest.mark.parametrize(
    ("document_type", "name", "message"),
    [
        (LAUGHS, "&l9;", "declares an entity that is more than plain text"),
        ('<!DOCTYPE a [<!ENTITY l SYSTEM "file:///etc/passwd">]>', "&l;", "more than plain text"),
        ('<!DOCTYPE a [<!ENTITY % l SYSTEM "file:///etc/passwd"> %l;]>', "x", "more than plain text"),
        (f'<!DOCTYPE a [<!ENTITY l "{"x" * 10_000}">]>', "&l;" * 10_000, "stand for 100,020,000 characters"),
    ],
)
def test_entities_that_are_refused(tmp_path: Path, document_type: str, name: str, message: str) -> None:
    (tmp_path / "t.rdf").write_text(rdf(document_type, name))
    assert judge(lambda: read_taxonomy(tmp_path / "t.rdf"), memory=2**28).kind == "refused"
    with pytest.raises(TaxonomyError, match=message):
        read_taxonomy(tmp_path / "t.rdf")


def test_entities_that_stand_for_addresses_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.rdf").write_text(RDF)
    assert read_taxonomy(tmp_path / "t.rdf").ids == ["http://x.org/a", "http://x.org/b"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_stories_with_entities_are_refused(tmp_path: Path, encoding: str) -> None:
    from tests.research.test_nyt import write_nyt

    write_nyt(tmp_path, "flat")
    story = next((tmp_path / "Nytimes").rglob("*.xml"))
    story.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>{LAUGHS}<a><p>&l9;</p></a>'.encode(encoding))
    with pytest.raises(DataError, match="declares its own entities"):
        prepare("nyt", tmp_path, tmp_path / "out")


def test_a_story_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.research.test_nyt import write_nyt

    monkeypatch.setattr("hill.research.datasets.MAX_STORY_BYTES", 100)
    for form in ("flat", "tgz"):
        source = tmp_path / form
        source.mkdir()
        write_nyt(source, form)
        with pytest.raises(DataError, match="and no story more than 100"):
            prepare("nyt", source, tmp_path / "out")


@pytest.mark.parametrize("name", ["train.jsonl.gz", "train.csv.gz"])
def test_a_line_without_end_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 KB of gzip 100 MB of one line; only as much of it is read as a line may have."""
    (tmp_path / name).write_bytes(gzip.compress(b"text,labels\n" + b"x" * 10**8, 1))
    verdict = judge(lambda: read_data(tmp_path, animals_taxonomy()), memory=2**29, seconds=20)
    assert verdict.kind == "refused" and "line" in verdict.reason
    monkeypatch.setattr(files, "LONGEST_LINE", 10)
    (tmp_path / name).write_bytes(gzip.compress(b"text,labels\n"))
    with pytest.raises(DataError, match="line 1 has more than 10 bytes; split it"):
        read_data(tmp_path, animals_taxonomy())


def test_a_quote_that_is_never_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hill.data.readers.LONGEST_FIELD", 10_000)
    (tmp_path / "train.csv").write_text('text,labels\n"open,a\n' + "more,a\n" * 10_000)
    with pytest.raises(DataError, match="field larger than field limit"):
        read_data(tmp_path, animals_taxonomy())


# Characters of every kind


NAMES = {
    "right to left": "שלום עולם",
    "Arabic": "مرحبا",
    "combining": "e\u0301\u0323\u0323 n\u0303",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈",
    "outside the first plane": "𝔘𝔫𝔦 𐍈",
    "no case": "ﬃ İ ß ǅ",
    "marks of direction": "a\u200fb\u202ec\u2066d",
    "bell": "a\x07b",
    "NUL": "a\0b",
    "private": "\ue000\U0010ffff",
    "spaces": "a\u00a0b\u3000c",
    "mathematics": r"$\frac{ US$ _a^",
    "markup": "<b &amp; ]] [red]",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_of_every_kind_go_everywhere(tmp_path: Path, name: str) -> None:
    taxonomy = Taxonomy([Label(name, name), Label(f"{name}2", name, (name,), name)])
    path = tmp_path / f"{name.replace(chr(0), '')}.json"
    write_taxonomy(taxonomy, path)
    assert read_taxonomy(path) == taxonomy
    assert taxonomy.encode([name, f"{name} > {name}"]).tolist() == [0, 1]
    data = tmp_path / f"train-{name.replace(chr(0), '')}.jsonl"
    data.write_text(json.dumps({"id": name, "text": name, "labels": [f"{name}2"]}), encoding="utf-8")
    assert read_data(data, taxonomy)["train"].texts == [name]
    built = build_tree(taxonomy, 2, "refined")
    for ending in (".svg", ".png"):
        draw_tree(taxonomy, built, tmp_path / f"tree{ending}")
    ElementTree.parse(tmp_path / "tree.svg")


def test_a_name_that_no_terminal_can_show_ends_nothing(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 in a name of a file, and labels on a terminal that knows ASCII alone."""
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(folder)
    with open(folder + b"/train.jsonl", "wb") as file:
        file.write('{"text": "t", "labels": ["שלום"]}\n'.encode())
    write_taxonomy(animals_taxonomy(), tmp_path / "t.json")
    command = [sys.executable, "-m", "hill", "check", folder, "--taxonomy", str(tmp_path / "t.json")]
    for more in ([], ["--json"]):
        environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
        ran = subprocess.run([*command, *more], capture_output=True, env=environment, check=False)
        assert ran.returncode == 1 and b"Traceback" not in ran.stderr, ran.stderr
        assert rb"\u05e9\u05dc\u05d5\u05dd" in ran.stdout


# Sizes


DEEP = 10_000


@pytest.fixture(scope="module")
def deep() -> Taxonomy:
    return Taxonomy([Label(f"n{i}", f"name {i}", (f"n{i - 1}",) if i else ()) for i in range(DEEP)])


def test_a_deep_taxonomy_is_read(tmp_path: Path, deep: Taxonomy) -> None:
    write_taxonomy(deep, tmp_path / "t.json")
    assert read_taxonomy(tmp_path / "t.json") == deep
    rows = "".join(f"{label.id}\t{''.join(label.parents)}\t{label.name}\n" for label in deep)
    (tmp_path / "t.tsv").write_text(f"id\tparents\tname\n{rows}")
    assert read_taxonomy(tmp_path / "t.tsv") == deep
    assert len(deep.levels) == DEEP and deep.ancestors(DEEP - 1).tolist() == list(range(DEEP - 1))


def test_the_path_to_a_deep_label_takes_as_long_as_it_is(deep: Taxonomy) -> None:
    start = time.process_time()
    for row in (DEEP - 1, DEEP - 2, DEEP - 3):
        assert next(deep.paths(row)) == tuple(range(row + 1))
    assert time.process_time() - start < 1


@pytest.mark.parametrize("method", METHODS)
def test_coding_trees_of_a_deep_taxonomy(deep: Taxonomy, method: str) -> None:
    built = build_tree(deep, 3, method)
    assert built.tree.sizes[0] == DEEP and built.entropy < built.flat


@pytest.mark.parametrize("strategy", [strategy for strategy in STRATEGIES if strategy != "auto"])
def test_a_deep_taxonomy_is_decoded(deep: Taxonomy, strategy: str) -> None:
    scores = np.full((1, DEEP), 0.2, dtype=np.float32)
    scores[0, :5_000] = 0.9
    chosen = Decoder(deep, DecodeConfig(strategy=strategy), None, None).decode(scores)
    count = int(chosen.sum())
    assert np.flatnonzero(chosen[0]).tolist() == list(range(count))
    assert count == (DEEP if strategy == "path" else 5_000)  # a path goes on to a leaf


def test_a_deep_taxonomy_is_checked_and_drawn(tmp_path: Path, deep: Taxonomy) -> None:
    write_taxonomy(deep, tmp_path / "t.json")
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "t", "labels": [f"n{DEEP - 1}"]}))
    assert check(tmp_path, deep).to_dict()["splits"]["train"]["ancestors_added"] == DEEP - 1
    asked = ["tree", str(tmp_path / "t.json"), "--plot", str(tmp_path / "t.png"), "--json"]
    ran = CliRunner().invoke(app, asked)
    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "t.png").stat().st_size > 10_000


def test_many_children_take_time_by_their_number(tmp_path: Path) -> None:
    """Ten times the children in less than 25 times the time: a quadratic step would take 100 times."""
    seconds = []
    for count in (5_000, 50_000):
        (tmp_path / "t.tsv").write_text("id\tparents\nr\t\n" + "".join(f"n{i}\tr\n" for i in range(count)))
        start = time.process_time()
        taxonomy = read_taxonomy(tmp_path / "t.tsv")
        taxonomy.find("n77"), taxonomy.nearest("n 77")
        build_tree(taxonomy, 3, "refined")
        taxonomy.closures(csr_array(([True], [count], [0, 1]), shape=(1, count + 1)))
        seconds.append(time.process_time() - start)
    assert seconds[1] < 25 * max(seconds[0], 0.05)


@pytest.mark.parametrize("name", ["train.jsonl", "train.csv", "train.parquet"])
def test_texts_of_a_million_characters(tmp_path: Path, name: str) -> None:
    text = "שלום 👩‍👧 word " * 80_000
    match Path(name).suffix:
        case ".jsonl":
            (tmp_path / name).write_text(json.dumps({"text": text, "labels": ["m"]}), encoding="utf-8")
        case ".csv":
            (tmp_path / name).write_text(f"text,labels\n{text},m\n", encoding="utf-8")
        case ".parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table({"text": [text], "labels": [["m"]]}), tmp_path / name)
    assert len(text) > 10**6
    assert read_data(tmp_path, animals_taxonomy())["train"].texts == [text]
    assert check(tmp_path, animals_taxonomy()).fit
