"""A table: CSV in, CSV with labels out."""

import csv
import io
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Models
from tests.browser.taxonomies import FORMULA, IMAGE, SCRIPT
from tests.conftest import toy_documents

ODD = ["", " ", "a", "é😀", '"', '""', ",", ";", "\t", "\n", "\r\n", "'", "=1", "x\ny"]


def cells(draw: random.Random) -> str:
    return "".join(draw.choice(ODD) for _ in range(draw.randint(0, 4)))


def table(seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    width = draw.randint(2, 4)
    return [[cells(draw) for _ in range(width)] for _ in range(draw.randint(1, 6))]


def written(rows: list[list[str]], **style: Any) -> str:
    out = io.StringIO()
    csv.writer(out, **style).writerows(rows)
    return out.getvalue()


def upload(page: Page, name: str, content: bytes) -> None:
    page.click("#tab-table")
    page.set_input_files("#file", {"name": name, "mimeType": "text/csv", "buffer": content})


def download(page: Page) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        page.click("#download")
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def test_csv_equals_the_csv_module_of_python(page: Page) -> None:
    styles = [{"delimiter": mark, "lineterminator": end} for mark in ",;\t" for end in ("\r\n", "\n")]
    tables = [(table(seed), style) for seed in range(60) for style in styles]
    read = page.evaluate(
        "async (given) => { const csv = await import('/static/csv.js');"
        "return given.map(([text, delimiter]) => csv.parse(text, delimiter)) }",
        [(written(rows, **style), style["delimiter"]) for rows, style in tables],
    )
    assert read == [rows for rows, _ in tables]
    texts = page.evaluate(
        "async (given) => { const csv = await import('/static/csv.js');"
        "return given.map(([rows, { delimiter }]) => csv.write(rows, delimiter)) }",
        tables,
    )
    for text, (rows, style) in zip(texts, tables, strict=True):
        assert list(csv.reader(io.StringIO(text, newline=""), delimiter=style["delimiter"])) == rows


def test_the_delimiter_is_guessed_outside_quotes(page: Page) -> None:
    given = {"a,b;c,d\n1;2;3;4": ",", '"a,b,c";d\n': ";", "a\tb\tc,d": "\t", "alone": ","}
    code = "async (texts) => { const csv = await import('/static/csv.js'); return texts.map(csv.guess) }"
    assert page.evaluate(code, list(given)) == list(given.values())


def test_formulas_become_text(page: Page) -> None:
    risky = ["=1+1", "+1", "-1", "@A1", "\t=1", " =1", "\rx", "＝1"]
    plain = ["a", "cs.LG", "0.93", "a=b", "1-2", ""]
    code = "async (cells) => { const csv = await import('/static/csv.js'); return cells.map(csv.harmless) }"
    assert page.evaluate(code, risky + plain) == ["'" + cell for cell in risky] + plain


def test_a_table_is_labelled(page: Page, models: Models) -> None:
    texts = toy_documents(70, 8)[0]
    texts[3], texts[5] = "", 'fur "milk",\nwhiskers'
    rows = [["n", "Text", "hill_labels"], *([str(i), text, f"=old{i}"] for i, text in enumerate(texts))]
    upload(page, "my papers.csv", b"\xef\xbb\xbf" + written(rows).encode())
    expect(page.locator("#file-note")).to_have_text("70 rows, 3 columns")
    expect(page.locator("#column option:checked")).to_have_text("Text")
    expect(page.locator("#empty-rows")).to_have_text("1 row without text will get no labels.")
    page.click("text=Label 70 rows")
    expect(page.locator("#progress")).to_have_text("70 rows done.")
    expect(page.locator("#live")).to_have_text("70 rows done.")
    name, content = download(page)
    assert name == "my papers-labelled.csv" and content.startswith(b"\xef\xbb\xbf")
    found = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    assert found[0] == [*rows[0], "hill_labels_2", "hill_paths", "hill_scores"]
    assert [row[:3] for row in found] == rows, "what was there stays as it was"
    filled = [i for i in range(70) if texts[i]]
    expected = models.animals.predictions([texts[i] for i in filled])
    names = {label.id: label.name for label in models.animals.taxonomy}
    for i, prediction in zip(filled, expected, strict=True):
        assert found[i + 1][3] == " | ".join(prediction.labels)
        assert found[i + 1][4] == " | ".join(" > ".join(names[one] for one in path) for path in prediction.paths)
    assert found[4][3:] == ["", "", ""]


def test_added_cells_cannot_be_formulas(page: Page) -> None:
    page.select_option("#model", "hostile")
    expect(page.locator(".panel h2")).to_have_text("hostile")
    page.select_option("#strategy", "raw")
    upload(page, "x.csv", written([["text"], ["alpha beta"], ["omega psi"], ["gamma delta"]]).encode())
    page.click("#label-rows")
    expect(page.locator("#progress")).to_have_text("3 rows done.")
    found = list(csv.reader(io.StringIO(download(page)[1].decode(), newline="")))
    added = [cell for row in found[1:] for cell in row[1:]]
    assert any("=1+1" in cell for cell in added) and "'@SUM(A1)" in added
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in added)
    assert SCRIPT != IMAGE != FORMULA and page.title() == "hill: text into a taxonomy"


