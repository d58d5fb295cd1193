"""The token cache: found again if nothing changed, and never in the way."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError
from tokenizers import Tokenizer

from hill.data import cache as arrays
from hill.data import tokens as cache
from hill.data.tokens import Tokens, join_tokens, tokenize, tokenize_chunks
from hill.encoders.rcnn import learn_words
from hill.io import cache_folder

TEXTS = [f"word{i % 7} word{i % 11} and some more {i}" for i in range(1_200)]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return learn_words(TEXTS, 500, 1)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often texts were really tokenised."""
    monkeypatch.setenv("HILL_CACHE", str(tmp_path / "cache"))
    counted = []

    def counting(*arguments: Any) -> Iterator[Tokens]:
        counted.append(1)
        return tokenize_chunks(*arguments)

    monkeypatch.setattr(cache, "tokenize_chunks", counting)
    return lambda: len(counted)


def cached(*arguments: Any) -> Tokens:
    return join_tokens(cache.cached_tokens(*arguments))


def same(one: Tokens, other: Tokens) -> bool:
    return np.array_equal(one.ids, other.ids) and np.array_equal(one.starts, other.starts)


def test_padding() -> None:
    tokens = Tokens(np.arange(1, 10, dtype=np.int32), np.array([0, 2, 2, 5, 9]))
    ids, mask = tokens.pad(np.array([2, 0]), 77)
    assert ids.tolist() == [[3, 4, 5], [1, 2, 77]] and mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    ids, mask = tokens.pad(np.array([1, 0]), 77, length=3)
    assert ids.tolist() == [[77, 77, 77], [1, 2, 77]] and mask.tolist() == [[0, 0, 0], [1, 1, 0]]


def test_texts_are_tokenised_once(tokenizer: Tokenizer, calls: Callable[[], int]) -> None:
    first = cached(TEXTS, tokenizer, 5)
    again = cached(TEXTS, tokenizer, 5)
    assert calls() == 1 and same(first, again) and again.truncated == first.truncated == 1_200
    assert same(again, tokenize(TEXTS, tokenizer, 5)) and again.ids.dtype == np.uint16


def test_anything_else_is_another_entry(tokenizer: Tokenizer, calls: Callable[[], int]) -> None:
    cached(TEXTS, tokenizer, 6)
    cached(TEXTS, tokenizer, 5)
    cached([*TEXTS[:-1], "other"], tokenizer, 6)
    cached([TEXTS[0] + TEXTS[1], "", *TEXTS[2:]], tokenizer, 6)
    cached(TEXTS, learn_words(TEXTS, 400, 1), 6)
    assert calls() == 5 and len(list((cache_folder() / "tokens").iterdir())) == 5


def test_few_texts_are_not_kept(tokenizer: Tokenizer, calls: Callable[[], int]) -> None:
    cached(TEXTS[:999], tokenizer, 6)
    assert calls() == 1 and not cache_folder().exists()


def test_a_damaged_entry_is_made_again(tokenizer: Tokenizer, calls: Callable[[], int]) -> None:
    first = cached(TEXTS, tokenizer, 6)
    (file,) = (cache_folder() / "tokens").iterdir()
    file.write_bytes(file.read_bytes()[:50])
    assert same(cached(TEXTS, tokenizer, 6), first) and calls() == 2
    assert same(cached(TEXTS, tokenizer, 6), first) and calls() == 2


@pytest.mark.parametrize("place", [-1, -300, -2_000])
def test_a_bit_that_flipped_on_disk_is_seen(tokenizer: Tokenizer, calls: Callable[[], int], place: int) -> None:
    first = cached(TEXTS, tokenizer, 6)
    (file,) = (cache_folder() / "tokens").iterdir()
    content = bytearray(file.read_bytes())
    content[place] ^= 4
    file.write_bytes(content)
    assert same(cached(TEXTS, tokenizer, 6), first) and calls() == 2


def test_a_full_disk_is_no_error_and_leaves_nothing(
    tokenizer: Tokenizer, calls: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(content: Any, file: Path) -> None:
        file.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(arrays, "save_file", fails)
    tokens = cached(TEXTS, tokenizer, 6)
    assert calls() == 1 and same(tokens, tokenize(TEXTS, tokenizer, 6))
    assert not list((cache_folder() / "tokens").iterdir())


def test_a_folder_that_cannot_be_written_is_no_error(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HILL_CACHE", str(tmp_path / "file"))
    assert same(cached(TEXTS, tokenizer, 6), tokenize(TEXTS, tokenizer, 6))


def test_old_entries_go_when_there_are_too_many_bytes(
    tokenizer: Tokenizer, calls: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(TEXTS, tokenizer, 6)
    monkeypatch.setattr(arrays, "MAX_CACHE_BYTES", 1)
    cached(TEXTS, tokenizer, 5)
    assert not list((cache_folder() / "tokens").iterdir())


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HILL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "hill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "hill"
