"""The comparison with other programs: its driver on tiny data, and the threshold that it chooses."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT, toy_documents

pytest.importorskip("sklearn")
PEERS = ROOT / "benchmarks" / "peers"
LABELS = "id\tparents\tname\nscience\t\tScience\n" + "".join(
    f"{label}\tscience\t{label}\n" for label in ("bat", "mo", "fo", "p")
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "toy"
    folder.mkdir(parents=True)
    (folder / "taxonomy.tsv").write_text(LABELS)
    for seed, split in enumerate(("train", "dev", "test")):
        texts, labels = toy_documents(40, seed)
        rows = [{"text": text, "labels": sorted(set(own))} for text, own in zip(texts, labels, strict=True)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder.parent


def run(data: Path, peer: str, *options: str) -> list[dict[str, Any]]:
    """Run the driver on one core, and return the rows of its file."""
    out = data / "rows.jsonl"
    command = [sys.executable, str(PEERS / "run.py"), "--data", str(data), "--out", str(out), "--peers", peer]
    command += ["--sets", "toy", "--sizes", "30", "--devices", "cpu", "--slots", str(min(os.sched_getaffinity(0)))]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([*command, *options], check=True, env=environment)
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_a_row_is_written_once_and_one_that_takes_too_long_is_recorded(data: Path) -> None:
    key = {"data": "toy", "size": 30, "on": "cpu"}
    stopped = {**key, "peer": "tfidf-logreg", "limit": 0.05}
    assert run(data, "tfidf-logreg", "--limit", "0.05") == [stopped]
    assert run(data, "tfidf-logreg", "--limit", "0.05") == [stopped], "a run with this limit is not repeated"
    first, row = run(data, "tfidf-svm")
    assert first == stopped and row.items() >= {**key, "peer": "tfidf-svm", "documents": 30, "cores": 1}.items()
    assert row["test"]["micro_f1"] == row["test"]["hierarchical_f1"] > 0.8
    assert row["settings"] in [{name: trial[name] for name in ("features", "C")} for trial in row["trials"]]
    assert max(trial["micro_f1"] for trial in row["trials"]) == row["dev"]["micro_f1"]
    assert 0 < row["seconds"] <= row["seconds_with_grid"] + 0.01 and row["model_mib"] > 0 and row["mib"]["process"] > 50


def test_a_run_that_fails_is_recorded_and_repeated(data: Path) -> None:
    (data / "toy" / "dev.jsonl").unlink()
    (row,) = run(data, "tfidf-svm")
    assert "dev" in row["error"]
    assert len(run(data, "tfidf-svm")) == 2


def test_the_threshold_is_the_best_one(monkeypatch: pytest.MonkeyPatch) -> None:
    best_threshold = runpy.run_path(str(PEERS / "common.py"))["best_threshold"]
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores, gold = rng.integers(0, 8, (12, 5)).astype(np.float32), rng.random((12, 5)) < 0.3

        def f1(threshold: float, scores: Any = scores, gold: Any = gold) -> float:
            chosen = scores > threshold
            return float(2 * (chosen & gold).sum() / (chosen.sum() + gold.sum()))

        assert f1(best_threshold(scores, gold)) == max(f1(value) for value in np.arange(-1, 9))
