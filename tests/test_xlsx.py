"""Workbooks as Excel and others write them."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from hill.data.xlsx import read_xlsx
from hill.errors import DataError

SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


WORKBOOK = (
    f'<workbook xmlns="{SHEET}" xmlns:r="{LINKS}"><sheets><sheet name="A" sheetId="9" r:id="rId5"/>'
    '<sheet name="B" sheetId="1" r:id="rId1"/></sheets></workbook>'
)
RELATIONS = (
    '<Relationships><Relationship Id="rId1" Target="worksheets/b.xml"/>'
    '<Relationship Id="rId5" Target="{target}"/></Relationships>'
)


def write_book(path: Path, sheet: str, strings: str = "", target: str = "worksheets/sheet9.xml") -> None:
    """A workbook of two sheets, of which the first is the one given."""
    with ZipFile(path, "w") as book:
        book.writestr("xl/workbook.xml", WORKBOOK)
        book.writestr("xl/_rels/workbook.xml.rels", RELATIONS.format(target=target))
        if strings:
            book.writestr("xl/sharedStrings.xml", f'<sst xmlns="{SHEET}">{strings}</sst>')
        book.writestr("xl/worksheets/sheet9.xml", f'<worksheet xmlns="{SHEET}">{sheet}</worksheet>')
        book.writestr("xl/worksheets/b.xml", f'<worksheet xmlns="{SHEET}"><sheetData><row/></sheetData></worksheet>')


def sheet(rows: str) -> str:
    return f'<cols><col min="1"/></cols><sheetData>{rows}</sheetData><pageMargins/>'


def test_cells_of_every_kind(tmp_path: Path) -> None:
    strings = "<si><t>plain</t></si><si><r><rPr><b/></rPr><t>bo</t></r><r><t>ld</t></r><rPh><t>reading</t></rPh></si>"
    rows = '<row r="3"><c r="B3" t="s"><v>1</v></c><c t="s"><v>0</v></c><c r="AA3"><f>1+1</f><v>2.5</v></c></row>'
    rows += '<row><c t="inlineStr"><is><r><t>a_x000D_</t></r><r><t>b_x005F_x</t></r></is></c><c t="s"/><c/></row>'
    for target in ("worksheets/sheet9.xml", "/xl/worksheets/sheet9.xml"):
        write_book(tmp_path / "a.xlsx", sheet(rows), strings, target)
        assert list(read_xlsx(tmp_path / "a.xlsx")) == [
            (3, ["", "bold", "plain", *[""] * 23, "2.5"]),
            (2, ["a\rb_x", "", ""]),
        ]


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ('<row><c t="s"><v>5</v></c></row>', "not a usable .xlsx workbook"),
        ('<row><c r="ZZZZ1"><v>5</v></c></row>', "cell 'ZZZZ1' is beyond the last column"),
        ("<row>", "mismatched tag"),
    ],
)
def test_broken_sheets(tmp_path: Path, rows: str, match: str) -> None:
    write_book(tmp_path / "a.xlsx", sheet(rows), "<si><t>x</t></si>")
    with pytest.raises(DataError, match=match):
        list(read_xlsx(tmp_path / "a.xlsx"))


def test_a_workbook_without_its_parts(tmp_path: Path) -> None:
    write_book(tmp_path / "a.xlsx", sheet(""), target="worksheets/gone.xml")
    with pytest.raises(DataError, match=r"xl/worksheets/gone.xml"):
        list(read_xlsx(tmp_path / "a.xlsx"))
