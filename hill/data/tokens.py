"""Token ids of documents, and a cache of them on disk whose keys are hashes of texts, tokenizer and maximum length."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from hill.data.cache import read_arrays, write_arrays
from hill.types import IntArray

CHUNK = 1_000
"""Texts that are tokenized at once."""
CHARACTERS_PER_TOKEN = 40
"""Texts longer than this times the maximum length are cut before tokenization; tokens are shorter on average."""
MIN_CACHED = 1_000
"""Fewer documents are tokenized faster than they are looked up."""


# Tokenization


@dataclass(frozen=True)
class Tokens:
    """The token ids of many documents: those of document i are `ids[starts[i]:starts[i + 1]]`."""

    ids: npt.NDArray[np.integer[Any]]
    starts: IntArray
    truncated: int = 0
    """The number of documents that were truncated."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, document: int) -> npt.NDArray[np.integer[Any]]:
        return self.ids[self.starts[document] : self.starts[document + 1]]

    @property
    def lengths(self) -> IntArray:
        """Tokens per document."""
        return np.diff(self.starts)

    def take(self, documents: IntArray) -> "Tokens":
        """The tokens of these documents."""
        ids = [self[document] for document in documents] or [self.ids[:0]]
        return Tokens(np.concatenate(ids), np.cumsum([0, *self.lengths[documents]], dtype=np.int64))

    def pad(
        self, documents: IntArray, pad: int, length: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Token ids and mask (B, T) of these documents, padded to a length (default: that of the longest)."""
        starts = self.starts[documents]
        lengths = self.starts[documents + 1] - starts
        positions = np.arange(int(lengths.max()) if length is None else length)
        mask = positions < lengths[:, None]
        ids = np.full(mask.shape, pad, dtype=np.int64)
        ids[mask] = self.ids[(starts[:, None] + positions)[mask]]
        return ids, mask.astype(np.int64)


def tokenize(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Tokens:
    """Tokenize texts with special tokens and truncate each to `max_length` tokens."""
    return join_tokens(tokenize_chunks(texts, tokenizer, max_length))


def tokenize_chunks(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Iterator[Tokens]:
    """Tokenize texts chunk by chunk, so that callers can show progress. Each chunk is tokenized on all cores."""
    max_characters = max_length * CHARACTERS_PER_TOKEN
    for start in range(0, len(texts), CHUNK):
        part = texts[start : start + CHUNK]
        tokenizer.enable_truncation(max_length)
        encodings = tokenizer.encode_batch_fast([text[:max_characters] for text in part])
        tokenizer.no_truncation()
        ids = [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        truncated = sum(
            len(text) > max_characters or bool(encoding.overflowing)
            for text, encoding in zip(part, encodings, strict=True)
        )
        yield Tokens(np.concatenate(ids), np.cumsum([0, *map(len, ids)], dtype=np.int64), truncated)


def join_tokens(parts: Iterable[Tokens]) -> Tokens:
    """Concatenate the documents of several parts."""
    parts = list(parts)
    ids = [part.ids for part in parts] or [np.empty(0, dtype=np.int32)]
    lengths = np.concatenate([[0], *(part.lengths for part in parts)]).astype(np.int64)
    return Tokens(np.concatenate(ids), lengths.cumsum(), sum(part.truncated for part in parts))


# Cache


def cached_tokens(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Iterator[Tokens]:
    """Tokenize texts in chunks, or read all tokens from the cache. Errors while writing the cache are ignored."""
    if len(texts) < MIN_CACHED:
        yield from tokenize_chunks(texts, tokenizer, max_length)
        return
    key = _cache_key(texts, tokenizer, max_length)
    if content := read_arrays("tokens", key):
        yield Tokens(content["ids"], content["starts"], int(content["truncated"][0]))
        return
    parts = []
    for part in tokenize_chunks(texts, tokenizer, max_length):
        parts.append(part)
        yield part
    tokens = join_tokens(parts)
    ids = tokens.ids.astype(np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.int32)
    write_arrays("tokens", key, {"ids": ids, "starts": tokens.starts, "truncated": np.array([tokens.truncated])})


def _cache_key(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> str:
    digest = hashlib.sha256(f"2 {max_length} {tokenizer.to_str()}".encode())
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()
