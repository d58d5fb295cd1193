"""Documents in every format a user may bring, and what reading them strictly refuses."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hill.data import Documents, find_splits, read_data
from hill.data.documents import describe_labels, label_documents
from hill.data.readers import read_fields
from hill.errors import ConfigError, DataError
from hill.taxonomy import Label, Taxonomy
from tests.conftest import animals_taxonomy

RECORDS: list[dict[str, Any]] = [
    {"id": "7", "text": "A bat\nflies.", "labels": ["bat"]},
    {"id": "8", "text": "Oaks, and \"others\"; 'x'", "labels": ["Plants"]},
    {"id": "9", "text": "ünïcode", "labels": ["mo", "p"]},
]
CLOSED = [["a", "m", "f", "bat"], ["p"], ["a", "m", "mo", "p"]]


def write(path: Path, records: list[dict[str, Any]], separator: str = "|") -> Path:
    """The records in the format that the file's name asks for."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        parquet.write_table(arrow.Table.from_pylist(records), path)
        return path
    if name.endswith(("csv", "tsv")):
        mark = "," if name.endswith("csv") else "\t"
        rows = [[str(r["id"]), r["text"], separator.join(r["labels"])] for r in records]
        quoted = [mark.join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
        text = "\n".join([mark.join(["id", "text", "labels"]), *quoted]) + "\n"
    else:
        text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def label_ids(documents: Documents, taxonomy: Taxonomy) -> list[list[str]]:
    starts, rows = documents.labels.indptr, documents.labels.indices
    return [taxonomy.decode(rows[starts[i] : starts[i + 1]]) for i in range(len(documents))]


def one(tmp_path: Path, taxonomy: Taxonomy, labels: Any) -> list[str]:
    """The closed labels of one record."""
    path = write(tmp_path / "train.jsonl", [{"text": "x", "labels": labels}])
    return label_ids(read_data(path, taxonomy)["train"], taxonomy)[0]


@pytest.mark.parametrize("suffix", ["jsonl", "ndjson.gz", "json", "csv", "csv.gz", "tsv", "parquet"])
def test_every_format_reads_the_same(tmp_path: Path, animals: Taxonomy, suffix: str) -> None:
    documents = read_data(write(tmp_path / f"train.{suffix}", RECORDS), animals)["train"]
    assert documents.texts == [record["text"] for record in RECORDS]
    assert documents.ids == ["7", "8", "9"]
    assert label_ids(documents, animals) == CLOSED
    assert documents.added == 5 and documents.labels.shape == (3, 7) and len(documents) == 3


@pytest.mark.parametrize("separator", ["|", ";", ",", " | "])
def test_labels_in_one_string(tmp_path: Path, animals: Taxonomy, separator: str) -> None:
    documents = read_data(write(tmp_path / "train.csv", RECORDS, separator), animals)["train"]
    assert label_ids(documents, animals) == CLOSED


def test_labels_in_other_ways(tmp_path: Path, animals: Taxonomy) -> None:
    assert one(tmp_path, animals, "Animals > Flyers > Others; Plants") == ["a", "f", "fo", "p"]
    assert one(tmp_path, animals, [["Animals", "Flyers", "Others"], "p"]) == ["a", "f", "fo", "p"]
    assert one(tmp_path, animals, '["p"]') == ["p"]
    assert one(tmp_path, animals, "") == one(tmp_path, animals, []) == one(tmp_path, animals, None) == []
    numbers = Taxonomy([animals[0].__class__("1", "One"), animals[0].__class__("2", "A, B", ("1",))])
    assert one(tmp_path, numbers, 2) == one(tmp_path, numbers, [2]) == one(tmp_path, numbers, "A, B") == ["1", "2"]


def test_ids_not_given_are_places(tmp_path: Path, animals: Taxonomy) -> None:
    path = write(tmp_path / "train.jsonl", [{"text": "x", "labels": []}, {"text": "y", "labels": [], "id": 5}])
    assert read_data(path, animals)["train"].ids == ["0", "5"]


def test_folders_hold_splits_and_shards(tmp_path: Path, animals: Taxonomy) -> None:
    write(tmp_path / "train-00000-of-00002.parquet", RECORDS[:1])
    write(tmp_path / "train-00001-of-00002.parquet", RECORDS[1:])
    write(tmp_path / "test.csv", RECORDS)
    write(tmp_path / "val.jsonl.gz", RECORDS)
    (tmp_path / "taxonomy.tsv").write_text("ignored")
    data = read_data(tmp_path, animals)
    assert list(data) == ["train", "dev", "test"] and [len(split) for split in data.values()] == [3, 3, 3]
    assert list(find_splits(write(tmp_path / "mine.jsonl", RECORDS))) == ["data"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.jsonl", "train.csv"], r"the split train of '.*' has several files \('train.csv', 'train.jsonl'\)"),
        (["dev.jsonl", "val.jsonl"], "the split dev"),
        (
            ["articles.csv"],
            r"no train, dev or test file \(it has 'articles.csv'\); rename files to train.csv, dev.csv or test.csv$",
        ),
        (
            ["train.docx", "notes.md"],
            r"no train, dev or test file \(it has 'notes.md', 'train.docx'\); expected names such as train.jsonl in",
        ),
        ([], r"has no train, dev or test file \(it is empty\); expected names such as train.jsonl .* Parquet"),
    ],
)
def test_folders_that_are_not_clear(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=message):
        find_splits(tmp_path)


