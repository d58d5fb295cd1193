"""RCV1-v2, from small files in exactly the formats of the original distribution."""

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sklearn.model_selection import train_test_split

from hill.research.datasets import Prepared, prepare
from tests.research.test_prepare import fails, read_back, run, write_stories

RCV1_TAXONOMY = "Root\tCCAT\tECAT\nCCAT\tC11\tC15\nC15\tC151\nECAT\tE11\n"
RCV1_TOPICS = {0: ["CCAT", "C15", "C151"], 1: ["ECAT", "E11"], 2: ["C151", "E11"]}
CLOSED = {0: ["CCAT", "C15", "C151"], 1: ["ECAT", "E11"], 2: ["CCAT", "ECAT", "C15", "C151", "E11"]}


def newsml(number: int, paragraphs: list[str]) -> bytes:
    """A story as Reuters has it."""
    return (
        f'<?xml version="1.0" encoding="iso-8859-1" ?>\n<newsitem itemid="{number}" id="root" date="1996-08-20">\n'
        f"<title>T{number}</title>\n<headline>H{number}</headline>\n<text>\n"
        + "".join(f"<p>{paragraph}</p>\n" for paragraph in paragraphs)
        + '</text>\n<metadata><codes class="bip:topics:1.0"><code code="C11"/></codes></metadata>\n</newsitem>\n'
    ).encode("iso-8859-1")


def rcv1_stories() -> dict[str, bytes]:
    """Stories 2300 down to 2261, of which two have no text, and one that is not in the list of ids."""
    stories = {}
    for number in range(2300, 2260, -1):
        paragraphs = [f"Café {number}.", "&quot;Up&quot; 3 &amp;"]
        without_text = {2265: [], 2290: [" "]}
        stories[f"rcv1/1996{number % 7}/{number}newsML.xml"] = newsml(number, without_text.get(number, paragraphs))
    return stories | {"rcv1/19961/99newsML.xml": newsml(99, ["no"]), "rcv1/codes/topic_codes.txt": b"C11\tSTRATEGY"}


def write_rcv1(source: Path, form: str) -> None:
    suffix = ".gz" if form == "tar.xz" else ""
    pack: Callable[[bytes], bytes] = partial(gzip.compress, mtime=0) if suffix else bytes
    ids = range(2261, 2301)
    topics = [f"{topic} {n} 1\n" for n in ids for topic in RCV1_TOPICS[n % 3]] + ["C11 5 1\n"]
    train = "".join(f".I {n}\n.W\ntoken .I 9 {n}\n\n" for n in ids if n <= 2285)
    (source / "rcv1.taxonomy").write_text(RCV1_TAXONOMY)
    (source / f"rcv1v2-ids.dat{suffix}").write_bytes(pack("".join(f"{n}\n" for n in ids).encode()))
    (source / f"rcv1-v2.topics.qrels{suffix}").write_bytes(pack("".join(topics).encode()))
    (source / f"lyrl2004_tokens_train.dat{suffix}").write_bytes(pack(train.encode()))
    write_stories(source, rcv1_stories(), None if form == "folder" else source / "rcv1.tar.xz")


@pytest.mark.parametrize("form", ["folder", "tar.xz"])
def test_rcv1_from_every_form(tmp_path: Path, form: str) -> None:
    write_rcv1(tmp_path, form)
    ticks: list[int] = []
    prepared = prepare("rcv1", tmp_path, tmp_path / "out", ticks.append)
    splits, taxonomy = read_back(tmp_path / "out")

    usable = [n for n in range(2261, 2301) if n not in (2265, 2290)]
    train, dev = train_test_split([n for n in usable if n <= 2285], test_size=0.1, random_state=0)
    for split, ids in (("train", train), ("dev", dev), ("test", [n for n in usable if n > 2285])):
        assert splits[split] == [(str(n), f'café {n}."up" 3 &', CLOSED[n % 3]) for n in ids]
    assert taxonomy.ids == ["CCAT", "ECAT", "C11", "C15", "C151", "E11"]
    assert prepared == Prepared(
        {"train": 21, "dev": 3, "test": 14},
        6,
        [
            "2 stories without text left out",
            "paragraphs are joined with nothing between them, as in the research code",
        ],
    )
    assert sum(ticks) == 40


