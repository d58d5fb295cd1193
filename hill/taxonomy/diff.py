"""What changed between two versions of a taxonomy: labels that came, went, moved, or have another name or id."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hill.taxonomy.hints import Hint, find_splits
from hill.taxonomy.taxonomy import Taxonomy
from hill.types import BoolArray, IntArray


@dataclass(frozen=True)
class TaxonomyDiff:
    """The changes from taxonomy `a` to taxonomy `b`; pairs are rows (row of a, row of b), in the order of a."""

    a: Taxonomy
    b: Taxonomy
    kept: IntArray
    """Labels that are in both: the same id (n, 2)."""
    recoded: IntArray
    """Labels that are likely in both: another id, but the same name under the same parents (n, 2)."""
    renamed: IntArray
    """Labels of the same id and another name (n, 2)."""
    moved: IntArray
    """Kept or recoded labels with other parents (n, 2)."""
    described: IntArray
    """Labels of the same id and another description (n, 2)."""
    added: IntArray
    """Rows of b that are new."""
    removed: IntArray
    """Rows of a that are gone."""
    splits: list[Hint] = field(default_factory=list)
    """Labels of a whose name is spread over several of b, by their names."""
    merges: list[Hint] = field(default_factory=list)
    """Labels of b whose name gathers several of a, by their names."""

    @property
    def pairs(self) -> IntArray:
        """Labels that are in both or likely so: kept and recoded (n, 2)."""
        both = np.concatenate([self.kept, self.recoded])
        return both[np.argsort(both[:, 0], kind="stable")]

    @property
    def same(self) -> bool:
        """Whether nothing changed but perhaps the order of the labels."""
        changes = (self.recoded, self.renamed, self.moved, self.described, self.added, self.removed)
        return not any(map(len, changes))

    def document(self) -> dict[str, Any]:
        """Everything as plain values, labels by id."""
        a, b = self.a, self.b
        return {
            "labels": [len(a), len(b)],
            "kept": len(self.kept),
            "added": [_label(b, row) for row in self.added.tolist()],
            "removed": [_label(a, row) for row in self.removed.tolist()],
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
            "splits": [{"from": _label(a, one), "to": [_label(b, row) for row in many]} for one, many in self.splits],
            "merges": [{"from": [_label(a, row) for row in many], "to": _label(b, one)} for one, many in self.merges],
        }


def diff(a: Taxonomy, b: Taxonomy) -> TaxonomyDiff:
    """The changes from one version of a taxonomy to the next. A label is known by its id, else by name and parents."""
    kept = np.array([(row, b.row(label.id)) for row, label in enumerate(a) if label.id in b], dtype=np.int64)
    kept = kept.reshape(-1, 2)
    partner = np.full(len(a), -1)  # the row of b that is the same label
    partner[kept[:, 0]] = kept[:, 1]
    recoded = np.array(list(_recode(a, b, partner)), dtype=np.int64).reshape(-1, 2)
    recoded = recoded[np.argsort(recoded[:, 0], kind="stable")]
    pairs = np.stack([np.flatnonzero(partner >= 0), partner[partner >= 0]], axis=1)
    renamed = _differing(kept, (a[old].name != b[new].name for old, new in kept.tolist()))
    described = _differing(kept, (a[old].description != b[new].description for old, new in kept.tolist()))
    added, removed = np.setdiff1d(np.arange(len(b)), partner), np.flatnonzero(partner < 0)
    old, new = np.append(removed, renamed[:, 0]), np.append(added, renamed[:, 1])
    above_old, above_new = _parents(a, old, partner), _parents(b, new, np.arange(len(b)))
    splits, merges = (
        find_splits(a, old, above_old, b, new, above_new),
        find_splits(b, new, above_new, a, old, above_old),
    )
    moved = pairs[_moves(a, b, partner)[pairs[:, 0]]]
    return TaxonomyDiff(a, b, kept, recoded, renamed, moved, described, added, removed, splits, merges)


def _recode(a: Taxonomy, b: Taxonomy, partner: IntArray) -> Iterator[tuple[int, int]]:
    """Pairs of labels of which only the id differs; each is entered as a partner before what stands below it is seen.

    A name that several removed or several added siblings have tells nothing.
    """
    taken = np.zeros(len(b), dtype=bool)
    taken[partner[partner >= 0]] = True
    free: defaultdict[tuple[str, frozenset[int]], list[int]] = defaultdict(list)
    for row in np.flatnonzero(~taken).tolist():
        free[b[row].name, frozenset(b.parents(row).tolist())].append(row)
    for level in a.levels:
        lost = level[partner[level] < 0].tolist()
        keys = {row: (a[row].name, frozenset(partner[a.parents(row)].tolist())) for row in lost}
        times = Counter(keys.values())
        for row, key in keys.items():
            if times[key] == 1 and len(found := free.get(key, [])) == 1:
                partner[row] = found[0]
                yield row, found[0]


def _moves(a: Taxonomy, b: Taxonomy, partner: IntArray) -> BoolArray:
    """Which labels of a that have a partner have other parents in b; one that is gone counts as another: (L of a)."""
    child, parent = (partner[ends] for ends in a.edge_array.T)
    before = child * (len(b) + 1) + parent + 1  # 0 for a parent without a partner
    here, above = b.edge_array.T
    after = here * (len(b) + 1) + above + 1
    moved = np.zeros(len(b) + 1, dtype=bool)  # one more, at which labels without a partner point
    moved[here[~np.isin(after, before)]] = True
    moved[child[~np.isin(before, after)]] = True
    found: BoolArray = moved[partner]
    return found


def _differing(pairs: IntArray, differs: Iterable[bool]) -> IntArray:
    found: IntArray = pairs[np.fromiter(differs, dtype=bool, count=len(pairs))]
    return found


def _parents(taxonomy: Taxonomy, rows: IntArray, partner: IntArray) -> list[tuple[int, ...]]:
    """The parents of each of these rows as rows of b; -1 stands above the roots, and for what b does not have."""
    return [tuple(partner[taxonomy.parents(row)].tolist()) or (-1,) for row in rows.tolist()]


def _label(taxonomy: Taxonomy, row: int) -> dict[str, Any]:
    label = taxonomy[row]
    return {"id": label.id, "name": label.name, "parents": list(label.parents)}
