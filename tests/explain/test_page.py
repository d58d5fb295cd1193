"""Words of a text, the page and the command line of explanations."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

import hill.cli.use  # noqa: F401, it adds the command
from hill.classifier import HillClassifier
from hill.cli.common import app
from hill.errors import DataError
from hill.explain import Explanation, LabelExplanation, Word, _group_tokens, explain, tokenize_words
from tests.conftest import animals_taxonomy, toy_documents

CORPUS = ["the quick brown fox jumps over the lazy dog", "state-of-the-art café naïve 日本 🦊 fox", "a b c"] * 3


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def pieces() -> Tokenizer:
    """As SentencePiece does it: blanks are part of the tokens, also of those that are nothing else."""
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=60, special_tokens=["?", "<s>", "</s>"], show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return tokenizer


def word_pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"?": 0, "f": 1, "##o": 2, "##x": 3, "-": 4, "日": 5}, unk_token="?"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return tokenizer


TOKENIZERS = {"bytes": byte_level(), "pieces": pieces(), "word pieces": word_pieces()}


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("word pieces", " fox-fo  f,日日 ", ["fox", "-", "fo", "f", ",", "日", "日"]),
        ("bytes", "the  fox 🦊🦊 café", ["the", "fox", "🦊🦊", "café"]),
        ("pieces", "  the   dog\nx ", ["the", "dog", "x"]),
    ],
)
def test_tokens_make_words(name: str, text: str, wanted: list[str]) -> None:
    tokenized = tokenize_words(text, TOKENIZERS[name], 512)
    found = [text[a:b] for a, b in zip(tokenized.starts.tolist(), tokenized.ends.tolist(), strict=True)]
    assert found == wanted


def test_tokens_of_one_character_are_one_word() -> None:
    starts, ends, numbers = (np.array(each) for each in ([0, 0, 1, 2], [1, 1, 2, 3], [0, 1, 1, 2]))
    assert _group_tokens(starts, ends, numbers).tolist() == [0, 0, 0, 1]


@given(st.sampled_from(sorted(TOKENIZERS)), st.text("ab fox-日🦊é,\n ", min_size=1, max_size=40), st.integers(4, 20))
def test_words_lie_in_order_and_keep_the_sum(name: str, text: str, length: int) -> None:
    tokenized = tokenize_words(text, TOKENIZERS[name], length)
    assert (tokenized.starts[1:] >= tokenized.ends[:-1]).all() and len(tokenized.ids) <= length
    if text[0].strip() or (text.strip() and length > 4 * len(text) + 2):  # else all tokens may be blank
        assert (tokenized.starts < tokenized.ends).all() and len(tokenized.starts)
    for start, end in zip(tokenized.starts.tolist(), tokenized.ends.tolist(), strict=True):
        assert not text[start:end] or text[start:end].split() == [text[start:end]], "a word has no blanks"
    values = np.random.default_rng(0).normal(size=(2, len(tokenized.ids)))
    merged = tokenized.sum_words(values)
    assert merged.shape == (2, len(tokenized.starts))
    assert np.allclose(merged.sum(axis=1), values[:, ~tokenized.special].sum(axis=1))


class Page(HTMLParser):
    """The texts of a page by class, its tags, and whether all that is opened is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self.open.append(tag)
        if dict(attrs).get("class") == "text":
            self._inside = True
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._inside = self._inside and tag != "p"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data


TEXT = 'Fox & <b>dog</b>\n  "fox" rest'


def made() -> Explanation:
    words = tuple(Word(found.group(), *found.span()) for found in re.finditer(r"[a-zA-Z]+", TEXT[:24]))
    values = (1.0, 0.5, -2.0, -0.25, 0.5)
    labels = (
        LabelExplanation(
            "a<1>", "A & B", "Root > A & B", 0.875, True, 1.0, 1.5, values, 8, {"text": 3.0, "bias": -2.0}
        ),
        LabelExplanation("b", "B", "B", 0.25, False, -1.0, -1.0, (0.0,) * 5, 16),
    )
    return Explanation(TEXT, "hill", "integrated", "[MASK]", words, labels)


def test_the_page_is_complete_and_needs_no_network() -> None:
    page = made().html()
    parsed = Page(page)
    assert not parsed.open and parsed.texts == [TEXT, TEXT]
    assert not re.search(r"https?:|<script|src=|url\(|@import|<b>", page)
    radios = [attributes for tag, attributes in parsed.tags if attributes.get("type") == "radio"]
    assert [("checked" in radio, radio["id"]) for radio in radios] == [(True, "label0"), (False, "label1")]
    views = [attributes["id"] for tag, attributes in parsed.tags if tag == "section"]
    for radio, view in zip(radios, views, strict=True):
        assert f"#{radio['id']}:checked ~ #{view} {{ display: block }}" in page
    assert "prefers-color-scheme: dark" in page and "Legend" in page and "[MASK]" in page
    assert "gap: what the words do not account for" in page and "bias: what the label has for every text" in page


