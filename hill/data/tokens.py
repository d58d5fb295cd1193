"""Texts as token ids: one flat array, so that a million documents need no Python objects."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from hill.types import IntArray

CHUNK = 1_000
CHARACTERS_A_TOKEN = 40
"""Longer texts are cut before they are tokenised: no tokenizer makes fewer tokens of this many characters."""


@dataclass(frozen=True)
class Tokens:
    """Token ids of document i are `ids[starts[i]:starts[i + 1]]`."""

    ids: npt.NDArray[np.integer[Any]]
    starts: IntArray
    truncated: int = 0
    """Documents that were longer than allowed."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> IntArray:
        """Tokens of each document."""
        return np.diff(self.starts)

    def __getitem__(self, document: int) -> npt.NDArray[np.integer[Any]]:
        return self.ids[self.starts[document] : self.starts[document + 1]]


def tokenize(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Tokens:
    """Tokens of these texts, special tokens included, each cut to `max_length`."""
    return join_tokens(tokenized(texts, tokenizer, max_length))


def tokenized(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Iterator[Tokens]:
    """The same a part at a time; each part is tokenised on all cores."""
    for start in range(0, len(texts), CHUNK):
        whole = texts[start : start + CHUNK]
        tokenizer.enable_truncation(max_length)
        encodings = tokenizer.encode_batch_fast([text[: max_length * CHARACTERS_A_TOKEN] for text in whole])
        tokenizer.no_truncation()
        ids = [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        cut = [bool(encoding.overflowing) for encoding in encodings]
        truncated = sum(
            len(text) > max_length * CHARACTERS_A_TOKEN or over for text, over in zip(whole, cut, strict=True)
        )
        yield Tokens(np.concatenate(ids), np.cumsum([0, *map(len, ids)], dtype=np.int64), truncated)


def join_tokens(parts: Iterable[Tokens]) -> Tokens:
    """All documents of these parts, in their order."""
    found = list(parts)
    ids = [part.ids for part in found] or [np.empty(0, dtype=np.int32)]
    lengths = np.concatenate([[0], *(part.lengths for part in found)]).astype(np.int64)
    return Tokens(np.concatenate(ids), lengths.cumsum(), sum(part.truncated for part in found))
