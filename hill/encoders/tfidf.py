"""TF-IDF of words and word pairs, from token ids: sparse vectors without a vocabulary of strings."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from hill.encoders.base import TextEncoder

SPECIAL = 2
"""The first ids are no words: padding, and all words that are not known."""


PENDING = 20_000_000
"""Keys that are held before they are counted together."""


class Bag(TextEncoder):
    """A document is what n-grams it has: (1 + log tf) · idf, of Euclidean length 1, as scikit-learn computes it.

    The key of a word is its id, that of a pair id · V + id, so that no two n-grams share one. An unknown word has no
    key and no pair leads across it: scikit-learn too counts no pair of words that do not stand side by side.
    """

    keys: Tensor
    idf: Tensor

    def __init__(self, words: int, pairs: bool) -> None:
        super().__init__()
        self.words = words
        self.pairs = pairs
        self.know(torch.empty(0, dtype=torch.long), torch.empty(0), 0)

    def know(self, keys: Tensor, counts: Tensor, documents: int) -> None:
        """Set the n-grams that are features: their keys, sorted, and how many of the documents have each."""
        self.register_buffer("keys", keys, persistent=False)
        idf = 1 + ((1 + documents) / (1 + counts.double())).log()
        self.register_buffer("idf", idf.float(), persistent=False)

    @property
    def width(self) -> int:
        """D of the vectors: the number of features."""
        return len(self.keys)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask (B, T) to vectors (B, D), zeros and all."""
        places, values = self.sparse(ids, mask)
        return values.new_zeros(len(ids), self.width).scatter_add(1, places, values)

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """There are none: a bag knows documents, not places in them."""
        raise NotImplementedError

    def sparse(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The features of each document and their values (B, M); a value of 0 stands for no feature."""
        found = self.ngrams(ids, mask)
        places = torch.searchsorted(self.keys, found).clamp(max=self.width - 1)
        places = places.masked_fill(self.keys[places] != found, self.width).sort(dim=1).values
        first = torch.searchsorted(places, places)  # of a run of equal places
        times = torch.searchsorted(places, places, right=True) - first
        counted = (first == torch.arange(places.shape[1], device=places.device)) & (places < self.width)
        places = places.clamp(max=self.width - 1)
        values = (1 + times.float().log()) * self.idf[places] * counted
        return places, F.normalize(values, dim=1)

    def ngrams(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The keys of all n-grams of each document, and -1 for those that it does not have: (B, T) to (B, M)."""
        known = (mask > 0) & (ids >= SPECIAL)
        single = ids.masked_fill(~known, -1)
        if not self.pairs:
            return single
        double = ids[:, :-1] * self.words + ids[:, 1:]
        return torch.cat([single, double.masked_fill(~(known[:, :-1] & known[:, 1:]), -1)], dim=1)


def count_documents(ngrams: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """All keys of these batches (B, M), sorted, and how many documents have each."""
    keys = counts = torch.empty(0, dtype=torch.long)
    pending: list[Tensor] = []
    for batch in ngrams:
        rows = batch.sort(dim=1).values
        fresh = F.pad(rows[:, 1:] != rows[:, :-1], (1, 0), value=True) & (rows >= 0)
        pending.append(rows[fresh])
        if sum(map(len, pending)) > PENDING:
            keys, counts = _add(keys, counts, torch.cat(pending))
            pending = []
    return _add(keys, counts, torch.cat([*pending, keys[:0]]))


def _add(keys: Tensor, counts: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """Counts with one more for every one of these keys."""
    both, place = torch.unique(torch.cat([keys, more]), return_inverse=True)
    return both, torch.zeros_like(both).index_add(0, place, torch.cat([counts, torch.ones_like(more)]))
