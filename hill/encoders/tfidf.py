"""TF-IDF vectors of words and word pairs, computed from token ids without a dictionary of strings."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from hill.encoders.base import TextEncoder

FIRST_WORD = 2
"""Lower token ids are padding and unknown words."""
MAX_PENDING = 20_000_000
"""Keys that are collected before they are counted."""


class Bag(TextEncoder):
    """The n-grams of a document, weighted by (1 + log tf) · idf and normalized to length 1, as in scikit-learn.

    The key of a word is its id, the key of a pair id · V + id for a vocabulary of V words, so no two n-grams share a
    key. An unknown word has no key, and words on both sides of it are not a pair.
    """

    keys: Tensor
    idf: Tensor

    def __init__(self, words: int, pairs: bool) -> None:
        super().__init__()
        self.words = words
        self.pairs = pairs
        self.set_features(torch.empty(0, dtype=torch.long), torch.empty(0), 0)

    def set_features(self, keys: Tensor, counts: Tensor, documents: int) -> None:
        """Set the n-grams that are features: their keys, sorted, and how many of the documents have each."""
        idf = 1 + ((1 + documents) / (1 + counts.double())).log()
        self.register_buffer("keys", keys, persistent=False)
        self.register_buffer("idf", idf.float(), persistent=False)
        self.width = len(keys)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask (B, T) to dense vectors (B, D)."""
        features, values = self.sparse(ids, mask)
        return values.new_zeros(len(ids), self.width).scatter_add(1, features, values)

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Not available: the order of words is not known."""
        raise NotImplementedError

    def sparse(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The features of each document and their values (B, M); entries with the value 0 are unused."""
        ngrams = self.ngrams(ids, mask)
        features = torch.searchsorted(self.keys, ngrams).clamp(max=self.width - 1)
        features = features.masked_fill(self.keys[features] != ngrams, self.width).sort(dim=1).values
        first = torch.searchsorted(features, features)  # the first of equal features
        counts = torch.searchsorted(features, features, right=True) - first
        used = (first == torch.arange(features.shape[1], device=features.device)) & (features < self.width)
        features = features.clamp(max=self.width - 1)
        values = (1 + counts.float().log()) * self.idf[features] * used
        return features, F.normalize(values, dim=1)

    def ngrams(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The keys of all words, then of all pairs, -1 for padding and unknown words: (B, T) to (B, M)."""
        known = (mask > 0) & (ids >= FIRST_WORD)
        words = ids.masked_fill(~known, -1)
        if not self.pairs:
            return words
        pairs = ids[:, :-1] * self.words + ids[:, 1:]
        return torch.cat([words, pairs.masked_fill(~(known[:, :-1] & known[:, 1:]), -1)], dim=1)


def count_documents(ngrams: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """The keys of all n-grams in these batches (B, M), sorted, and the number of documents that have each."""
    keys = counts = torch.empty(0, dtype=torch.long)
    pending: list[Tensor] = []
    for batch in ngrams:
        rows = batch.sort(dim=1).values
        is_first = F.pad(rows[:, 1:] != rows[:, :-1], (1, 0), value=True) & (rows >= 0)
        pending.append(rows[is_first])
        if sum(map(len, pending)) > MAX_PENDING:
            keys, counts = _add_counts(keys, counts, torch.cat(pending))
            pending = []
    return _add_counts(keys, counts, torch.cat([*pending, keys[:0]]))


def _add_counts(keys: Tensor, counts: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Add 1 to the count of every key in `new`."""
    merged, index = torch.unique(torch.cat([keys, new]), return_inverse=True)
    return merged, torch.zeros_like(merged).index_add(0, index, torch.cat([counts, torch.ones_like(new)]))
