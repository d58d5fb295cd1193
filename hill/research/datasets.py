"""Prepare the research data sets WOS, RCV1-v2 and NYT from their original files.

Texts, labels and splits are those of the research code of HGCLR and HILL; `docs/datasets.md` describes them. Each
reader returns a `Corpus`, and `prepare` writes it as a data set of this package.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import re
import shutil
import tarfile
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html.entities import entitydefs
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import NamedTuple
from xml.etree.ElementTree import Element, ParseError, XMLParser, fromstring

import numpy as np

from hill.data.readers import open_lines, read_xlsx
from hill.errors import DataError
from hill.settings import check_one_of
from hill.taxonomy import Label, Taxonomy, read_taxonomy, write_taxonomy
from hill.types import IntArray

Tick = Callable[[int], None]
"""Called with the number of documents read since the last call."""


@dataclass(frozen=True)
class Prepared:
    """What `prepare` wrote: documents per split, the number of labels, and notes about changes to the data."""

    documents: dict[str, int]
    labels: int
    notes: list[str]


class Entry(NamedTuple):
    """A document to write: the index of its text in the spool, and the ids of its labels and their ancestors."""

    id: str
    text: int
    labels: Sequence[str]


@dataclass(frozen=True)
class Corpus:
    """A data set: its splits, its taxonomy, and notes about changes to the original data."""

    splits: Mapping[str, Iterable[Entry]]
    taxonomy: Taxonomy
    notes: list[str]


class Spool:
    """A growing list of texts in a temporary file, which is deleted when the spool is closed.

    >>> with Spool() as texts:
    ...     texts.append("one"), texts.append("zwölf"), texts[1], len(texts)
    (0, 1, 'zwölf', 2)
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115
        self._starts = array("Q", [0])

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> str:
        start, end = self._starts[index], self._starts[index + 1]
        self._file.seek(start)
        return self._file.read(end - start).decode()

    def append(self, text: str) -> int:
        """Add a text and return its index."""
        content = text.encode()
        self._file.seek(self._starts[-1])
        self._file.write(content)
        self._starts.append(self._starts[-1] + len(content))
        return len(self) - 1


def prepare(name: str, source: Path, out: Path, tick: Tick = lambda documents: None) -> Prepared:
    """Write a research data set to a new folder: `train.jsonl`, `dev.jsonl`, `test.jsonl` and `taxonomy.json`.

    Args:
        name: wos, rcv1 or nyt.
        source: The folder with the original files.
        out: The folder to create; it is complete or not there at all.
        tick: Called with the number of documents read since the last call.
    """
    check_one_of(name, DATASETS, "data set")
    if not source.is_dir():
        raise DataError(f"'{source}' is not a folder; give the folder with the files of the original distribution")
    try:
        with _new_folder(out) as folder, Spool(folder) as texts:
            corpus = DATASETS[name](source, texts, tick)
            documents = {
                split: _write(entries, texts, folder / f"{split}.jsonl") for split, entries in corpus.splits.items()
            }
            if empty := [split for split, count in documents.items() if not count]:
                counts = ", ".join(f"{split} {count:,}" for split, count in documents.items())
                raise DataError(
                    f"the split {empty[0]} of '{source}' has no document ({counts}); are the lists complete?"
                )
            write_taxonomy(corpus.taxonomy, folder / "taxonomy.json")
    except OSError as error:
        raise DataError(f"cannot prepare {name} in '{out}': {error}") from None
    return Prepared(documents, len(corpus.taxonomy), corpus.notes)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder next to `out`, which is renamed to `out` at the end, or deleted after an error."""
    out = out.resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"'{out}' exists and is not empty; give a new folder, or remove this one")
    folder = out.with_name(f".{out.name}.{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        yield folder
        if out.exists():
            out.rmdir()
        folder.rename(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(entries: Iterable[Entry], texts: Spool, path: Path) -> int:
    """Write a split and return the number of its documents."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for count, entry in enumerate(entries, start=1):  # noqa: B007
            record = {"id": entry.id, "text": texts[entry.text], "labels": list(entry.labels)}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return count


# Shared by the readers


