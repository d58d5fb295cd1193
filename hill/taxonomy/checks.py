"""What must hold of a list of labels before it is a taxonomy; each breach is a `TaxonomyError` that says where."""

from collections.abc import Callable, Sequence

from hill.errors import TaxonomyError
from hill.taxonomy.label import Label

MAX_NAME = 1_000
MAX_DESCRIPTION = 100_000
MAX_CYCLE = 20

Where = Callable[[int], str]
"""Tells for a row where it was read, such as ` (line 14 of tax.tsv)`, or nothing."""


def check_labels(labels: Sequence[Label], where: Where) -> dict[str, int]:
    """The row of each id, if every label has a usable id, name and description and no id comes twice."""
    rows: dict[str, int] = {}
    for row, label in enumerate(labels):
        _check_text("id", label.id, MAX_NAME, label, row, where)
        _check_text("name", label.name, MAX_NAME, label, row, where)
        if label.description:
            _check_text("description", label.description, MAX_DESCRIPTION, label, row, where)
        if (first := rows.setdefault(label.id, row)) != row:
            raise TaxonomyError(
                f"label id '{label.id}' comes twice{where(row)}, first{where(first) or f' as label {first + 1}'}; "
                "ids must be unique: rename one, or list both parents in one entry"
            )
    return rows


def _check_text(what: str, text: str, limit: int, label: Label, row: int, where: Where) -> None:
    if len(text) > limit:
        raise TaxonomyError(
            f"the {what} '{text[:40]}…' is {len(text):,} characters long{where(row)}; "
            f"at most {limit:,} are allowed: is this file a taxonomy?"
        )
    if not text.strip():
        label_is = f" of label '{label.id}'" if what != "id" else ""
        raise TaxonomyError(f"the {what}{label_is} is empty{where(row)}; every label needs an id and a name")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TaxonomyError(
            f"the {what} {text[: error.start + 1]!a} holds a lone surrogate{where(row)}; text must be valid Unicode"
        ) from None


def check_parents(labels: Sequence[Label], rows: dict[str, int], where: Where) -> None:
    """Every parent is another label."""
    for row, label in enumerate(labels):
        for parent in label.parents:
            if parent == label.id:
                raise TaxonomyError(
                    f"label '{label.id}' is its own parent{where(row)}; leave the parent empty to make it a root"
                )
            if parent not in rows:
                raise TaxonomyError(
                    f"label '{label.id}' has parent '{parent}', which is not in the taxonomy{where(row)}; "
                    "add it as a label or correct the parent"
                )


def check_siblings(labels: Sequence[Label], where: Where) -> None:
    """No two children of one parent, and no two roots, have the same name: a person could not tell them apart."""
    seen: dict[tuple[str, str], int] = {}
    for row, label in enumerate(labels):
        for parent in label.parents or ("",):
            first = seen.setdefault((parent, label.name), row)
            if first != row:
                under = f"under '{parent}'" if parent else "among the roots"
                raise TaxonomyError(
                    f"the name '{label.name}' stands twice {under}: '{labels[first].id}'{where(first)} and "
                    f"'{label.id}'{where(row)}; rename one of them"
                )


def raise_cycle(labels: Sequence[Label], rows: dict[str, int], stuck: Sequence[int], where: Where) -> None:
    """Name one cycle among the stuck rows, parents first."""
    among = set(stuck)
    row, walked = stuck[0], dict[int, None]()
    while row not in walked:
        walked[row] = None
        row = next(rows[parent] for parent in labels[row].parents if rows[parent] in among)
    upward = list(walked)[list(walked).index(row) :]
    start = min(range(len(upward)), key=lambda i: upward[i])
    downward = (upward[start:] + upward[:start] + [upward[start]])[::-1]
    names = [f"'{labels[i].id}'" for i in downward]
    if len(names) > MAX_CYCLE:
        names[MAX_CYCLE - 1 : -1] = [f"… {len(names) - MAX_CYCLE:,} more …"]
    raise TaxonomyError(
        f"labels form a cycle, each the parent of the next: {' > '.join(names)}{where(downward[0])}; "
        "remove one of these parents"
    )
