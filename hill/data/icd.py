"""ICD-10-CM as a data set: diagnoses coded into chapters, blocks, categories or codes, from `simple-icd-10-cm`.

The official description of a code is a training text. The inclusion terms, other words by which clinicians call the
same things, are never trained on: a share of them, drawn by a hash, is dev, the others are test.
"""

import hashlib
import random
from collections import defaultdict
from typing import Any

from hill.data.documents import Documents, label_documents
from hill.extras import need
from hill.taxonomy import Label, Taxonomy

DEV_SHARE = 0.25


def icd_taxonomy(categories: bool = False, codes: bool = False) -> Taxonomy:
    """Chapter > block: 22 + 297 labels; with categories, their 1,918 labels below; with codes, all 98,505 in 7 levels.

    The categories come with the codes below them.
    """
    icd = _icd()
    chapters, blocks = _codes(icd.is_chapter), _codes(icd.is_block)
    labels = [Label(f"chapter {code}", _title(code)) for code in chapters]
    labels += [Label(f"block {code}", _title(code), (f"chapter {_chapter(code)}",)) for code in blocks]
    if categories or codes:
        found = _codes(lambda code: len(code) == 3 and not icd.is_chapter(code))
        labels += [Label(code, _title(code), (f"block {_block(code)}",)) for code in found]
    if codes:
        found = _codes(lambda code: len(code) > 3 and "-" not in code)
        labels += [Label(code, _description(code), (icd.get_parent(code),)) for code in found]
    return Taxonomy(labels)


def icd_data(
    taxonomy: Taxonomy, per_block: int = 40, dev: int = 600, test: int = 3_000, seed: int = 0
) -> dict[str, Documents]:
    """Train, dev and test documents, each with the path of its code; at most so many of each, drawn at random."""
    draw = random.Random(seed)
    terms = _terms()
    draw.shuffle(terms)
    held = [term for term in terms if _hash_share(term[0]) < DEV_SHARE]
    asked = [term for term in terms if _hash_share(term[0]) >= DEV_SHARE]
    splits = {"train": _descriptions(per_block, draw), "dev": held[:dev], "test": asked[:test]}
    return {name: _documents(pairs, taxonomy) for name, pairs in splits.items()}


def icd_all(taxonomy: Taxonomy) -> dict[str, Documents]:
    """Every official description, of chapters, blocks and codes, as train; every inclusion term as dev or test."""
    terms = _terms()
    above = [(label.name, label.id) for label in icd_taxonomy()]
    splits = {
        "train": above + [(_description(code), code) for code in _all_codes()],
        "dev": [term for term in terms if _hash_share(term[0]) < DEV_SHARE],
        "test": [term for term in terms if _hash_share(term[0]) >= DEV_SHARE],
    }
    return {name: _documents(pairs, taxonomy) for name, pairs in splits.items()}


def _documents(pairs: list[tuple[str, str]], taxonomy: Taxonomy) -> Documents:
    deepest = [_deepest(code, taxonomy) for _, code in pairs]
    return label_documents([text for text, _ in pairs], [[label] for label in deepest], taxonomy)


def _deepest(code: str, taxonomy: Taxonomy) -> str:
    """The label of a code: itself, or what is above it where the taxonomy ends there."""
    known = next((label for label in (code, code[:3]) if label in taxonomy), None)
    return known or f"block {_block(code)}"


def _descriptions(per_block: int, draw: random.Random) -> list[tuple[str, str]]:
    icd = _icd()
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for code in _all_codes():
        found[_block(code)].setdefault(icd.get_description(code), code)
    chosen: list[tuple[str, str]] = []
    for block in sorted(found):
        pairs = list(found[block].items())
        chosen += draw.sample(pairs, min(per_block, len(pairs)))
    return chosen


def _terms() -> list[tuple[str, str]]:
    return sorted({(term, code) for code in _all_codes() for term in _icd().get_inclusion_term(code)})


def _all_codes() -> list[str]:
    """Categories and what is below them."""
    icd = _icd()
    return _codes(lambda code: not icd.is_chapter(code) and "-" not in code)


def _codes(wanted: Any) -> list[str]:
    return [code for code in dict.fromkeys(_icd().get_all_codes(True)) if wanted(code)]


def _block(code: str) -> str:
    """The block of a code. Some blocks have the id of their only category."""
    icd = _icd()
    return next((above for above in reversed(icd.get_ancestors(code)) if icd.is_block(above)), code)


def _chapter(block: str) -> str:
    return str(_icd().get_ancestors(block)[-1])


def _description(code: str) -> str:
    """A description; one has a tab in it."""
    return " ".join(str(_icd().get_description(code)).split())


def _title(code: str) -> str:
    """A description without the range of codes at its end."""
    return str(_icd().get_description(code)).rsplit(" (", 1)[0]


def _hash_share(text: str) -> float:
    """A number between 0 and 1 that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32


def _icd() -> Any:
    return need("simple_icd_10_cm", "demo", "the ICD-10-CM data")
