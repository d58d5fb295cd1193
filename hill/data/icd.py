"""ICD-10-CM as a data set: diagnoses coded into chapters and blocks, from the package `simple-icd-10-cm`.

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


def icd_taxonomy(categories: bool = False) -> Taxonomy:
    """Chapter > block: 22 + 297 labels; with categories, their 1,918 labels below."""
    icd = _icd()
    chapters, blocks = _codes(icd.is_chapter), _codes(icd.is_block)
    labels = [Label(f"chapter {code}", _title(code)) for code in chapters]
    labels += [Label(f"block {code}", _title(code), (f"chapter {_chapter(code)}",)) for code in blocks]
    if categories:
        codes = [code for code in _codes(lambda code: len(code) == 3) if code not in chapters]
        labels += [Label(code, _title(code), (f"block {_block(code)}",)) for code in codes]
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


def _documents(pairs: list[tuple[str, str]], taxonomy: Taxonomy) -> Documents:
    deepest = [code[:3] if code[:3] in taxonomy else f"block {_block(code)}" for _, code in pairs]
    return label_documents([text for text, _ in pairs], [[label] for label in deepest], taxonomy)


def _descriptions(per_block: int, draw: random.Random) -> list[tuple[str, str]]:
    icd = _icd()
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for code in _codes(lambda code: not icd.is_chapter(code) and "-" not in code):
        found[_block(code)].setdefault(icd.get_description(code), code)
    chosen: list[tuple[str, str]] = []
    for block in sorted(found):
        pairs = list(found[block].items())
        chosen += draw.sample(pairs, min(per_block, len(pairs)))
    return chosen


def _terms() -> list[tuple[str, str]]:
    icd = _icd()
    codes = [code for code in _codes(lambda code: not icd.is_chapter(code)) if "-" not in code]
    return sorted({(term, code) for code in codes for term in icd.get_inclusion_term(code)})


def _codes(wanted: Any) -> list[str]:
    return [code for code in dict.fromkeys(_icd().get_all_codes(True)) if wanted(code)]


def _block(code: str) -> str:
    """The block of a code. Some blocks have the id of their only category."""
    icd = _icd()
    return next((above for above in reversed(icd.get_ancestors(code)) if icd.is_block(above)), code)


def _chapter(block: str) -> str:
    return str(_icd().get_ancestors(block)[-1])


def _title(code: str) -> str:
    """A description without the range of codes at its end."""
    return str(_icd().get_description(code)).rsplit(" (", 1)[0]


def _hash_share(text: str) -> float:
    """A number between 0 and 1 that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32


def _icd() -> Any:
    return need("simple_icd_10_cm", "demo", "the ICD-10-CM data")
