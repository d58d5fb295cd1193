"""Which texts a model has seen in training: sorted 64-bit hashes of normalised texts, without the texts themselves."""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from hill.errors import CheckpointError
from hill.types import BoolArray

SEEN_FILE = "seen.json"
Hashes = npt.NDArray[np.uint64]


def text_hashes(texts: Iterable[str]) -> Hashes:
    """The hash of each text. Texts that differ only in case or white space have the same hash."""
    normalised = (" ".join(text.casefold().split()).encode("utf-8", "surrogatepass") for text in texts)
    digests = b"".join(blake2b(text, digest_size=8).digest() for text in normalised)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def are_seen(texts: Iterable[str], seen: Hashes) -> BoolArray:
    """Whether each text is among the seen ones."""
    found: BoolArray = np.isin(text_hashes(texts), seen)
    return found


def seen_document(seen: Hashes) -> dict[str, Any]:
    """The sorted hashes as JSON, for seen.json."""
    return {"hashes": b64encode(seen.astype("<u8").tobytes()).decode()}


def read_seen(document: Any) -> Hashes:
    """Read the hashes of a `seen_document`."""
    try:
        seen = np.frombuffer(b64decode(document["hashes"], validate=True), dtype="<u8").astype(np.uint64)
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{SEEN_FILE} has no base64 of 64-bit hashes ({error}); copy it again") from None
    if not (seen[1:] > seen[:-1]).all():
        raise CheckpointError(f"{SEEN_FILE} has hashes that are not sorted; copy it again")
    return seen
