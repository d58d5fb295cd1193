"""The token cache: a text is tokenised once, and found again by what it says, the tokenizer and the length."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from hill.data.tokens import Tokens, join_tokens, tokenized

LEAST = 1_000
"""Fewer documents than this are tokenised faster than they are looked up."""
LIMIT = 4 << 30
"""Bytes beyond which the entries that were not used for longest are removed."""


def cache_folder() -> Path:
    """Where entries are kept: $HILL_CACHE, else the user's cache folder."""
    base = os.environ.get("HILL_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hill"


def cached_tokens(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Iterator[Tokens]:
    """Tokens of these texts, all at once if the cache has them, else a part at a time.

    A cache that cannot be written is no error.
    """
    if len(texts) < LEAST:
        yield from tokenized(texts, tokenizer, max_length)
        return
    file = cache_folder() / "tokens" / f"{_key(texts, tokenizer, max_length)}.safetensors"
    if found := _read(file):
        yield found
        return
    parts = []
    for part in tokenized(texts, tokenizer, max_length):
        parts.append(part)
        yield part
    try:
        _write(file, join_tokens(parts), tokenizer.get_vocab_size())
        _prune(file.parent)
    except (OSError, SafetensorError):
        pass


def _key(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> str:
    found = hashlib.sha256(f"2 {max_length} {tokenizer.to_str()}".encode())
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        found.update(len(content).to_bytes(8, "little"))
        found.update(content)
    return found.hexdigest()


def _read(file: Path) -> Tokens | None:
    try:
        content = load_file(file)
        if not np.array_equal(content.pop("sum"), _sum(content)):
            return None
        os.utime(file)
        return Tokens(content["ids"], content["starts"], int(content["truncated"][0]))
    except (OSError, SafetensorError, KeyError):
        return None


def _write(file: Path, tokens: Tokens, vocabulary: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    ids = tokens.ids.astype(np.uint16 if vocabulary <= 1 << 16 else np.int32)
    content = {"ids": ids, "starts": tokens.starts, "truncated": np.array([tokens.truncated])}
    try:
        save_file({**content, "sum": _sum(content)}, draft)
        draft.rename(file)
    finally:
        draft.unlink(missing_ok=True)


def _sum(content: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """SHA-256 of what an entry holds: a bit that flips on disk must not become another word."""
    found = hashlib.sha256()
    for name in sorted(content):
        found.update(content[name].tobytes())
    return np.frombuffer(found.digest(), dtype=np.uint8)


def _prune(folder: Path) -> None:
    entries = sorted(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime, reverse=True)
    total = 0
    for file in entries:
        total += file.stat().st_size
        if total > LIMIT:
            file.unlink(missing_ok=True)
