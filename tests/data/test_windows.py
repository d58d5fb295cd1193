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
from hill.data.windows import Frame, WindowConfig, cut, max_document_length, pool, score_windows
from hill.errors import ConfigError

CLS, SEP = 101, 102


def documents(lengths: list[int], frame: Frame) -> Tokens:
    """Documents whose own tokens are numbered from 1000 on, each in a frame."""
    made, start = [], 1000
    for length in lengths:
        own = np.arange(start, start + length)
        start += length
        ids = np.concatenate([np.full(frame.before, CLS), own, np.full(frame.after, SEP)]).astype(np.int32)
        made.append(Tokens(ids, np.array([0, len(ids)])))
    return join_tokens(made)


def slow_windows(own: list[int], body: int, overlap: int, most: int) -> list[list[int]]:
    """Windows of one document's own tokens, as a person would cut them."""
    read = own[: body + (most - 1) * (body - overlap)]
    if len(read) <= body:
        return [read]
    starts, place = [0], 0
    while place + body < len(read):
        place += body - overlap
        starts.append(min(place, len(read) - body))
    return [read[start : start + body] for start in starts]


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=6),
    st.integers(1, 15),
    st.integers(0, 14),
    st.integers(1, 8),
    st.sampled_from([(1, 1), (0, 0), (1, 0), (2, 3)]),
)
def test_windows_are_those_a_person_would_cut(
    lengths: list[int], body: int, overlap: int, most: int, framed: tuple[int, int]
) -> None:
    frame, config = Frame(*framed), WindowConfig(most, overlap)
    if overlap >= body:
        with pytest.raises(ConfigError, match=f"data.overlap is {overlap}, but a window has {body} tokens of its text"):
            max_document_length(body + frame.size, frame, config)
        return
    tokens = documents(lengths, frame)
    windows = cut(tokens, body + frame.size, frame, config)
    expected = []
    for number in range(len(tokens)):
        own = tokens[number].tolist()[frame.before : len(tokens[number]) - frame.after]
        for part in slow_windows(own, body, overlap, most):
            expected.append((number, [CLS] * frame.before + part + [SEP] * frame.after))
    found = [(int(document), windows.tokens[i].tolist()) for i, document in enumerate(windows.document)]
    assert found == expected
    assert np.bincount(windows.document).max() <= most


@pytest.mark.parametrize("how", ["mean", "max"])
@given(data=st.data())
def test_scores_come_in_any_order_and_in_any_parts(how: str, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    document = np.repeat(np.arange(len(counts)), counts)
    order = np.array(data.draw(st.permutations(range(len(document)))))
    size = data.draw(st.integers(1, len(document)))
    scores = np.random.default_rng(0).random((len(document), 3), dtype=np.float32)
    scores[0], scores[-1] = 0.0, 1.0
    chunks = [(part, scores[part]) for part in np.split(order, range(size, len(order), size))]
    found = np.full((len(counts), 3), np.nan, dtype=np.float32)
    for numbers, values in pool(iter(chunks), document, how):
        assert np.isnan(found[numbers]).all() and values.dtype == np.float32
        found[numbers] = values
    for number, count in enumerate(counts):
        own = scores[document == number].astype(np.float64)
        if count == 1:
            assert np.array_equal(found[number], own[0]), "what is in one window has its score to the bit"
        elif how == "max":
            assert np.array_equal(found[number], own.max(axis=0))
        else:
            inside = np.clip(own, 1e-6, 1 - 1e-6)
            mean = np.log(inside / (1 - inside)).mean(axis=0)
            assert np.allclose(found[number], 1 / (1 + np.exp(-mean)), atol=1e-6)


def test_documents_are_given_as_soon_as_they_are_whole() -> None:
    document = np.array([0, 0, 1, 2, 2, 2])
    one = np.full((1, 2), 0.5, dtype=np.float32)
    chunks = ((np.array([i]), one) for i in (0, 3, 2, 1, 5, 4))
    assert [numbers.tolist() for numbers, _ in pool(chunks, document, "mean")] == [[1], [0], [2]]


def counting(seen: list[Tokens]) -> Any:
    """Scores that say how many tokens a window has and which is its highest."""

    def score(tokens: Tokens) -> Iterator[Any]:
        seen.append(tokens)
        for i in range(len(tokens)):
            yield np.array([i]), np.array([[tokens.lengths[i] / 100, tokens[i].max() / 100]], dtype=np.float32)

    return score


def test_texts_to_scores(tiny_encoder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_encoder / "tokenizer.json"))
    assert Frame.of(tokenizer) == Frame(1, 1)
    texts = ["leaf", "fur " * 30 + "bark", "wing " * 5]
    bark, fur = tokenizer.token_to_id("bark"), tokenizer.token_to_id("fur")
    results = {}
    for most in (0, 1, 2, 10):
        seen: list[Tokens] = []
        found = np.zeros((3, 2))
        for numbers, scores in score_windows(texts, tokenizer, 10, WindowConfig(most, 2, "max"), counting(seen)):
            found[numbers] = scores
        results[most] = found
        assert seen[0].lengths.max() <= 10
        assert len(seen[0]) == {0: 3, 1: 3, 2: 4, 10: 7}[most]
    assert np.array_equal(results[0], results[1])
    assert results[0][1, 1] == pytest.approx(fur / 100) and results[2][1, 1] == pytest.approx(fur / 100)
    assert results[10][1, 1] == pytest.approx(bark / 100), "only with enough windows is the end read"
    assert (results[10][[0, 2]] == results[0][[0, 2]]).all()


def test_settings_out_of_range_are_refused() -> None:
    for values, message in (
        ({"most": -1}, "data.windows is -1"),
        ({"overlap": -1}, "data.overlap is -1"),
        ({"pool": "sum"}, "unknown data.pool 'sum'"),
    ):
        with pytest.raises(ConfigError, match=message):
            WindowConfig(**values)
