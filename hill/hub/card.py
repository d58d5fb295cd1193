"""The model card: what is known of a model, for those who find it. What is not known is left out."""

from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np

from hill.hub.facts import Facts
from hill.hub.front import front_matter, public, settings_toml
from hill.taxonomy import Taxonomy

OWN = ("level", "label")
"""Tunings that leave several thresholds."""
EXAMPLES = 3
SCORES = {
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "hierarchical_f1": "hierarchical F1",
    "path_micro_f1": "micro F1 of whole paths",
    "subset_accuracy": "documents with exactly the right labels",
    "precision_at_1": "documents whose best label is right",
    "violations": "documents with a label but not all above it",
    "raw_micro_f1": "micro F1 of scores above 0.5, as they are",
    "raw_violations": "documents with a label but not all above it, of scores above 0.5",
    "ece": "expected calibration error",
}
USE = """```python
from hill import HillClassifier

classifier = HillClassifier.from_pretrained("REPOSITORY OR FOLDER")
classifier.predict(["a text"])  # label ids, ancestors included
classifier.predict_paths(["a text"])  # from a root down to each most specific label
classifier.predict_proba(["a text"])  # scores of all labels
```

It needs `pip install hill-htc`. Loading runs no code of this repository."""


def make_card(facts: Facts) -> str:
    """The card: YAML front matter, then Markdown."""
    sections = {
        "How to use": USE,
        "Labels": _labels(facts),
        "Training data": _data(facts),
        "Metrics": _metrics(facts),
        "Intended use and limits": _limits(facts),
        "Settings": f"```toml\n{settings_toml(facts)}```",
        "Versions": _table(("", ""), facts.training.get("versions", {}).items()),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items() if text)
    title = f"Text classification into {len(facts.taxonomy):,} labels"
    return f"---\n{front_matter(facts)}\n---\n\n# {title}\n\n{_kind(facts)}\n\n{body}\n"


def _kind(facts: Facts) -> str:
    """What kind of model it is."""
    model = public(facts.settings)["model"]
    encoder = f" on the text encoder `{model['encoder']}`" if model.get("text") == "transformer" else ""
    return f"A model of the kind `{facts.name}`{encoder}, trained with `hill-htc`."


def _labels(facts: Facts) -> str:
    taxonomy, support = facts.taxonomy, facts.support
    levels = taxonomy.levels
    kind = "some labels have several parents" if taxonomy.is_dag else "every label has at most one parent"
    head: tuple[str, ...] = ("level", "labels", "for example")
    rows: list[list[Any]] = [
        [number, f"{len(rows):,}", _examples(taxonomy, rows, support)] for number, rows in enumerate(levels, 1)
    ]
    if support is not None:
        head = (*head, "with training documents")
        rows = [[*row, f"{(support[level] > 0).sum():,}"] for row, level in zip(rows, levels, strict=True)]
    count = f"{len(taxonomy):,} labels on {len(levels)} levels; {kind}. `taxonomy.json` has them all."
    return f"{count}\n\n{_table(head, rows)}"


def _examples(taxonomy: Taxonomy, rows: Any, support: Any) -> str:
    """The labels of a level that training saw most, where that is known."""
    order = rows if support is None else rows[np.argsort(-support[rows], kind="stable")]
    return ", ".join(_cell(taxonomy[row].name) for row in order[:EXAMPLES].tolist())


def _data(facts: Facts) -> str:
    splits = facts.training.get("splits", {})
    if not splits:
        return ""
    rows = [
        [name, f"{split['documents']:,}", f"{split['labels_per_document']:.2f}", split["fewest_labels"],
         split["most_labels"], f"{np.count_nonzero(split['support']):,}"]
        for name, split in splits.items()
    ]  # fmt: skip
    head = ("split", "documents", "labels of a document", "fewest", "most", "labels in use")
    held = "\n\nThe dev documents were drawn at random from those given for training."
    counts = np.array(splits["train"]["support"], dtype=np.float64)  # (L)
    spread = np.percentile(counts, (0, 25, 50, 75, 100)).astype(int).tolist()
    support = "Documents of a label in train: least {:,}, quartiles {:,}, {:,} and {:,}, most {:,}.".format(*spread)
    counted = "Labels count with all above them."
    return f"{_table(head, rows)}\n\n{counted} {support}{held if facts.training.get('held_out') else ''}"


def _metrics(facts: Facts) -> str:
    dev = facts.training.get("dev", {})
    split = facts.metrics.get("split")
    columns = {split or "value": facts.metrics} | ({"dev": dev} if dev and split != "dev" else {})
    names = [name for name in SCORES if any(name in values for values in columns.values())]
    rows = [[SCORES[name], *(_percent(values.get(name)) for values in columns.values())] for name in names]
    parts = [_table(("%", *columns), rows)] if rows else []
    if "documents" in facts.metrics:
        parts.insert(0, _measured(facts, split))
    if levels := facts.metrics.get("levels"):
        values = [[of["level"], *(_percent(of[key]) for key in ("micro_f1", "macro_f1"))] for of in levels]
        parts.append(_table(("level", "micro F1 %", "macro F1 %"), values))
    if curve := [[of["epoch"], _percent(of.get("micro_f1"))] for of in facts.training.get("epochs", [])]:
        parts.append("Dev after each epoch, before decoding was tuned:\n\n" + _table(("epoch", "micro F1 %"), curve))
    return "\n\n".join(parts)


def _measured(facts: Facts, split: str | None) -> str:
    decode = facts.settings["decode"]
    threshold = f", threshold {decode['threshold']:g}"
    if decode["tune"] in OWN:
        threshold = f", a threshold for each {decode['tune']}"
    elif decode["strategy"] == "path":
        threshold = ""
    where = f" of {split}" if split else ""
    return f"Measured on {facts.metrics['documents']:,} documents{where}. Decoding: `{decode['strategy']}`{threshold}."


def _limits(facts: Facts) -> str:
    data, decode, support = facts.settings["data"], facts.settings["decode"], facts.support
    lines = [
        "It gives texts labels of this taxonomy, and of no other.",
        "Of texts unlike those it was trained on, in language, kind or length, its metrics say nothing.",
    ]
    if not data.get("windows"):
        lines.append(f"It reads at most the first {data['max_length']:,} tokens of a text.")
    if decode["strategy"] != "raw":
        lines.append(f"What it predicts respects the taxonomy (decoding `{decode['strategy']}`).")
    if facts.metrics.get("split") == "dev":
        lines.append("Dev decided on the best epoch and the threshold: on new documents expect somewhat less.")
    if support is not None and (unseen := facts.taxonomy.decode(np.flatnonzero(support == 0))):
        some = ", ".join(map(_code, unseen[:EXAMPLES])) + (", …" if len(unseen) > EXAMPLES else "")
        count = "1 label" if len(unseen) == 1 else f"{len(unseen):,} labels"
        lines.append(f"{count} had no training document, and it cannot be relied on there: {some}")
    return "\n".join(f"- {line}" for line in lines)


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [list(map(str, row)) for row in rows]
    columns = list(head)
    body = [f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *lines]]
    return "\n".join(body) if lines else ""


def _cell(text: str) -> str:
    """Text that means nothing in Markdown or HTML: labels may be anyone's, and cards are shown as pages."""
    kept = escape(" ".join(text.split()), quote=False)
    for sign in "\\`*_|[]":
        kept = kept.replace(sign, f"\\{sign}")
    return kept


def _code(text: str) -> str:
    return _cell(text) if "`" in text else f"`{' '.join(text.split())}`"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"