def find_file(folder: Path, name: str, origin: str) -> Path:
    """A file of a folder, plain or gzipped, or a `DataError` that says where to get it."""
    plain, gzipped = folder / name, folder / f"{name}.gz"
    if not plain.is_file() and not gzipped.is_file():
        raise DataError(f"none of '{plain}', '{gzipped}' exists; get it from {origin}")
    return plain if plain.is_file() else gzipped


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The non-blank lines of a text file, stripped and numbered from 1."""
    line = 0
    try:
        for line, content in open_lines(path):
            if text := content.decode().strip():
                yield line, text
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"'{path}' cannot be read after line {line}: {error}; get the file again") from None


def hold_out(items: IntArray, share: float) -> tuple[IntArray, IntArray]:
    """Split off a share of the items, exactly as scikit-learn's `train_test_split` with `random_state=0`.

    >>> hold_out(np.arange(5), 0.2)
    (array([0, 1, 3, 4]), array([2]))
    """
    order = np.random.RandomState(0).permutation(len(items))
    n_second = math.ceil(share * len(items))
    return items[order[n_second:]], items[order[:n_second]]


def _note(n: int, noun: str, rest: str) -> list[str]:
    """A note that begins with a count, or no note if the count is 0."""
    plural = "stories" if noun == "story" else f"{noun}s"
    return [f"{n:,} {noun if n == 1 else plural} {rest}"] if n else []


# Web of Science

WOS_ORIGIN = "'Web of Science Dataset' of Mendeley Data (doi 10.17632/9rw3vkcfy4), folder Meta-data"
HEADER = ("Y1", "Y2", "Y", "Domain", "area", "keywords", "Abstract")
WOS_ROWS = 46_985
CLITIC = re.compile("('s|'ve|n't|'re|'d|'ll)")
SPACES = re.compile(r"\s{2,}")


class WosRow(NamedTuple):
    """A row of the file: the code of its area, its labels, and the index of its text (None if it is empty)."""

    code: str
    domain: str
    area: str
    text: int | None


def read_wos(source: Path, texts: Spool, tick: Tick) -> Corpus:
    """Read `Data.xlsx` or `Data.txt` and split it as the research code does."""
    path = _find_wos(source)
    rows = []
    for cells in _read_cells(path):
        tick(1)
        text = clean(cells[6])
        index = texts.append(text) if text else None
        rows.append(WosRow(f"{cells[0]}-{cells[1]}", cells[3].strip(), cells[4].strip(), index))
    if not rows:
        raise DataError(f"'{path}' has a header but no rows; get the file again")
    areas = merge_areas(rows)
    parents: dict[str, str] = {}
    for row, area in zip(rows, areas, strict=True):
        if parents.setdefault(area, row.domain) != row.domain:
            both = f"'{parents[area]}' and '{row.domain}'"
            raise DataError(f"the area '{area}' is under {both} in '{path}'; rename it under one of them")
    domains = dict.fromkeys(row.domain for row in rows)
    children = [Label(area, area, (domain,)) for area, domain in parents.items()]
    taxonomy = Taxonomy([*(Label(domain, domain) for domain in domains), *children])

    def entries(indices: IntArray) -> Iterator[Entry]:
        for index in indices.tolist():
            if (text := rows[index].text) is not None:
                yield Entry(str(index), text, (rows[index].domain, areas[index]))

    notes = []
    if len(rows) != WOS_ROWS:
        notes.append(f"{len(rows):,} rows, but WOS-46985 has {WOS_ROWS:,}: the split is not the published one")
    merged = Counter((row.code, row.area, area) for row, area in zip(rows, areas, strict=True) if row.area != area)
    for (code, name, area), n_rows in merged.items():
        notes += _note(n_rows, "row", f"of '{name}' merged into '{area}' (code {code})")
    notes += _note(sum(row.text is None for row in rows), "row", "without an abstract left out")
    train, dev, test = map(entries, split_indices(len(rows)))
    return Corpus({"train": train, "dev": dev, "test": test}, taxonomy, notes)


def clean(text: str) -> str:
    """Clean an abstract as HGCLR and HILL do: no quotes around it, a space before clitics, lower case.

    >>> clean('"It isn\\'t  Ohm\\'s law."')
    "it is n't ohm 's law."
    """
    return SPACES.sub(" ", CLITIC.sub(r" \1", text.strip().strip('"'))).strip().lower()


def merge_areas(rows: Sequence[WosRow]) -> list[str]:
    """The area of each row after merging area names that share a code.

    A row takes the first name seen so far under its code that is more frequent in its domain than its own name.
    """
    frequency = Counter((row.domain, row.area) for row in rows)
    seen: defaultdict[str, dict[str, None]] = defaultdict(dict)
    areas = []
    for row in rows:
        seen[row.code][row.area] = None
        row_frequency = frequency[row.domain, row.area]
        areas.append(next((area for area in seen[row.code] if frequency[row.domain, area] > row_frequency), row.area))
    return areas


def split_indices(n: int) -> tuple[IntArray, IntArray, IntArray]:
    """The rows of train, dev and test, in this order."""
    order = np.arange(n)
    np.random.RandomState(7).shuffle(order)
    rest, test = hold_out(order, 0.2)
    train, dev = hold_out(rest, 0.2)
    return train, dev, test


def _find_wos(source: Path) -> Path:
    folders = (source, source / "Meta-data")
    paths = [folder / name for folder in folders for name in ("Data.xlsx", "Data.txt")]
    for path in paths:
        if path.is_file():
            return path
    for folder in folders:
        if (folder / "Data.xls").is_file():
            remedy = "open it and save it as Data.xlsx, or as Data.txt (Unicode text), in the same folder"
            raise DataError(f"'{folder / 'Data.xls'}' is an old binary workbook; {remedy}")
    names = ", ".join(f"'{path}'" for path in paths)
    raise DataError(f"none of {names} exists; get it from {WOS_ORIGIN}")


def _read_cells(path: Path) -> Iterator[list[str]]:
    """The rows below the header: seven cells each, with a domain and an area."""
    rows = _read_sheet(path) if path.suffix == ".xlsx" else _read_text(path)
    _, header = next(rows, (1, []))
    if [cell.strip().casefold() for cell in header] != [name.casefold() for name in HEADER]:
        start = ", ".join(header[:8]) or "nothing"
        raise DataError(f"'{path}' begins with {start[:200]}; expected the columns {', '.join(HEADER)}")
    for number, cells in rows:
        if len(cells) != len(HEADER):
            raise DataError(
                f"{len(cells)} columns on line {number} of '{path}'; expected {len(HEADER)}, separated by tabs"
            )
        if not (cells[3].strip() and cells[4].strip()):
            raise DataError(f"no domain or no area on line {number} of '{path}'; every row must have both")
        yield cells


def _read_sheet(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The non-blank rows of a workbook, without empty cells after the last column."""
    for number, cells in read_xlsx(path):
        while len(cells) > len(HEADER) and not cells[-1]:
            cells.pop()
        if any(cells):
            yield number, cells + [""] * (len(HEADER) - len(cells))


