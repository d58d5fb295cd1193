"""Bad input: what fuzzing found and how it is refused, characters of every kind, texts and taxonomies of every size."""

import contextlib
import gzip
import io
import json
import logging
import os
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.sparse import csr_array
from typer.testing import CliRunner

from hill.cli import app
from hill.data import files, read_data
from hill.data.check import check
from hill.data.documents import label_documents
from hill.data.prepare import prepare
from hill.data.xlsx import read_xlsx
from hill.decode import STRATEGIES, DecodeConfig, Decoder
from hill.errors import ConfigError, DataError, HillError, TaxonomyError
from hill.settings import make, read_settings
from hill.taxonomy import Label, Taxonomy, read_taxonomy, write_taxonomy
from hill.train import TrainConfig
from hill.tree import METHODS, build_tree
from hill.tree.drawing import draw_tree
from tests.conftest import ROOT, animals_taxonomy
from tests.fuzz.law import judge
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


# What fuzzing found


FOUND: list[tuple[str, str, bytes, str]] = [
    ("an integer of 5,000 digits", "t.json", b'[{"name": ' + b"9" * 5_000 + b"}]", "not usable JSON"),
    ("lists in lists", "t.json", b"[" * 600 + b"]" * 600, "holds no labels|nested too deep"),
    ("names in lists", "t.json", b"[" * 600 + b'"a"' + b"]" * 600, "nested too deep|is nested"),
    (
        "a wrong value that is deep",
        "t.json",
        b'[{"name": ' + b"[" * 900 + b"]" * 900 + b"}]",
        "where text was expected",
    ),
    ("a path of 100,000 steps", "t.txt", b"a > " * 100_000 + b"a", "is 400,001 characters long"),
    ("a path of long keys", "t.json", b'{"' + b"a" * 900 + b'": {"' + b"b" * 900 + b'": 0}}', "give it an id"),
    ("nothing in quotes", "t.csv", b'""\r\n', "holds no labels, only empty cells"),
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
        ("[train]\nlr = " + "9" * 400, "train.lr is a number of 333 hexadecimal digits"),
        ("[train]\nlr = " + "9" * 5_000, "is not TOML"),
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


@pytest.mark.parametrize("values", [{3: 1}, {None: 1}, {("a",): 1}, {"epochs": 10**5_000}])
def test_settings_of_odd_kinds(values: dict[Any, Any]) -> None:
    if "epochs" in values:
        make(TrainConfig, values, "train")  # a whole number is a whole number
    else:
        with pytest.raises(ConfigError, match="unknown setting of train"):
            make(TrainConfig, values, "train")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "half \\ud800", "labels": []}', "the text has half of a character"),
        ('{"id": "\\ud800", "text": "t", "labels": []}', "the id has half of a character"),
        ('{"text": "t", "labels": ["\\ud800"]}', r"label '\\ud800' is not in the taxonomy"),
        ('{"\\ud800": 1}', r"no 'text'; the record has '\\ud800'"),
    ],
)
def test_half_characters_in_documents(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "train.jsonl").write_text(line)
    with pytest.raises(DataError, match=message):
        read_data(tmp_path, animals_taxonomy())
    found = check(tmp_path, animals_taxonomy()).document()
    json.dumps(found, ensure_ascii=False).encode()
    assert any(problem["severity"] == "error" for problem in found["problems"])


def test_parquet_whose_text_is_no_text(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    text = pyarrow.array([b"good", b"\xe3("], pyarrow.binary()).cast(pyarrow.string(), safe=False)
    pyarrow.parquet.write_table(pyarrow.table({"text": text, "labels": [["m"], ["m"]]}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"cannot be read on: .*utf-8"):
        read_data(tmp_path, animals_taxonomy())


def test_half_characters_in_texts_at_hand() -> None:
    with pytest.raises(DataError, match="text 2 has half of a character"):
        label_documents(["good", "half \ud800"], [["m"], ["m"]], animals_taxonomy())


def test_an_unknown_label_without_end_is_compared_by_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "t", "labels": ["Mammals x" * 200_000]}))
    verdict = judge(lambda: read_data(tmp_path, animals_taxonomy()), seconds=2)
    assert verdict.kind == "refused", verdict


