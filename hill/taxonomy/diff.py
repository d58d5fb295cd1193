"""What changed between two versions of a taxonomy: labels added, removed, moved, renamed or with another id."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from hill.taxonomy.taxonomy import MAX_COMPARED, Taxonomy
from hill.types import BoolArray, IntArray


@dataclass(frozen=True)
class TaxonomyDiff:
    """The changes from taxonomy `a` to taxonomy `b`. Pairs are (row of a, row of b), sorted by the row of a."""

    a: Taxonomy
    b: Taxonomy
    kept: IntArray
    """Labels with the same id in both (n, 2)."""
    recoded: IntArray
    """Labels that are probably the same: another id, but the same name and the same parents (n, 2)."""
    renamed: IntArray
    """Labels with the same id and another name (n, 2)."""
    moved: IntArray
    """Kept or recoded labels with other parents (n, 2)."""
    described: IntArray
    """Labels with the same id and another description (n, 2)."""
    added: IntArray
    """Rows of b that are new."""
    removed: IntArray
    """Rows of a that are not in b."""
    similar: IntArray
    """Removed and added labels with similar names under the same parents: perhaps renamed (n, 2)."""

    @property
    def pairs(self) -> IntArray:
        """Labels that are in both taxonomies: kept and recoded (n, 2)."""
        pairs = np.concatenate([self.kept, self.recoded])
        return pairs[np.argsort(pairs[:, 0], kind="stable")]

    @property
    def unchanged(self) -> bool:
        """Whether nothing changed except the order of the labels."""
        changes = (self.recoded, self.renamed, self.moved, self.described, self.added, self.removed)
        return not any(map(len, changes))

    def to_dict(self) -> dict[str, Any]:
        """Return the changes as plain values, labels by id."""
        a, b = self.a, self.b

        def label(taxonomy: Taxonomy, row: int) -> dict[str, Any]:
            return {"id": taxonomy[row].id, "name": taxonomy[row].name, "parents": list(taxonomy[row].parents)}

        return {
            "labels": [len(a), len(b)],
            "kept": len(self.kept),
            "added": [label(b, row) for row in self.added.tolist()],
            "removed": [label(a, row) for row in self.removed.tolist()],
            "moved": [
                {"id": b[new].id, "name": b[new].name, "from": list(a[old].parents), "to": list(b[new].parents)}
                for old, new in self.moved.tolist()
            ],
            "renamed": [
                {"id": b[new].id, "from": a[old].name, "to": b[new].name} for old, new in self.renamed.tolist()
            ],
            "recoded": [
                {"name": b[new].name, "from": a[old].id, "to": b[new].id} for old, new in self.recoded.tolist()
            ],
            "described": [b[new].id for _, new in self.described.tolist()],
            "similar": [
                {"from": a[old].id, "to": b[new].id, "names": [a[old].name, b[new].name]}
                for old, new in self.similar.tolist()
            ],
        }


def diff(a: Taxonomy, b: Taxonomy) -> TaxonomyDiff:
    """Compare two versions of a taxonomy. Labels are matched by id, then by name and parents."""
    row_in_b = np.array([b.row(label.id) if label.id in b else -1 for label in a], dtype=np.int64)
    kept = _pairs(row_in_b)
    by_id = row_in_b >= 0
    _match_by_name(a, b, row_in_b)
    pairs = _pairs(row_in_b)
    return TaxonomyDiff(
        a,
        b,
        kept=kept,
        recoded=pairs[~by_id[pairs[:, 0]]],
        renamed=kept[[a[old].name != b[new].name for old, new in kept.tolist()]],
        moved=pairs[_has_moved(a, b, row_in_b)[pairs[:, 0]]],
        described=kept[[a[old].description != b[new].description for old, new in kept.tolist()]],
        added=np.setdiff1d(np.arange(len(b)), row_in_b),
        removed=np.flatnonzero(row_in_b < 0),
        similar=_find_similar(a, b, row_in_b),
    )


def _pairs(row_in_b: IntArray) -> IntArray:
    """Return (row of a, row of b) of the labels in both: (n, 2)."""
    rows = np.flatnonzero(row_in_b >= 0)
    return np.stack([rows, row_in_b[rows]], axis=1)


def _match_by_name(a: Taxonomy, b: Taxonomy, row_in_b: IntArray) -> None:
    """Fill in labels whose name and parents are the same in b, from the roots down, so that parents are known.

    A name that several unmatched siblings share identifies none of them.
    """
    unmatched: defaultdict[tuple[str, frozenset[int]], list[int]] = defaultdict(list)
    for row in np.setdiff1d(np.arange(len(b)), row_in_b).tolist():
        unmatched[b[row].name, frozenset(b.parents(row).tolist())].append(row)
    for level in a.levels:
        rows = level[row_in_b[level] < 0].tolist()
        keys = {row: (a[row].name, frozenset(row_in_b[a.parents(row)].tolist())) for row in rows}
        counts = Counter(keys.values())
        for row, key in keys.items():
            if counts[key] == 1 and len(matches := unmatched.get(key, [])) == 1:
                row_in_b[row] = matches[0]


MIN_SIMILARITY = 0.5
"""Labels with names as similar as this (`difflib`) are perhaps the same."""
MAX_PAIRS = 10_000
"""Pairs of names that are compared per group of siblings at most."""


def _find_similar(a: Taxonomy, b: Taxonomy, row_in_b: IntArray) -> IntArray:
    """Find removed and added labels with similar names under the same parents, which may be such a pair themselves."""
    guessed, taken = row_in_b.copy(), np.isin(np.arange(len(b)), row_in_b)
    added: defaultdict[frozenset[int], list[int]] = defaultdict(list)
    for row in np.flatnonzero(~taken).tolist():
        added[frozenset(b.parents(row).tolist())].append(row)
    for level in a.levels:
        removed: defaultdict[frozenset[int], list[int]] = defaultdict(list)
        for row in level[guessed[level] < 0].tolist():
            removed[frozenset(guessed[a.parents(row)].tolist())].append(row)
        for parents, rows in removed.items():
            candidates = added.get(parents, [])
            if len(rows) * len(candidates) > MAX_PAIRS:
                continue
            pairs = ((_similarity(a[old].name, b[new].name), old, new) for old in rows for new in candidates)
            for _, old, new in sorted((pair for pair in pairs if pair[0] >= MIN_SIMILARITY), key=lambda p: -p[0]):
                if guessed[old] < 0 and not taken[new]:
                    guessed[old], taken[new] = new, True
    found = np.flatnonzero((row_in_b < 0) & (guessed >= 0))
    return np.stack([found, guessed[found]], axis=1)


def _similarity(one: str, other: str) -> float:
    return SequenceMatcher(None, one.casefold()[:MAX_COMPARED], other.casefold()[:MAX_COMPARED]).ratio()


def _has_moved(a: Taxonomy, b: Taxonomy, row_in_b: IntArray) -> BoolArray:
    """Return for each label of a whether its parents in b differ; a removed parent counts as a difference."""
    children, parents = row_in_b[a.edge_array.T]
    edges_before = children * (len(b) + 1) + parents + 1  # parents + 1 is 0 for a removed parent
    new_children, new_parents = b.edge_array.T
    edges_after = new_children * (len(b) + 1) + new_parents + 1
    moved = np.zeros(len(b) + 1, dtype=bool)  # the last entry is for labels that are not in b
    moved[new_children[~np.isin(edges_after, edges_before)]] = True
    moved[children[~np.isin(edges_before, edges_after)]] = True
    result: BoolArray = moved[row_in_b]
    return result
