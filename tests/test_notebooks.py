"""The notebooks in examples/ run from top to bottom, each in a kernel of its own."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
EXPECTED = {
    "quickstart": ["micro_f1  ", "0.9", "Diabetes mellitus", "'block S80-S89'"],
    "own_data": [
        "fit to train on",
        "30 documents of test",
        "only the other 30 are scored",
        "Home > Kitchen > Knives')",
    ],
    "error_analysis": ["sibling ", "      gold  ", "report.html", "  fracture"],
    "serving": ["'paths': [['food', 'fruit']]", "[['tools']]", "422 {"],
}
"""Words that the outputs of a notebook must have."""
SECONDS = 120


def test_all_notebooks_are_expected() -> None:
    assert sorted(EXPECTED) == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), "commit notebooks without outputs"
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = "\n".join(str(output) for cell in code for output in cell.outputs)
    for words in EXPECTED[path.stem]:
        assert words in shown