def _read_text(path: Path) -> Iterator[tuple[int, list[str]]]:
    with path.open("rb") as file:
        encoding = "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    with path.open(encoding=encoding) as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip("\n"):
                    yield number, line.rstrip("\n").split("\t")
        except UnicodeError as error:
            remedy = "save it from Excel as Unicode text"
            raise DataError(f"'{path}' is neither UTF-8 nor UTF-16 with a mark ({error}); {remedy}") from None


# News stories

ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
MAX_STORY_BYTES = 2**24
"""The longest stories have a few hundred thousand bytes."""


class Story(NamedTuple):
    """A news story: its file name without folders, and its XML."""

    name: str
    root: Element

    def paragraphs(self) -> list[str]:
        """The text of each `<p>` element in order."""
        return ["".join(paragraph.itertext()) for paragraph in self.root.iter("p")]


def read_stories(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Story]:
    """The stories below a folder whose file name is wanted: first from plain files, then from tar archives."""
    archives = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            if name.endswith(ARCHIVES):
                archives.append(path)
            elif wanted(name):
                yield Story(name, _parse_story(path.stat().st_size, path.read_bytes, f"'{path}'"))
    for path in archives:
        try:
            with tarfile.open(path, "r|*") as archive:
                while member := archive.next():
                    name = member.name.rpartition("/")[2]
                    if member.isfile() and wanted(name) and (file := archive.extractfile(member)):
                        yield Story(name, _parse_story(member.size, file.read, f"'{member.name}' in '{path}'"))
                    # The archive keeps a list of all members: a gigabyte for RCV1.
                    archive.members.clear()  # type: ignore[attr-defined]
        except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError, UnicodeError) as error:
            raise DataError(f"the archive '{path}' cannot be read further: {error}; get the file again") from None


def spool_stories(
    source: Path, names: Collection[str], read_text: Callable[[Story], str], texts: Spool, tick: Tick, origin: str
) -> dict[str, int | None]:
    """Add the text of each named story to the spool. Returns their indices, None for a story without text."""
    indices: dict[str, int | None] = {}
    for story in read_stories(source, lambda name: name in names and name not in indices):
        tick(1)
        text = read_text(story).lower()
        indices[story.name] = texts.append(text) if text.strip() else None
        if len(indices) == len(names):
            break
    if missing := [name for name in names if name not in indices]:
        raise DataError(
            f"{len(missing):,} of {len(names):,} stories are not below '{source}' or in an archive there, such as "
            f"'{missing[0]}'; get them from {origin}"
        )
    return indices


