"""Character n-grams against scikit-learn's `char_wb`; words and pairs are tested with the linear model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from hill.classifier import HillClassifier
from hill.data.documents import label_documents
from hill.data.tokens import tokenize
from hill.encoders import tfidf
from hill.encoders.rcnn import learn_words
from hill.encoders.tfidf import Bag, choose_characters, split_unknown_words
from hill.explain import explain
from hill.models.linear import Linear, LinearConfig, _ngrams
from hill.ngrams import count_documents
from hill.settings import make
from hill.taxonomy import Label, Taxonomy
from tests.conftest import animals_taxonomy, toy_documents

TRAIN = ["malware steals a password", "the Malware hides", "a password dumper", "größe der schlange", "x y", "steals"]
UNSEEN = ["malwares stole passwords", "x", "mölware", "größer", "mälware", "...", "the malware hides a password x"]


def build(texts: list[str], characters: int, **settings: Any) -> tuple[Bag, Any]:
    """A bag with the n-grams of these texts as features, and its tokenizer."""
    taxonomy = animals_taxonomy()
    tokenizer = split_unknown_words(learn_words(texts, 1_000, min_count=1))
    documents = label_documents(texts, [["m"]] * len(texts), taxonomy)
    config = make(LinearConfig, {"characters": characters, "min_count": 1, **settings}, "model")
    assets = Linear.prepare(documents, taxonomy, config, tokenizer)
    bag = Bag(tokenizer, pairs=config.ngrams > 1)
    Linear(bag, taxonomy, config, assets)
    return bag, tokenizer


def vectors(bag: Bag, tokenizer: Any, texts: list[str]) -> np.ndarray:
    tokens = tokenize(texts, tokenizer, 512)
    return bag.vectors(tokens.ids, tokens.starts).toarray()


def spelled(name: str) -> str:
    """The name of scikit-learn: blanks for the start and end of a word."""
    return (name if name[0] == "…" else f" {name}").removesuffix("…").removeprefix("…") + (
        "" if name[-1] == "…" else " "
    )


@pytest.mark.parametrize("characters", [2, 3, 4, 5])
@pytest.mark.parametrize("least", [1, 2])
def test_character_ngrams_are_those_of_scikit_learn(characters: int, least: int) -> None:
    bag, tokenizer = build(TRAIN, characters, min_count=least, ngrams=1)
    texts = [*TRAIN, *UNSEEN[:4]]
    of_words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+", min_df=least).fit(TRAIN)
    of_letters = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(2, characters), sublinear_tf=True, min_df=least, lowercase=True
    ).fit(TRAIN)
    split = int(np.searchsorted(bag.keys, bag.first_characters))
    names = bag.names(bag.keys.tolist())
    assert sorted(names[:split]) == sorted(of_words.get_feature_names_out())
    assert sorted(map(spelled, names[split:])) == sorted(of_letters.get_feature_names_out())
    found = vectors(bag, tokenizer, texts)
    for ours, theirs, columns in (
        (names[:split], of_words, found[:, :split]),
        ([*map(spelled, names[split:])], of_letters, found[:, split:]),
    ):
        order = [theirs.vocabulary_[name] for name in ours]
        assert np.abs(columns - theirs.transform(texts).toarray()[:, order]).max() < 1e-6
    assert found[[-4, -2, -1], split:].any(axis=1).all(), "unknown words have character n-grams"
    assert not found[len(TRAIN), :split].any(), "but no word of the vocabulary"


def test_names() -> None:
    bag, _ = build(["ab abcd"], 3)
    assert sorted(bag.names(bag.keys.tolist())) == sorted(
        ["ab", "abcd", "ab abcd", "a…", "…ab…", "…b", "ab…", "…ab", "…bc…", "…cd…", "…d", "…abc…", "…bcd…", "…cd"]
    )


def test_unknown_words_are_no_words_and_part_their_neighbours() -> None:
    bag, tokenizer = build(["red cat sat", "cat sat", "red cat", "cat red"], 4)
    split = int(np.searchsorted(bag.keys, bag.first_characters))
    names = np.array(bag.names(bag.keys.tolist()))

    def features(text: str) -> set[str]:
        return set(names[:split][vectors(bag, tokenizer, [text])[0, :split] > 0])

    assert features("red cat") == {"red", "cat", "red cat"}
    assert features("red cats sat") == {"red", "sat"} == features("red 日本 sat")
    assert features("reds cat") == {"cat"}
    assert features("cat catr red") == {"cat", "red"}
    assert tokenizer.encode("cats").tokens == ["cat", "##s"] and tokenizer.encode("日本").tokens == ["[UNK]"]


def test_a_document_that_starts_within_a_word() -> None:
    """Windows of a long text may; the letters are then a word of their own, and do not continue the document before."""
    bag, tokenizer = build(["red cat", "cat red"], 3)
    tokens = tokenize(["cat", "catr"], tokenizer, 512)
    ids = np.concatenate([tokens[0], tokens[1][1:]])
    found = bag.vectors(ids, np.array([0, 1, 2])).toarray()
    alone = bag.vectors(tokens[1][1:], np.array([0, 1])).toarray()
    assert np.array_equal(found[:1], vectors(bag, tokenizer, ["cat"])) and np.array_equal(found[1:], alone)
    assert bag.names(bag.keys[alone[0] > 0].tolist()) == ["r…"]


def test_documents_without_words_are_zero() -> None:
    bag, tokenizer = build(TRAIN, 4)
    found = vectors(bag, tokenizer, ["...", *UNSEEN, ""])
    assert not found[0].any() and not found[-1].any() and np.isfinite(found).all()
    assert not found[5].any(), "a word with a letter that no training text has is unknown"
    lengths = np.linalg.norm(found, axis=1)
    assert lengths[7] == pytest.approx(np.sqrt(2)) and lengths[1] == pytest.approx(1), "each kind has length 1"


def test_features_are_the_most_frequent_of_each_kind() -> None:
    bag, _ = build(TRAIN, 4, features=3, ngrams=1)
    names = bag.names(bag.keys.tolist())
    assert len(names) == 6 and sum("…" in name for name in names) >= 2 and {"a", "malware"} <= {*names}


def test_rare_characters_share_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfidf, "MAX_ALPHABET", 2)
    bag, tokenizer = build(["aab abz", "aq"], 2)
    assert {name for name in bag.names(bag.keys.tolist()) if "?" in name} == {"…b?…", "…?", "…a?…"}
    assert vectors(bag, tokenizer, ["aq"]).any() and not vectors(bag, tokenizer, ["qq"]).any()


def test_the_largest_alphabet_has_distinct_keys() -> None:
    letters = [chr(0x4E00 + number) for number in range(20_000)]
    texts = ["".join(letters[start : start + 50]) for start in range(0, 20_000, 50)]
    tokenizer = split_unknown_words(learn_words(texts, 200_000, min_count=1))
    bag = Bag(tokenizer, pairs=True, characters=5)
    keys, counts = count_documents(_ngrams(bag, tokenize(texts, tokenizer, 512)))
    assert keys.min() >= 0 and (counts > 0).all()
    names = bag.names(keys.tolist())
    assert sum("?" not in name for name in names) == len({name for name in names if "?" not in name}) > 15_000


@pytest.mark.parametrize(
    ("setting", "length", "chosen"), [("auto", 300, 4), ("auto", 301, 0), (0, 10, 0), (3, 1_000, 3), (5, 10, 5)]
)
def test_the_automatic_choice_is_for_short_texts(setting: int | str, length: int, chosen: int) -> None:
    longest = ("word " * 100)[: length + 100]
    assert choose_characters(setting, [longest[: length - 100], longest]) == chosen


def test_texts_without_spaces_use_them() -> None:
    """Long Chinese texts had one unknown word per sentence."""
    draw, kinds = np.random.default_rng(0), {"数学": "方程", "物理": "量子"}
    fillers = [chr(0x5000 + number) for number in range(300)]
    texts, labels = [], []
    for number in range(80):
        label = list(kinds)[number % 2]
        letters = draw.choice(fillers, 320).tolist()
        for place in draw.choice(320, 5):
            letters[place] += kinds[label]
        texts.append("，".join("".join(letters[start : start + 20]) for start in range(0, 320, 20)))
        labels.append(label)
    taxonomy = Taxonomy([Label(name, name) for name in kinds])
    scores = [
        HillClassifier(taxonomy, "linear", {"model": model}, preset=None)
        .fit(texts[:60], labels[:60])
        .score(texts[60:], labels[60:])
        for model in ({"characters": 0}, {})
    ]
    assert scores[0] < 0.8 and scores[1] == 1


def test_they_help_with_misspelled_words_and_are_saved_with_the_model(tmp_path: Path) -> None:
    texts, labels = toy_documents(150, seed=0)
    classifier = HillClassifier(animals_taxonomy(), "linear", preset=None).fit(texts, labels)
    words = HillClassifier(animals_taxonomy(), "linear", {"model": {"characters": 0}}, preset=None).fit(texts, labels)
    unseen, gold = toy_documents(60, seed=1)
    typed = [" ".join(word + word[-1] for word in text.split()) for text in unseen]
    documents = label_documents(typed, gold, classifier.taxonomy)
    assert classifier.evaluate(documents)["micro_f1"] > 0.9 > 0.7 > words.evaluate(documents)["micro_f1"]
    classifier.save(tmp_path / "model")
    loaded = HillClassifier.load(tmp_path / "model")
    assert loaded.stored.model.text.characters == 4  # type: ignore[union-attr]
    assert np.array_equal(loaded.predict_proba(typed), classifier.predict_proba(typed))


def test_explanations_are_exact_sums() -> None:
    classifier = HillClassifier(animals_taxonomy(), "linear", preset=None).fit(*toy_documents(120, seed=0))
    text = "Furry milk, caves unheard cave"
    found = explain(classifier, text, ["bat", "p"])
    assert [word.text for word in found.words] == ["Furry", "milk", "caves", "unheard", "cave"]
    (_, scores), *_ = classifier.scores([text])
    for label in found.labels:
        assert label.ngrams is not None
        names, values = zip(*label.ngrams, strict=True)
        assert label.baseline + sum(values) == pytest.approx(label.logit, abs=1e-9) and abs(label.gap) < 1e-9
        score = float(np.asarray(scores)[0, classifier.taxonomy.row(label.id)])
        assert label.logit == pytest.approx(np.log(score / (1 - score)), abs=1e-4)
        assert {"milk", "cave", "fu…", "…ur…", "cav…", "…lk"} <= {*names} and "caves" not in names
        assert label.values[0] and label.values[2], "unknown words count by their characters"
