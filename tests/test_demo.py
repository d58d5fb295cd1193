"""The ICD-10-CM data and the demo, with a tiny encoder in place of the real one."""

from pathlib import Path

import pytest
import simple_icd_10_cm as icd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from hill.classifier import HillClassifier
from hill.data import read_data
from hill.data.icd import icd_data, icd_taxonomy
from hill.demo import SETTINGS, run_demo, score_linear
from hill.taxonomy import Taxonomy, read_taxonomy


@pytest.fixture(scope="module")
def taxonomy() -> Taxonomy:
    return icd_taxonomy()


def test_the_taxonomy_is_that_of_the_classification(taxonomy: Taxonomy) -> None:
    assert [len(level) for level in taxonomy.levels] == [22, 297]
    assert taxonomy.path_name(taxonomy.row("block A00-A09")).endswith("> Intestinal infectious diseases")
    assert [len(level) for level in icd_taxonomy(categories=True).levels] == [22, 297, 1918]


@pytest.mark.parametrize("categories", [False, True])
def test_documents_carry_the_path_of_their_code(categories: bool) -> None:
    taxonomy = icd_taxonomy(categories)
    data = icd_data(taxonomy, per_block=3, dev=50, test=80)
    assert len(data["dev"]) == 50 and len(data["test"]) == 80 and 500 < len(data["train"]) <= 3 * 297
    assert set(data["train"].labels.sum(axis=1)) == {3 if categories else 2}
    by_text = {icd.get_description(code): code for code in icd.get_all_codes(True)}
    for number in range(0, len(data["train"]), 50):
        code = by_text[data["train"].texts[number]]
        rows = data["train"].labels[[number]].indices
        chapter = next(taxonomy[row].id for row in rows if taxonomy.depth[row] == 1)
        assert chapter == f"chapter {icd.get_ancestors(code)[-1]}"


def test_inclusion_terms_are_never_trained_on_and_splits_do_not_share_them(taxonomy: Taxonomy) -> None:
    data = icd_data(taxonomy, per_block=10_000, dev=10_000, test=20_000)
    dev, test = set(data["dev"].texts), set(data["test"].texts)
    assert not dev & test and len(data["dev"]) + len(data["test"]) == 12_554 - _repeated_terms()
    assert 0.2 < len(dev) / (len(dev) + len(test)) < 0.3
    again = icd_data(taxonomy, per_block=5, dev=20, test=20)
    assert again["train"].texts == icd_data(icd_taxonomy(), per_block=5, dev=20, test=20)["train"].texts


def _repeated_terms() -> int:
    codes = [code for code in dict.fromkeys(icd.get_all_codes(True)) if not icd.is_chapter(code) and "-" not in code]
    pairs = [(term, code) for code in codes for term in icd.get_inclusion_term(code)]
    return 12_554 - len(set(pairs))


def test_the_linear_row_is_no_weaker_than_one_machine_over_the_blocks(taxonomy: Taxonomy) -> None:
    """A classifier that chooses one block, as scikit-learn fits it; its chapter follows."""
    data = icd_data(taxonomy, per_block=8, dev=60, test=1_000)
    words, blocks = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), taxonomy.levels[1]
    gold = {name: split.labels[:, blocks].toarray().argmax(axis=1) for name, split in data.items()}
    machine = LinearSVC(random_state=0).fit(words.fit_transform(data["train"].texts), gold["train"])
    right = machine.predict(words.transform(data["test"].texts)) == gold["test"]
    found = score_linear(data, taxonomy)
    assert found["path_micro_f1"] >= right.mean() > 0.4 and found["violations"] == 0


def test_the_demo_runs_twice_and_leaves_a_model(
    tiny_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {group: dict(values) for group, values in SETTINGS.items()}
    settings["model"]["encoder"] = str(tiny_encoder)
    settings["train"] |= {"epochs": 1, "head_epochs": 1, "freeze": 1}
    for _ in range(2):
        run_demo(False, tmp_path / "demo", settings, per_block=2)
    shown = capsys.readouterr().out
    for part in ("319 labels", "TF-IDF + linear SVM", "HILL", "heart attack", "hill predict"):
        assert part in shown
    classifier = HillClassifier.load(tmp_path / "demo")
    taxonomy = read_taxonomy(tmp_path / "demo-data" / "taxonomy.json")
    assert classifier.taxonomy == taxonomy and len(read_data(tmp_path / "demo-data", taxonomy)["test"]) == 3_000
