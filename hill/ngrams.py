"""TF-IDF vectors of words, word pairs and character n-grams, from token ids without strings; it needs no torch."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array
from tokenizers import Tokenizer

from hill.types import FloatArray, IntArray

FIRST_WORD = 2
"""Lower token ids are padding and unknown words."""
PIECE = "##"
"""The prefix of a token that continues a word."""
BOUNDARY, OTHER, FIRST_CHARACTER = 1, 2, 3
"""Codes of the start or end of a word, of a character that is not in the alphabet, and of the first one that is."""


class Ngrams(NamedTuple):
    """All n-grams of some documents, in order of their kind: (M) each."""

    keys: IntArray
    first: IntArray
    """The first token of each n-gram."""
    last: IntArray
    """The last token of each n-gram."""


class NgramVectors:
    """The n-grams of a document, weighted by (1 + log tf) · idf and normalized to length 1, as in scikit-learn.

    Words and pairs are normalized together; character n-grams have a length of 1 of their own. These are within words,
    from 2 characters on, and include the start and end of the word, as scikit-learn's `char_wb`.

    For a vocabulary of V tokens, the key of a word is its id, the key of a pair id · V + id, and the key of a character
    n-gram V² + its codes as digits of a number, so no two n-grams share a key. An unknown word has no key, and words on
    both sides of it are not a pair; but it has character n-grams if `split_unknown_words` gave it tokens.
    """

    width: int
    """The number of features D."""

    def __init__(self, tokenizer: Tokenizer, pairs: bool, characters: int = 0) -> None:
        vocabulary = tokenizer.get_vocab()
        self.vocabulary = sorted(vocabulary, key=vocabulary.__getitem__)
        self.pairs = pairs
        self._is_piece = np.array([token.startswith(PIECE) for token in self.vocabulary], dtype=bool)
        self._letters = [self.vocabulary[token].removeprefix(PIECE) for token in np.flatnonzero(self._is_piece)]
        self.set_features(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 0, characters)

    def set_features(self, keys: IntArray, counts: IntArray, documents: int, characters: int) -> None:
        """Set the n-grams that are features: their keys, sorted, and how many of the documents have each."""
        self.keys = keys
        self.idf: FloatArray = 1 + np.log((1 + documents) / (1 + counts))
        self.width = len(keys)
        self.characters = characters
        if characters:  # the codes of the characters of each token
            codes = {letter: code for code, letter in enumerate(self._letters, start=FIRST_CHARACTER)}
            spelled = [token.removeprefix(PIECE) for token in self.vocabulary]
            self._codes = np.array([codes.get(letter, OTHER) for word in spelled for letter in word], dtype=np.int64)
            self._spelled = np.cumsum([0, *map(len, spelled)])

    @property
    def first_characters(self) -> int:
        """The first key of a character n-gram."""
        return len(self.vocabulary) ** 2

    def names(self, keys: Iterable[int]) -> list[str]:
        """N-grams as text: "word", "two words", "start…", "…middle…" or "…end"."""
        return [self._name(key) for key in keys]

    def _name(self, key: int) -> str:
        if key < self.first_characters:
            return " ".join(self.vocabulary[token] for token in divmod(key, len(self.vocabulary)) if token)
        codes: list[int] = []
        key -= self.first_characters
        while key:
            key, code = divmod(key, FIRST_CHARACTER + len(self._letters))
            codes.insert(0, code)
        inner = (self._letters[code - FIRST_CHARACTER] if code > OTHER else "?" for code in codes if code != BOUNDARY)
        before, after = ("" if code == BOUNDARY else "…" for code in (codes[0], codes[-1]))
        return f"{before}{''.join(inner)}{after}"

    def vectors(self, ids: npt.NDArray[Any], starts: IntArray) -> csr_array[Any]:
        """The vectors (documents, D) of documents whose tokens are `ids[starts[i]:starts[i + 1]]`."""
        document = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        ngrams = self.ngrams(ids, document)
        features, known = self.find(ngrams.keys)
        entries = document[ngrams.first[known]].astype(np.int32), features[known].astype(np.int32)
        shape = len(starts) - 1, self.width
        counts = csr_array(coo_array((np.ones(len(entries[0])), entries), shape=shape))  # adds up equal entries
        values = (1 + np.log(counts.data)) * self.idf[counts.indices]
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(counts.indptr))
        group = 2 * rows + (self.keys[counts.indices] >= self.first_characters)
        lengths = np.sqrt(np.bincount(group, values**2))
        values = (values / lengths[group]).astype(np.float32)
        return csr_array((values, counts.indices, counts.indptr), shape=counts.shape)

    def find(self, keys: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """The feature of each key, and which keys have one."""
        features = np.minimum(np.searchsorted(self.keys, keys), self.width - 1)
        return features, self.keys[features] == keys

    def ngrams(self, ids: npt.NDArray[Any], document: IntArray) -> Ngrams:
        """All words, then pairs, then character n-grams of these tokens; `document` is the document of each token."""
        return Ngrams(*map(np.concatenate, zip(*self._kinds(ids, document), strict=True)))

    def _kinds(self, ids: npt.NDArray[Any], document: IntArray) -> Iterator[Ngrams]:
        tokens = np.flatnonzero(ids >= FIRST_WORD)
        follows = (np.diff(tokens) == 1) & (np.diff(document[tokens]) == 0)
        continues = np.zeros(len(tokens) + 1, dtype=bool)
        continues[1:-1] = follows & self._is_piece[ids[tokens[1:]]]
        is_word = ~(continues[:-1] | continues[1:])  # a word of one token
        keys = ids[tokens].astype(np.int64)
        yield Ngrams(keys[is_word], tokens[is_word], tokens[is_word])
        if self.pairs:
            pairs = np.flatnonzero(follows & is_word[:-1] & is_word[1:])
            yield Ngrams(keys[pairs] * len(self.vocabulary) + keys[pairs + 1], tokens[pairs], tokens[pairs + 1])
        if self.characters:
            yield from self._character_ngrams(tokens, keys, ~continues[:-1], ~continues[1:])

    def _character_ngrams(
        self, tokens: IntArray, ids: IntArray, starts_word: npt.NDArray[Any], ends_word: npt.NDArray[Any]
    ) -> Iterator[Ngrams]:
        """Yield the n-grams of each length; windows over the codes of all words, with boundaries around each word."""
        lengths = self._spelled[ids + 1] - self._spelled[ids]
        padded = lengths + starts_word + ends_word
        place = np.cumsum(lengths) - lengths  # of a token in its letters, and below in all codes
        letter = np.arange(lengths.sum()) - np.repeat(place, lengths)
        start = np.cumsum(padded) - padded + starts_word
        codes = np.full(padded.sum(), BOUNDARY, dtype=np.int64)
        codes[np.repeat(start, lengths) + letter] = self._codes[np.repeat(self._spelled[ids], lengths) + letter]
        token, word = np.repeat(tokens, padded), np.repeat(np.cumsum(starts_word), padded)
        keys, base = codes, FIRST_CHARACTER + len(self._letters)
        for n in range(2, self.characters + 1):
            keys = keys[:-1] * base + codes[n - 1 :]
            inside = word[: len(keys)] == word[n - 1 :]
            yield Ngrams(self.first_characters + keys[inside], token[: len(keys)][inside], token[n - 1 :][inside])


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
