"""A text as a model reads it: its tokens, and the words of the text that they come from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Encoding, Tokenizer

from hill.data.tokens import CHARACTERS_A_TOKEN
from hill.types import Batch, BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Reading:
    """Token ids (T), which of them frame every text (T), and the words (W) that the others make."""

    ids: IntArray
    special: BoolArray
    first: IntArray
    """Of each word its first token, counted without those that frame the text (W)."""
    starts: IntArray
    ends: IntArray
    """Where each word lies in the text, in characters (W)."""

    def merge(self, values: npt.NDArray[Any]) -> FloatArray:
        """Sums over the tokens of each word: (K, T) to (K, W)."""
        inner = values[:, : len(self.special)][:, ~self.special].astype(np.float64)
        return np.add.reduceat(inner, self.first, axis=1) if len(self.first) else inner[:, :0]

    def batch(self, pad: int, device: torch.device) -> Batch:
        """The text as a batch of one; a text without tokens is one of padding, which models overlook."""
        ids = torch.from_numpy(self.ids) if len(self.ids) else torch.tensor([pad])
        mask = torch.full_like(ids, len(self.ids) > 0)
        return Batch(ids[None].to(device), mask[None].to(device))


def read_text(text: str, tokenizer: Tokenizer, max_length: int) -> Reading:
    """The tokens that a model gets of a text, cut as for prediction, with the words they come from."""
    tokenizer.enable_truncation(max_length)
    encoding = tokenizer.encode(text[: max_length * CHARACTERS_A_TOKEN])
    tokenizer.no_truncation()
    special = np.array(encoding.special_tokens_mask, dtype=bool)
    starts, ends = _spans(text, encoding, special)
    numbers = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)[~special]
    group = _group(starts, ends, numbers)
    first = np.flatnonzero(np.diff(group, prepend=-1))
    begin = starts[np.maximum(first, np.argmax(starts < ends))] if len(first) else first
    end = np.maximum.reduceat(ends, first) if len(first) else first
    return Reading(np.array(encoding.ids, dtype=np.int64), special, first, begin, end)


def _spans(text: str, encoding: Encoding, special: BoolArray) -> tuple[IntArray, IntArray]:
    """Where each token that does not frame the text lies in it, blanks around it left out; 0, 0 where it is blank."""
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[~special]
    pieces = [text[start:end] for start, end in offsets.tolist()]
    blank = np.array([len(piece) - len(piece.lstrip()) for piece in pieces], dtype=np.int64)
    length = np.array([len(piece.strip()) for piece in pieces], dtype=np.int64)
    starts = np.where(length > 0, offsets[:, 0] + blank, 0)
    return starts, starts + length


def _group(starts: IntArray, ends: IntArray, numbers: IntArray) -> IntArray:
    """The word of each token: a new one begins after a blank, and where the tokenizer says so.

    A token of blanks alone belongs to the word before it, and so do several tokens of one character.
    """
    before = np.maximum.accumulate(np.concatenate([[0], ends]))[:-1]
    apart = (starts > before) | ((np.diff(numbers, prepend=-1) != 0) & (starts >= before))
    group: IntArray = np.maximum(np.cumsum(apart & (starts < ends)) - 1, 0)
    return group
