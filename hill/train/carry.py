"""Rows of weights carried from an old taxonomy to a new one, whose labels they belong to."""

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from hill.taxonomy.diff import TaxonomyDiff
from hill.types import BoolArray, IntArray


class Plan:
    """Which rows of the old taxonomy each row of the new one starts from."""

    def __init__(self, found: TaxonomyDiff) -> None:
        self.old, self.new = found.a, found.b
        source = np.full(len(self.new), -1)
        source[found.pairs[:, 1]] = found.pairs[:, 0]
        self.source = source
        self.copied = np.flatnonzero(source >= 0)
        self.edges = self._edges()
        self.shares = _one_each(source, len(self.old))  # (L new, L old): how much of each old row
        self.from_others = self._start_roots()
        known = self._known()
        for level in self.new.levels[1:]:
            self._start(level[~known[level]], *self.new.edge_array.T)
            known = self._known()
        started = np.flatnonzero(known)
        self.from_parents = np.setdiff1d(started, np.append(self.copied, self.from_others))
        self.fresh = np.flatnonzero(~known)

    def _known(self) -> BoolArray:
        return np.diff(self.shares.indptr) > 0

    def _start_roots(self) -> IntArray:
        """New roots start from labels below them that are not new, else from such roots, else from all such labels."""
        wanted = self.new.roots[self.source[self.new.roots] < 0]
        child, parent = self.new.edge_array.T
        self._start(wanted, parent, child)
        rest, siblings = wanted[~self._known()[wanted]], np.intersect1d(self.new.roots, self.copied)
        origins = siblings if len(siblings) else self.copied
        self._start(rest, np.repeat(rest, len(origins)), np.tile(origins, len(rest)))
        return np.intersect1d(wanted, np.flatnonzero(self._known()))

    def _start(self, rows: IntArray, target: IntArray, origin: IntArray) -> None:
        """Let these rows be the mean over the known origins of the edges into them."""
        used = np.isin(target, rows) & self._known()[origin]
        target, origin = target[used], origin[used]
        counts = np.bincount(target, minlength=len(self.new))
        size = (len(self.new), len(self.new))
        mean: csr_array[Any] = csr_array((1 / counts[target], (target, origin)), shape=size)
        self.shares = csr_array(self.shares + mean @ self.shares)

    def _edges(self) -> tuple[IntArray, IntArray]:
        """Numbers of the edges that both taxonomies have, in the old one and in the new one."""
        old = self.old.edge_array @ [len(self.old), 1]
        child, parent = (self.source[ends] for ends in self.new.edge_array.T)
        new = np.where((child >= 0) & (parent >= 0), child * len(self.old) + parent, -1)
        _, before, after = np.intersect1d(old, new, assume_unique=False, return_indices=True)
        return before, after

    def carry(self, old: Tensor, new: Tensor, axes: str) -> Tensor | None:
        """The old weight in the size of the new one, or nothing where they do not fit."""
        follows = bool(axes.strip("-"))
        if len(axes) != old.dim() or old.dim() != new.dim() or (follows and not len(self.copied)):
            return None
        for axis, letter in enumerate(axes):
            if letter != "-":
                old = self._take(letter, old.movedim(axis, 0), new.movedim(axis, 0)).movedim(0, axis)
        return old if old.shape == new.shape else None

    def _take(self, letter: str, old: Tensor, new: Tensor) -> Tensor:
        """Along the first axis, which is of this letter."""
        if letter in "ED":
            before, after = self.edges if letter == "E" else (np.arange(min(len(old), len(new))),) * 2
            return _put(new, after, old[before]) if old.shape[1:] == new.shape[1:] else old
        width = len(old) // len(self.old)
        rows = old.reshape(len(self.old), width, *old.shape[1:]) if width > 1 else old
        if letter == "K":
            return _put(new, self.copied, rows[self.source[self.copied]]) if rows.shape[1:] == new.shape[1:] else old
        found = rows.new_zeros(len(self.new), *rows.shape[1:])
        found[self.copied] = rows[self.source[self.copied]]
        started = np.append(self.from_parents, self.from_others)
        if letter == "L" and len(started):
            means = self.shares[started].astype(np.float32) @ rows.flatten(1 if rows.dim() > 1 else 0).cpu().numpy()
            found[started] = torch.from_numpy(means).to(found).reshape(found[started].shape)
        return found.flatten(0, 1) if width > 1 else found


def _put(into: Tensor, places: IntArray, rows: Tensor) -> Tensor:
    found = into.clone()
    found[places] = rows
    return found


def _one_each(source: IntArray, count: int) -> csr_array[Any]:
    rows = np.flatnonzero(source >= 0)
    return csr_array((np.ones(len(rows)), (rows, source[rows])), shape=(len(source), count))