def test_files_that_are_not_data(tmp_path: Path) -> None:
    (tmp_path / "x.docx").touch()
    with pytest.raises(DataError, match=r"x.docx' is of an unknown format; expected JSONL"):
        find_splits(tmp_path / "x.docx")
    with pytest.raises(DataError, match="does not exist; give a data file or a folder"):
        find_splits(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b'{"text": "x", "labels": []}\n{oops\n', r"not JSON: .* \(line 2 of .*t.jsonl\)"),
        ("t.jsonl", b'[\n{"text": "x"}]', "write one object per line, not one array"),
        ("t.jsonl", b'["x"]', "a JSON list; expected an object"),
        ("t.jsonl", b"\n\xff\xfe{}\n", r"byte 0xff is not UTF-8; save the file as UTF-8 \(line 2"),
        ("t.jsonl", b"[" * 100_000, "not usable JSON"),
        (
            "t.jsonl",
            b'{"texts": "x", "labels": []}',
            r"no column 'text'; did you mean --text-column texts\? \(line 1 of",
        ),
        (
            "t.jsonl",
            b'{"body": "x", "labels": []}',
            "no column 'text', only 'body', 'labels'; name the column with --te",
        ),
        ("t.jsonl", b"{}", "no column 'text'; name the column with --text-column"),
        ("t.jsonl", b'{"text": "x", "labels": []}\n{"text": "y"}', r"no 'labels'; the record has 'text' \(line 2 of"),
        ("t.jsonl", b'{"id": 1, "text": null, "labels": []}', "^the text is null; expected a string"),
        ("t.jsonl", b'{"text": ["x"], "labels": []}', "the text is a list; expected a string"),
        ("t.jsonl", b'{"text": " \\n", "labels": []}', "the text is empty"),
        ("t.jsonl", b'{"text": "x", "labels": true}', "the labels are a truth value; expected a list"),
        ("t.jsonl", b'{"text": "x", "labels": [null]}', "the labels are a list; expected a list of names or ids"),
        ("t.jsonl", b'{"text": "x", "labels": ["Plant"]}', "'Plant' is not in the taxonomy; did you mean 'Plants'?"),
        ("t.jsonl", b'{"text": "x", "labels": "Others"}', "belongs to 2 labels; use an id"),
        ("t.jsonl", b'{"text": "x", "labels": "[oops"}', r"label '\[oops' is not in the taxonomy"),
        (
            "t.jsonl.gz",
            gzip.compress(b'{"text": "x", "labels": []}\n' * 9, mtime=0)[:-9],
            "the file cannot be read further",
        ),
        ("t.csv", b"text,labels\nx,p\ny\n", r"1 columns; the header has 2 \(text, labels\) \(line 3"),
        ("t.csv", "text,labels\nx,p\n".encode("utf-16"), r"it is in UTF-16; save the file as UTF-8 \(line 1"),
        ("t.csv", b"text,labels\nx,p\n\xe9,p\n", r"byte 0xe9 is not UTF-8; save the file as UTF-8 \(line 3"),
        ("t.csv", b"words,labels\nx,p\n", "no column 'text', only 'words', 'labels'; name the column with"),
        ("t.csv.gz", b"no gzip", "the file cannot be read further"),
        ("t.parquet", b"no parquet", "the file cannot be read further"),
    ],
)
def test_the_first_unusable_record_is_refused(
    tmp_path: Path, animals: Taxonomy, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_data(tmp_path / name, animals)


def test_parquet_without_the_columns(tmp_path: Path, animals: Taxonomy) -> None:
    write(tmp_path / "t.parquet", [{"words": "x", "labels": ["p"]}])
    with pytest.raises(DataError, match="no column 'text', only 'words', 'labels'; name the column with --text-column"):
        read_data(tmp_path / "t.parquet", animals)


def test_parquet_needs_its_extra(tmp_path: Path, animals: Taxonomy, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.parquet", RECORDS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"reading Parquet needs pyarrow.*run: pip install 'openpyxl>="):
        read_data(path, animals)


def test_long_texts_are_read(tmp_path: Path, animals: Taxonomy) -> None:
    text = "word " * 200_000
    for suffix in ("jsonl", "csv"):
        path = write(tmp_path / f"train.{suffix}", [{"id": "1", "text": text, "labels": ["p"]}])
        assert read_data(path, animals)["train"].texts == [text]


def test_texts_to_predict_need_no_labels_in_parquet_either(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"id": ["a", "b"], "text": ["one", "two"]}), tmp_path / "texts.parquet")
    assert list(read_fields([tmp_path / "texts.parquet"])) == [("a", "one"), ("b", "two")]


