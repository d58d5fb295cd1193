"""ICD-10-CM as a data set: classify diagnoses into chapters, blocks, categories or codes, from `simple-icd-10-cm`.

A code has an official description and inclusion terms: other names of the same diagnosis, as clinicians use them.
There are two data sets:

- `icd_all`, of experiments/icd.py, trains on descriptions only. All inclusion terms are dev or test.
- `icd_data`, of the demo, also trains on 60 % of the inclusion terms and on notes. A test term then often has siblings
  in train: other terms of the same code. No training text equals a dev or test term or one of the phrases.

`icd_phrases` are 100 everyday phrases with their blocks, which are only used for evaluation.
"""

import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from hill.data.documents import Documents, label_documents
from hill.errors import need
from hill.taxonomy import Label, Taxonomy

DEV_SHARE = 0.25
"""`icd_all`: the share of the inclusion terms that is dev; the rest is test."""
TRAIN_SHARE, TEST_SHARE = 0.6, 0.3
"""`icd_data`: the shares of the inclusion terms that are train and test; the rest is dev."""
CODE = re.compile(r"[A-Z][0-9][0-9A-Z](?:\.[0-9A-Z]+)?")
NOTE = re.compile(r"(.*\S) \(([^()]+)\)")
"""A note that ends with the codes of another diagnosis, such as `Stein-Leventhal syndrome (E28.2)`."""
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
    taxonomy: Taxonomy, per_block: int = 25, dev: int = 1_200, test: int = 3_000, seed: int = 0
) -> dict[str, Documents]:
    """Train, dev and test documents; each has the path of its code.

    Training texts are the title of each block, descriptions of its codes, 60 % of its inclusion terms, its includes
    notes, and the excludes notes of other codes that refer to it. Short codes come first, as they are the most general.

    Args:
        taxonomy: The labels, from `icd_taxonomy`.
        per_block: The maximum number of descriptions per block.
        dev: The maximum number of dev documents.
        test: The maximum number of test documents.
        seed: The seed of the sample.
    """
    rng = random.Random(seed)
    terms, codes = _inclusion_terms(), _all_codes()
    rng.shuffle(terms)
    rng.shuffle(codes)
    codes.sort(key=len)
    splits: dict[str, list[Pair]] = {"train": [], "dev": [], "test": []}
    for term in terms:
        share = _hash_share(normalise(term[0]))
        splits["train" if share < TRAIN_SHARE else "test" if share >= 1 - TEST_SHARE else "dev"].append(term)
    unseen = {normalise(text) for text, _ in (*splits["dev"], *splits["test"], *icd_phrases())} | {""}
    blocks: defaultdict[str, dict[str, Pair]] = defaultdict(dict)  # training texts by their normalised text
    for code in codes:
        texts, description = blocks[_block(code)], _description(code)
        if len(texts) < per_block:
            texts.setdefault(normalise(description), (description, code))
    for block, texts in blocks.items():
        title = taxonomy[taxonomy.row(f"block {block}")]
        texts.setdefault(normalise(title.name), (title.name, title.id))
    for text, code in (*splits["train"], *_notes()):
        blocks[_block(code)].setdefault(normalise(text), (text, code))
    train = [pair for block in sorted(blocks) for text, pair in blocks[block].items() if text not in unseen]
    return _documents(train, splits["dev"][:dev], splits["test"][:test], taxonomy)


def icd_phrases() -> list[Pair]:
    """Everyday phrases for diagnoses and the label of their block: a test set, never trained or tuned on."""
    lines = (files("hill.data") / "icd_phrases.tsv").read_text(encoding="utf-8").splitlines()
    return [(phrase, block) for phrase, block, _ in (line.split("\t") for line in lines if line[0] != "#")]


def normalise(text: str) -> str:
    """The words of a text, to compare texts: lower case, without punctuation, NOS and NEC.

    >>> normalise("Angina pectoris, NOS")
    'angina pectoris'
    """
    return " ".join(word for word in re.findall(r"[^\W_]+", text.lower()) if word not in ("nos", "nec"))


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
    """Dev and test terms of `icd_all`; equal terms are in the same split."""
    splits: tuple[list[Pair], list[Pair]] = ([], [])
    for term in terms:
        splits[_hash_share(term[0]) >= DEV_SHARE].append(term)
    return splits


def _hash_share(text: str) -> float:
    """A number from 0 to 1 that only depends on the text, so that equal texts are in the same split."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32


def _notes() -> Iterator[Pair]:
    """Includes notes with their code, and excludes notes with the code that they refer to.

    A reference counts if all its codes are in the same block.
    """
    icd, known = _icd(), set(_all_codes())
    for code in icd.get_all_codes(True):
        if code in known:
            yield from ((text, code) for text in icd.get_includes(code))
        for note in (*icd.get_excludes1(code), *icd.get_excludes2(code)):
            if reference := NOTE.fullmatch(note):
                codes = [found for found in CODE.findall(reference[2]) if found in known]
                if len({_block(found) for found in codes}) == 1:
                    yield reference[1], codes[0]


def _all_codes() -> list[str]:
    """Categories and the codes below them."""
    icd = _icd()
    return [code for code in dict.fromkeys(icd.get_all_codes(True)) if not icd.is_chapter(code) and "-" not in code]


@cache
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
