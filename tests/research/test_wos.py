"""WOS-46985, from small files in exactly the formats of the original distribution."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from hill.research.datasets import WosRow, clean, hold_out, merge_areas, split_indices
from tests.research.test_prepare import fails, read_back, run

HEADER = ["Y1", "Y2", "Y", "Domain", "area", "keywords", "Abstract"]


def wos_rows() -> list[list[str]]:
    """Thirty rows: code 1-9 has two names for an area, and abstracts that need cleaning stand among plain ones."""
    areas = [("1", "9", "ECE", "Electrical generator"), ("5", "7", "Medical ", "Depression")]
    areas += [("1", "9", "ECE", " Analog signal processing")] * 3 + [("1", "9", "ECE", "Electrical generator")]
    areas += [("0", "2", "CS", "Computer vision")] * 3 + [("5", "7", "Medical", "Atrial Fibrillation")] * 2
    rows = [
        [y1, y2, "7", domain, area, "k; w", f"Abstract {i}  of the Author's."]
        for i, (y1, y2, domain, area) in enumerate((areas * 3)[:30])
    ]
    rows[4][6] = '"It isn\'t A & B < C, ünlike ""D""."'
    rows[6][6] = " "
    return rows


WOS_AREAS = ["Electrical generator", "Depression"] + ["Analog signal processing"] * 4 + ["Computer vision"] * 3
WOS_AREAS += ["Atrial Fibrillation"] * 2
WOS_AREAS += ["Analog signal processing", "Atrial Fibrillation", *WOS_AREAS[2:]]
WOS_AREAS = (WOS_AREAS + WOS_AREAS[11:])[:30]


def write_xlsx(path: Path, rows: list[list[str]]) -> None:
    """A workbook with numbers as numbers, a blank row and a blank column at the end."""
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append([int(cell) if cell.isdecimal() else cell.strip(" ") and cell for cell in row])
    book.active["H1"] = ""
    book.active["A90"] = ""
    book.save(path)


def write_text(path: Path, rows: list[list[str]], encoding: str = "utf-16") -> None:
    path.write_bytes(("".join("\t".join(row) + "\r\n" for row in rows) + "\r\n").encode(encoding))


WRITERS: dict[str, Callable[[Path], None]] = {
    "xlsx": lambda folder: write_xlsx(folder / "Data.xlsx", [HEADER, *wos_rows()]),
    "utf-16": lambda folder: write_text(folder / "Data.txt", [HEADER, *wos_rows()]),
    "utf-8": lambda folder: write_text(folder / "Data.txt", [HEADER, *wos_rows()], "utf-8-sig"),
}


@pytest.mark.parametrize("folder", ["", "Meta-data"])
@pytest.mark.parametrize("form", WRITERS)
def test_wos_from_every_form(tmp_path: Path, form: str, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    WRITERS[form](tmp_path / folder)
    prepared = run("wos", tmp_path)
    splits, taxonomy = read_back(tmp_path / "out")

    rows, order = wos_rows(), list(range(30))
    np.random.RandomState(7).shuffle(order)
    rest, test = train_test_split(order, test_size=0.2, random_state=0)
    train, dev = train_test_split(rest, test_size=0.2, random_state=0)
    for split, indices in (("train", train), ("dev", dev), ("test", test)):
        assert [int(number) for number, _, _ in splits[split]] == [i for i in indices if i != 6]
    for number, text, labels in (document for split in splits.values() for document in split):
        assert labels == [rows[int(number)][3].strip(), WOS_AREAS[int(number)]]
        plain = f"abstract {number} of the author 's."
        assert text == ('it is n\'t a & b < c, ünlike ""d"".' if number == "4" else plain)
    assert taxonomy.ids[:3] == ["ECE", "Medical", "CS"] and len(taxonomy.levels) == 2
    assert taxonomy.ids[3:] == list(dict.fromkeys(WOS_AREAS))
    assert prepared.documents == {split: len(documents) for split, documents in splits.items()}
    assert prepared.labels == 8
    assert prepared.notes == [
        "30 rows, but WOS-46985 has 46,985: the split is not the published one",
        "5 rows of 'Electrical generator' merged into 'Analog signal processing' (code 1-9)",
        "2 rows of 'Depression' merged into 'Atrial Fibrillation' (code 5-7)",
        "1 row without an abstract left out",
    ]


def test_wos_split_is_the_published_one() -> None:
    expected = [
        (30_070, [43817, 20131, 22368, 39288, 2020, 4024], "63ece3e19b0e5146d4b6471823598cc2"),
        (7_518, [14007, 3595, 10052, 36681, 27854, 29864], "ef4db6e3920932c9406135c9f04f5bac"),
        (9_397, [539, 27780, 37168, 22575, 17027, 39046], "80d1e8cecc66a3dd6ec3f18c18648766"),
    ]
    for indices, (count, first, md5) in zip(split_indices(46_985), expected, strict=True):
        assert len(indices) == count and indices[:6].tolist() == first
        assert hashlib.md5(" ".join(map(str, indices)).encode()).hexdigest() == md5


@given(st.integers(5, 3_000), st.sampled_from([0.1, 0.2]))
def test_hold_out_is_what_scikit_learn_does(n: int, share: float) -> None:
    kept, held = train_test_split(range(n), test_size=share, random_state=0)
    assert [part.tolist() for part in hold_out(np.arange(n), share)] == [kept, held]


def merged(*rows: tuple[str, str, str]) -> list[str]:
    return merge_areas([WosRow(*row, text=0) for row in rows])


def test_areas_merge_towards_the_frequent_name_seen_so_far() -> None:
    generator, analog = ("1-9", "ECE", "generator"), ("1-9", "ECE", "analog")
    assert merged(generator, analog, generator, analog, analog) == ["generator"] + ["analog"] * 4
    assert merged(analog, generator) == ["analog", "generator"], "neither is more frequent"
    a, b, c = ("1", "D", "a"), ("1", "D", "b"), ("1", "D", "c")
    assert merged(a, b, c, a, b, b, c, c, c) == list("abcbccccc"), "the first more frequent name, not the most"


AFFECTED = [
    ("1-10", ["Electric motor", "Satellite radio", "Single-phase electric power"], "Electric motor"),
    ("6-1", ["Cell biology", "DNA/RNA sequencing"], "Cell biology"),
    ("5-7", ["Atrial Fibrillation", "Depression"], "Atrial Fibrillation"),
    ("5-10", ["Bipolar Disorder", "Schizophrenia"], "Bipolar Disorder"),
    ("5-17", ["Digestive Health", "Outdoor Health"], "Digestive Health"),
]


@pytest.mark.parametrize(("code", "names", "target"), AFFECTED, ids=[code for code, _, _ in AFFECTED])
def test_areas_of_the_affected_codes(code: str, names: list[str], target: str) -> None:
    rows = [(code, "D", name) for place, name in enumerate(names) for _ in range(9 - 4 * place)]
    assert merged(*rows) == [target] * len(rows)


def test_areas_merge_only_within_a_code_and_count_only_within_a_domain() -> None:
    schizophrenia, bipolar = ("5-10", "Medical", "Schizophrenia"), ("5-10", "Medical", "Bipolar Disorder")
    psychology = [("6-1", "Psychology", "Schizophrenia")] * 5
    assert merged(*psychology, bipolar, bipolar, schizophrenia)[5:] == ["Bipolar Disorder"] * 3
    assert merged(*psychology, bipolar, bipolar, schizophrenia)[:5] == ["Schizophrenia"] * 5
    assert merged(("1-2", "D", "often"), ("1-2", "D", "often"), ("1-1", "D", "rare")) == ["often", "often", "rare"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('  "Quoted."  ', "quoted."),
        ("We've shown they're Ohm's.", "we 've shown they 're ohm 's."),
        ("She'd say it'll, isn't it?", "she 'd say it 'll, is n't it?"),
        ("Keep 3.5% of (this), the a!", "keep 3.5% of (this), the a!"),
        ("a \n\t b\tc", "a b\tc"),
    ],
)
def test_cleaning(text: str, expected: str) -> None:
    assert clean(text) == expected


def change(row: int, column: int, value: str) -> list[list[str]]:
    rows = [HEADER, *wos_rows()]
    rows[row][column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([["id", "text"], ["1", "x"]], "Data.txt' begins with id, text; expected the columns Y1, Y2, Y, Domain, area"),
        ([], "begins with nothing"),
        ([HEADER], "has a header but no rows"),
        (change(3, 4, "a\tb"), "8 columns on line 4 of '.*Data.txt'; expected 7"),
        (change(3, 3, " "), "no domain or no area on line 4"),
        (change(2, 3, "CS") + change(2, 3, "ECE")[2:3] * 9, "the area 'Depression' is under 'CS' and 'ECE'"),
    ],
    ids=["header", "nothing", "no-rows", "columns", "domain", "two-domains"],
)
def test_wos_refuses(tmp_path: Path, rows: list[list[str]], match: str) -> None:
    write_text(tmp_path / "Data.txt", [list(row) for row in rows])
    fails("wos", tmp_path, match)


def test_wos_files_that_cannot_be_read(tmp_path: Path) -> None:
    fails("wos", tmp_path, r"none of .*Data.xlsx', .*Meta-data/Data.txt' exists; get it from .*Mendeley Data")
    (tmp_path / "Data.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    fails("wos", tmp_path, r"Data.xls' is an old binary workbook; open it and save it as Data.xlsx, or as Data.txt")
    write_text(tmp_path / "Data.txt", [HEADER, *wos_rows()], "cp1252")
    fails("wos", tmp_path, "is neither UTF-8 nor UTF-16 with a mark .*save it from Excel as Unicode text")
    (tmp_path / "Data.xlsx").write_bytes(b"PK no zip")
    fails("wos", tmp_path, "Data.xlsx' is not a usable .xlsx workbook: .*save it from Excel again")
