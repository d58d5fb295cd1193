"""The words that tell the documents of a label from others."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hill.data.documents import Documents

COMMON = 0.8
"""Words in more than this share of the documents describe nothing."""
CHUNK = 256
"""Labels described at a time."""
WORD = re.compile(r"\w\w+")


def best_words(documents: Documents, count: int) -> list[list[str]]:
    """For each label the words with the highest mean TF-IDF over its documents, best first.

    The released code takes the vocabulary of a vectoriser, whose order its sort does not change, after a list of stop
    words. Here the weights (1 + ln tf) ln(n / df), of length 1 a document, and the limit `COMMON` leave those behind.
    """
    words, weights = _tfidf(documents.texts)
    by_label: Any = documents.labels.T.tocsr().astype(np.float64)
    best: list[list[str]] = []
    for start in range(0, by_label.shape[0], CHUNK):
        sums = (by_label[start : start + CHUNK] @ weights).tocsr()
        for low, high in zip(sums.indptr, sums.indptr[1:], strict=False):
            found, value = sums.indices[low:high], sums.data[low:high]
            best.append([words[word] for word in found[np.lexsort((found, -value))[:count]]])
    return best


def _tfidf(texts: Sequence[str]) -> tuple[list[str], Any]:
    """The words of these texts in alphabetical order, and their weights (texts, words)."""
    known: dict[str, int] = {}
    found = [[known.setdefault(word, len(known)) for word in WORD.findall(text.lower())] for text in texts]
    words = sorted(known)
    place = np.argsort([known[word] for word in words])
    starts = np.cumsum([0, *(len(each) for each in found)])
    flat = np.fromiter((word for each in found for word in each), dtype=np.int64, count=int(starts[-1]))
    table: Any = csr_array((np.ones(len(flat)), place[flat], starts), shape=(len(texts), len(words)))
    table.sum_duplicates()
    spread = np.bincount(table.indices, minlength=len(words))
    rarity = np.where(spread > COMMON * len(texts), 0.0, np.log(len(texts) / np.maximum(spread, 1)))
    table.data = (1 + np.log(table.data)) * rarity[table.indices]
    table.eliminate_zeros()
    length = np.sqrt(table.power(2).sum(axis=1))
    table.data /= np.repeat(length, np.diff(table.indptr))
    return words, table
