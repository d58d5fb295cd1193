"""What a report says of labels: a row for each, and the worst with the siblings they are confused with."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.metrics.counts import NAMES, Counts
from hill.taxonomy import Taxonomy
from hill.types import IntArray

WORST = 15
SUPPORT = 10
"""Gold documents from which a low F1 is more than chance."""
CONFUSED = 3


def label_rows(taxonomy: Taxonomy, counts: Counts) -> list[dict[str, Any]]:
    """Of each label, in the taxonomy's order: what it is, how often it is gold, predicted and both, and its F1."""
    numbers = zip(counts.gold.tolist(), counts.predicted.tolist(), counts.hits.tolist(), strict=True)
    each = counts.each().T.tolist()
    facts = zip(taxonomy, taxonomy.path_names(), taxonomy.depth.tolist(), numbers, each, strict=True)
    return [
        {"id": label.id, "name": label.name, "path": path, "level": level}
        | dict(zip(("gold", "predicted", "hits"), count, strict=True))
        | dict(zip(NAMES, grades, strict=True))
        for label, path, level, count, grades in facts
    ]


def worst_labels(rows: list[dict[str, Any]], taxonomy: Taxonomy, confused: csr_array[Any]) -> list[dict[str, Any]]:
    """Those of lowest F1, with the siblings predicted in their place and those in whose place they are predicted.

    Labels with little support count only where there are too few others.
    """
    wrong = [place for place, row in enumerate(rows) if row["gold"] and row["f1"] < 1]
    known = [place for place in wrong if rows[place]["gold"] >= SUPPORT]
    order = sorted(known if len(known) >= WORST else wrong, key=lambda place: (rows[place]["f1"], -rows[place]["gold"]))
    columns = csr_array(confused.T)
    return [
        rows[place] | {"taken_for": _most(confused, place, taxonomy), "taken_from": _most(columns, place, taxonomy)}
        for place in order[:WORST]
    ]


def about(taxonomy: Taxonomy, row: int) -> dict[str, str]:
    """The id, name and path of a label."""
    return {"id": taxonomy[row].id, "name": taxonomy[row].name, "path": taxonomy.path_name(row)}


def path_names(taxonomy: Taxonomy, rows: IntArray) -> list[str]:
    """The paths of a label set, one for each most specific label."""
    chosen = set(rows.tolist())
    return [taxonomy.path_name(row) for row in rows.tolist() if chosen.isdisjoint(taxonomy.children(row).tolist())]


def _most(confused: csr_array[Any], row: int, taxonomy: Taxonomy) -> list[dict[str, Any]]:
    """The labels with the highest counts of a row; of equals the first."""
    places = slice(confused.indptr[row], confused.indptr[row + 1])
    others, counts = confused.indices[places], confused.data[places]
    order = np.lexsort((others, -counts))[:CONFUSED]
    return [about(taxonomy, int(others[i])) | {"documents": int(counts[i])} for i in order]
