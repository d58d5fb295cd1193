"""The ICD-10-CM data and the demo, with a tiny encoder in place of the real one."""

import itertools
import re
from pathlib import Path

import pytest
import simple_icd_10_cm as icd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from hill.classifier import HillClassifier
from hill.data import Documents, read_data
from hill.data import icd as icd_module
from hill.data.icd import icd_data, icd_phrases, icd_taxonomy, normalise
from hill.demo import ALTERNATIVES, EXAMPLES, SETTINGS, run_demo, score_members
from hill.settings import Groups
from hill.taxonomy import Taxonomy, read_taxonomy


@pytest.fixture(scope="module")
def taxonomy() -> Taxonomy:
    return icd_taxonomy()


def test_the_taxonomy_is_that_of_the_classification(taxonomy: Taxonomy) -> None:
    assert [len(level) for level in taxonomy.levels] == [22, 297]
    assert taxonomy.path_name(taxonomy.row("block A00-A09")).endswith("> Intestinal infectious diseases")
    assert [len(level) for level in icd_taxonomy(categories=True).levels] == [22, 297, 1918]


@pytest.fixture(scope="module")
def data(taxonomy: Taxonomy) -> dict[str, Documents]:
    return icd_data(taxonomy, dev=10_000, test=10_000)


@pytest.fixture
def few_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One code of eight, to train faster."""
    some = icd_module._all_codes()[::8]
    monkeypatch.setattr(icd_module, "_all_codes", lambda: list(some))


def paths(documents: Documents, taxonomy: Taxonomy) -> list[list[str]]:
    """The labels of each document."""
    return [taxonomy.decode(documents.labels[[row]].indices) for row in range(len(documents))]


def path_of(code: str) -> list[str]:
    """The chapter and the block of a code, from the package; some blocks have the id of their only category."""
    *_, block, chapter = [code, *icd.get_ancestors(code)]
    return [f"chapter {chapter}", f"block {block}"]


def all_codes() -> list[str]:
    return [code for code in dict.fromkeys(icd.get_all_codes(True)) if not icd.is_chapter(code) and "-" not in code]


def test_dev_and_test_are_inclusion_terms_with_the_path_of_their_code(
    taxonomy: Taxonomy, data: dict[str, Documents]
) -> None:
    pairs = {(term, *path_of(code)) for code in all_codes() for term in icd.get_inclusion_term(code)}
    for split in ("dev", "test"):
        labels = paths(data[split], taxonomy)
        assert {(text, *path) for text, path in zip(data[split].texts, labels, strict=True)} <= pairs


def test_training_texts_have_the_path_of_their_code(taxonomy: Taxonomy, data: dict[str, Documents]) -> None:
    found = dict(zip(data["train"].texts, paths(data["train"], taxonomy), strict=True))
    pairs = [(icd.get_description(code), code) for code in all_codes() if len(code) == 3]  # categories
    pairs += [(term, code) for code in all_codes() for term in icd.get_inclusion_term(code)]
    pairs += [(text, code) for code in all_codes() for text in icd.get_includes(code)]
    blocks: dict[str, set[str]] = {}
    for text, code in pairs:
        blocks.setdefault(text, set()).add(path_of(code)[1])
    present = [text for text, owners in blocks.items() if text in found and len(owners) == 1]
    assert len(present) > 8_000 and sum({found[text][1]} == blocks[text] for text in present) > 0.99 * len(present)
    assert set(data["train"].labels.sum(axis=1)) == {2}
    assert "wood asthma (J67.8)" in icd.get_excludes1("J45") + icd.get_excludes2("J45")
    assert found["wood asthma"] == path_of("J67.8")  # not the path of J45, which excludes it


def test_categories_are_labels_of_their_documents(few_codes: None) -> None:
    data = icd_data(icd_taxonomy(categories=True), per_block=3, dev=50, test=80)
    assert len(data["dev"]) == 50 and len(data["test"]) == 80
    assert all(set(data[split].labels.sum(axis=1)) == {3} for split in ("dev", "test"))
    assert set(data["train"].labels.sum(axis=1)) == {2, 3}  # the title of a block is not of a category


def test_splits_and_phrases_share_no_text(data: dict[str, Documents]) -> None:
    texts = {name: {normalise(text) for text in documents.texts} for name, documents in data.items()}
    texts["phrases"] = {normalise(phrase) for phrase, _ in icd_phrases()}
    for one, other in itertools.combinations(texts, 2):
        if (one, other) != ("test", "phrases"):  # both only measure
            assert not texts[one] & texts[other], (one, other)
    terms = {normalise(term) for code in all_codes() for term in icd.get_inclusion_term(code)}
    for name, share in {"train": 0.6, "dev": 0.1, "test": 0.3}.items():
        assert abs(len(texts[name] & terms) / len(terms) - share) < 0.02


def test_more_descriptions_per_block_are_more_texts_and_the_sample_is_repeatable(
    taxonomy: Taxonomy, few_codes: None
) -> None:
    few, many, again = (icd_data(taxonomy, per_block)["train"].texts for per_block in (1, 30, 30))
    assert {*map(normalise, few)} < {*map(normalise, many)} and many == again


def test_phrases_have_blocks_of_all_chapters(taxonomy: Taxonomy) -> None:
    phrases = icd_phrases()
    assert len(phrases) == len({normalise(phrase) for phrase, _ in phrases}) == 100
    used = {path_of(code)[1] for code in all_codes()}
    assert {block for _, block in phrases} <= used
    chapters = {row for _, block in phrases for row in taxonomy.parents(taxonomy.row(block)).tolist()}
    assert chapters == {*taxonomy.levels[0].tolist()}


def test_the_linear_row_is_no_weaker_than_one_machine_over_the_blocks(
    taxonomy: Taxonomy, few_codes: None, tiny_encoder: Path, tmp_path: Path
) -> None:
    """A classifier that chooses one block, as scikit-learn fits it; its chapter follows."""
    data = icd_data(taxonomy, per_block=8, dev=60)
    words, blocks = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), taxonomy.levels[1]
    gold = {name: split.labels[:, blocks].toarray().argmax(axis=1) for name, split in data.items()}
    machine = LinearSVC(random_state=0).fit(words.fit_transform(data["train"].texts), gold["train"])
    right = machine.predict(words.transform(data["test"].texts)) == gold["test"]
    settings: Groups = {"model": {"encoder": str(tiny_encoder)}, "train": {"steps": 1}, "decode": {"strategy": "path"}}
    classifier = HillClassifier(taxonomy, settings=settings)
    for _ in classifier.training(data, tmp_path / "model"):
        pass
    found = score_members(classifier, data["test"])["TF-IDF + linear SVM"]
    assert found["path_micro_f1"] >= right.mean() > 0.4 and found["violations"] == 0


def test_the_demo_runs_twice_and_leaves_a_model(
    tiny_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], few_codes: None
) -> None:
    settings = {**SETTINGS, "model": {"encoder": str(tiny_encoder)}, "train": {"steps": 4}}
    for _ in range(2):
        run_demo(False, tmp_path / "demo", settings, per_block=2)
    shown = " ".join(capsys.readouterr().out.split())  # lines are as wide as the terminal
    for part in (
        "319 labels",
        "TF-IDF + linear SVM",
        "encoder + linear",
        "siblings in the training data",
        "hill predict",
    ):
        assert part in shown
    assert re.search(r"the block of \d+ of 100 is right", shown)
    examples = shown.split("is right")[-1].split("done in")[0]
    for example in EXAMPLES:
        assert example in examples
    assert examples.count(" > ") == 3 and examples.count("%") == 3 * (1 + ALTERNATIVES)
    classifier = HillClassifier.load(tmp_path / "demo")
    taxonomy = read_taxonomy(tmp_path / "demo-data" / "taxonomy.json")
    written = read_data(tmp_path / "demo-data", taxonomy)
    assert classifier.taxonomy == taxonomy and written["test"].texts == icd_data(taxonomy)["test"].texts
