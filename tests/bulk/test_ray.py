"""Bulk prediction with a real Ray cluster of several processes on this machine."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hill.bulk import Bulk
from hill.classifier import HillClassifier
from hill.errors import HillError
from tests.bulk.predictors import SlowPredictor
from tests.bulk.test_bulk import save_model
from tests.conftest import ROOT, animals_taxonomy, toy_documents

ray = pytest.importorskip("ray", reason="Ray is not installed; run: pip install 'ray[data]'")
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::FutureWarning", "ignore:`use_:DeprecationWarning"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    paths = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=paths)
    yield
    ray.shutdown()


def run(load: Any, model: Path, source: Path, folder: Path, **options: Any) -> Bulk:
    bulk = Bulk(load, model, str(source), folder, **options)
    assert sum(bulk.run()) == bulk.rows
    return bulk


def write(folder: Path, files: int) -> list[str]:
    folder.mkdir()
    texts = toy_documents(10 * files, 3)[0]
    for number in range(files):
        some = enumerate(texts[10 * number : 10 * number + 10], 10 * number)
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in some))
    return texts


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def test_ray_equals_the_model_and_the_local_engine(cluster: None, tiny_encoder: Path, tmp_path: Path) -> None:
    model = save_model(tiny_encoder, tmp_path / "model")
    texts = write(tmp_path / "in", 4)
    load = partial(HillClassifier.load, model, "cpu")
    bulk = run(load, model, tmp_path / "in", tmp_path / "ray", engine="ray", workers=2)
    assert (bulk.rows, bulk.bad, len(bulk.written)) == (40, 0, 4)
    run(load, model, tmp_path / "in", tmp_path / "local")
    found = rows_of(tmp_path / "ray")
    assert found == rows_of(tmp_path / "local")
    for number, (row, wanted) in enumerate(zip(found, load().predictions(texts), strict=True)):
        assert (row["id"], row["labels"]) == (str(number), list(wanted.labels))
        assert row["scores"] == pytest.approx(wanted.scores, abs=1e-5)
        taxonomy = animals_taxonomy()
        assert row["paths"] == [[taxonomy[taxonomy.row(label)].name for label in path] for path in wanted.paths]


def test_a_killed_actor_neither_loses_nor_duplicates_rows(cluster: None, tmp_path: Path) -> None:
    write(tmp_path / "in", 8)
    model, marks = tmp_path / "model", tmp_path / "marks"
    for folder in (model, marks):
        folder.mkdir()
    (model / "files.json").write_text("{}")
    load = partial(SlowPredictor, marks, 1)
    bulk = run(load, model, tmp_path / "in", tmp_path / "ray", engine="ray", workers=2)
    assert len(list(marks.iterdir())) == 1, "an actor was killed while it wrote a part"
    run(SlowPredictor, model, tmp_path / "in", tmp_path / "local")
    assert [row["id"] for row in rows_of(tmp_path / "ray")] == [str(i) for i in range(80)]
    assert rows_of(tmp_path / "ray") == rows_of(tmp_path / "local")
    assert len({written.name for written in bulk.written}) == len(bulk.written) == 8
    assert not list((tmp_path / "ray").glob(".*"))
    (tmp_path / "ray" / "3.jsonl.parquet").unlink()
    assert list(Bulk(SlowPredictor, model, str(tmp_path / "in"), tmp_path / "ray", "ray").run()) == [70, 10]
    (tmp_path / "ray" / "3.jsonl.parquet").unlink()
    dying = partial(SlowPredictor, marks, 99, first=1)
    with pytest.raises(HillError, match=r"3 actors died on '.*3.jsonl', .*; finished parts are kept"):
        run(dying, model, tmp_path / "in", tmp_path / "ray", engine="ray", workers=2)
    (tmp_path / "in" / "9.csv").write_text("id,body\n1,2\n")
    with pytest.raises(HillError, match=r"9.csv' has no column 'text', only 'id', 'body'"):
        run(SlowPredictor, model, tmp_path / "in", tmp_path / "ray", engine="ray")
