"""Hashes of seen texts."""

import base64
import hashlib
import json
from typing import Any

import pytest

from hill.data.seen import are_seen, read_seen, seen_document, text_hashes
from hill.errors import CheckpointError


def slow_hash(text: str) -> int:
    normalised = " ".join(text.casefold().split())
    return int.from_bytes(hashlib.blake2b(normalised.encode(), digest_size=8).digest(), "little")


def test_hashes_ignore_case_and_white_space() -> None:
    texts = ["A bat\nflies.", " a  BAT flies. ", "Straße", "STRASSE", "x"]
    hashes = text_hashes(texts).tolist()
    assert hashes == [slow_hash(text) for text in texts]
    assert hashes[0] == hashes[1] and hashes[2] == hashes[3] and len({*hashes}) == 3


def test_seen_texts_are_found_after_saving() -> None:
    hashes = text_hashes(["c", "b", "a"])
    hashes.sort()
    document = json.loads(json.dumps(seen_document(hashes)))
    assert base64.b64decode(document["hashes"]) == b"".join(h.to_bytes(8, "little") for h in hashes.tolist())
    assert are_seen(["B ", "d", "a"], read_seen(document)).tolist() == [True, False, True]
    assert not are_seen(["a"], read_seen(seen_document(text_hashes([])))).any()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "no base64 of 64-bit hashes"),
        ([], "no base64 of 64-bit hashes"),
        ({"hashes": 3}, "no base64 of 64-bit hashes"),
        ({"hashes": "Ä"}, "no base64 of 64-bit hashes"),
        ({"hashes": base64.b64encode(b"1234567").decode()}, "no base64 of 64-bit hashes"),
        ({"hashes": base64.b64encode(b"\2" + bytes(7) + b"\1" + bytes(7)).decode()}, "not sorted"),
        ({"hashes": base64.b64encode(bytes(16)).decode()}, "not sorted"),
    ],
)
def test_damaged_hashes_are_refused(document: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_seen(document)