def _parse_story(size: int, read: Callable[[], bytes], place: str) -> Element:
    if size > MAX_STORY_BYTES:
        raise DataError(f"{place} has {size:,} bytes, and no story more than {MAX_STORY_BYTES:,}; get the file again")
    content = read()
    # Without zero bytes, an entity declaration looks the same in every encoding that an XML file can have.
    if b"<!ENTITY" in content.replace(b"\0", b""):
        raise DataError(f"{place} declares its own entities, which no story does; get the file again")
    parser = XMLParser()
    # The document type of a story is not available; define the characters that stories use from it.
    parser.entity.update(entitydefs)
    try:
        return fromstring(content, parser)
    except (ParseError, ValueError, LookupError) as error:
        raise DataError(f"{place} is not well-formed XML: {error}; get the file again") from None


# RCV1-v2

LYRL = "the online appendices of Lewis et al. 2004 (JMLR volume 5, lewis04a)"
REUTERS = "Reuters Corpus Volume 1 of NIST (rcv1.tar.xz)"
RCV1_RESEARCH = "the repositories of HILL and HGCLR, folder data/rcv1"
RCV1_JOINED = "paragraphs are joined with nothing between them, as in the research code"
MAX_DIGITS = 18


def read_rcv1(source: Path, texts: Spool, tick: Tick) -> Corpus:
    """Read `rcv1.tar.xz` or a folder of stories, with the LYRL2004 files next to it."""
    taxonomy = read_taxonomy(find_file(source, "rcv1.taxonomy", RCV1_RESEARCH))
    path = find_file(source, "rcv1v2-ids.dat", LYRL)
    topics = {_story_number(text, line, path): 0 for line, text in read_lines(path)}
    path = find_file(source, "lyrl2004_tokens_train.dat", LYRL)  # each story begins with a line such as `.I 2286`
    train_ids = {_story_number(text[2:], line, path) for line, text in read_lines(path) if text.startswith(".I")}
    _read_topics(find_file(source, "rcv1-v2.topics.qrels", LYRL), topics, taxonomy)
    names = {f"{number}newsML.xml": number for number in topics}
    indices = spool_stories(source, names, lambda story: "".join(story.paragraphs()), texts, tick, REUTERS)
    numbered = {number: index for name, number in names.items() if (index := indices[name]) is not None}

    @cache
    def labels(topics: int) -> list[str]:
        return taxonomy.decode(taxonomy.closure(row for row in range(len(taxonomy)) if topics >> row & 1))

    def entries(numbers: Iterable[int]) -> Iterator[Entry]:
        return (Entry(str(number), numbered[number], labels(topics[number])) for number in numbers)

    train, dev = hold_out(np.array([number for number in numbered if number in train_ids], dtype=np.int64), 0.1)
    test = [number for number in numbered if number not in train_ids]
    notes = [
        *_note(len(topics) - len(numbered), "story", "without text left out"),
        *_note(sum(not bits for bits in topics.values()), "story", "without topics"),
        RCV1_JOINED,
    ]
    splits = {"train": entries(train.tolist()), "dev": entries(dev.tolist()), "test": entries(test)}
    return Corpus(splits, taxonomy, notes)


def _read_topics(path: Path, topics: dict[int, int], taxonomy: Taxonomy) -> None:
    """Add the topics of each story as the bits of an integer, which needs less memory than a list."""
    for line, text in read_lines(path):
        cells = text.split()
        if len(cells) != 3 or cells[0] not in taxonomy:
            expected = f"expected 'TOPIC ID 1' with a topic among the {len(taxonomy)} of the taxonomy"
            raise DataError(f"'{text[:80]}' on line {line} of '{path}'; {expected} (get the one of 103)")
        number = _story_number(cells[1], line, path)
        if number in topics:
            topics[number] |= 1 << taxonomy.row(cells[0])


def _story_number(text: str, line: int, path: Path) -> int:
    if not text.strip().isdecimal() or len(text) > MAX_DIGITS:
        raise DataError(f"'{text[:80]}' on line {line} of '{path}'; expected the number of a story")
    return int(text)


# New York Times

