"""One output file: its ending is its format, and what a row has besides the prediction."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_array

from hill.bulk import RowOptions, predict_file
from hill.data import read_data
from hill.errors import ConfigError, DataError
from hill.predictor import runners_up
from hill.taxonomy import read_taxonomy
from tests.bulk.predictors import RandomPredictor
from tests.command import hill
from tests.conftest import animals_taxonomy, random_taxonomy

TEXTS = ["fur, milk", 'a "bat"\nflies', "ünïcode", "x"]


def write_texts(file: Path) -> Path:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([["id", "Title"], *([f"k{i}", text] for i, text in enumerate(TEXTS))])
    return file


def read_back(file: Path) -> list[dict[str, Any]]:
    """The rows of an output file, with lists where CSV has cells."""
    if file.suffix == ".parquet":
        return pq.read_table(file).to_pylist()
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in file.read_text().splitlines()]
    rows = []
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            found: dict[str, Any] = {key: row[key].split("|") if row[key] else [] for key in row}
            found |= {key: row[key] for key in ("id", "text") if key in row}
            found |= {key: [float(value) for value in found[key]] for key in row if key.endswith("scores")}
            rows.append(found | {"paths": [path.split(" > ") for path in found["paths"]]})
    return rows


@pytest.mark.parametrize("options", [RowOptions("title"), RowOptions("title", with_text=True, top=2)])
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_every_format_has_the_same_rows(tmp_path: Path, ending: str, options: RowOptions) -> None:
    taxonomy = animals_taxonomy()
    predictor, target = RandomPredictor(taxonomy), tmp_path / f"out.{ending}"
    assert predict_file(predictor, write_texts(tmp_path / "a.csv"), target, options=options) == 4
    rows = read_back(target)
    names = {label.id: label.name for label in taxonomy}
    for i, (row, expected) in enumerate(zip(rows, predictor.predictions(TEXTS, 2), strict=True)):
        assert row["id"] == f"k{i}" and row.get("text") == (TEXTS[i] if options.with_text else None)
        assert row["labels"] == list(expected.labels) and row["scores"] == pytest.approx(expected.scores, abs=1e-6)
        assert row["names"] == [names[label] for label in expected.labels]
        assert row["paths"] == [[names[label] for label in path] for path in expected.paths]
        if options.top:
            assert [*zip(row["runners_up"], row["runner_up_names"], strict=True)] == [
                (label, names[label]) for label, _ in expected.runners_up or ()
            ]
            scores = [score for _, score in expected.runners_up or ()]
            assert row["runner_up_scores"] == pytest.approx(scores, abs=1e-6)
        else:
            assert not any(key.startswith("runner") for key in row)
    assert any(row["labels"] for row in rows)


def test_a_csv_of_predictions_can_be_trained_on(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("A > B|C > D\nA > E\n")
    taxonomy = read_taxonomy(tmp_path / "t.txt")
    predictor = RandomPredictor(taxonomy)
    source = write_texts(tmp_path / "a.csv")
    predict_file(predictor, source, tmp_path / "out.csv", options=RowOptions("title", with_text=True))
    documents = read_data(tmp_path / "out.csv", taxonomy)["data"]
    assert documents.texts == TEXTS
    assert (documents.labels.toarray() == predictor.predict_indicator(TEXTS)).all() and documents.labels.nnz > 4
    predict_file(predictor, source, tmp_path / "out.jsonl", options=RowOptions("title"))
    paths = {tuple(path) for row in read_back(tmp_path / "out.jsonl") for path in row["paths"]}
    assert ("A", "B|C") in paths, "each step has its own name only"


@pytest.mark.parametrize("sparse", [False, True])
def test_runners_up_are_the_best_of_the_rest(sparse: bool) -> None:
    taxonomy, draw = random_taxonomy(7), np.random.default_rng(0)
    effective = draw.integers(0, 6, (20, len(taxonomy))).astype(np.float32) / 5  # many ties and zeros
    chosen = (draw.random(effective.shape) < 0.3) & (effective > 0)
    for count in (1, 4, 100):
        for row in range(len(effective)):
            rest = [i for i in range(len(taxonomy)) if effective[row, i] > 0 and not chosen[row, i]]
            rest.sort(key=lambda i, row=row: (-effective[row, i], -taxonomy.depth[i], i))
            given = (csr_array(chosen), csr_array(effective)) if sparse else (chosen, effective)
            labels, scores = runners_up(*given, row, count, taxonomy)
            assert labels.tolist() == rest[:count]
            assert scores.tolist() == effective[row, rest[:count]].tolist()


def test_other_endings_and_inputs_that_cannot_be_cut(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "a.csv")
    with pytest.raises(
        ConfigError, match=r"--output is '.*x.xlsx'; expected a name that ends in .csv, .jsonl, .json, .p"
    ):
        predict_file(RandomPredictor(animals_taxonomy()), source, tmp_path / "x.xlsx")
    with pytest.raises(DataError, match=r"no column 'text', only 'id', 'Title'; name the column with --text-column"):
        predict_file(RandomPredictor(animals_taxonomy()), source, tmp_path / "x.csv")
    assert not (tmp_path / "x.csv").exists()
    with pytest.raises(ConfigError, match="top is -1; expected at least 0"):
        RandomPredictor(animals_taxonomy()).predictions(["a"], top=-1)


def test_the_command_names_runners_up(exported: Path, tmp_path: Path) -> None:
    shown = hill("predict", exported, "leaf root bark", "--top", "2").stdout.splitlines()
    start = shown.index("  not predicted, but next best:")
    assert shown[0] == "leaf root bark" and len(shown) == start + 3
    (found,) = json.loads(hill("predict", exported, "leaf root bark", "--top", "2", "--json").stdout)
    assert shown[start + 1].startswith(f"  {found['runner_up_scores'][0]:.3f}  ")
    assert shown[start + 1].endswith(found["runner_up_names"][0]) and len(found["runners_up"]) == 2
    assert "next best" not in hill("predict", exported, "leaf root bark").stdout
    book = openpyxl.Workbook()
    for row in (["Body"], ["leaf root"], ["wing"]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    options = ("--input", tmp_path / "a.xlsx", "--text-column", "body", "--with-text", "--top", "1", "--output")
    assert "2 predictions" in hill("predict", exported, *options, tmp_path / "out.csv").stdout
    assert [row["text"] for row in read_back(tmp_path / "out.csv")] == ["leaf root", "wing"]
    refused = hill("predict", exported, *options, tmp_path / "folder")
    assert refused.returncode == 2 and "a.xlsx' cannot be cut into parts; save it as Parquet" in refused.stderr
    (tmp_path / "a.csv").write_text("Body\nleaf root\n")
    options = ("--input", tmp_path / "a.csv", "--text-column", "body", "--output", tmp_path / "folder")
    assert hill("predict", exported, *options, "--top", "1").returncode == 0
    (row,) = pq.read_table(tmp_path / "folder" / "a.csv.parquet").to_pylist()
    assert len(row["runners_up"]) == 1 and row["error"] is None
    other = hill("predict", exported, *options)
    assert other.returncode == 2 and "was started with the settings" in other.stderr and "'top': 1" in other.stderr
