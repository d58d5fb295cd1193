"""The page of an explanation: one HTML file with the text in colour, a view for each label, no script, no network."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hill.explain.result import Explanation, LabelExplanation, Term

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What the page may do: have colours, and nothing else, whatever the text holds."""
STYLE = """
:root { color-scheme: light dark; --for: 0 114 178; --against: 213 94 0; --ink: #1a1a1a; --paper: #fff; --line: #bbb;
  --faint: #595959 }
@media (prefers-color-scheme: dark) { :root { --ink: #eee; --paper: #16181c; --line: #555; --faint: #a6a6a6 } }
body { margin: 2rem auto; max-width: 50rem; padding: 0 1rem; font: 1rem/1.6 system-ui, sans-serif; color: var(--ink);
  background: var(--paper) }
h1 { font-size: 1.3rem } h2 { font-size: 1.1rem; margin: 1.5rem 0 .3rem }
p { margin: .3rem 0 } .faint { color: var(--faint) }
main > input { position: absolute; opacity: 0 }
main > label { display: inline-block; margin: .15rem .1rem; padding: .1rem .6rem; border: 1px solid var(--line);
  border-radius: 1rem; cursor: pointer }
main > input:checked + label { background: var(--ink); color: var(--paper) }
main > input:focus-visible + label { outline: 3px solid rgb(var(--for)); outline-offset: 2px }
section { display: none }
.text { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 2; padding: .6rem 1rem;
  border: 1px solid var(--line); border-radius: .4rem }
.for, .against { border-radius: .2rem; border-bottom: 2px solid transparent }
.for { background: rgb(var(--for) / calc(var(--part) * .55)); border-bottom-color: rgb(var(--for) / var(--part)) }
.against { background: rgb(var(--against) / calc(var(--part) * .55));
  border-bottom: 2px dashed rgb(var(--against) / var(--part)) }
table { display: inline-table; vertical-align: top; margin: 1rem 2rem 0 0; border-collapse: collapse }
caption { text-align: left; font-weight: bold } td { padding: 0 1rem 0 0 }
td + td { text-align: right; font-variant-numeric: tabular-nums }
@media print { section { display: block !important } main > input + label { display: none } }
"""


def make_page(explanation: Explanation) -> str:
    """The page as one string."""
    labels = explanation.labels
    shown = "".join(f"#label{n}:checked ~ #view{n} {{ display: block }}\n" for n in range(len(labels)))
    switches = "".join(_switch(n, label) for n, label in enumerate(labels))
    views = "".join(_view(n, label, explanation) for n, label in enumerate(labels))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>What speaks for which label</title>\n<style>{STYLE}{shown}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>What speaks for which label</h1>\n{switches}{views}{_notes(explanation)}"
        "</main>\n</body>\n</html>\n"
    )


def _switch(number: int, label: LabelExplanation) -> str:
    checked = "" if number else " checked"
    name = f"{label.name} {label.score:.2f}"
    return (
        f'<input type="radio" name="label" id="label{number}"{checked}>'
        f'<label for="label{number}" title="{escape(label.path)}">{escape(name)}</label>\n'
    )


def _view(number: int, label: LabelExplanation, explanation: Explanation) -> str:
    scale = max(map(abs, label.values), default=0.0)
    predicted = "" if label.predicted else ", not predicted"
    parts = " · ".join(f"{name} {value:+.2f}" for name, value in (label.branches or {}).items())
    tables = zip(("For", "Against"), label.strongest(explanation.words), strict=True)
    return (
        f'<section id="view{number}">\n<h2>{escape(label.path)}</h2>\n'
        f'<p class="faint">{escape(label.id)}, score {label.score:.3f}{predicted}; {label.check}</p>\n'
        + (f'<p class="faint">of the logit: {parts}</p>\n' if parts else "")
        + f'<p>Legend: <span class="for" style="--part:1">for +{scale:.2f}</span> '
        f'<span class="for" style="--part:.4">for</span> no colour: 0 '
        f'<span class="against" style="--part:.4">against</span> '
        f'<span class="against" style="--part:1">against −{scale:.2f}</span></p>\n'
        f'<p class="text" dir="auto">{"".join(_marked(label, explanation, scale))}</p>\n'
        + "".join(_table(side, terms) for side, terms in tables)
        + "\n</section>\n"
    )


def _marked(label: LabelExplanation, explanation: Explanation, scale: float) -> Iterator[str]:
    """The text, its words marked by what they add."""
    text, done = explanation.given, 0
    for word, value in zip(explanation.words, label.values, strict=True):
        yield escape(text[done : word.start])
        part = f"{abs(value) / scale if scale else 0:.2f}"
        side = "for" if value >= 0 else "against"
        yield f'<span class="{side}" style="--part:{part}" title="{value:+.3f}">{escape(word.text)}</span>'
        done = word.end
    rest = escape(text[done:])
    yield f'<span class="faint" title="not read">{rest}</span>' if rest.strip() else rest


def _table(side: str, terms: list[Term]) -> str:
    rows = "".join(
        f"<tr><td>{escape(term.text)}{f' ×{term.times}' if term.times > 1 else ''}</td><td>{term.value:+.2f}</td></tr>"
        for term in terms
    )
    return f"<table><caption>{side}</caption>{rows or '<tr><td>nothing</td></tr>'}</table>\n"


def _notes(explanation: Explanation) -> str:
    against = {"zero": "no word vectors at all", "empty text": "an empty text"}
    baseline = against.get(explanation.baseline, f"the text with {explanation.baseline} in place of every token")
    method = {
        "integrated": "integrated gradients",
        "gradient": "gradient × input",
        "exact": "exact: weight × TF-IDF of each n-gram",
    }[explanation.method]
    return (
        f'<p class="faint">Model {escape(explanation.model)}; {method}. The values are what a word adds to the logit, '
        f"compared with {escape(baseline)}. Blue and a solid line speak for the label, orange and a dashed line "
        "against it.</p>\n"
    )
