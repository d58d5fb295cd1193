"""The surest errors with excerpts of their texts, the words in colour where they are explained."""

from collections.abc import Iterator
from html import escape
from typing import Any

NONE = "<p>None.</p>\n"


def error_list(report: dict[str, Any]) -> str:
    """Wrong labels, then missed ones."""
    errors = report["errors"]
    note = (
        "Blue and a solid line speak for the label, orange and a dashed line against it."
        if errors["explained"]
        else "They are not explained: explanations need a trained model that is not an export."
    )
    wrong = "".join(_error(error) for error in errors["wrong"])
    missed = "".join(_error(error) for error in errors["missed"])
    return (
        f"<p>One of a document, the surest. Some may be errors of the gold labels. {note}</p>\n"
        f"<h3>Predicted, and wrong</h3>\n{wrong or NONE}<h3>Missed</h3>\n{missed or NONE}"
    )


def _error(error: dict[str, Any]) -> str:
    explanation = error.get("explanation")
    text = "".join(_marked(error["text"], explanation)) if explanation else escape(error["text"])
    return (
        f"<article>\n<p><b>{escape(error['label']['path'])}</b>, score {error['score']:.4f} "
        f'<span class="faint">document {escape(error["document"])}</span></p>\n'
        f"<p>gold: {_list(error['gold'])}<br>predicted: {_list(error['predicted'])}</p>\n"
        f'<p class="text" dir="auto">{text}{"…" if error["cut"] else ""}</p>\n'
        + (
            f"<p>for: {_terms(explanation['for'])}<br>against: {_terms(explanation['against'])}</p>"
            if explanation
            else ""
        )
        + "</article>\n"
    )


def _list(paths: list[str]) -> str:
    return "; ".join(map(escape, paths)) or "nothing"


def _terms(terms: list[dict[str, Any]]) -> str:
    return ", ".join(f"{escape(term['text'])} {term['value']:+.2f}" for term in terms) or "nothing"


def _marked(text: str, explanation: dict[str, Any]) -> Iterator[str]:
    """The text, its words marked by what they add to the label's logit."""
    done, scale = 0, explanation["strongest"]
    for start, end, value in explanation["words"]:
        side, part = "for" if value >= 0 else "against", abs(value) / scale if scale else 0
        yield escape(text[done:start])
        yield f'<span class="{side}" style="--part:{part:.2f}" title="{value:+.3f}">{escape(text[start:end])}</span>'
        done = end
    yield escape(text[done:])
