"""Windows of long documents: every token is read, and scores come back to their documents."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from hill.data.tokens import Tokens, join_tokens
from hill.data.windows import count_special, cut, overlap, pool, score_windows

CLS, SEP = 101, 102


def documents(lengths: list[int], special: tuple[int, int]) -> Tokens:
    """Documents whose own tokens are numbered from 1000 on, each between special tokens."""
    made, start = [], 1000
    for length in lengths:
        own = np.arange(start, start + length)
        start += length
        ids = np.concatenate([np.full(special[0], CLS), own, np.full(special[1], SEP)]).astype(np.int32)
        made.append(Tokens(ids, np.array([0, len(ids)])))
    return join_tokens(made)


def slow_windows(own: list[int], length: int, shared: int) -> list[list[int]]:
    """Windows of one document's own tokens, as a person would cut them."""
    if len(own) <= length:
        return [own]
    starts, start = [0], 0
    while start + length < len(own):
        start += length - shared
        starts.append(min(start, len(own) - length))
    return [own[start : start + length] for start in starts]


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=6),
    st.integers(8, 60),
    st.sampled_from([(1, 1), (0, 0), (1, 0), (2, 3)]),
)
def test_windows_are_those_a_person_would_cut(lengths: list[int], max_length: int, special: tuple[int, int]) -> None:
    tokens, (before, after) = documents(lengths, special), special
    windows, document = cut(tokens, max_length, special)
    expected = []
    for number in range(len(tokens)):
        own = tokens[number].tolist()[before : len(tokens[number]) - after]
        for part in slow_windows(own, max_length - before - after, 32 if max_length > 40 else max_length // 4):
            expected.append((number, [CLS] * before + part + [SEP] * after))
    assert [(int(number), windows[i].tolist()) for i, number in enumerate(document)] == expected


def test_windows_share_32_tokens_or_a_quarter() -> None:
    assert [overlap(length) for length in (4, 16, 40, 41, 512)] == [1, 4, 10, 32, 32]


@given(data=st.data())
def test_scores_come_in_any_order_and_in_any_parts(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    document = np.repeat(np.arange(len(counts)), counts)
    order = np.array(data.draw(st.permutations(range(len(document)))))
    size = data.draw(st.integers(1, len(document)))
    scores = np.random.default_rng(0).random((len(document), 3), dtype=np.float32)
    scores[0], scores[-1] = 0.0, 1.0
    chunks = [(part, scores[part]) for part in np.split(order, range(size, len(order), size))]
    found = np.full((len(counts), 3), np.nan, dtype=np.float32)
    for numbers, values in pool(iter(chunks), document):
        assert np.isnan(found[numbers]).all() and values.dtype == np.float32
        found[numbers] = values
    for number, count in enumerate(counts):
        own = scores[document == number].astype(np.float64)
        if count == 1:
            assert np.array_equal(found[number], own[0]), "what is in one window has its score to the bit"
        else:
            inside = np.clip(own, 1e-6, 1 - 1e-6)
            mean = np.log(inside / (1 - inside)).mean(axis=0)
            assert np.allclose(found[number], 1 / (1 + np.exp(-mean)), atol=1e-6)


def test_documents_are_given_as_soon_as_they_are_whole() -> None:
    document = np.array([0, 0, 1, 2, 2, 2])
    one = np.full((1, 2), 0.5, dtype=np.float32)
    chunks = ((np.array([i]), one) for i in (0, 3, 2, 1, 5, 4))
    assert [numbers.tolist() for numbers, _ in pool(chunks, document)] == [[1], [0], [2]]


def counting(seen: list[Tokens]) -> Any:
    """Scores that say how many tokens a window has and which is its highest."""

    def score(tokens: Tokens) -> Iterator[Any]:
        seen.append(tokens)
        for i in range(len(tokens)):
            yield np.array([i]), np.array([[tokens.lengths[i] / 100, tokens[i].max() / 100]], dtype=np.float32)

    return score


def test_texts_to_scores(tiny_encoder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_encoder / "tokenizer.json"))
    assert count_special(tokenizer) == (1, 1)
    texts = ["leaf", "fur " * 30 + "bark", "wing " * 5]
    bark, fur = tokenizer.token_to_id("bark"), tokenizer.token_to_id("fur")
    results = {}
    for most in (1, 2, 10):
        seen: list[Tokens] = []
        found = np.zeros((3, 2))
        for numbers, scores in score_windows(texts, tokenizer, 10, most, counting(seen)):
            found[numbers] = scores
        results[most] = found
        assert seen[0].lengths.max() <= 10
        assert len(seen[0]) == {1: 3, 2: 4, 10: 7}[most]
    assert results[1][1, 1] == pytest.approx(fur / 100) and results[2][1, 1] == pytest.approx(fur / 100)
    logits = np.log(np.array([fur] * 4 + [bark]) / (100 - np.array([fur] * 4 + [bark])))
    expected = 1 / (1 + np.exp(-logits.mean()))
    assert results[10][1, 1] == pytest.approx(expected), "only with enough windows is the end read"
    assert (results[10][[0, 2]] == results[1][[0, 2]]).all()
