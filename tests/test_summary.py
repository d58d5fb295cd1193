"""The table of benchmarks: hill beside other programs, from any of the files that exist."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

TABLE = runpy.run_path(str(ROOT / "benchmarks" / "summary.py"))["table"]
HEAD = [
    "documents per second",
    "hill",
    "plain PyTorch",
    "Hugging Face Trainer",
    "sentence-transformers, vectors alone",
    "machine",
]


def step(model: str, batch: int, mode: str, train: int, predict: int) -> dict[str, Any]:
    return {"model": model, "batch": batch, "mode": mode, "train_docs_s": train, "eval_docs_s": predict}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    speeds = {"PyTorch fp32, plain": 50.0, "hill": 200.4, "sentence-transformers, vectors alone": 40.0}
    steps = [
        step("hill", 32, "fast", 1_000, 9_000),
        step("hill", 32, "trainer", 400, 3_000),
        step("hill", 128, "fast", 2_000, 8_000),
        step("flat", 128, "plain", 7, 7),
    ]
    engines = [{"engine": "local, 1 process", "rows_s": 5_000}, {"engine": "local, 2 processes", "rows_s": 8_000}]
    ray = [{"engine": "ray, 2 actors", "rows_s": 9_000}]
    starts = [{"command": "hill predict, minilm", "median_s": 2.63}, {"command": "hill --help", "median_s": 0.1}]
    files = {
        "bench_cpu": {"documents_a_second": speeds, "machine": "2 cores, with VNNI, torch 2, onnxruntime 1"},
        "bench_step_minilm": {"encoder": "minilm", "machine": "a GPU, torch 2, transformers 5", "rows": steps},
        "bench_step_other": {"encoder": "other", "rows": [step("hill", 8, "fast", 10, 20)]},
        "bench_step_none": {"encoder": "none", "rows": [step("hill", 8, "trainer", 10, 20)]},
        "bench_bulk": {"machine": "2 cores", "rows": engines + ray},
        "bench_start": {"machine": "2 cores, Python 3", "rows": starts},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def rows(folder: Path) -> list[list[str]]:
    lines = [line.strip("|").split("|") for line in TABLE(folder).splitlines()]
    assert {len(cells) for cells in lines} == {len(HEAD)} and set(map(str.strip, lines[1])) == {"---"}
    return [[cell.strip() for cell in cells] for cells in (lines[0], *lines[2:])]


def test_other_programs_stand_beside_hill_with_the_same_batch(results: Path) -> None:
    assert rows(results) == [
        HEAD,
        ["predict, MiniLM, 128 tokens", "200", "50 (4.0×)", "", "40 (5.0×)", "2 cores, with VNNI"],
        ["train, MiniLM, 200 tokens, batches of 32", "1,000", "", "400 (2.5×)", "", "a GPU"],
        ["predict, MiniLM, 200 tokens", "9,000", "", "3,000 (3.0×)", "", "a GPU"],
        ["train, other, 200 tokens, batches of 8", "10", "", "", "", ""],
        ["predict, other, 200 tokens", "20", "", "", "", ""],
        ["bulk: read, decode and write only, 2 processes", "8,000", "", "", "", "2 cores"],
        ["start `hill predict`", "2.6 s", "", "", "", "2 cores"],
    ]


def test_files_may_be_missing(results: Path) -> None:
    for file in results.glob("*.json"):
        before = len(rows(results))
        file.unlink()
        assert len(rows(results)) <= before
    assert rows(results) == [HEAD]