def test_words_that_look_like_markup_are_escaped() -> None:
    label = LabelExplanation("a", "A", "A", 0.5, True, 1.0, 0.0, (1.0,), 8)
    page = Explanation("<i>", "hill", "gradient", "zero", (Word("<i>", 0, 3),), (label,)).html()
    assert "<i>" not in page and Page(page).texts == ["<i>"]


def test_words_are_marked_by_what_they_add() -> None:
    marks = re.findall(r'<span class="(\w+)" style="--part:([\d.]+)" title="([^"]+)">(\w+)</span>', made().html())[:5]
    assert marks == [
        ("for", "0.50", "+1.000", "Fox"),
        ("for", "0.25", "+0.500", "b"),
        ("against", "1.00", "-2.000", "dog"),
        ("against", "0.12", "-0.250", "b"),
        ("for", "0.25", "+0.500", "fox"),
    ]
    assert '<span class="faint" title="not read">&#34; rest</span>' in made().html()


def test_the_text_for_a_terminal() -> None:
    assert made().text(top=1).splitlines() == [
        "0.875  Root > A & B (a<1>)",
        "  logit +1.00 = baseline +1.50, words -0.25, gap -0.25",
        "  branches text +3.00  bias -2.00",
        "  for      fox ×2 +1.50",
        "  against  dog -2.00",
        "0.250  B (b), not predicted",
        "  logit -1.00 = baseline -1.00, words +0.00, gap +0.00",
        "  for      nothing",
        "  against  nothing",
        "",
        "logit: the label's own score, to which the words add up. The score in front of the label is calibrated and "
        "respects the taxonomy, so it can differ from the logit's probability.",
        "baseline: the logit with '[MASK]' in place of each token; gap: what the words do not account for",
        "branches: the parts of the logit. text: the classifier on the text; bias: what the label has for every text",
    ]


def test_no_path_is_printed_twice_and_only_what_is_shown_is_explained() -> None:
    label = LabelExplanation("A > B", "B", "A > B", 0.5, True, 1.0, 0.0, (1.0,), 8)
    root = LabelExplanation("A", "A", "A", 0.5, True, 1.0, 0.0, (1.0,), 8)
    text = Explanation("x", "hill", "exact", "empty text", (Word("x", 0, 1),), (label, root)).text()
    assert "0.500  A > B\n" in text and "0.500  A\n" in text and "branches" not in text
    assert "the logit with an empty text;" in text


def test_to_dict() -> None:
    document = json.loads(json.dumps(made().to_dict()))
    assert document["words"][2] == {"text": "dog", "start": 9, "end": 12} and document["read"] == 23
    assert document["labels"][0]["gap"] == -0.25 and document["labels"][0]["branches"] == {"text": 3.0, "bias": -2.0}
    assert document["labels"][1] == {
        **{"id": "b", "name": "B", "path": "B", "score": 0.25, "predicted": False, "logit": -1.0, "baseline": -1.0},
        **{"values": [0.0] * 5, "steps": 16, "branches": None, "ngrams": None, "gap": 0.0},
    }


def test_the_command_line(tmp_path: Path) -> None:
    classifier = HillClassifier(animals_taxonomy(), "linear", preset=None).fit(*toy_documents(80, seed=0))
    classifier.save(tmp_path / "model")
    text, page = "cave echo night, fur & wing", tmp_path / "page.html"
    command = ["explain", str(tmp_path / "model"), text]
    shown = CliRunner().invoke(app, [*command, "--top", "2", "--html", str(page)], catch_exceptions=False)
    assert shown.exit_code == 0 and shown.stdout == f"{explain(classifier, text).text(2)}\npage: {page}\n"
    assert page.read_text() == explain(classifier, text).html()
    asked = CliRunner().invoke(app, [*command, "--label", "p", "--label", "Bats", "--json"], catch_exceptions=False)
    assert json.loads(asked.stdout) == json.loads(json.dumps(explain(classifier, text, ["p", "bat"]).to_dict()))
    with pytest.raises(DataError, match=r"cannot write '.*page.html': No such file"):
        CliRunner().invoke(app, [*command, "--html", str(tmp_path / "none" / "page.html")], catch_exceptions=False)


def test_the_command_warns_about_a_truncated_text(tmp_path: Path) -> None:
    settings = {"data": {"max_length": 4}}
    classifier = HillClassifier(animals_taxonomy(), "linear", settings, preset=None).fit(*toy_documents(80, seed=0))
    classifier.save(tmp_path / "model")
    command = ["explain", str(tmp_path / "model"), "fur milk paw tail bone "]
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "the model reads 17 of the 23 characters of this text" in shown.stdout
    command[2] = "fur milk paw tail "
    assert "characters" not in CliRunner().invoke(app, command, catch_exceptions=False).stdout
