"""Bulk prediction on this machine: how input is cut, what is in a part, and that no row is lost or duplicated."""

import contextlib
import csv
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from hill.bulk import Bulk, Cut, predict_file
from hill.bulk.source import CHUNK, InputRow, Part, find_parts, read_rows, version_of
from hill.bulk.write import Columns, RowOptions, read_written, write_part
from hill.classifier import HillClassifier
from hill.cli.common import app
from hill.decode import DecodeConfig
from hill.errors import CheckpointError, ConfigError, DataError, HillError
from hill.io import LOCK
from hill.predictor import ScoredBatch
from hill.taxonomy import Taxonomy
from tests.bulk.predictors import RandomPredictor, SlowPredictor, always_dying
from tests.conftest import ROOT, animals_taxonomy, random_taxonomy, toy_documents


def save_model(encoder: Path, folder: Path) -> Path:
    """Train a HILL on 64 documents and save it."""
    learning = {"epochs": 6, "batch_size": 8, "encoder_lr": 5e-3, "lr": 5e-3, "head_start": "off"}
    settings = {"model": {"encoder": str(encoder), "pooling": "mean"}, "train": learning, "data": {"max_length": 16}}
    HillClassifier(animals_taxonomy(), "hill", settings, preset=None).fit(*toy_documents(64, 0)).save(folder)
    return folder


@pytest.fixture(scope="module")
def model(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tiny_encoder, tmp_path_factory.mktemp("bulk") / "model")


def make_job(model: Path, source: Any, folder: Path, **options: Any) -> Bulk:
    return Bulk(partial(HillClassifier.load, model), model, str(source), folder, **options)


def drain(bulk: Bulk) -> Bulk:
    for _ in bulk.run():
        pass
    return bulk


def rows_of(file: Path) -> list[dict[str, Any]]:
    return pq.read_table(file).to_pylist()


