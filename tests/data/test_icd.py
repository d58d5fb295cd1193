"""ICD-10-CM in full: all codes as labels, all descriptions and inclusion terms as documents."""

import pytest
import simple_icd_10_cm as icd

from hill.data import icd as icd_module
from hill.data.icd import icd_all, icd_taxonomy
from hill.taxonomy import Taxonomy


@pytest.fixture(scope="module")
def full() -> Taxonomy:
    return icd_taxonomy(codes=True)


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Some of the codes in place of all, which take long to label."""
    some = [code for code in dict.fromkeys(icd.get_all_codes(True)) if not icd.is_chapter(code) and "-" not in code][
        ::40
    ]
    monkeypatch.setattr(icd_module, "_all_codes", lambda: some)
    return some


def above(code: str) -> set[str]:
    """The labels of a document with this code, from the package's own words; some blocks have a category's id."""
    codes = [code, *icd.get_ancestors(code)]
    chapter, block = codes[-1], codes[-2]
    if icd.is_block(code) and len(code) == 3:
        block = code
    return {f"chapter {chapter}", f"block {block}", *(each for each in codes[:-1] if "-" not in each)}


def test_all_codes_are_labels_below_what_is_above_them(full: Taxonomy) -> None:
    assert [len(level) for level in full.levels] == [22, 297, 1918, 10_288, 18_016, 27_604, 40_360]
    for code in [code for code in icd.get_all_codes(True) if "." in code][::997]:
        row = full.row(code)
        assert [full[parent].id for parent in full.parents(row)] == [icd.get_parent(code)]
        assert full[row].name == " ".join(icd.get_description(code).split())
    assert not any("\t" in label.name or "\n" in label.name for label in full)


def test_documents_carry_the_path_of_their_code(full: Taxonomy, codes: list[str]) -> None:
    data = icd_all(full)
    train = data["train"]
    assert [label.name for label in icd_taxonomy()] == train.texts[:319] and len(train) == 319 + len(codes)
    for number, code in enumerate(codes, start=319):
        assert train.texts[number] == " ".join(icd.get_description(code).split())
        assert {full[row].id for row in train.labels[[number]].indices} == above(code)
    terms = {(term, code) for code in codes for term in icd.get_inclusion_term(code)}
    found = set()
    for documents in (data["dev"], data["test"]):
        for number, text in enumerate(documents.texts):
            rows = documents.labels[[number]].indices.tolist()
            code = full[max(rows, key=lambda row: full.depth[row])].id
            assert {full[row].id for row in rows} == above(code)
            found.add((text, code))
    assert found == terms and len(terms) > 100 and not set(data["dev"].texts) & set(data["test"].texts)


@pytest.mark.parametrize(("categories", "most"), [(False, 2), (True, 3)])
def test_where_the_taxonomy_ends_documents_end_too(categories: bool, most: int, codes: list[str]) -> None:
    taxonomy = icd_taxonomy(categories)
    train = icd_all(taxonomy)["train"]
    assert set(train.labels[319:].sum(axis=1)) == {most} and set(train.labels[:319].sum(axis=1)) == {1, 2}
    for number, code in enumerate(codes, start=319):
        assert {taxonomy[row].id for row in train.labels[[number]].indices} == above(code) & {*taxonomy.ids}
