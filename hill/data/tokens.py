"""Texts as token ids: one flat array, so that a million documents need no Python objects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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

    ids: npt.NDArray[np.int32]
    starts: IntArray
    truncated: int = 0
    """Documents that were longer than allowed."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> IntArray:
        """Tokens of each document."""
        return np.diff(self.starts)

    def __getitem__(self, document: int) -> npt.NDArray[np.int32]:
        return self.ids[self.starts[document] : self.starts[document + 1]]


def tokenize(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    max_length: int,
    tick: Callable[[int], None] = lambda documents: None,
) -> Tokens:
    """Tokens of these texts, special tokens included, each cut to `max_length`; `tick` hears of every chunk done."""
    tokenizer.enable_truncation(max_length)
    ids: list[npt.NDArray[np.int32]] = []
    truncated = 0
    for start in range(0, len(texts), CHUNK):
        chunk = [text[: max_length * CHARACTERS_A_TOKEN] for text in texts[start : start + CHUNK]]
        for text, encoding in zip(texts[start:], tokenizer.encode_batch(chunk), strict=False):
            ids.append(np.array(encoding.ids, dtype=np.int32))
            truncated += bool(encoding.overflowing) or len(text) > max_length * CHARACTERS_A_TOKEN
        tick(len(chunk))
    tokenizer.no_truncation()
    starts = np.concatenate([[0], np.cumsum([len(document) for document in ids])]).astype(np.int64)
    return Tokens(np.concatenate([*ids, np.empty(0, dtype=np.int32)]), starts, truncated)
