"""Token ids of documents, and a cache of them on disk whose keys are hashes of texts, tokenizer and maximum length."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from hill.io import cache_folder
from hill.types import IntArray

CHUNK = 1_000
"""Texts that are tokenized at once."""
CHARACTERS_PER_TOKEN = 40
"""Texts longer than this times the maximum length are cut before tokenization; tokens are shorter on average."""
MIN_CACHED = 1_000
"""Fewer documents are tokenized faster than they are looked up."""
MAX_CACHE_BYTES = 4 << 30
"""If the cache is larger, the least recently used entries are removed."""


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
    file = cache_folder() / "tokens" / f"{_cache_key(texts, tokenizer, max_length)}.safetensors"
    if tokens := _read_entry(file):
        yield tokens
        return
    parts = []
    for part in tokenize_chunks(texts, tokenizer, max_length):
        parts.append(part)
        yield part
    with suppress(OSError, SafetensorError):
        _write_entry(file, join_tokens(parts), tokenizer.get_vocab_size())
        total = 0
        for entry in sorted(file.parent.glob("*.safetensors"), key=lambda entry: entry.stat().st_mtime, reverse=True):
            total += entry.stat().st_size
            if total > MAX_CACHE_BYTES:
                entry.unlink(missing_ok=True)


def _cache_key(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> str:
    digest = hashlib.sha256(f"2 {max_length} {tokenizer.to_str()}".encode())
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _read_entry(file: Path) -> Tokens | None:
    """The tokens of a cache entry, or None if it is missing or damaged."""
    try:
        content = load_file(file)
        if not np.array_equal(content.pop("sum"), _checksum(content)):
            return None
        os.utime(file)
        return Tokens(content["ids"], content["starts"], int(content["truncated"][0]))
    except (OSError, SafetensorError, KeyError):
        return None


def _write_entry(file: Path, tokens: Tokens, vocabulary_size: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    ids = tokens.ids.astype(np.uint16 if vocabulary_size <= 1 << 16 else np.int32)
    content = {"ids": ids, "starts": tokens.starts, "truncated": np.array([tokens.truncated])}
    try:
        save_file({**content, "sum": _checksum(content)}, draft)
        draft.rename(file)
    finally:
        draft.unlink(missing_ok=True)


def _checksum(content: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """SHA-256 of the arrays of an entry, to detect damage on disk."""
    digest = hashlib.sha256()
    for name in sorted(content):
        digest.update(content[name].tobytes())
    return np.frombuffer(digest.digest(), dtype=np.uint8)
