"""Prediction in bulk on a real Ray cluster of several processes on this machine."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hill.classifier import HillClassifier
from hill.engines import Bulk
from hill.errors import HillError
from tests.conftest import ROOT, toy_documents
from tests.test_engines import save_model
from tests.test_engines_made import Slow

ray = pytest.importorskip("ray", reason="Ray is not installed; run: pip install 'hill-htc[ray]'")
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


def test_ray_says_what_the_model_says(cluster: None, tiny_encoder: Path, tmp_path: Path) -> None:
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
        assert row["paths"] == [list(path) for path in wanted.paths]


def test_an_actor_that_is_killed_loses_and_doubles_nothing(cluster: None, tmp_path: Path) -> None:
    write(tmp_path / "in", 8)
    model, marks = tmp_path / "model", tmp_path / "marks"
    for folder in (model, marks):
        folder.mkdir()
    (model / "files.json").write_text("{}")
    load = partial(Slow, marks, 1)
    bulk = run(load, model, tmp_path / "in", tmp_path / "ray", engine="ray", workers=2)
    assert len(list(marks.iterdir())) == 1, "an actor's process was killed in the middle of a part"
    run(Slow, model, tmp_path / "in", tmp_path / "local")
    assert [row["id"] for row in rows_of(tmp_path / "ray")] == [str(i) for i in range(80)]
    assert rows_of(tmp_path / "ray") == rows_of(tmp_path / "local")
    assert len({written.name for written in bulk.written}) == len(bulk.written) == 8
    assert not list((tmp_path / "ray").glob(".*"))
    (tmp_path / "ray" / "3.jsonl.parquet").unlink()
    assert list(Bulk(Slow, model, str(tmp_path / "in"), tmp_path / "ray", "ray").run()) == [70, 10], "it goes on"
    (tmp_path / "ray" / "3.jsonl.parquet").unlink()
    with pytest.raises(HillError, match=r"3 actors died on '.*3.jsonl', perhaps for want of memory; what is written"):
        run(partial(Slow, marks, 99, first=1), model, tmp_path / "in", tmp_path / "ray", engine="ray", workers=2)
    (tmp_path / "in" / "9.csv").write_text("id,body\n1,2\n")
    with pytest.raises(HillError, match=r"9.csv' has no column 'text' but 'id', 'body'"):
        run(Slow, model, tmp_path / "in", tmp_path / "ray", engine="ray")
