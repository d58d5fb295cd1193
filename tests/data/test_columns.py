"""Columns with other names, several label columns, separators; Excel files and folders of Hugging Face datasets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hill.classifier import HillClassifier
from hill.data import Documents, read_data
from hill.data.check import check
from hill.data.documents import column_names
from hill.data.readers import find_splits, read_fields
from hill.errors import ConfigError, DataError
from hill.taxonomy import Label, Taxonomy
from tests.command import hill
from tests.conftest import animals_taxonomy

ROWS = [("A bat", "bat", "Animals", "Mammals", "Bats"), ("An oak", "p", "Plants", "", "")]
HEADER = ("Title", "category", "l1", "l2", "l3")
CLOSED = [["a", "m", "f", "bat"], ["p"]]


def write_rows(file: Path, header: tuple[str, ...] = HEADER, rows: Any = ROWS) -> Path:
    """A table in the format that the name of the file says."""
    records = [dict(zip(header, row, strict=True)) for row in rows]
    if file.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for row in (header, *rows):
            book.active.append(row)
        book.save(file)
    elif file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        mark = "\t" if file.suffix == ".tsv" else ","
        file.write_text("".join(mark.join(row) + "\n" for row in (header, *rows)))
    return file


def label_ids(documents: Documents, taxonomy: Taxonomy) -> list[list[str]]:
    return [taxonomy.decode(np.flatnonzero(row)) for row in documents.labels.toarray()]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "xlsx"])
def test_columns_have_any_name(tmp_path: Path, animals: Taxonomy, ending: str) -> None:
    file = write_rows(tmp_path / f"articles.{ending}")
    one = read_data(file, animals, "title", "Category")["data"]
    levels = read_data(file, animals, text_column="Title", labels_column=["l1", "l2", "l3"])["data"]
    for documents in (one, levels):
        assert documents.texts == ["A bat", "An oak"] and label_ids(documents, animals) == CLOSED
    assert list(read_fields([file], "title")) == [("0", "A bat"), ("1", "An oak")]
    assert check(file, animals, columns=column_names("title", ["l1", "l2", "l3"])).fit
    for name, option, near in (("titel", 0, "--text-column Title"), ("catgory", 1, "--labels-column category")):
        columns = ["title", "category"]
        columns[option] = name
        message = rf"^no column '{name}'; did you mean {near}\? \((line \d of )?.*articles.{ending}\)$"
        with pytest.raises(DataError, match=message):
            read_data(file, animals, *columns)


def test_a_level_is_a_number_or_empty_or_of_a_wrong_type(tmp_path: Path) -> None:
    taxonomy = Taxonomy([Label("1", "One"), Label("2", "2", ("1",))])
    file = tmp_path / "a.jsonl"
    lines = ['{"text": "x", "l1": "One", "l2": 2}', '{"text": "y", "l1": "One", "l2": null}', '{"text": "z", "l1": 1}']
    file.write_text("\n".join(lines))
    assert label_ids(read_data(file, taxonomy, "text", ["l1", "l2"])["data"], taxonomy) == [["1", "2"], ["1"], ["1"]]
    file.write_text('{"text": "x", "l1": "One", "l2": {}}\n')
    with pytest.raises(DataError, match=r"the labels are an object; expected .* \(line 1 of"):
        read_data(file, taxonomy, "text", ["l1", "l2"])


def test_a_separator_always_separates(tmp_path: Path, animals: Taxonomy) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,labels\nx,bat / p\ny,p/\nz, \n")
    documents = read_data(file, animals, separator="/")["data"]
    assert label_ids(documents, animals) == [["a", "m", "f", "bat", "p"], ["p"], []]
    with pytest.raises(DataError, match="label 'bat / p' is not in the taxonomy"):
        read_data(file, animals)
    with pytest.raises(ConfigError, match=r"--separator is '/' and there are 2 label columns, .*; give one --labels-c"):
        read_data(file, animals, labels_column=["a", "b"], separator="/")
    with pytest.raises(ConfigError, match="a column is 3; expected its name, a string"):
        read_data(file, animals, labels_column=["a", 3])  # type: ignore[list-item]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "xlsx"])
def test_check_prints_one_message_for_600_rows_in_three_splits(tmp_path: Path, ending: str) -> None:
    rows = [(f"text {i}", "p") for i in range(600)]
    for split in ("train", "dev", "test"):
        write_rows(tmp_path / f"{split}.{ending}", ("body", "tags"), rows)
    (tmp_path / "taxonomy.json").write_text(json.dumps(animals_taxonomy().to_dict()))
    arguments = ("check", tmp_path, "--taxonomy", tmp_path / "taxonomy.json", "--text-column", "bdy")
    result = hill(*arguments, "--labels-column", "tags", "--json")
    (problem,) = json.loads(result.stdout)["problems"]
    assert result.returncode == 1 and problem["kind"] == "missing-column" and problem["count"] == 1
    assert problem["examples"][0]["message"] == "no column 'bdy'; did you mean --text-column body?"
    shown = hill(*arguments).stdout
    assert shown.count("no column 'bdy'") == 1 and "no usable document" not in shown
    good = hill(*arguments[:-1], "body", "--labels-column", "tags", "--json")
    assert good.returncode == 0 and json.loads(good.stdout)["splits"]["train"]["documents"] == 600


def test_excel_rows_have_their_numbers_and_blank_ones_are_skipped(tmp_path: Path, animals: Taxonomy) -> None:
    book = openpyxl.Workbook()
    for row in ((), ("id", "text", "labels"), (7, "A bat", "bat"), (), (8.5, 1999, "p"), ("x", "y")):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    documents = read_data(tmp_path / "a.xlsx", animals)["data"]
    assert documents.ids == ["7", "8.5", "x"] and documents.texts == ["A bat", "1999", "y"]
    assert label_ids(documents, animals) == [["a", "m", "f", "bat"], ["p"], []]
    book.active["C5"] = "Plnats"
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match=r"label 'Plnats' is not in the taxonomy; did you mean 'Plants'\? \(line 5 of"):
        read_data(tmp_path / "a.xlsx", animals)
    (tmp_path / "b.xlsx").write_bytes(b"PK no zip")
    with pytest.raises(DataError, match=r"b.xlsx' is not a usable .xlsx workbook"):
        read_data(tmp_path / "b.xlsx", animals)


# Folders that `save_to_disk` of Hugging Face datasets 5 writes


CLASSES = {"names": ["p", "bat"], "_type": "ClassLabel"}
FEATURES = {
    "text": {"dtype": "string", "_type": "Value"},
    "label": CLASSES,
    "tags": {"feature": CLASSES, "_type": "List"},
    "older": {"feature": CLASSES, "length": -1, "_type": "Sequence"},
}
TABLE = {"text": ["oaks", "a bat", "x"], "label": [0, 1, -1], "tags": [[0], [0, 1], []], "older": [[1], [], None]}


def dataset_table() -> pa.Table:
    metadata = {"huggingface": json.dumps({"info": {"features": FEATURES}})}
    return pa.table(TABLE).replace_schema_metadata(metadata)


def save_dataset(folder: Path, shards: int = 1) -> Path:
    """The files of `Dataset.save_to_disk`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{shard:05}-of-{shards:05}.arrow" for shard in range(shards)]
    table, size = dataset_table(), -(-len(TABLE["text"]) // shards)
    for shard, name in enumerate(names):
        with pa.ipc.new_stream(folder / name, table.schema) as out:
            out.write_table(table.slice(shard * size, size))
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    return folder


@pytest.mark.parametrize("shards", [1, 2])
def test_datasets_are_read_with_the_names_of_their_classes(tmp_path: Path, animals: Taxonomy, shards: int) -> None:
    folder = save_dataset(tmp_path / "mine", shards)
    documents = read_data(folder, animals)["data"]
    assert documents.texts == TABLE["text"]
    assert label_ids(documents, animals) == [["p"], ["a", "m", "f", "bat"], []]
    tags = read_data(folder, animals, labels_column="tags")["data"]
    assert label_ids(tags, animals) == [["p"], ["a", "m", "f", "bat", "p"], []]
    older = read_data(folder, animals, labels_column="older")["data"]
    assert label_ids(older, animals) == [["a", "m", "f", "bat"], [], []]
    with pytest.raises(DataError, match="no column 'body', only 'text', 'label', 'tags', 'older'"):
        read_data(folder, animals, "body")


def test_splits_of_a_dataset_dict(tmp_path: Path, animals: Taxonomy) -> None:
    for split in ("validation", "train", "unsupervised"):
        save_dataset(tmp_path / "all" / split)
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["validation", "train", "unsupervised"]}')
    assert list(read_data(tmp_path / "all", animals)) == ["train", "dev"]
    assert list(find_splits(tmp_path / "all" / "train")) == ["train"]


