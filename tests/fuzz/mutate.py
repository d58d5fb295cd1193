"""A seeded mutator of valid files: bytes, lines, tokens, JSON values, and the content of archives."""

import gzip
import io
import json
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.seeds import zipped

LARGEST = 300_000
WORDS = (
    "0 -1 1e999 -0.0 NaN Infinity 0x10 1_000 true null %s {0} ../.. /dev/zero __class__ Root id name parents children"
)
MARKS = (
    '" \' "" \\ \\u0000 \\ud800 \\ud83d\\ude00 [ ] { } [] {} , ; : = < > & &amp; &lol; &#0; &#x110000; <!-- ]]> | # / .'
)
TERMS = "_:b @prefix ^^ @en <http://[> a skos:Concept 1996-02-31T99:00 <![CDATA[ <?xml text labels"
SIGNS = "\t \r \r\n \n\n \0 \x0b \x1b[31m \x1c \x7f \x85 \u2028 \ufeff \u202e \u00a0 \u3000 \U0010ffff"
LETTERS = "e\u0301\u0301 שלום مرحبا 👩‍👩‍👧 𝔘 ﬃ İ ß"
ENTITIES = ['<!DOCTYPE a [<!ENTITY lol "lol">]>', '<!DOCTYPE a [<!ENTITY lol SYSTEM "file:///etc/hostname">]>']
SPACED = (WORDS, MARKS, TERMS, SIGNS, LETTERS)
TOKENS = [
    "",
    " ",
    " > ",
    "<a b>",
    "9" * 30,
    "9" * 5_000,
    *ENTITIES,
    *(token for row in SPACED for token in row.split(" ")),
]
"""Replacements for tokens, and insertions."""
NUMBERS = [0, 1, -1, 10**30, 10**400, 0.5, float("nan"), float("inf")]
LISTS = [[], {}, [None], [[]], {"": None}, [0, 1], ["a"], [["a", "b"], "c"], {"id": 1, "name": []}]
VALUES: list[Any] = [None, True, False, *NUMBERS, "", "a", "cpu", "\ud800", "\0", "a" * 5_000, *LISTS]
"""Replacements for JSON values."""
ENCODINGS = ("utf-16", "utf-16-be", "utf-32", "utf-8-sig", "latin-1", "cp037", "utf-7")


def mutated(content: bytes, others: list[bytes], name: str, draw: Random) -> bytes:
    """Mutate the content of a file a few times; for archives often inside the archive."""
    pack = next((change for ending, change in PACKED.items() if name.endswith(ending)), None)
    if pack and draw.random() < 0.7:
        try:
            return pack(content, others, draw)
        except Exception:  # an earlier mutation may have broken the archive
            pass
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        content = draw.choice(CHANGES)(content, others, draw)[:LARGEST]
    return content


def _span(content: bytes, draw: Random, most: int = 200) -> tuple[int, int]:
    start = draw.randint(0, len(content))
    return start, min(len(content), start + draw.choice((1, 1, 2, 4, 16, most)))


def _flip(content: bytes, others: list[bytes], draw: Random) -> bytes:
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 4, 32)) if found else 0):
        found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
    return bytes(found)


def _cut(content: bytes, others: list[bytes], draw: Random) -> bytes:
    return content[: draw.randint(0, len(content))]


def _remove(content: bytes, others: list[bytes], draw: Random) -> bytes:
    start, end = _span(content, draw)
    return content[:start] + content[end:]


def _repeat(content: bytes, others: list[bytes], draw: Random) -> bytes:
    start, end = _span(content, draw)
    return content[:end] + content[start:end] * draw.choice((1, 2, 10, 3_000)) + content[end:]


def _splice(content: bytes, others: list[bytes], draw: Random) -> bytes:
    other = draw.choice(others)
    return content[: draw.randint(0, len(content))] + other[draw.randint(0, len(other)) :]


def _insert(content: bytes, others: list[bytes], draw: Random) -> bytes:
    place, token = draw.randint(0, len(content)), draw.choice(TOKENS)
    return content[:place] + token.encode() * draw.choice((1, 1, 1, 2, 2_000)) + content[place:]


def _replace_token(content: bytes, others: list[bytes], draw: Random) -> bytes:
    tokens = list(re.finditer(rb"[\w.-]+|[^\w\s]", content))
    if not tokens:
        return content
    found = draw.choice(tokens)
    return content[: found.start()] + draw.choice(TOKENS).encode() + content[found.end() :]


