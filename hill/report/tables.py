"""The tables of a report: levels, kinds of paths, the worst labels, and all of them."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

MOST_ROWS = 5_000
"""Labels that the page lists; of more, those with most gold documents. The JSON has all."""
BAR = 24
"""Width of the longest bar, in ems."""
TOLD = {
    "gold": {
        "right": ("right", "predicted, down to its end"),
        "early": ("stopped too early", "the prediction ends on the way"),
        "deep": ("too deep", "predicted, and more below its end"),
        "sibling": ("sibling", "missed, with a wrong label under the same parent"),
        "cousin": ("cousin", "missed, with a wrong label elsewhere below what is right of it"),
        "far": ("far", "not even its root is predicted, but something wrong is"),
        "nothing": ("left out", "missed, with nothing wrong in its place"),
    },
    "predicted": {
        "right": ("right", "gold, down to its end"),
        "early": ("stopped too early", "gold, but the gold path goes on"),
        "deep": ("too deep", "the gold path ends on the way"),
        "sibling": ("sibling", "wrong, and a label under the same parent is missed"),
        "cousin": ("cousin", "wrong, and a label elsewhere below what is right of it is missed"),
        "far": ("far", "not even its root is gold, and something is missed"),
        "nothing": ("one too many", "wrong, with nothing missed in its place"),
    },
}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    """A table of cells that are HTML; from column `numbers` on they are numbers."""
    kinds = ["" if place < numbers else ' class="n"' for place in range(len(heads))]
    head = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, heads, strict=True))
    body = "\n".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>\n'


def percent(share: float) -> str:
    """A share of 1 in per cent."""
    return f"{100 * share:.1f}"


def level_table(levels: list[dict[str, Any]]) -> str:
    """A row for each level."""
    keys = ("micro_precision", "micro_recall", "micro_f1", "macro_f1")
    rows = [
        [str(level["level"]), f"{level['labels']:,}", *(percent(level[key]) for key in keys), f"{level['ece']:.4f}"]
        for level in levels
    ]
    return table(["level", "labels", "precision", "recall", "micro F1", "macro F1", "ECE"], rows, 0)


def kind_table(kinds: dict[str, list[int]], side: str) -> str:
    """A row for each kind of path: how many, and at which level they are wrong first."""
    total = sum(map(sum, kinds.values()))
    levels = len(next(iter(kinds.values())))
    heads = ["", "what it means", "paths", "%", *(f"from level {level}" for level in range(1, levels))]
    rows = []
    for kind, (name, meaning) in TOLD[side].items():
        counts = kinds[kind]
        share = sum(counts) / total if total else 0.0
        bar = f'<span class="bar" style="width:{BAR * share:.2f}em"></span>'
        wrong = [f"{count:,}" if kind != "right" else "" for count in counts[1:]]
        rows.append(
            [f"<b>{name}</b>", f'<span class="told">{meaning}</span>{bar}', f"{sum(counts):,}", percent(share), *wrong]
        )
    return table(heads, rows, 2)


def worst_table(worst: list[dict[str, Any]]) -> str:
    """The worst labels with the siblings they are confused with."""
    heads = ["label", "instead of it, siblings predicted", "predicted instead of siblings"]
    rows = [
        [
            _label(label),
            _confused(label["taken_for"]),
            _confused(label["taken_from"]),
            f"{label['gold']:,}",
            *(percent(label[key]) for key in ("precision", "recall", "f1")),
        ]
        for label in worst
    ]
    return table([*heads, "gold", "precision", "recall", "F1"], rows, 3) if rows else "<p>No label has an error.</p>\n"


def label_table(labels: list[dict[str, Any]]) -> str:
    """All labels, to sort and to search."""
    often = sorted(labels, key=lambda label: (-label["gold"], -label["predicted"]))
    shown, hidden = (labels, 0) if len(labels) <= MOST_ROWS else (often[:MOST_ROWS], len(labels) - MOST_ROWS)
    heads = ("label", "level", "gold", "predicted", "right", "precision", "recall", "F1")
    head = "".join(
        f'<th{" class=n" if place else ""}><button type="button">{name}</button></th>'
        for place, name in enumerate(heads)
    )
    left = (
        f" Those with most gold documents are listed, then those predicted most; {hidden:,} are left out."
        if hidden
        else ""
    )
    count = f"{len(shown)} of {len(labels)}"
    return (
        '<p class="search"><label>Search <input id="search" type="search" placeholder="words of a path or an id">'
        f'</label> <span id="count" class="faint" aria-live="polite">{count}</span>{left}</p>\n'
        f'<div id="tall"><table id="all"><thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(map(_row, shown))
        + "\n</tbody></table></div>\n"
    )


def _row(label: dict[str, Any]) -> str:
    numbers = "".join(
        f'<td class="n" data-key="{label[key]}">{label[key]:,}</td>' for key in ("level", "gold", "predicted", "hits")
    )
    wholes = {"precision": label["predicted"], "recall": label["gold"], "f1": label["gold"] + label["predicted"]}
    grades = "".join(
        f'<td class="n" data-key="{label[key] if whole else ""}">{percent(label[key]) if whole else "–"}</td>'
        for key, whole in wholes.items()
    )
    return f'<tr><td data-key="{escape(label["path"])}">{_label(label)}</td>{numbers}{grades}</tr>'


def _label(label: dict[str, Any]) -> str:
    known = "" if label["id"] == label["path"] else f' <span class="faint">{escape(label["id"])}</span>'
    return escape(label["path"]) + known


def _confused(labels: list[dict[str, Any]]) -> str:
    return "<br>".join(f"{escape(label['name'])} ×{label['documents']:,}" for label in labels) or "–"
