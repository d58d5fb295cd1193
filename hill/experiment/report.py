"""The page of an experiment: as Markdown, and as one HTML file that needs no other."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from hill.experiment.figures import draw
from hill.experiment.table import Results, Section

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.wide { overflow-x: auto } img { max-width: 100% }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e5e5e5 }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff }
"""
FOOTNOTE = (
    "† differs from {reference} at 95 % by the paper's test, a one-sample t-test of the row's seeds against the mean "
    "of {reference}. ‡ differs at 95 % by a t-test of the differences over common seeds. Neither is corrected for the "
    "number of rows."
)


def write_page(results: Results, folder: Path) -> list[Path]:
    """Write `table.md`, the figures and `report.html`; returns all files."""
    folder.mkdir(parents=True, exist_ok=True)
    title, words, sections = f"{results.table} on {results.data}", _words(results), results.sections()
    figures = draw(results, folder)
    pages = {
        folder / "table.md": markdown(title, words, sections),
        folder / "report.html": html(title, words, sections, figures),
    }
    for file, text in pages.items():
        draft = file.with_name(f".{file.name}.draft")
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    return [*pages, *(file for files in figures.values() for file in files)]


def markdown(title: str, words: Sequence[str], sections: Sequence[Section]) -> str:
    """The page as Markdown."""
    parts = [f"# {_cell(title)}", *map(_cell, words)]
    for section in sections:
        rule = "|".join(["---", *["--:"] * (len(section.header) - 1)])
        table = [" | ".join(map(_cell, line)) for line in (section.header, *section.lines)]
        lines = [f"| {table[0]} |", f"|{rule}|", *(f"| {line} |" for line in table[1:])]
        parts += [f"## {_cell(section.title)}", _cell(section.note), "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def html(title: str, words: Sequence[str], sections: Sequence[Section], figures: Mapping[str, Sequence[Path]]) -> str:
    """The page as HTML, with style and figures inside."""
    body = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(text)}</p>" for text in words)]
    for name, (file, *_) in figures.items():
        picture = base64.b64encode(file.read_bytes()).decode()
        body.append(f'<p><img alt="{escape(name)}" src="data:image/svg+xml;base64,{picture}"></p>')
    for section in sections:
        body += [f"<h2>{escape(section.title)}</h2>", f"<p>{escape(section.note)}</p>", _html_table(section)]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    head = f'<meta charset="utf-8">{policy}<title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def _html_table(section: Section) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in section.header)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in section.lines)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'


def _words(results: Results) -> list[str]:
    """What the runs were made from and with, and what the marks mean."""
    runs = results.runs()
    if not runs:
        return ["There is no run yet."]
    sizes = ", ".join(f"{count:,} {split}" for split, count in runs[0]["data"]["documents"].items())
    encoders, devices, torches = (
        ", ".join(sorted({str(value) for value in values}))
        for values in (
            (run["config"]["model"]["encoder"] for run in runs if run["config"]["model"]["text"] == "transformer"),
            (run["versions"]["device"] for run in runs),
            (run["versions"]["torch"] for run in runs),
        )
    )
    seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
    facts = (
        f"Documents: {sizes}; {runs[0]['data']['labels']:,} labels. Encoder: {encoders or 'none'}, also where a row is "
        f"called BERT. Seeds: {seeds}. Device: {devices}, torch {torches}. Epochs and thresholds were chosen on dev; "
        "test was read once a run."
    )
    title = next((row.title for row in results.rows if row.name == results.reference), None)
    return [facts, FOOTNOTE.format(reference=title)] if title else [facts]


def _cell(text: str) -> str:
    """Text that means nothing in a Markdown table."""
    kept = " ".join(text.split())
    for sign in "\\`*_|<>[]":
        kept = kept.replace(sign, f"\\{sign}")
    return kept
