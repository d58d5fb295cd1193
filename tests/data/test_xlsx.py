"""Excel workbooks: what is read of them, and which are refused."""

import sys
from pathlib import Path

import openpyxl
import pytest

from hill.data.readers import read_xlsx
from hill.errors import ConfigError, DataError
from tests.fuzz.seeds import workbook


def test_cells_become_strings(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append([1, 2.5, "text", None, "last"])
    book.active["B3"] = "a_x000D_b"
    book.create_sheet("second").append(["ignored"])
    book.save(tmp_path / "a.xlsx")
    rows = list(read_xlsx(tmp_path / "a.xlsx"))
    assert rows == [(1, ["1", "2.5", "text", "", "last"]), (2, []), (3, ["", "a\rb"])]


def test_shared_strings(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(workbook([["a", "#0", "b"], ["#1"]], ["x", "y"]))
    assert list(read_xlsx(tmp_path / "a.xlsx")) == [(1, ["a", "x", "b"]), (2, ["y"])]


def test_damaged_workbooks(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"PK no zip")
    with pytest.raises(DataError, match=r"a.xlsx' is not a usable .xlsx workbook: .*; save it from Excel again"):
        list(read_xlsx(tmp_path / "a.xlsx"))


def test_openpyxl_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ConfigError, match=r"reading .xlsx workbooks needs openpyxl.*run: pip install 'openpyxl>="):
        list(read_xlsx(tmp_path / "a.xlsx"))