def write_jsonl(file: Path, texts: Sequence[Any], name: str = "d") -> Path:
    file.write_text("".join(json.dumps({"id": f"{name}{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    return file


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("strategy", ["closure", "raw"])
@pytest.mark.parametrize("taxonomy", [animals_taxonomy(), random_taxonomy(3), random_taxonomy(4, most_parents=3)])
def test_tables_equal_predictions(taxonomy: Taxonomy, strategy: str) -> None:
    predictor = RandomPredictor(taxonomy, strategy)
    rows = [InputRow(f"k{i}", "x" * (i * 7 % 11) + str(i), None) for i in range(40)]
    rows[3] = InputRow("bad", "", "the text is empty")
    rows[39] = InputRow("worse", "", "there is no text")
    table = Columns(predictor, RowOptions(with_text=True, top=3)).table(rows)
    good = [row for row in rows if not row.error]
    found = predictor.predictions([row.text for row in good], top=3)
    expected = {row.id: prediction for row, prediction in zip(good, found, strict=True)}
    assert sum(len(found.paths) for found in expected.values()) > 40
    for row, found in zip(rows, table.to_pylist(), strict=True):
        assert (found["id"], found["error"]) == (row.id, row.error)
        wanted = expected.get(row.id)
        assert found["labels"] == (list(wanted.labels) if wanted else [])
        assert found["scores"] == pytest.approx(wanted.scores if wanted else [], abs=1e-7)
        assert found["paths"] == (path_names(taxonomy, wanted.paths) if wanted else [])
        assert found["names"] == [taxonomy[taxonomy.row(label)].name for label in found["labels"]]
        assert found["text"] == row.text
        others = list(wanted.runners_up or ()) if wanted else []
        assert found["runners_up"] == [label for label, _ in others]
        assert found["runner_up_names"] == [taxonomy[taxonomy.row(label)].name for label, _ in others]
        assert found["runner_up_scores"] == pytest.approx([score for _, score in others])
    assert list(Columns(predictor).schema.names) == ["id", "labels", "names", "scores", "paths", "error"]


def path_names(taxonomy: Taxonomy, paths: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[taxonomy[taxonomy.row(label)].name for label in path] for path in paths]


def test_tables_without_labels() -> None:
    predictor = RandomPredictor(animals_taxonomy())
    assert Columns(predictor).table([InputRow("0", "", "the text is empty")]).to_pylist()[0]["labels"] == []
    predictor.decode_config = DecodeConfig(threshold=1.0)
    found = Columns(predictor).table([InputRow("0", "a", None), InputRow("1", "b", None)]).to_pylist()
    assert [row["paths"] for row in found] == [[], []]


def test_a_folder_gives_one_part_per_file(model: Path, tmp_path: Path) -> None:
    texts, source, out = toy_documents(30, 5)[0], tmp_path / "in", tmp_path / "out"
    (source / "deep").mkdir(parents=True)
    write_jsonl(source / "a.jsonl", texts[:10])
    (source / "a.jsonl.gz").write_bytes(gzip.compress(write_jsonl(tmp_path / "z", texts[10:15]).read_bytes()))
    with (source / "deep" / "b.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["Text", "id"], *([f"{text}\n", i] for i, text in enumerate(texts[15:20]))])
    pq.write_table(pa.table({"text": texts[20:], "labels": ["x"] * 10}), source / "c.parquet")
    (source / "README.md").write_text("no data")
    (source / "_manifest.json").write_text("{}")
    bulk = drain(make_job(model, source, out))
    parts = ["a.jsonl.gz.parquet", "a.jsonl.parquet", "c.parquet", "deep/b.csv.parquet"]
    assert names_in(out) == ["_done.json", "_manifest.json", *parts]
    assert json.loads((out / "_done.json").read_text()) == {"parts": 4, "rows": 30, "errors": 0}
    assert (bulk.rows, bulk.bad, bulk.example) == (30, 0, "")
    found = rows_of(out / parts[1]) + rows_of(out / parts[0]) + rows_of(out / parts[3]) + rows_of(out / parts[2])
    ids = [f"d{i}" for i in range(10)] + [f"d{i}" for i in range(5)] + [str(i) for i in range(5)]
    assert [row["id"] for row in found] == ids + [str(i) for i in range(10)], "without an id, the index of the row"
    expected = HillClassifier.load(model).predictions(texts)
    assert len({prediction.labels for prediction in expected}) > 1
    for row, prediction in zip(found, expected, strict=True):
        assert row["labels"] == list(prediction.labels) and row["error"] is None
        assert row["scores"] == pytest.approx(prediction.scores, abs=1e-5)
        assert row["paths"] == path_names(animals_taxonomy(), prediction.paths)


@pytest.mark.parametrize("pattern", ["*.jsonl", "**/*.jsonl", "[ab].jsonl", "b.*"])
def test_globs_match_like_pathlib(tmp_path: Path, pattern: str) -> None:
    for name in ["a.jsonl", "b.jsonl", "deep/b.jsonl", "deep/er/c.jsonl", "d.jsonl", ".hidden.jsonl", "_x.jsonl"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(tmp_path / name, ["a"])
    parts = find_parts(str(tmp_path / pattern), Cut(), tmp_path / "out")
    wanted = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob(pattern) if p.name[0] not in "._")
    assert [part.name for part in parts] == [f"{name}.parquet" for name in wanted]
    assert [part.source for part in parts] == [str(tmp_path / name) for name in wanted]


def test_uris_are_read(model: Path, tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/shop/a.jsonl", b'{"text": "fur milk"}\n')
    memory.pipe("/shop/b.jsonl", b'{"text": "leaf root"}\n{"text": "wing"}\n')
    drain(make_job(model, "memory://shop/*.jsonl", tmp_path / "out"))
    assert [len(rows_of(tmp_path / "out" / name)) for name in ("a.jsonl.parquet", "b.jsonl.parquet")] == [1, 2]
    with pytest.raises(ConfigError, match=r"cannot open 'nowhere://a/b': .*install the package for this protocol"):
        find_parts("nowhere://a/b", Cut(), tmp_path)


def test_answers_are_no_input(tmp_path: Path) -> None:
    for name in ("a.jsonl", "answers.sqlite"):
        (tmp_path / name).write_text('{"text": "a"}\n')
    assert [part.name for part in find_parts(str(tmp_path), Cut(), tmp_path / "out")] == ["a.jsonl.parquet"]
    with pytest.raises(DataError, match="has answers; write them to a JSONL file first: hill export-labels"):
        find_parts(str(tmp_path / "answers.sqlite"), Cut(), tmp_path / "out")


def parts_with_rows(source: Path, cut: Cut) -> tuple[list[Part], list[InputRow]]:
    parts = find_parts(str(source), cut, source / "out")
    return parts, [row for part in parts for chunk in read_rows(part) for row in chunk]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".jsonl.gz", ".csv.gz"])
def test_large_files_are_cut_between_rows(tmp_path: Path, ending: str) -> None:
    texts = [f'größe {i}\r\nline two, and\ttabs "quoted"' if i % 3 else f"t{i}" for i in range(23)]
    raw = tmp_path / "raw"
    with raw.open("w", newline="", encoding="utf-8-sig") as file:
        if "jsonl" in ending:
            file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n\n" for text in texts)
        else:
            rows = csv.writer(file, delimiter="\t" if "tsv" in ending else ",")
            rows.writerows([["text", "other"], *([text, "x"] for text in texts)])
    source = tmp_path / f"big{ending}"
    source.write_bytes(gzip.compress(raw.read_bytes()) if ending.endswith("gz") else raw.read_bytes())
    parts, rows = parts_with_rows(source, Cut(rows=5, whole=10))
    assert [(row.id, row.text, row.error) for row in rows] == [(str(i), text, None) for i, text in enumerate(texts)]
    assert [part.rows for part in parts] == [5, 5, 5, 5, 3]
    assert [part.name for part in parts] == [f"big{ending}.parquet/{i:05}.parquet" for i in range(5)]
    assert [part.name for part in parts_with_rows(source, Cut(rows=5))[0]] == [f"big{ending}.parquet"]


def test_large_parquet_is_cut_between_row_groups(tmp_path: Path) -> None:
    table = pa.table({"id": range(100, 134), "text": [f"t{i}" for i in range(34)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=4)
    parts, rows = parts_with_rows(tmp_path / "x.parquet", Cut(rows=10))
    assert [(row.id, row.text) for row in rows] == [(str(100 + i), f"t{i}") for i in range(34)]
    assert [part.rows for part in parts] == [8, 8, 8, 10]
    assert [part.groups for part in parts] == [[0, 1], [2, 3], [4, 5], [6, 7, 8]]
    assert [part.first for part in parts] == [0, 8, 16, 24]
    assert [len(part.groups or ()) for part in parts_with_rows(tmp_path / "x.parquet", Cut(rows=1))[0]] == [1] * 9


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "x.csv"])
def test_an_empty_file_gives_an_empty_part(model: Path, tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text("")
    (tmp_path / "x.csv").write_text("id,text\n")
    drain(make_job(model, tmp_path / name, tmp_path / "out"))
    assert rows_of(next((tmp_path / "out").glob("*.parquet"))) == []


def test_bad_rows_do_not_stop_a_job(model: Path, tmp_path: Path) -> None:
    lines = ['{"id": "a", "text": "fur"}', '{"id": "b", "text": " "}', "{oops", '{"id": 7}', '{"text": 3}', "[1]"]
    lines += ['{"id": "\\ud800", "text": "x \\ud800"}', '{"id": null, "text": "bärk"}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    bulk = drain(make_job(model, tmp_path / "x.jsonl", tmp_path / "out"))
    found = rows_of(tmp_path / "out" / "x.jsonl.parquet")
    assert [row["id"] for row in found] == ["a", "b", "2", "7", "4", "5", "?", "7"]
    errors = [row["error"] or "" for row in found]
    begins = ["", "the text is empty", "not JSON: ", "there is no text", "the text is int; expected", "a JSON list"]
    for error, begin in zip(errors, [*begins, "the text has a lone surrogate", ""], strict=True):
        assert error.startswith(begin) and bool(error) == bool(begin)
    assert (bulk.rows, bulk.bad) == (8, 6)
    assert bulk.example == f"'b' of '{tmp_path / 'x.jsonl'}': the text is empty"
    assert read_written(tmp_path / "out" / "x.jsonl.parquet", "x.jsonl.parquet") == bulk.written[0]


def test_unusable_input_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,texts\n1,fur\n")
    pq.write_table(pa.table({"body": ["fur"]}), tmp_path / "b.parquet")
    whole = gzip.compress(b'{"text": "fur"}\n' * 9_000)
    (tmp_path / "c.jsonl.gz").write_bytes(whole[:-20])
    (tmp_path / "d.parquet").write_text("PAR1")
    (tmp_path / "e.csv").write_bytes(b"text\nfur\rmilk\nwing\n")
    out = tmp_path / "out"
    for name, message in {
        "a.csv": r"a.csv' has no column 'text'; did you mean --text-column texts\?",
        "b.parquet": r"has no column 'text', only 'body'; name the column with --text-column",
        "c.jsonl.gz": r"c.jsonl.gz' cannot be read to its end: .*; repair it",
        "d.parquet": r"d.parquet' cannot be read: ",
        "e.csv": r"e.csv' cannot be read to its end: .*new-line",
        "f.csv": r"f.csv' does not exist",
        "*.nothing": r"names no data file; expected JSONL",
    }.items():
        with pytest.raises(DataError, match=message):
            drain(make_job(model, tmp_path / name, out / name[0]))
    assert not list(out.rglob("*.parquet")) and not list(out.rglob("*.draft"))
    write_jsonl(tmp_path / "x.jsonl", ["a"])
    write_jsonl(tmp_path / "x.jsonl.parquet", ["a"])
    with pytest.raises(ConfigError, match="unknown engine 'spark'; expected local, ray"):
        make_job(model, tmp_path / "x.jsonl", out, engine="spark")
    with pytest.raises(ConfigError, match="workers is -1; expected at least 0"):
        make_job(model, tmp_path / "x.jsonl", out, workers=-1)


def test_a_file_that_is_not_a_part_is_not_replaced(model: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["fur milk"])
    drain(make_job(model, tmp_path / "a.jsonl", tmp_path / "out"))
    (tmp_path / "out" / "a.jsonl.parquet").write_bytes(b"mine")
    with pytest.raises(ConfigError, match=r"a.jsonl.parquet' is damaged or not from hill; move it"):
        drain(make_job(model, tmp_path / "a.jsonl", tmp_path / "out"))
    assert (tmp_path / "out" / "a.jsonl.parquet").read_bytes() == b"mine"


def test_the_input_is_not_replaced_by_the_output(model: Path, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", ["fur milk"])
    before = file.read_bytes()
    with pytest.raises(DataError, match=r"--output is the input file '.*a.jsonl'; give another --output"):
        predict_file(HillClassifier.load(model), file, file)
    assert file.read_bytes() == before


def test_two_files_with_the_same_part_are_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["a"])
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "x.jsonl.parquet")
    with pytest.raises(DataError, match=r"would both be written to 'x.jsonl.parquet'; rename one"):
        find_parts(str(tmp_path), Cut(), tmp_path / "out")


def test_a_run_continues_where_it_was_stopped(model: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for name in "abc":
        write_jsonl(source / f"{name}.jsonl", ["fur milk", "leaf"], name)
    steps = make_job(model, source, out).run()
    for _ in range(3):
        next(steps)
    steps.close()
    assert [name for name in names_in(out) if "parquet" in name] == ["a.jsonl.parquet"], "no incomplete part"
    before = (out / "a.jsonl.parquet").stat().st_mtime_ns
    (out / ".hill-b.jsonl.parquet.7-00000000.draft").write_text("the draft of a killed run")
    (out / ".mine.draft").write_text("mine")
    write_jsonl(source / "d.jsonl", ["wing"])
    steps = make_job(model, source, out).run()
    assert next(steps) == 2, "rows on disk"
    assert sorted(path.name for path in out.glob(".*")) == [LOCK, ".mine.draft"], "the draft was removed"
    assert list(steps) == [2, 2, 1], "the missing parts, then the new one"
    assert (out / "a.jsonl.parquet").stat().st_mtime_ns == before
    assert [name for name in names_in(out) if "parquet" in name] == [f"{name}.jsonl.parquet" for name in "abcd"]
    (out / "b.jsonl.parquet").write_bytes((out / "b.jsonl.parquet").read_bytes()[:-9])
    with pytest.raises(ConfigError, match=r"b.jsonl.parquet' is damaged or not from hill"):
        list(make_job(model, source, out).run())
    (out / "b.jsonl.parquet").unlink()
    assert list(make_job(model, source, out).run()) == [5, 2], "a part that was removed is written again"


def change_text(source: Path, model: Path) -> None:
    write_jsonl(source / "a.jsonl", ["leaf root"], "z")


def change_time(source: Path, model: Path) -> None:
    os.utime(source / "a.jsonl", (1, 1))


def remove_file(source: Path, model: Path) -> None:
    (source / "a.jsonl").rename(source / "z.jsonl")


def change_model(source: Path, model: Path) -> None:
    (model / "files.json").write_text((model / "files.json").read_text() + "\n")


@pytest.mark.parametrize(
    "change, message",
    [
        (change_text, r"a.jsonl' has changed since '.*' was started; give another --output"),
        (change_time, r"a.jsonl' has changed since"),
        (remove_file, r"was started with '.*a.jsonl', which is not in the input; give another"),
        (change_model, r"has predictions of another model; give another --output, or remove"),
    ],
)
def test_a_run_does_not_continue_with_other_input_or_model(
    tmp_path: Path, change: Callable[[Path, Path], None], message: str
) -> None:
    source, model, out = tmp_path / "in", tmp_path / "model", tmp_path / "out"
    for folder in (source, model):
        folder.mkdir()
    (model / "files.json").write_text("{}")
    for name in "ab":
        write_jsonl(source / f"{name}.jsonl", ["fur milk", "leaf"], name)
    load = partial(RandomPredictor, animals_taxonomy())
    drain(Bulk(load, model, str(source), out))
    assert list(Bulk(load, model, str(source), out).run()) == [4]
    with pytest.raises(ConfigError, match=r"was started with .*'rows': 100000.* now they are .*'rows': 1"):
        drain(Bulk(load, model, str(source), out, cut=Cut(rows=1)))
    change(source, model)
    before = names_in(out)
    with pytest.raises(ConfigError, match=message):
        drain(Bulk(load, model, str(source), out))
    assert names_in(out) == before


def test_a_folder_with_other_files_or_in_use_is_refused(model: Path, tmp_path: Path) -> None:
    source, out = write_jsonl(tmp_path / "a.jsonl", ["fur"]), tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(
        ConfigError, match=r"has files that are not predictions, such as .thesis.txt.; give an empty or a new folder"
    ):
        drain(make_job(model, source, out))
    assert names_in(out) == ["thesis.txt"]
    first = make_job(model, source, tmp_path / "new").run()
    next(first)
    with pytest.raises(CheckpointError, match="another process writes to"):
        drain(make_job(model, source, tmp_path / "new"))
    first.close()
    drain(make_job(model, source, tmp_path / "new"))


class ChangingSource(RandomPredictor):
    """Appends to the source while it predicts."""

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        with Path(os.environ["HILL_TEST_SOURCE"]).open("a") as file:
            file.write('{"text": "late"}\n')
        return super().scores(texts)


def test_a_part_is_checked_before_it_is_renamed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["fur"] * (CHUNK + 2))
    part = find_parts(str(source), Cut(), tmp_path / "out")[0]
    columns = Columns(RandomPredictor(animals_taxonomy()))
    table = columns.table
    for wrong in (lambda rows: table(rows).slice(1), lambda rows: table(rows[::-1])):
        monkeypatch.setattr(columns, "table", wrong)
        with pytest.raises(DataError, match=r"has \d+ rows on disk, but 4098 were read"):
            list(write_part(columns, part, tmp_path / "out"))
    monkeypatch.setenv("HILL_TEST_SOURCE", str(source))
    with pytest.raises(DataError, match=r"a.jsonl' changed while it was read"):
        list(write_part(Columns(ChangingSource(animals_taxonomy())), part, tmp_path / "out"))
    source.unlink()
    with pytest.raises(DataError, match=r"a.jsonl' cannot be read to its end: .*No such file"):
        list(write_part(columns, part, tmp_path / "out"))
    with pytest.raises(DataError, match=r"cannot read '.*a.jsonl': No such file"):
        version_of(str(source))
    assert names_in(tmp_path / "out") == []


def test_processes_share_the_parts_and_a_death_loses_nothing(model: Path, tmp_path: Path) -> None:
    source, marks = tmp_path / "in", tmp_path / "marks"
    for folder in (source, marks):
        folder.mkdir()
    for number in range(5):
        write_jsonl(source / f"{number}.jsonl", [f"{number} {row}" for row in range(CHUNK + 4)], f"f{number}-")
    bulk = Bulk(partial(SlowPredictor, marks, 1), model, str(source), tmp_path / "two", workers=2)
    assert sum(bulk.run()) == 5 * (CHUNK + 4), "rows of the process that died are counted once"
    assert len(list(marks.iterdir())) == 1
    one = drain(Bulk(SlowPredictor, model, str(source), tmp_path / "one"))
    assert sorted(one.written, key=lambda w: w.name) == sorted(bulk.written, key=lambda w: w.name)
    for part in one.parts:
        assert rows_of(tmp_path / "one" / part.name) == rows_of(tmp_path / "two" / part.name)
    assert not list((tmp_path / "two").glob(".*"))
    (source / "0.jsonl").write_text('{"text": "fur"')
    (source / "1.csv").write_text("id,body\n1,2\n")
    with pytest.raises(DataError, match="has no column 'text'"):
        drain(Bulk(SlowPredictor, model, str(source), tmp_path / "three", workers=2))


def test_a_part_that_kills_three_processes_ends_the_job(model: Path, tmp_path: Path) -> None:
    for name in "ab":
        write_jsonl(tmp_path / f"{name}.jsonl", ["fur"])
    with pytest.raises(
        HillError, match=r"3 processes died on '.*' \(exit code 3\).*finished parts are kept.*fewer --workers"
    ):
        drain(Bulk(always_dying, model, str(tmp_path / "*.jsonl"), tmp_path / "out", workers=2))


SLOW_PROGRAM = """
import sys
from hill.bulk import Bulk
from tests.bulk.predictors import SlowPredictor
if __name__ == "__main__":
    for _ in Bulk(SlowPredictor, sys.argv[1], sys.argv[2], sys.argv[3], workers=int(sys.argv[4])).run():
        pass
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_run_leaves_complete_parts_and_continues(model: Path, tmp_path: Path, workers: str) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(12):
        write_jsonl(source / f"{number:02}.jsonl", toy_documents(20, number)[0])
    (tmp_path / "slow.py").write_text(SLOW_PROGRAM)
    command = [sys.executable, str(tmp_path / "slow.py"), str(model), str(source), str(out), workers]
    run = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True)
    deadline = time.monotonic() + 300
    while len(list(out.glob("*.parquet"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    run.kill()
    run.wait()
    wait_for_group(run.pid)
    finished = {file: file.stat().st_mtime_ns for file in out.glob("*.parquet")}
    assert 3 <= len(finished) < 12
    assert all(len(rows_of(file)) == 20 for file in finished)
    drain(Bulk(SlowPredictor, model, str(source), out))
    drain(Bulk(SlowPredictor, model, str(source), tmp_path / "one"))
    assert all(file.stat().st_mtime_ns == before for file, before in finished.items())
    for part in sorted((tmp_path / "one").glob("*.parquet")):
        assert rows_of(part) == rows_of(out / part.name)
    assert names_in(out) == names_in(tmp_path / "one")


def wait_for_group(number: int) -> None:
    """Wait until the worker processes of a killed process have ended."""
    deadline = time.monotonic() + 60
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(number, 0)
            time.sleep(0.02)


def hill(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def test_the_command_writes_parts_to_a_folder(model: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["fur milk", ""])
    write_jsonl(tmp_path / "b.jsonl", ["leaf"])
    given = ("--input", tmp_path / "*.jsonl", "--output")
    found = hill(model, *given, tmp_path / "out")
    assert found.exit_code == 0 and f"3 rows in 2 parts in {tmp_path / 'out'}" in found.stdout
    assert "rows with an error instead of labels: 1, such as 'd1' of" in found.stderr
    again = hill(model, *given, tmp_path / "out", "--strict", "--json")
    assert again.exit_code == 1, "with --strict, a row with an error is a failure"
    assert {**json.loads(again.stdout), "example": ""} == {"parts": 2, "rows": 3, "errors": 1, "example": ""}
    assert hill(model, "--input", tmp_path / "b.jsonl", "--output", tmp_path / "o2", "--strict").exit_code == 0
    write_jsonl(tmp_path / "c.jsonl", ["", " "])
    assert hill(model, "--input", tmp_path / "c.jsonl", "--output", tmp_path / "o3").exit_code == 1, "no valid row"


def test_the_command_writes_one_file(model: Path, tmp_path: Path) -> None:
    source, target = write_jsonl(tmp_path / "a.jsonl", ["fur milk", "leaf"]), tmp_path / "out.jsonl"
    assert hill(model, "--input", source, "--output", target).exit_code == 0
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == ["d0", "d1"]
    for options in (("--engine", "ray"), ("--workers", 2)):
        with pytest.raises(ConfigError, match="give it a folder"):
            CliRunner().invoke(
                app,
                ["predict", str(model), "--input", str(source), "--output", str(target), *map(str, options)],
                catch_exceptions=False,
            )