def _lines(content: bytes, others: list[bytes], draw: Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    one, two = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            lines[one], lines[two] = lines[two], lines[one]
        case 1:
            del lines[one]
        case 2:
            lines.insert(two, lines[one] * draw.choice((1, 1, 500)))
        case 3:
            lines[one] = lines[one].rstrip(b"\r\n")
        case 4:
            draw.shuffle(lines)
    return b"".join(lines)


def _nest(content: bytes, others: list[bytes], draw: Random) -> bytes:
    start, end = _span(content, draw)
    opening, closing = draw.choice([(b"[", b"]"), (b"{", b"}"), (b'{"a":', b"}"), (b"<a>", b"</a>"), (b"(", b")")])
    depth = draw.choice((1, 50, 600, 1_500, 20_000))
    return content[:start] + opening * depth + content[start:end] + closing * depth + content[end:]


def _encode(content: bytes, others: list[bytes], draw: Random) -> bytes:
    return content.decode("utf-8", "replace").encode(draw.choice(ENCODINGS), "replace")


def _add_magic_bytes(content: bytes, others: list[bytes], draw: Random) -> bytes:
    marks = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"\x1f\x8b", b"PK\x03\x04", b"PAR1", b"\0\0\xfe\xff")
    return draw.choice(marks) + content


def _change_json_value(content: bytes, others: list[bytes], draw: Random) -> bytes:
    """Replace a value of a JSON document, or of one line of JSON Lines."""
    try:
        return dump(operated(json.loads(content), draw))
    except (ValueError, RecursionError):
        lines = content.split(b"\n")
    place = draw.randrange(len(lines))
    try:
        lines[place] = dump(operated(json.loads(lines[place]), draw))
    except (ValueError, RecursionError):
        return _replace_token(content, others, draw)
    return b"\n".join(lines)


def operated(document: Any, draw: Random, value: Any = VALUES) -> Any:
    """The document with one value replaced, removed, duplicated or nested."""
    if not isinstance(document, dict | list) or not document or draw.random() < 0.1:
        new = draw.choice(VALUES) if value is VALUES else value
        return draw.choice([new, new, [document], {"name": document}])
    if isinstance(document, list):
        place: Any = draw.randrange(len(document))
        document = list(document)
    else:
        place = draw.choice(list(document))
        document = dict(document)
    if draw.random() < 0.1:
        del document[place]
    elif draw.random() < 0.05 and isinstance(document, list):
        document *= 2
    else:
        document[place] = operated(document[place], draw, value)
    return document


def dump(document: Any) -> bytes:
    """JSON, also with lone surrogates."""
    return json.dumps(document).encode()


Change = Callable[[bytes, list[bytes], Random], bytes]
CHANGES: list[Change] = [
    *(_flip, _cut, _remove, _repeat, _splice, _insert, _insert, _replace_token, _replace_token, _replace_token),
    *(_lines, _lines, _nest, _encode, _add_magic_bytes, _change_json_value, _change_json_value, _change_json_value),
]


def _inside_zip(content: bytes, others: list[bytes], draw: Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(list(parts))
    parts[name] = mutated(parts[name], list(parts.values()), "", draw)
    return zipped(parts)


def _inside_gzip(content: bytes, others: list[bytes], draw: Random) -> bytes:
    inner = gzip.decompress(content)
    return gzip.compress(mutated(inner, [inner], "", draw), 1, mtime=0)


def _inside_tar(content: bytes, others: list[bytes], draw: Random) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        parts = {each: archive.extractfile(each) for each in archive.getmembers()}
        inner = {each: file.read() for each, file in parts.items() if file}
    chosen = draw.choice(list(inner))
    inner[chosen] = mutated(inner[chosen], list(inner.values()), "", draw)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=0) as archive:
        for member, part in inner.items():
            member.size = len(part)
            archive.addfile(member, io.BytesIO(part))
    return packed.getvalue()


def _inside_safetensors(content: bytes, others: list[bytes], draw: Random) -> bytes:
    """Mutate the header, which has the names, types, shapes and offsets of the tensors."""
    (size,) = struct.unpack("<Q", content[:8])
    header = mutated(content[8 : 8 + size], [content[8 : 8 + size]], "", draw)
    return struct.pack("<Q", len(header)) + header + content[8 + size :]


PACKED: dict[str, Change] = {
    ".xlsx": _inside_zip,
    ".gz": _inside_gzip,
    ".tar.xz": _inside_tar,
    ".safetensors": _inside_safetensors,
}
