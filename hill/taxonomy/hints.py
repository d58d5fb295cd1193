"""Hints that a label was split into several, or several merged into one: their names share words under one parent."""

import re
from collections import defaultdict
from collections.abc import Sequence

from hill.taxonomy.taxonomy import Taxonomy
from hill.types import IntArray

Hint = tuple[int, tuple[int, ...]]
"""A row of one taxonomy, and the rows of the other that its name is spread over."""

LINKS = frozenset(["a", "an", "and", "for", "in", "of", "on", "or", "other", "others", "the", "to", "with"])
"""Words that say nothing of what a label is about."""
MOST = 50
"""A word that so many siblings have in common tells nothing."""

Index = dict[tuple[int, str], list[int]]


def find_splits(
    a: Taxonomy,
    old: IntArray,
    above_old: Sequence[Sequence[int]],
    b: Taxonomy,
    new: IntArray,
    above_new: Sequence[Sequence[int]],
) -> list[Hint]:
    """For each of the old rows of a the new rows of b, two or more under a parent of its own, that it may have become.

    Either all of them say what it said and more (`Depression` to `Mild depression` and `Severe depression`), or each
    says a part and together they say it all (`Physics and astronomy` to `Physics` and `Astronomy`). Parents are given
    for each row, in the same numbers for both. With a and b swapped, what is found are merges.
    """
    words_new = {row: words_of(b[row].name) for row in new.tolist()}
    index: Index = defaultdict(list)
    for row, parents in zip(new.tolist(), above_new, strict=True):
        for parent in parents:
            for word in words_new[row]:
                index[parent, word].append(row)
    found = []
    for row, parents in zip(old.tolist(), above_old, strict=True):
        own = words_of(a[row].name)
        near = {other for parent in parents for other in _sharing(index, parent, own)}
        parts = tuple(sorted(_parts(own, near, words_new)))
        if len(parts) > 1:
            found.append((row, parts))
    return found


def words_of(name: str) -> frozenset[str]:
    """The words of a name that tell what it is about, in lower case."""
    return frozenset(re.findall(r"\w+", name.casefold())) - LINKS


def _sharing(index: Index, parent: int, words: frozenset[str]) -> list[int]:
    """Labels under this parent that share a word, words that too many have left out."""
    lists = (index.get((parent, word), []) for word in words)
    return [row for rows in lists if len(rows) <= MOST for row in rows]


def _parts(own: frozenset[str], near: set[int], words: dict[int, frozenset[str]]) -> set[int]:
    """Those near that say more each, else those that say a part each, if together they say it all."""
    more = {row for row in near if own < words[row]}
    if len(more) > 1:
        return more
    less = {row for row in near if words[row] < own}
    return less if own and own == frozenset[str]().union(*(words[row] for row in less)) else set()