def test_requests_are_retried_if_the_server_is_busy(page: Page, expected_errors: list[str]) -> None:
    expected_errors += ["status of 503"]
    busy = {"Retry-After": "1"}
    page.route(
        "**/v1/predict",
        lambda route: route.fulfill(status=503, headers=busy, json={"detail": "the queue is full"}),
        times=2,
    )
    upload(page, "x.csv", b"text\nfur milk\n")
    page.click("#label-rows")
    expect(page.locator("#progress")).to_have_text("The server is busy: trying again in 1 second …")
    expect(page.locator("#progress")).to_have_text("1 row done.")


def test_batches_that_are_too_large_are_halved(page: Page, expected_errors: list[str]) -> None:
    expected_errors += ["status of 413"]

    def refuse(route: Route) -> None:
        texts = route.request.post_data_json["texts"]
        if len(texts) > 4 or "bark" in texts:
            route.fulfill(status=413, json={"detail": "the body is too large"})
        else:
            route.continue_()

    page.route("**/v1/predict", refuse)
    upload(page, "x.csv", written([["text"], *([word] for word in ["fur"] * 9 + ["bark"])]).encode())
    page.click("#label-rows")
    expect(page.locator("#progress")).to_contain_text("1 row could not be labelled: see the column hill_error.")
    found = list(csv.reader(io.StringIO(download(page)[1].decode(), newline="")))
    assert [bool(row[1]) for row in found[1:]] == [True] * 9 + [False]
    assert found[-1][-1] == "The body is too large."


def test_labelling_can_be_cancelled(page: Page, expected_errors: list[str]) -> None:
    expected_errors += ["ERR_"]
    first, held = threading.Event(), []

    def hold(route: Route) -> None:
        if first.is_set():
            held.append(route)
        else:
            first.set()
            route.continue_()

    page.route("**/v1/predict", hold)
    upload(page, "x.csv", written([["text"], *([text] for text in toy_documents(100, 3)[0])]).encode())
    page.click("#label-rows")
    expect(page.locator("#progress")).to_have_text("32 of 100 rows")
    assert page.locator("#bar").evaluate("bar => bar.value / bar.max") == pytest.approx(0.32)
    page.click("#cancel")
    expect(page.locator("#progress")).to_have_text("Cancelled. 32 of 100 rows are labelled.")
    found = list(csv.reader(io.StringIO(download(page)[1].decode(), newline="")))
    assert [bool(row[1]) for row in found[1:]] == [True] * 32 + [False] * 68


def test_unusual_files(page: Page) -> None:
    notes = {
        b"text\n": "This file has no rows",
        b'text\n"never closed\n': "A quotation mark in this file is not closed",
        "text\ncaf\u00e9\n".encode("cp1252"): "1 row, 1 column, read as Windows-1252",
    }
    for content, words in notes.items():
        upload(page, "x.csv", content)
        expect(page.locator("#file-note")).to_contain_text(words)
    expect(page.locator("#preview")).to_have_text("caf\u00e9")


def test_a_column_without_a_known_name_is_found_by_its_length(page: Page) -> None:
    for content, column in {
        b"id,note,kind\n1001,Asthma since childhood,a\n1002,Type 1 diabetes,b\n": "note",
        b"abstract,remarks\nshort,a remark that is much longer\n": "abstract",
    }.items():
        upload(page, "x.csv", content)
        expect(page.locator("#column option:checked")).to_have_text(column)