def documents_of(texts: list[str]) -> Documents:
    return label_documents(texts, [["p"]] * len(texts), animals_taxonomy())


def test_a_split_without_repeated_texts_is_the_one_of_a_permutation() -> None:
    texts = [f"text {i}" for i in range(37)]
    first, second = documents_of(texts).split(0.2, seed=5)
    expected = np.random.default_rng(5).permutation(37)[:7].tolist()
    assert second.texts == [texts[i] for i in sorted(expected)]
    assert first.texts == [text for i, text in enumerate(texts) if i not in expected]


@given(st.lists(st.sampled_from(["a", "A ", "b", "c  d", "C d", "e", "f"]), min_size=2), st.floats(0.01, 0.99))
def test_no_text_is_in_both_parts_of_a_split(texts: list[str], share: float) -> None:
    normal = [" ".join(text.lower().split()) for text in texts]
    if len({*normal}) == 1:
        with pytest.raises(DataError, match="documents have the same text; train and dev need different ones"):
            documents_of(texts).split(share, seed=0)
        return
    first, second = ([int(key) for key in part.ids] for part in documents_of(texts).split(share, seed=0))
    assert first and second and sorted(first + second) == list(range(len(texts)))
    assert first == sorted(first) and second == sorted(second)
    assert not {normal[i] for i in first} & {normal[i] for i in second}
    largest = max(normal.count(text) for text in normal)
    assert len(second) < max(1, round(share * len(texts))) + largest


def test_a_document_alone_cannot_be_split() -> None:
    with pytest.raises(DataError, match="1 document cannot be split into train and dev"):
        documents_of(["a"]).split(0.5, seed=0)


def test_names_and_sentences_of_descriptions_are_documents_of_their_label() -> None:
    bats = "Mammals that can fly by night. Too short to count. "
    bats += "They sleep with their heads down! Do they see at all, e.g. moths?"
    taxonomy = Taxonomy([Label("m", "Mammals"), Label("bat", "Bats", ("m",), bats)])
    documents = describe_labels(taxonomy)
    sentences = [
        "Mammals that can fly by night.",
        "They sleep with their heads down!",
        "Do they see at all, e.g. moths?",
    ]
    assert documents.texts == ["Mammals", "Bats", *sentences]
    assert documents.labels.toarray().tolist() == [[True, False], *[[True, True]] * 4]
    known = label_documents(["BATS", sentences[1]], ["m", "m"], taxonomy)
    assert describe_labels(taxonomy, [known]).texts == ["Mammals", sentences[0], sentences[2]]
    coded = Taxonomy([Label("A00", "A00", (), bats), Label("A01", "A01")])
    assert describe_labels(coded).texts == sentences
