"""ICD-10-CM as a data set: classify diagnoses into chapters, blocks, categories or codes, from `simple-icd-10-cm`.

The official description of a code is a training text. The inclusion terms are other names of the same diagnosis, as
clinicians use them. They are only used for evaluation: a share of them, selected by a hash, is dev, the rest is test.
"""

import hashlib
import random
from collections import defaultdict
from typing import Any

from hill.data.documents import Documents, label_documents
from hill.errors import need
from hill.taxonomy import Label, Taxonomy

DEV_SHARE = 0.25
Pair = tuple[str, str]
"""A text and its code."""


def icd_taxonomy(categories: bool = False, codes: bool = False) -> Taxonomy:
    """Make the taxonomy of chapters and blocks (22 + 297 labels).

    Args:
        categories: Add the 1,918 categories.
        codes: Add the categories and all codes below them: 98,505 labels in 7 levels.
    """
    icd = _icd()
    all_codes = list(dict.fromkeys(icd.get_all_codes(True)))
    chapters = [code for code in all_codes if icd.is_chapter(code)]
    labels = [Label(f"chapter {code}", _title(code)) for code in chapters]
    labels += [
        Label(f"block {code}", _title(code), (f"chapter {icd.get_ancestors(code)[-1]}",))
        for code in all_codes
        if icd.is_block(code)
    ]
    if categories or codes:
        selected = [code for code in all_codes if len(code) == 3 and code not in chapters]
        labels += [Label(code, _title(code), (f"block {_block(code)}",)) for code in selected]
    if codes:
        selected = [code for code in all_codes if len(code) > 3 and "-" not in code]
        labels += [Label(code, _description(code), (icd.get_parent(code),)) for code in selected]
    return Taxonomy(labels)


def icd_data(
    taxonomy: Taxonomy, per_block: int = 40, dev: int = 600, test: int = 3_000, seed: int = 0
) -> dict[str, Documents]:
    """Sample train, dev and test documents; each has the path of its code.

    Args:
        taxonomy: The labels, from `icd_taxonomy`.
        per_block: The maximum number of training documents per block.
        dev: The maximum number of dev documents.
        test: The maximum number of test documents.
        seed: The seed of the sample.
    """
    rng = random.Random(seed)
    terms = _inclusion_terms()
    rng.shuffle(terms)
    dev_terms, test_terms = _split_terms(terms)
    blocks: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for code in _all_codes():
        blocks[_block(code)].setdefault(_icd().get_description(code), code)
    train: list[Pair] = []
    for block in sorted(blocks):
        pairs = list(blocks[block].items())
        train += rng.sample(pairs, min(per_block, len(pairs)))
    return _documents(train, dev_terms[:dev], test_terms[:test], taxonomy)


def icd_all(taxonomy: Taxonomy) -> dict[str, Documents]:
    """All descriptions of chapters, blocks and codes as train; all inclusion terms as dev or test."""
    train = [(label.name, label.id) for label in icd_taxonomy()]
    train += [(_description(code), code) for code in _all_codes()]
    return _documents(train, *_split_terms(_inclusion_terms()), taxonomy)


def _documents(train: list[Pair], dev: list[Pair], test: list[Pair], taxonomy: Taxonomy) -> dict[str, Documents]:
    """Documents of each split; the label is the deepest one that the taxonomy has: code, category or block."""
    documents = {}
    for split, pairs in (("train", train), ("dev", dev), ("test", test)):
        labels = []
        for _, code in pairs:
            label = next((label for label in (code, code[:3]) if label in taxonomy), None)
            labels.append([label or f"block {_block(code)}"])
        documents[split] = label_documents([text for text, _ in pairs], labels, taxonomy)
    return documents


def _inclusion_terms() -> list[Pair]:
    return sorted({(term, code) for code in _all_codes() for term in _icd().get_inclusion_term(code)})


def _split_terms(terms: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Dev and test terms: a hash of the term decides, so that equal terms are in the same split."""
    splits: tuple[list[Pair], list[Pair]] = ([], [])
    for term in terms:
        share = int.from_bytes(hashlib.sha256(term[0].encode()).digest()[:4]) / 2**32
        splits[share >= DEV_SHARE].append(term)
    return splits


def _all_codes() -> list[str]:
    """Categories and the codes below them."""
    icd = _icd()
    return [code for code in dict.fromkeys(icd.get_all_codes(True)) if not icd.is_chapter(code) and "-" not in code]


def _block(code: str) -> str:
    """The block of a code; some blocks have the id of their only category."""
    icd = _icd()
    return next((ancestor for ancestor in reversed(icd.get_ancestors(code)) if icd.is_block(ancestor)), code)


def _description(code: str) -> str:
    """The description of a code on one line; one description has a tab in it."""
    return " ".join(str(_icd().get_description(code)).split())


def _title(code: str) -> str:
    """A description without the range of codes at its end."""
    return str(_icd().get_description(code)).rsplit(" (", 1)[0]


def _icd() -> Any:
    return need("simple_icd_10_cm", "demo", "the ICD-10-CM data")
