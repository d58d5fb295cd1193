"""The page of a report, and `hill evaluate --report` as a user runs it."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from typer.testing import CliRunner, Result

from hill.classifier import HillClassifier
from hill.cli.common import app
from hill.data import Documents
from hill.data.documents import label_documents
from hill.decode import DecodeConfig
from hill.errors import ConfigError, DataError
from hill.explain import explain
from hill.html import _environment
from hill.predictor import Predictor
from hill.report import ErrorReport, make_report
from hill.report.report import EXCERPT, _bars
from hill.taxonomy import Label, Taxonomy
from tests.conftest import animals_taxonomy, toy_documents
from tests.report.test_report import Given, draw_case, report_of

EMPTY = ("meta", "input", "br", "line", "rect", "circle", "polyline", "path")
charts: Any = _environment.get_template("charts.html").module
HOSTILE = '<script>alert("x")</script> & </p> \' "'


class Page(HTMLParser):
    """The tags of a page, the cells of each table, and its text; it fails if a tag is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.tables: list[list[list[str]]] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY or tag == "rect":
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "br":
            self.handle_data(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag != "circle":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


def hostile() -> tuple[Predictor, Documents]:
    labels = [Label(f"id{n}{HOSTILE}", f"name {n} {HOSTILE}", (f"id0{HOSTILE}",) if n else ()) for n in range(3)]
    gold = np.array([[1, 1, 0], [1, 0, 1]], dtype=bool)
    scores = np.array([[0.9, 0.1, 0.8], [0.9, 0.1, 0.8]])
    model = Given(Taxonomy(labels), scores, DecodeConfig(strategy="closure", calibrate="off"))
    return model, Documents([HOSTILE, "b"], [HOSTILE * 40, "plain"], csr_array(gold), 0)


def test_texts_and_names_are_escaped() -> None:
    page = make_report(*hostile()).html()
    found = Page(page)
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert found.text.count("alert") >= 10 and "<script>alert" not in page
    assert not re.findall(r"""(?:src|href)=["'](?!#)|url\(|@import|<link""", page), "it needs no network"


def test_only_the_script_of_the_page_may_run() -> None:
    page = make_report(*hostile()).html()
    (script,) = re.findall("<script>(.*?)</script>", page, re.S)
    policy = next(a["content"] for tag, a in Page(page).tags if tag == "meta" and "http-equiv" in a)
    wanted = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{wanted}'"


def test_the_page_shows_the_counts() -> None:
    report = report_of(*draw_case(4, 2, documents=80), strategy="closure")
    page = Page(ErrorReport(report).html())
    levels, gold_paths, predicted_paths, worst, labels = page.tables
    assert [row[4] for row in levels[1:]] == [f"{100 * level['micro_f1']:.1f}" for level in report["metrics"]["levels"]]
    for table, side in ((gold_paths, "gold"), (predicted_paths, "predicted")):
        assert [int(row[2]) for row in table[1:]] == [sum(counts) for counts in report["paths"][side].values()]
        assert [row[4:] for row in table[2:]] == [
            [str(count) for count in counts[1:]] for counts in [*report["paths"][side].values()][1:]
        ]
    assert [row[-1] for row in worst[1:]] == [f"{100 * label['f1']:.1f}" for label in report["worst"]]
    assert [row[0] for row in labels[1:]] == [f"{label['path']} {label['id']}" for label in report["labels"]]
    assert [row[1:5] for row in labels[1:]] == [
        [str(label[key]) for key in ("level", "gold", "predicted", "hits")] for label in report["labels"]
    ]
    nothing = [row for row, label in zip(labels[1:], report["labels"], strict=True) if not label["gold"]]
    assert nothing and all(row[6] == "–" for row in nothing), "there is no recall without gold documents"
    for name in ("micro_f1", "macro_f1", "hierarchical_f1", "violations"):
        assert f"{100 * report['metrics'][name]:.1f} %" in page.text
    ece, own = (f"{report['metrics'][name]:.4f}" for name in ("ece", "raw_ece"))
    assert f"calibration error{ece}own scores: {own}" in page.text and f"{own} for the model's own scores" in page.text


def test_cells_that_are_sorted_have_a_key() -> None:
    page = Page(ErrorReport(report_of(*draw_case(4, 2))).html())
    start = next(place for place, (_, attrs) in enumerate(page.tags) if attrs.get("id") == "all")
    keys = [attrs["data-key"] for tag, attrs in page.tags[start:] if tag == "td"]
    assert len(keys) == 14 * 8
    for column in range(1, 8):
        assert all(key == "" or float(key or "") >= 0 for key in keys[column::8])


def test_lines_are_drawn_at_their_positions() -> None:
    line = {"name": "f & g", "points": [(0, 0), (0.5, 1), (1, 0.25)]}
    chart = charts.line_chart("a < b", ("x", "y"), [line], mark=(0.25, "here"))
    (points,) = re.findall('points="(.*?)"', chart)
    (x0, y0), (x1, y1), (x2, y2) = ([float(value) for value in pair.split(",")] for pair in points.split())
    assert (x0, y1, x2) == (charts.left, charts.top, 460 - 14) and x1 == (x0 + x2) / 2
    assert (y0 - y2) / (y0 - y1) == pytest.approx(0.25)
    assert f'x1="{x0 + (x2 - x0) / 4:.1f}"' in chart and "here" in chart
    assert "f &amp; g" in chart and "a &lt; b" in chart


@pytest.mark.parametrize(("most", "top"), [(3, "3"), (17, "20"), (450, "600"), (9_001, "10,000"), (0, "1")])
def test_the_axis_of_bars_has_round_numbers(most: int, top: str) -> None:
    chart = charts.bar_chart("t", ("x", "y"), **_bars(["0", "1"], {"gold": [most, 0], "predicted": [0, most]}))
    ticks = re.findall('text-anchor="end">(.*?)<', chart)
    assert ticks[-1] == top and len(ticks) <= 6
    heights = [float(height) for height in re.findall('<rect class="f." x=.*? height="(.*?)">', chart)]
    full = 240 * most / int(top.replace(",", ""))
    assert heights == pytest.approx([full, 0, 0, full], abs=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that errs, since half of what it learned from is wrong, and documents."""
    folder = tmp_path_factory.mktemp("report")
    texts, labels = toy_documents(120, seed=0)
    classifier = HillClassifier(animals_taxonomy(), "linear", preset=None).fit(texts[:80], labels[:60] + labels[:20])
    classifier.save(folder / "model")
    texts, labels = [*texts[80:], "leaf root bark", "cave echo night"], [*labels[80:], ["bat"], ["p"]]
    lines = [{"text": f"{text} {'x' * 800}", "labels": given} for text, given in zip(texts, labels, strict=True)]
    (folder / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "train.jsonl").write_text(json.dumps(lines[0]) + "\n")
    return folder


def evaluate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments)], catch_exceptions=False)


def test_the_command_line(folder: Path, tmp_path: Path) -> None:
    shown = evaluate(folder / "model", folder, "--report", tmp_path / "out.html")
    assert f"report: {tmp_path / 'out.html'}" in shown.stdout
    assert shown.stdout.startswith(evaluate(folder / "model", folder).stdout)
    printed = evaluate(folder / "model", folder, "--report", tmp_path / "out.json", "--json")
    written = json.loads((tmp_path / "out.json").read_text())
    assert json.loads(printed.stdout) == written
    assert written["metrics"] == json.loads(evaluate(folder / "model", folder, "--json").stdout)
    assert ErrorReport(written).html() == (tmp_path / "out.html").read_text()


def test_errors_are_explained(folder: Path) -> None:
    classifier = HillClassifier.load(folder / "model")
    found = make_report(classifier, folder, explain, explained=2).to_dict()["errors"]
    assert found["explained"] and len(found["wrong"]) > 2
    texts = [json.loads(line)["text"] for line in (folder / "test.jsonl").read_text().splitlines()]
    for error in found["wrong"][:2] + found["missed"][:2]:
        text = texts[int(error["document"])]
        assert error["text"] == text[:EXCERPT] and error["cut"]
        wanted = explain(classifier, text, [error["label"]["id"]])
        values = wanted.labels[0].values
        assert error["explanation"]["strongest"] == max(map(abs, values))
        assert error["explanation"]["words"] == [
            [word.start, word.end, value]
            for word, value in zip(wanted.words, values, strict=True)
            if word.end <= EXCERPT
        ]
        assert error["explanation"]["for"] == [
            term._asdict() for term in wanted.labels[0].strongest(wanted.words, 8)[0]
        ]
    assert not any("explanation" in error for error in found["wrong"][2:] + found["missed"][2:])


def test_explained_words_are_marked(folder: Path) -> None:
    report = make_report(HillClassifier.load(folder / "model"), folder, explain, explained=1)
    error = report.to_dict()["errors"]["wrong"][0]
    page = report.html()
    for start, end, value in error["explanation"]["words"]:
        side, part = "for" if value >= 0 else "against", abs(value) / error["explanation"]["strongest"]
        word = error["text"][start:end]
        assert f'<span class="{side}" style="--part:{part:.2f}" title="{value:+.3f}">{word}</span>' in page
    assert error["text"].split()[0] in Page(page).text and "Blue words with a solid line" in page


def test_without_explanations_the_page_says_so(folder: Path) -> None:
    classifier = HillClassifier.load(folder / "model")
    for found in (make_report(classifier, folder), make_report(classifier, folder, explain, explained=0)):
        assert not found.to_dict()["errors"]["explained"]
        assert "They are not explained: explanations need a trained model that is not an export." in found.html()


def test_wrong_report_files_fail_before_the_evaluation(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"the report file is '.*out.txt'; expected a name that ends in .html or .json"
    ):
        evaluate(tmp_path / "no model", folder, "--report", tmp_path / "out.txt")
    with pytest.raises(DataError, match=r"there is no folder '.*none'; create it first"):
        evaluate(tmp_path / "no model", folder, "--report", tmp_path / "none" / "out.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(DataError, match=r"cannot write '.*folder.html': it is a folder"):
        evaluate(folder / "model", folder, "--report", tmp_path / "folder.html")
    with pytest.raises(ConfigError, match=r"expected a name that ends in .html or .json"):
        ErrorReport({}).write(tmp_path / "out.xml")
    assert not (tmp_path / "out.xml").exists()


def test_an_exported_model(exported: Path, tmp_path: Path) -> None:
    classifier = HillClassifier.load(exported.parent / "trained")
    texts, labels = toy_documents(30, seed=1)
    lines = [{"text": text, "labels": given} for text, given in zip(texts, labels, strict=True)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluate(exported, tmp_path, "--report", tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    wanted = make_report(classifier, label_documents(texts, labels, animals_taxonomy())).to_dict()
    assert not found["errors"]["explained"]
    assert found["paths"] == wanted["paths"] and found["labels"] == wanted["labels"]