LDC = "The New York Times Annotated Corpus (LDC2008T19)"
NYT_RESEARCH = "the repositories of HILL and HGCLR, folder data/nyt"
NYT_LISTS = {"train": "idnewnyt_train.json", "dev": "idnewnyt_val.json", "test": "idnewnyt_test.json"}
NYT_JOINED = "paragraphs but the first are joined with nothing between them, as in the research code"


def read_nyt(source: Path, texts: Spool, tick: Tick) -> Corpus:
    """Read folders of stories or the monthly archives, with the id lists and the taxonomy next to them."""
    taxonomy = read_taxonomy(find_file(source, "nyt.taxonomy", NYT_RESEARCH))
    vocabulary = _read_vocabulary(find_file(source, "nyt_label.vocab", NYT_RESEARCH), taxonomy)
    lists = {split: _read_names(find_file(source, name, NYT_RESEARCH)) for split, name in NYT_LISTS.items()}
    # Every line of every list is a document, in the first split whose list has the story.
    first_split: dict[str, str] = {}
    documents: dict[str, list[str]] = {split: [] for split in lists}
    moves: Counter[tuple[str, str]] = Counter()
    for split, names in lists.items():
        for name in names:
            first = first_split.setdefault(name, split)
            documents[first].append(name)
            moves[split, first] += 1
    labels: dict[str, tuple[str, ...]] = {}

    def read_text(story: Story) -> str:
        labels[story.name] = _nyt_labels(story, vocabulary, taxonomy)
        return "".join(story.paragraphs()[1:])

    indices = spool_stories(source, first_split, read_text, texts, tick, LDC)
    notes = []
    for split, names in lists.items():
        notes += _note(len(names) - len(set(names)), "repeated line", f"in the list of {split}")
    for (split, first), n_lines in moves.items():
        if split != first:
            notes += _note(n_lines, "line", f"of the list of {split} moved to {first}, whose list has the story too")
    notes += _note(sum(index is None for index in indices.values()), "story", "without text left out")
    usable = [name for name in first_split if indices[name] is not None]
    notes += _note(sum(not labels[name] for name in usable), "story", "without labels")

    def entries(names: list[str]) -> Iterator[Entry]:
        for name in names:
            if (index := indices[name]) is not None:
                yield Entry(name.removesuffix(".xml"), index, labels[name])

    # The research code numbers labels in the order of first use; unused labels come last.
    used = dict.fromkeys(label for name in usable for label in labels[name])
    ordered = [taxonomy[taxonomy.row(label)] for label in used | dict.fromkeys(taxonomy.ids)]
    splits = {split: entries(names) for split, names in documents.items()}
    return Corpus(splits, Taxonomy(ordered), [*notes, NYT_JOINED])


def _read_names(path: Path) -> list[str]:
    """The file name of each line, such as `1469939.xml` of `Nytimes/2003/1469939.xml`."""
    names = []
    for line, text in read_lines(path):
        if not text.endswith(".xml"):
            raise DataError(
                f"'{text[:80]}' on line {line} of '{path}'; expected a story such as Nytimes/2003/1469939.xml"
            )
        names.append(PurePosixPath(text).name)
    return names


def _read_vocabulary(path: Path, taxonomy: Taxonomy) -> set[str]:
    vocabulary = {text: line for line, text in read_lines(path) if text != "Root"}
    for label, line in vocabulary.items():
        if label not in taxonomy:
            raise DataError(
                f"label '{label}' on line {line} of '{path}' is not in the taxonomy; get both from {NYT_RESEARCH}"
            )
    return set(vocabulary)


def _nyt_labels(story: Story, vocabulary: set[str], taxonomy: Taxonomy) -> tuple[str, ...]:
    """The labels on the path of each taxonomic classifier of three or more steps, such as `Top/News/Sports`."""
    labels: dict[str, None] = {}
    for classifier in story.root.iter("classifier"):
        steps = "".join(classifier.itertext()).strip().split("/")
        if classifier.get("type") == "taxonomic_classifier" and len(steps) >= 3:
            paths = ("/".join(steps[:end]) for end in range(2, len(steps) + 1))
            labels.update(dict.fromkeys(path for path in paths if path in vocabulary))
    rows = [taxonomy.row(label) for label in labels]
    return tuple(labels | dict.fromkeys(taxonomy.decode(taxonomy.closure(rows))))


DATASETS: dict[str, Callable[[Path, Spool, Tick], Corpus]] = {"wos": read_wos, "rcv1": read_rcv1, "nyt": read_nyt}
