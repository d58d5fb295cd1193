"""A text encoder on TF-IDF vectors of words, word pairs and character n-grams."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from tokenizers import Tokenizer, models
from torch import Tensor

from hill.encoders.base import TextEncoder
from hill.encoders.rcnn import UNKNOWN
from hill.ngrams import FIRST_WORD, PIECE, NgramVectors

CHARACTERS = 4
"""Length of the longest character n-grams if it is chosen automatically."""
MAX_CHARACTERS = 5
MAX_MEAN_LENGTH = 300
"""Mean length of texts, in characters, up to which character n-grams are used if this is chosen automatically."""
MAX_WORD_LENGTH = 20
"""Characters per word above which texts have no spaces between words, as in Chinese: character n-grams are used."""
MAX_ALPHABET = 4_000
"""Most different characters; keys of n-grams of 5 characters then fit in 64 bits."""


def choose_characters(setting: int | str, texts: Sequence[str]) -> int:
    """The length of the longest character n-grams for these training texts; 0 for none."""
    if isinstance(setting, int):
        return setting
    length, words = sum(map(len, texts)), sum(len(text.split()) for text in texts)
    return CHARACTERS if length <= MAX_MEAN_LENGTH * len(texts) or length > MAX_WORD_LENGTH * words else 0


def split_unknown_words(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer of words, but an unknown word becomes a known word or letter and letters that continue it.

    A word with a letter that is not in the vocabulary stays unknown.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    counts = Counter(letter for word in words[FIRST_WORD:] for letter in word)
    letters = [letter for letter, _ in counts.most_common(MAX_ALPHABET)]
    words += [letter for letter in letters if letter not in vocabulary] + [PIECE + letter for letter in letters]
    pieces = models.WordPiece(
        {word: index for index, word in enumerate(words)}, unk_token=UNKNOWN, max_input_chars_per_word=1_000
    )
    split = Tokenizer(pieces)
    split.normalizer, split.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    return split


class Bag(NgramVectors, TextEncoder):
    """The TF-IDF vector of a document. It computes on the CPU."""

    def __init__(self, tokenizer: Tokenizer, pairs: bool, characters: int = 0) -> None:
        TextEncoder.__init__(self)
        NgramVectors.__init__(self, tokenizer, pairs, characters)

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
