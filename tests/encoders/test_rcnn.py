"""The tokenizer of words, word vectors from a file, and the TextRCNN encoder."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hill.encoders import RCNN
from hill.encoders.rcnn import PAD, UNKNOWN, learn_words, read_vectors
from hill.errors import ConfigError
from hill.models.base import new_text_encoder
from hill.models.flat import TextRCNNConfig

TEXTS = ["The cat sat.", "the CAT ran; a dog ran", "ﬁsh & cat"]


def test_words_are_lower_case_counted_and_limited() -> None:
    tokenizer = learn_words(TEXTS, 100, 1)
    assert tokenizer.encode("The CAT, sat!").tokens == ["the", "cat", "sat"]
    assert tokenizer.encode("fish whale").tokens == ["fish", UNKNOWN]
    assert tokenizer.token_to_id(PAD) == 0 and tokenizer.token_to_id(UNKNOWN) == 1
    assert set(learn_words(TEXTS, 100, 2).get_vocab()) == {PAD, UNKNOWN, "the", "cat", "ran"}
    assert set(learn_words(TEXTS, 3, 1).get_vocab()) == {PAD, UNKNOWN, "cat"}


def test_known_words_fill_up_the_vocabulary() -> None:
    tokenizer = learn_words(TEXTS, 6, 2, extra=["whale", "cat", "mouse"])
    assert set(tokenizer.get_vocab()) == {PAD, UNKNOWN, "the", "cat", "ran", "whale"}


@pytest.mark.parametrize("header", ["", "3 2\n"], ids=["glove", "word2vec"])
def test_word_vectors_start_the_words_that_have_one(header: str, tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text(header + "cat 1.5 -2\nwhale 3 4\nran 0 1e-1\n")
    config = TextRCNNConfig(vectors=str(file), word_width=2, gru_width=3, filters=2)
    torch.manual_seed(0)
    text, tokenizer = new_text_encoder(config, TEXTS)
    assert isinstance(text, RCNN)
    rows = {word: text.words.weight[row].tolist() for word, row in tokenizer.get_vocab().items()}
    assert rows["cat"] == [1.5, -2.0] and rows["whale"] == [3.0, 4.0]
    assert rows["ran"] == pytest.approx([0.0, 0.1]) and rows[PAD] == [0.0, 0.0]
    assert max(map(abs, rows["the"])) <= 0.25 and rows["the"] != [0.0, 0.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cat 1 2\ndog 1\n", "line 2 of .* has 1 numbers, the first one 2"),
        ("cat 1 2\ndog 1 nan\n", "line 2 of .* has a number that is infinite or not a number"),
        ("cat\n", "line 1 of .* has a word without numbers"),
        ("", "has no word vectors; expected a word and its numbers per line"),
        ("cat 1 two\n", "line 1 of .* is not a word and its numbers"),
        ("cat 1 2 3\n", "the word vectors have 3 numbers; set model.word_width=3"),
        (None, "cannot read word vectors"),
    ],
)
def test_bad_word_vectors_are_refused(content: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        new_text_encoder(TextRCNNConfig(vectors=str(file), word_width=2), TEXTS)


def test_vectors_are_read_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("a 1 2\nb 3 4\n")
    found = read_vectors(file)
    assert list(found) == ["a", "b"] and np.array_equal(found["b"], [3.0, 4.0])


def test_vectors_are_those_of_each_document_alone() -> None:
    """Document by document, without padding, packing or masks."""
    torch.manual_seed(0)
    text = RCNN(20, word_width=5, gru_width=4, filters=3).eval()
    lengths = [6, 1, 3]
    ids = torch.zeros(3, 8, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(1, 20, (length,))
    found = text(ids, (ids > 0).long())
    for row, length in enumerate(lengths):
        states = text.gru(text.words(ids[row : row + 1, :length]))[0].transpose(1, 2)
        expected = torch.cat([layer(states).relu().amax(dim=2) for layer in text.convolutions], dim=1)
        assert torch.allclose(found[row], expected[0], atol=1e-6)
    assert text.width == 9 and text.state_width == 8
    assert torch.equal(text.states(ids, (ids > 0).long())[1, 1:], torch.zeros(7, 8))