def test_parquet_of_a_dataset_has_the_names_of_its_classes(tmp_path: Path, animals: Taxonomy) -> None:
    pq.write_table(dataset_table(), tmp_path / "a.parquet")
    documents = read_data(tmp_path / "a.parquet", animals)["data"]
    assert label_ids(documents, animals) == [["p"], ["a", "m", "f", "bat"], []]
    table = dataset_table()
    for metadata in ({"huggingface": "{oops"}, {"huggingface": '{"info": {"features": [1]}}'}, {"other": "1"}, None):
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
        with pytest.raises(DataError, match="label '0' is not in the taxonomy"):
            read_data(tmp_path / "a.parquet", animals)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("state.json", '{"_data_files": [{"filename": "../x.arrow"}]}', "it names files outside of its folder; save"),
        ("state.json", '{"_data_files": 3}', r"state.json' cannot be used: TypeError: .*; save the data set again"),
        ("dataset_dict.json", '{"splits": ["all", "rest"]}', "has the splits all, rest; expected train, and dev and"),
        ("dataset_dict.json", "{oops", "dataset_dict.json' cannot be used: JSONDecodeError"),
        ("dataset_dict.json", '{"splits": [".."]}', "it names files outside of its folder"),
    ],
)
def test_datasets_that_cannot_be_used(tmp_path: Path, animals: Taxonomy, file: str, content: str, message: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(DataError, match=message):
        read_data(tmp_path, animals)


def test_damaged_arrow_files(tmp_path: Path, animals: Taxonomy) -> None:
    folder = save_dataset(tmp_path / "mine")
    file = folder / "data-00000-of-00001.arrow"
    content = file.read_bytes()
    for damaged in (b"no arrow", content[: len(content) // 2], content.replace(b"oaks", b"\xe3(\xe3(")):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match="the file cannot be read further"):
            read_data(folder, animals)


def test_fit_and_evaluate_take_what_read_data_returns(tmp_path: Path, animals: Taxonomy) -> None:
    rows = [(f"{word} {i}", label) for i in range(8) for word, label in (("cave echo", "bat"), ("leaf root", "p"))]
    data = read_data(write_rows(tmp_path / "a.csv", ("title", "tag"), rows), animals, "title", "tag")
    classifier = HillClassifier(animals, "linear", preset=None).fit(data)
    assert classifier.predict(["leaf root"]) == [["p"]]
    with pytest.warns(UserWarning, match="16 of 16 documents were in the training data"):
        assert classifier.evaluate(data)["micro_f1"] == 1.0
