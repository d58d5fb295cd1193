"""RCV1-v2: 804,414 Reuters stories with topics (Lewis, Yang, Rose and Li, 2004), split as HGCLR and HILL split it.

The text is the paragraphs of a story one after the other with nothing between them, lower-cased, as in the research
code; its headline is not used. A tenth of the LYRL2004 training stories is held out for dev.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

from hill.data.corpus import Corpus, Entry, Tick, counted, find_file, find_list, hold_out, read_lines, ticking
from hill.data.spool import Spool
from hill.data.stories import read_stories
from hill.errors import DataError
from hill.taxonomy import Taxonomy, read_taxonomy

LYRL = "the online appendices of Lewis et al. 2004 (JMLR volume 5, lewis04a)"
REUTERS = "Reuters Corpus Volume 1 of NIST (rcv1.tar.xz)"
RESEARCH = "the repositories of HILL and HGCLR, folder data/rcv1"
STORY = re.compile(r"(\d{1,18})newsML\.xml")
DIGITS = 18
EMPTY = -1
MISSING = -2
GLUED = "paragraphs are joined with nothing between them, as in the research code"


def read_rcv1(source: Path, texts: Spool, tick: Tick) -> Corpus:
    """The corpus in `rcv1.tar.xz` or a folder of stories, with the LYRL2004 files beside it."""
    taxonomy = read_taxonomy(find_file([source / "rcv1.taxonomy"], RESEARCH))
    rows = _read_ids(find_list(source, "rcv1v2-ids.dat", LYRL))
    trained = _read_train_ids(find_list(source, "lyrl2004_tokens_train.dat", LYRL))
    topics = _read_topics(find_list(source, "rcv1-v2.topics.qrels", LYRL), rows, taxonomy)
    places = _spool_texts(source, rows, texts, tick)
    ids, closed = list(rows), _closing(taxonomy)
    usable = [row for row, place in enumerate(places) if place != EMPTY]
    train, dev = hold_out(np.array([row for row in usable if ids[row] in trained], dtype=np.int64), 0.1)
    test = (row for row in usable if ids[row] not in trained)

    def entries(split: Iterable[int]) -> Iterator[Entry]:
        return (Entry(str(ids[row]), places[row], closed(topics[row])) for row in split)

    splits = {"train": entries(train.tolist()), "dev": entries(dev.tolist()), "test": entries(test)}
    return Corpus(splits, taxonomy, [*_notes(len(rows) - len(usable), topics), GLUED])


def _read_ids(path: Path) -> dict[int, int]:
    """The row of each story of RCV1-v2, in the order of the list."""
    rows: dict[int, int] = {}
    for line, text in read_lines(path):
        rows.setdefault(_number(text, line, path), len(rows))
    return rows


def _read_train_ids(path: Path) -> set[int]:
    """The stories whose tokens the file holds: each begins with a line `.I 2286`."""
    return {_number(text[2:], line, path) for line, text in read_lines(path) if text.startswith(".I")}


def _read_topics(path: Path, rows: dict[int, int], taxonomy: Taxonomy) -> list[int]:
    """The topics of each row as the bits of one number, which takes less room than a list of them."""
    topics = [0] * len(rows)
    for line, text in read_lines(path):
        cells = text.split()
        if len(cells) != 3 or cells[0] not in taxonomy:
            expected = f"expected 'TOPIC ID 1' with a topic among the {len(taxonomy)} of the taxonomy"
            raise DataError(f"'{text[:80]}' on line {line} of '{path}'; {expected} (get the one of 103)")
        row = rows.get(_number(cells[1], line, path))
        if row is not None:
            topics[row] |= 1 << taxonomy.row(cells[0])
    return topics


def _number(text: str, line: int, path: Path) -> int:
    if not text.strip().isdecimal() or len(text) > DIGITS:
        raise DataError(f"'{text[:80]}' on line {line} of '{path}'; expected the number of a story")
    return int(text)


def _spool_texts(source: Path, rows: dict[int, int], texts: Spool, tick: Tick) -> "array[int]":
    """The number of each row's text in the spool, or EMPTY."""
    places, missing = array("q", [MISSING]) * len(rows), len(rows)

    def row_of(name: str) -> int | None:
        match = STORY.fullmatch(name)
        row = rows.get(int(match[1])) if match else None
        return row if row is not None and places[row] == MISSING else None

    for story in ticking(read_stories(source, lambda name: row_of(name) is not None), tick):
        text, row = "".join(story.paragraphs()).lower(), row_of(story.name)
        assert row is not None
        places[row] = texts.append(text) if text.strip() else EMPTY
        missing -= 1
        if not missing:
            break
    if missing:
        first = next(number for number, row in rows.items() if places[row] == MISSING)
        lacking = f"{missing:,} of {len(rows):,} stories are not below '{source}' or in an archive there"
        raise DataError(f"{lacking}, such as '{first}newsML.xml'; get them from {REUTERS}")
    return places


def _closing(taxonomy: Taxonomy) -> Callable[[int], list[str]]:
    @cache
    def closed(topics: int) -> list[str]:
        return taxonomy.decode(taxonomy.closure(row for row in range(len(taxonomy)) if topics >> row & 1))

    return closed


def _notes(empty: int, topics: list[int]) -> list[str]:
    return [
        *counted(empty, "story without text left out", "stories without text left out"),
        *counted(topics.count(0), "story without topics", "stories without topics"),
    ]