def test_rcv1_stories_that_lie_open_make_the_archive_needless(tmp_path: Path) -> None:
    write_rcv1(tmp_path, "folder")
    (tmp_path / "rcv1.tar.xz").write_bytes(b"damaged")
    assert run("rcv1", tmp_path).documents["test"] == 14


def test_rcv1_stories_without_topics_are_kept(tmp_path: Path) -> None:
    write_rcv1(tmp_path, "folder")
    (tmp_path / "rcv1-v2.topics.qrels").write_text("C11 2261 1\n")
    assert "39 stories without topics" in run("rcv1", tmp_path).notes


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("rcv1v2-ids.dat", b"2261\nx\n", "'x' on line 2 of '.*rcv1v2-ids.dat'; expected the number of a story"),
        (
            "rcv1v2-ids.dat",
            b"2261\n7\n8\n",
            "2 of 3 stories are not below .*, such as '7newsML.xml'; get them from Reu",
        ),
        ("rcv1-v2.topics.qrels", b"C11 2261 1\nGMIL 5 1\n", "'GMIL 5 1' on line 2 .*among the 6 of the taxonomy"),
        ("rcv1-v2.topics.qrels", b"C11 2261\n", "'C11 2261' on line 1 .*expected 'TOPIC ID 1'"),
        ("lyrl2004_tokens_train.dat", b".I\xff", "lyrl2004_tokens_train.dat' cannot be read after line 1"),
        ("lyrl2004_tokens_train.dat", b".I 5\n", r"the split train of .* has no document \(train 0, dev 0, test 38\)"),
        ("rcv1/19966/2274newsML.xml", b"<newsitem><p>", "2274newsML.xml' is not well-formed XML: no element found"),
        ("rcv1/19966/2274newsML.xml", b'<!DOCTYPE n [<!ENTITY a "b">]><n>&a;</n>', "2274newsML.xml' declares its own"),
        ("rcv1/19966/2274newsML.xml", b'<?xml version="1.0" encoding="utf-99"?><n/>', "2274newsML.xml' is not well-"),
    ],
)
def test_rcv1_refuses(tmp_path: Path, file: str, content: bytes, match: str) -> None:
    write_rcv1(tmp_path, "folder")
    (tmp_path / file).write_bytes(content)
    fails("rcv1", tmp_path, match)


@pytest.mark.parametrize(
    "name", ["rcv1.taxonomy", "rcv1v2-ids.dat", "rcv1-v2.topics.qrels", "lyrl2004_tokens_train.dat"]
)
def test_rcv1_names_the_missing_file(tmp_path: Path, name: str) -> None:
    write_rcv1(tmp_path, "folder")
    (tmp_path / name).unlink()
    fails("rcv1", tmp_path, f"none of '.*{name}'.* exists; get it from the (online appendices|repositories)")


def test_rcv1_archives_that_cannot_be_read(tmp_path: Path) -> None:
    write_rcv1(tmp_path, "tar.xz")
    whole = (tmp_path / "rcv1.tar.xz").read_bytes()
    (tmp_path / "rcv1.tar.xz").write_bytes(b"no archive" * 100)
    fails("rcv1", tmp_path, r"the archive '.*rcv1.tar.xz' cannot be read further: .*; get the file again")
    (tmp_path / "rcv1.tar.xz").write_bytes(whole[:200] + b"damage" + whole[206:])
    fails("rcv1", tmp_path, r"the archive '.*rcv1.tar.xz' cannot be read further")
    (tmp_path / "rcv1.tar.xz").write_bytes(whole[: len(whole) // 2])
    fails("rcv1", tmp_path, r"rcv1.tar.xz' cannot be read further|stories are not below")
    write_stories(tmp_path, {"a/2261newsML.xml": b"<p>"}, tmp_path / "rcv1.tar.xz")
    fails("rcv1", tmp_path, r"'a/2261newsML.xml' in '.*rcv1.tar.xz' is not well-formed XML")