def test_numbers_of_stories_without_end(tmp_path: Path) -> None:
    from tests.test_prepare_rcv1 import write_rcv1

    write_rcv1(tmp_path, "folder")
    (tmp_path / "rcv1v2-ids.dat").write_text("9" * 5_000)
    with pytest.raises(DataError, match="expected the number of a story"):
        prepare("rcv1", tmp_path, tmp_path / "out")


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
BOMBS: dict[str, tuple[bytes, str]] = {
    "spaces": (book({SHEET: b"<a>" + b" " * 2**26 + b"</a>"}), "bytes, packed into"),
    "sheets": (book({"xl/workbook.xml": b"<a>" + b" " * 2**26 + b"</a>"}), "bytes, packed into"),
    "laughs": (book({SHEET: f"{LAUGHS}<a>&l9;</a>".encode()}), "it declares a document type"),
    "laughs of strings": (book({"xl/sharedStrings.xml": f"{LAUGHS}<a>&l9;</a>".encode()}), "declares a document type"),
    "laughs of sheets": (book({"xl/workbook.xml": f"{LAUGHS}<a>&l9;</a>".encode()}), "declares a document type"),
    "laughs in UTF-16": (book({SHEET: f"{LAUGHS}<a>&l9;</a>".encode("utf-16")}), "it declares a document type"),
    "another file": (book({SHEET: b'<!DOCTYPE a SYSTEM "/etc/passwd"><a/>'}), "it declares a document type"),
    "deep": (book({SHEET: b"<c>" * 10**5}), "nested more than 100 deep"),
    "locked": (
        workbook([["a"]], []).replace(b"PK\x01\x02\x14\x03\x14\0\0\0", b"PK\x01\x02\x14\x03\x14\0\1\0"),
        "password",
    ),
    "new": (workbook([["a"]], []).replace(b"PK\x01\x02\x14\x03\x14\0", b"PK\x01\x02\x14\x03\x63\0"), "version"),
    "far strings": (
        book({SHEET: b'<a><row><c t="s"><v>99</v></c></row></a>'}),
        "shared string '99', of which there are 1",
    ),
    "strings before": (book({SHEET: b'<a><row><c t="s"><v>-1</v></c></row></a>'}), "shared string '-1'"),
    "a lost sheet": (book({"xl/workbook.xml": b"<a/>"}), "does not tell where the first one is"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_workbooks_that_are_refused(tmp_path: Path, name: str) -> None:
    content, message = BOMBS[name]
    (tmp_path / "a.xlsx").write_bytes(content)
    assert judge(lambda: list(read_xlsx(tmp_path / "a.xlsx")), memory=2**28).kind == "refused"
    with pytest.raises(DataError, match=message):
        list(read_xlsx(tmp_path / "a.xlsx"))


def test_a_row_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hill.data.xlsx.LONGEST", 2**18)
    noise = np.random.default_rng(0).integers(97, 122, 2**20).astype(np.uint8).tobytes()  # packs badly
    for sheet in (b"<a><row><c><v>" + noise, b"<a>" + b"".join(b"<x>%s</x>" % noise[i : i + 9] for i in range(10**5))):
        (tmp_path / "a.xlsx").write_bytes(book({SHEET: sheet}))
        with pytest.raises(DataError, match="has a part of more than 262,144 bytes"):
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
    from tests.test_prepare_nyt import write_nyt

    write_nyt(tmp_path, "flat")
    story = next((tmp_path / "Nytimes").rglob("*.xml"))
    story.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>{LAUGHS}<a><p>&l9;</p></a>'.encode(encoding))
    with pytest.raises(DataError, match="declares entities of its own"):
        prepare("nyt", tmp_path, tmp_path / "out")


def test_a_story_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.test_prepare_nyt import write_nyt

    monkeypatch.setattr("hill.data.stories.LONGEST", 100)
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
    monkeypatch.setattr("hill.data.table.LONGEST_FIELD", 10_000)
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
    assert check(tmp_path, deep).document()["splits"]["train"]["ancestors_added"] == DEEP - 1
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
