"""The command line as a user runs it: its output, its exit code, and that a process of its own has the same."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hill.cli.common import pause_gc
from tests.command import hill
from tests.conftest import ROOT

TAXONOMY = "id\tparents\tname\nsci\t\tScience\nphys\tsci\tPhysics\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "taxonomy.tsv").write_text(TAXONOMY)
    (tmp_path / "train.jsonl").write_text('{"text": "quarks", "labels": ["Physics"]}\n')
    return tmp_path


def test_help_and_version() -> None:
    shown = subprocess.run([sys.executable, "-m", "hill", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert "check" in shown.stdout and shown.returncode == 0
    assert hill("--version").stdout.startswith("hill 0.")
    assert "JSONL, CSV, Excel or Parquet" in hill("check", "--help").stdout


def test_the_help_needs_no_slow_imports() -> None:
    program = "import sys, hill.cli; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert not {"numpy", "scipy", "numba", "torch", "transformers"} & set(loaded.split())


def test_garbage_collection_continues_after_loading() -> None:
    with pytest.raises(ValueError, match="damaged"), pause_gc():
        assert not gc.isenabled()
        raise ValueError("damaged")
    assert gc.isenabled() and gc.get_freeze_count() > 0
    gc.unfreeze()


def test_check_good_data(folder: Path) -> None:
    result = hill("check", folder, "--taxonomy", folder / "taxonomy.tsv")
    assert result.returncode == 0 and "fit to train on" in result.stdout
    as_json = hill("check", folder, "--taxonomy", folder / "taxonomy.tsv", "--json")
    document = json.loads(as_json.stdout)
    assert as_json.returncode == 0 and as_json.stdout.count("\n") == 1
    assert set(document) == {"fit", "splits", "labels", "problems"}
    assert document["fit"] is True and document["splits"]["train"]["documents"] == 1
    assert (document["labels"]["total"], document["labels"]["used"]) == (2, 2)


def test_check_bad_data_exits_1(folder: Path) -> None:
    (folder / "train.jsonl").write_text('{"text": "quarks", "labels": ["Physik"]}\n')
    result = hill("check", folder, "--taxonomy", folder / "taxonomy.tsv")
    assert result.returncode == 1 and "train.jsonl:1: label 'Physik' is not in the taxonomy" in result.stdout
    assert json.loads(hill("check", folder, "--taxonomy", folder / "taxonomy.tsv", "--json").stdout)["fit"] is False


def test_a_wrong_request_exits_2_with_one_line(folder: Path) -> None:
    result = hill("check", folder, "--taxonomy", folder / "none.tsv")
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("hill: taxonomy file '") and result.stderr.count("\n") == 1
    assert hill("check", folder / "none", "--taxonomy", folder / "taxonomy.tsv").returncode == 2
    assert hill("check").returncode == 2 and hill("chekc").returncode == 2
    assert hill("--help").returncode == 0 and hill("check", "--help").returncode == 0


def test_the_exit_code_is_that_of_the_process(folder: Path) -> None:
    command = [sys.executable, "-m", "hill", "check", str(folder), "--taxonomy"]
    asked = [*command, str(folder / "none.tsv")]
    result = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (result.returncode, result.stdout) == (2, "") and result.stderr == hill(*asked[3:]).stderr
