"""TF-IDF vectors of words and word pairs, computed from token ids without a dictionary of strings."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from hill.encoders.base import TextEncoder
from hill.types import FloatArray, IntArray

FIRST_WORD = 2
"""Lower token ids are padding and unknown words."""


class Ngrams(NamedTuple):
    """All n-grams of some documents, in order of their kind: (M) each."""

    keys: IntArray
    first: IntArray
    """The first token of each n-gram."""
    last: IntArray
    """The last token of each n-gram."""


class Bag(TextEncoder):
    """The n-grams of a document, weighted by (1 + log tf) · idf and normalized to length 1, as in scikit-learn.

    The key of a word is its id, the key of a pair id · V + id for a vocabulary of V words, so no two n-grams share a
    key. An unknown word has no key, and words on both sides of it are not a pair. It computes on the CPU.
    """

    def __init__(self, words: int, pairs: bool) -> None:
        super().__init__()
        self.words = words
        self.pairs = pairs
        self.set_features(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 0)

    def set_features(self, keys: IntArray, counts: IntArray, documents: int) -> None:
        """Set the n-grams that are features: their keys, sorted, and how many of the documents have each."""
        self.keys = keys
        self.idf: FloatArray = 1 + np.log((1 + documents) / (1 + counts))
        self.width = len(keys)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask (B, T) to dense vectors (B, D)."""
        return torch.from_numpy(self.sparse(ids, mask).toarray()).to(ids.device)

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Not available: the order of words is not known."""
        raise NotImplementedError

    def sparse(self, ids: Tensor, mask: Tensor) -> csr_array[Any]:
        """Token ids and mask (B, T) to sparse vectors (B, D)."""
        known = ids.masked_fill(mask == 0, self.pad).cpu().numpy()
        return self.vectors(known.ravel(), np.arange(len(ids) + 1) * ids.shape[1])

    def vectors(self, ids: npt.NDArray[Any], starts: IntArray) -> csr_array[Any]:
        """The vectors (documents, D) of documents whose tokens are `ids[starts[i]:starts[i + 1]]`."""
        document = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        ngrams = self.ngrams(ids, document)
        features, known = self.find(ngrams.keys)
        entries = document[ngrams.first[known]], features[known]
        counts = csr_array(
            coo_array((np.ones(len(entries[0])), entries), shape=(len(starts) - 1, self.width))
        )  # adds up equal entries
        values = (1 + np.log(counts.data)) * self.idf[counts.indices]
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(counts.indptr))
        lengths = np.sqrt(np.bincount(rows, values**2, len(starts) - 1))
        values = (values / lengths[rows]).astype(np.float32)
        return csr_array((values, counts.indices, counts.indptr), shape=counts.shape)

    def find(self, keys: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """The feature of each key, and which keys have one."""
        features = np.minimum(np.searchsorted(self.keys, keys), self.width - 1)
        return features, self.keys[features] == keys

    def ngrams(self, ids: npt.NDArray[Any], document: IntArray) -> Ngrams:
        """All words, then all pairs, of these tokens; `document` is the document of each token."""
        words = np.flatnonzero(ids >= FIRST_WORD)
        keys, first, last = [ids[words].astype(np.int64)], [words], [words]
        if self.pairs:
            follows = (np.diff(words) == 1) & (document[words[1:]] == document[words[:-1]])
            keys.append(keys[0][:-1][follows] * self.words + keys[0][1:][follows])
            first.append(words[:-1][follows])
            last.append(words[1:][follows])
        return Ngrams(np.concatenate(keys), np.concatenate(first), np.concatenate(last))


def count_documents(parts: Iterable[tuple[IntArray, IntArray]]) -> tuple[IntArray, IntArray]:
    """The keys of all n-grams, sorted, and the number of documents that have each.

    Each part has the keys of some documents, and the document of each key, from 0 on.
    """
    keys = counts = np.empty(0, dtype=np.int64)
    for new_keys, document in parts:
        found, index = np.unique(new_keys, return_inverse=True)
        shape = int(document.max(initial=-1)) + 1, len(found)
        documents = csr_array(coo_array((np.ones(len(index), dtype=np.int32), (document, index)), shape=shape))
        new_counts = np.bincount(documents.indices, minlength=len(found))
        merged, index = np.unique(np.concatenate([keys, found]), return_inverse=True)
        counts = np.bincount(index, np.concatenate([counts, new_counts]), len(merged)).astype(np.int64)
        keys = merged
    return keys, counts
