"""Prepare the research data sets WOS, RCV1-v2 and NYT from their original files.

Texts, labels and splits are those of the research code of HGCLR and HILL; `docs/datasets.md` describes them. Each
reader returns a `Corpus`, and `prepare` writes it as a data set of this package.
"""

import difflib
import json
import os
import re
import shutil
import warnings
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from zipfile import ZipFile

import numpy as np

from hill.errors import ConfigError, DataError, need
from hill.research.corpus import (
    Corpus,
    Entry,
    Spool,
    Story,
    Tick,
    counted,
    find_file,
    find_list,
    hold_out,
    read_lines,
    read_stories,
    ticking,
)
from hill.taxonomy import Label, Taxonomy, read_taxonomy, write_taxonomy
from hill.types import IntArray


@dataclass(frozen=True)
class Prepared:
    """What `prepare` wrote: documents per split, the number of labels, and notes about changes to the data."""

    documents: dict[str, int]
    labels: int
    notes: list[str]


def prepare(name: str, source: Path, out: Path, tick: Tick = lambda documents: None) -> Prepared:
    """Write a research data set to a new folder: `train.jsonl`, `dev.jsonl`, `test.jsonl` and `taxonomy.json`.

    Args:
        name: wos, rcv1 or nyt.
        source: The folder with the original files.
        out: The folder to create; it is complete or not there at all.
        tick: Called from time to time with the number of documents read since the last call.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ConfigError(f"unknown data set '{name}'; known are {', '.join(DATASETS)}{hint}")
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
    for cells in ticking(_read_cells(path), tick):
        text = clean(cells[6])
        index = texts.append(text) if text else None
        rows.append(WosRow(f"{cells[0]}-{cells[1]}", cells[3].strip(), cells[4].strip(), index))
    if not rows:
        raise DataError(f"'{path}' has a header but no rows; get the file again")
    areas = merge_areas(rows)
    taxonomy = _wos_taxonomy(rows, areas, path)
    train, dev, test = (_wos_entries(indices, rows, areas) for indices in split_indices(len(rows)))
    return Corpus({"train": train, "dev": dev, "test": test}, taxonomy, _wos_notes(rows, areas))


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
    try:
        return find_file([folder / name for folder in folders for name in ("Data.xlsx", "Data.txt")], WOS_ORIGIN)
    except DataError as error:
        if old := [folder / "Data.xls" for folder in folders if (folder / "Data.xls").is_file()]:
            remedy = "open it and save it as Data.xlsx, or as Data.txt (Unicode text), in the same folder"
            raise DataError(f"'{old[0]}' is an old binary workbook; {remedy}") from error
        raise


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


def _wos_taxonomy(rows: Sequence[WosRow], areas: Sequence[str], path: Path) -> Taxonomy:
    """Domains, then areas, each in order of first appearance."""
    domains = dict.fromkeys(row.domain for row in rows)
    parents: dict[str, str] = {}
    for row, area in zip(rows, areas, strict=True):
        if parents.setdefault(area, row.domain) != row.domain:
            both = f"'{parents[area]}' and '{row.domain}'"
            raise DataError(f"the area '{area}' is under {both} in '{path}'; rename it under one of them")
    children = [Label(area, area, (domain,)) for area, domain in parents.items()]
    return Taxonomy([*(Label(domain, domain) for domain in domains), *children])


def _wos_entries(indices: IntArray, rows: Sequence[WosRow], areas: Sequence[str]) -> Iterator[Entry]:
    for index in indices.tolist():
        if (text := rows[index].text) is not None:
            yield Entry(str(index), text, (rows[index].domain, areas[index]))


def _wos_notes(rows: Sequence[WosRow], areas: Sequence[str]) -> list[str]:
    notes = []
    if len(rows) != WOS_ROWS:
        notes.append(f"{len(rows):,} rows, but WOS-46985 has {WOS_ROWS:,}: the split is not the published one")
    merged = Counter((row.code, row.area, area) for row, area in zip(rows, areas, strict=True) if row.area != area)
    for (code, name, area), count in merged.items():
        rest = f"of '{name}' merged into '{area}' (code {code})"
        notes += counted(count, f"row {rest}", f"rows {rest}")
    empty = sum(row.text is None for row in rows)
    return notes + counted(empty, "row without an abstract left out", "rows without an abstract left out")


# Workbooks


MAX_PART_SIZE = 2**25
MAX_COMPRESSION = 200
"""A part of a workbook that is larger than `MAX_PART_SIZE` and compressed better than this is refused as a zip bomb."""
MAX_ROWS = 2**20
"""The maximum number of rows of a sheet in Excel."""
ESCAPED_CHARACTER = re.compile("_x00([0-7][0-9A-Fa-f])_")


def read_xlsx(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the cells of each row of the first sheet as strings; empty cells are empty strings."""
    openpyxl = need("openpyxl", "data", "reading .xlsx workbooks")
    try:
        with ZipFile(path) as archive:
            for part in archive.infolist():
                if part.file_size > max(MAX_PART_SIZE, MAX_COMPRESSION * part.compress_size):
                    raise ValueError(
                        f"'{part.filename}' has {part.file_size:,} bytes, packed into {part.compress_size:,}"
                    )
        with path.open("rb") as file:  # openpyxl leaves a file open that it cannot read
            with warnings.catch_warnings(action="ignore"):
                workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
            with closing(workbook):
                if not workbook.worksheets:
                    raise ValueError("it has no sheet")
                sheet = workbook.worksheets[0]
                sheet.reset_dimensions()  # programs other than Excel write wrong ones
                rows = sheet.iter_rows(values_only=True)
                for number in range(1, MAX_ROWS + 2):
                    with warnings.catch_warnings(action="ignore"):
                        row = next(rows, None)
                    if row is None:
                        return
                    if number > MAX_ROWS:
                        raise ValueError(f"it has more than {MAX_ROWS:,} rows")
                    yield number, ["" if cell is None else ESCAPED_CHARACTER.sub(_unescape, str(cell)) for cell in row]
    except Exception as error:  # openpyxl raises errors of many types for damaged files
        raise DataError(f"'{path}' is not a usable .xlsx workbook: {error}; save it from Excel again") from None


def _unescape(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))


# RCV1-v2


LYRL = "the online appendices of Lewis et al. 2004 (JMLR volume 5, lewis04a)"
REUTERS = "Reuters Corpus Volume 1 of NIST (rcv1.tar.xz)"
RCV1_RESEARCH = "the repositories of HILL and HGCLR, folder data/rcv1"
RCV1_JOINED = "paragraphs are joined with nothing between them, as in the research code"
STORY_FILE = re.compile(r"(\d{1,18})newsML\.xml")
MAX_DIGITS = 18
EMPTY = -1
"""The text index of a story without text."""
MISSING = -2
"""The text index of a story that was not found yet."""


def read_rcv1(source: Path, texts: Spool, tick: Tick) -> Corpus:
    """Read `rcv1.tar.xz` or a folder of stories, with the LYRL2004 files next to it."""
    taxonomy = read_taxonomy(find_file([source / "rcv1.taxonomy"], RCV1_RESEARCH))
    path = find_list(source, "rcv1v2-ids.dat", LYRL)
    numbers = dict.fromkeys(_story_number(text, line, path) for line, text in read_lines(path))
    rows = {number: row for row, number in enumerate(numbers)}
    path = find_list(source, "lyrl2004_tokens_train.dat", LYRL)  # each story begins with a line such as `.I 2286`
    train_ids = {_story_number(text[2:], line, path) for line, text in read_lines(path) if text.startswith(".I")}
    topics = _read_topics(find_list(source, "rcv1-v2.topics.qrels", LYRL), rows, taxonomy)
    indices = _spool_texts(source, rows, texts, tick)

    @cache
    def labels(topics: int) -> list[str]:
        return taxonomy.decode(taxonomy.closure(row for row in range(len(taxonomy)) if topics >> row & 1))

    def entries(split: Iterable[int]) -> Iterator[Entry]:
        return (Entry(str(ids[row]), indices[row], labels(topics[row])) for row in split)

    ids = list(rows)
    usable = [row for row, index in enumerate(indices) if index != EMPTY]
    train, dev = hold_out(np.array([row for row in usable if ids[row] in train_ids], dtype=np.int64), 0.1)
    test = (row for row in usable if ids[row] not in train_ids)
    notes = [
        *counted(len(rows) - len(usable), "story without text left out", "stories without text left out"),
        *counted(topics.count(0), "story without topics", "stories without topics"),
        RCV1_JOINED,
    ]
    return Corpus(
        {"train": entries(train.tolist()), "dev": entries(dev.tolist()), "test": entries(test)}, taxonomy, notes
    )


def _read_topics(path: Path, rows: dict[int, int], taxonomy: Taxonomy) -> list[int]:
    """The topics of each row as the bits of an integer, which needs less memory than a list."""
    topics = [0] * len(rows)
    for line, text in read_lines(path):
        cells = text.split()
        if len(cells) != 3 or cells[0] not in taxonomy:
            expected = f"expected 'TOPIC ID 1' with a topic among the {len(taxonomy)} of the taxonomy"
            raise DataError(f"'{text[:80]}' on line {line} of '{path}'; {expected} (get the one of 103)")
        row = rows.get(_story_number(cells[1], line, path))
        if row is not None:
            topics[row] |= 1 << taxonomy.row(cells[0])
    return topics


def _story_number(text: str, line: int, path: Path) -> int:
    if not text.strip().isdecimal() or len(text) > MAX_DIGITS:
        raise DataError(f"'{text[:80]}' on line {line} of '{path}'; expected the number of a story")
    return int(text)


def _spool_texts(source: Path, rows: dict[int, int], texts: Spool, tick: Tick) -> "array[int]":
    """The index of each row's text in the spool, or EMPTY."""
    indices, n_missing = array("q", [MISSING]) * len(rows), len(rows)

    def missing_row(name: str) -> int | None:
        """The row of a story file, if it is in the list and was not read yet."""
        match = STORY_FILE.fullmatch(name)
        row = rows.get(int(match[1])) if match else None
        return row if row is not None and indices[row] == MISSING else None

    for story in ticking(read_stories(source, lambda name: missing_row(name) is not None), tick):
        text, row = "".join(story.paragraphs()).lower(), missing_row(story.name)
        assert row is not None
        indices[row] = texts.append(text) if text.strip() else EMPTY
        n_missing -= 1
        if not n_missing:
            break
    if n_missing:
        first = next(number for number, row in rows.items() if indices[row] == MISSING)
        raise DataError(
            f"{n_missing:,} of {len(rows):,} stories are not below '{source}' or in an archive there, such as "
            f"'{first}newsML.xml'; get them from {REUTERS}"
        )
    return indices


# New York Times


LDC = "The New York Times Annotated Corpus (LDC2008T19)"
NYT_RESEARCH = "the repositories of HILL and HGCLR, folder data/nyt"
NYT_LISTS = {"train": "idnewnyt_train.json", "dev": "idnewnyt_val.json", "test": "idnewnyt_test.json"}
NYT_JOINED = "paragraphs but the first are joined with nothing between them, as in the research code"


class NytStory(NamedTuple):
    """A story: the index of its text in the spool (None if it is empty), and its labels."""

    text: int | None
    labels: tuple[str, ...]


def read_nyt(source: Path, texts: Spool, tick: Tick) -> Corpus:
    """Read folders of stories or the monthly archives, with the id lists and the taxonomy next to them."""
    taxonomy = read_taxonomy(find_file([source / "nyt.taxonomy"], NYT_RESEARCH))
    vocabulary = _read_vocabulary(find_list(source, "nyt_label.vocab", NYT_RESEARCH), taxonomy)
    lists = {split: _read_names(find_list(source, name, NYT_RESEARCH)) for split, name in NYT_LISTS.items()}
    wanted = dict.fromkeys(name for names in lists.values() for name in names)
    stories: dict[str, NytStory] = {}
    for story in ticking(read_stories(source, lambda name: name in wanted and name not in stories), tick):
        text = "".join(story.paragraphs()[1:]).lower()
        index = texts.append(text) if text.strip() else None
        stories[story.name] = NytStory(index, _nyt_labels(story, vocabulary, taxonomy))
        if len(stories) == len(wanted):
            break
    if missing := [name for name in wanted if name not in stories]:
        raise DataError(
            f"{len(missing):,} stories of the id lists are not below '{source}' or in an archive there, such as "
            f"'{missing[0]}'; get them from {LDC}"
        )
    splits = {split: _nyt_entries(names, stories) for split, names in assign(lists).items()}
    # The research code numbers labels in the order of first use; unused labels come last.
    ordered = [stories[name] for name in wanted]
    used = dict.fromkeys(label for story in ordered if story.text is not None for label in story.labels)
    labels = [taxonomy[taxonomy.row(label)] for label in used | dict.fromkeys(taxonomy.ids)]
    return Corpus(splits, Taxonomy(labels), [*_nyt_notes(lists, stories), NYT_JOINED])


def assign(lists: dict[str, list[str]]) -> dict[str, list[str]]:
    """The stories of each split: every line of every list, in the first split whose list has the story.

    >>> assign({"train": ["1", "2", "2"], "dev": ["3", "1"], "test": ["3", "4"]})
    {'train': ['1', '2', '2', '1'], 'dev': ['3', '3'], 'test': ['4']}
    """
    splits: dict[str, list[str]] = {split: [] for split in lists}
    for name, _, first in _with_first_split(lists):
        splits[first].append(name)
    return splits


def _with_first_split(lists: dict[str, list[str]]) -> Iterator[tuple[str, str, str]]:
    """Each line of the lists: the story, the split of the list, and the first split whose list has the story."""
    first: dict[str, str] = {}
    for split, names in lists.items():
        for name in names:
            yield name, split, first.setdefault(name, split)


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


def _nyt_entries(names: list[str], stories: dict[str, NytStory]) -> Iterator[Entry]:
    for name in names:
        if (text := stories[name].text) is not None:
            yield Entry(name.removesuffix(".xml"), text, stories[name].labels)


def _nyt_notes(lists: dict[str, list[str]], stories: dict[str, NytStory]) -> list[str]:
    notes = []
    for split, names in lists.items():
        repeats = len(names) - len(set(names))
        notes += counted(repeats, f"repeated line in the list of {split}", f"repeated lines in the list of {split}")
    moves = Counter((split, first) for _, split, first in _with_first_split(lists) if split != first)
    for (split, first), count in moves.items():
        rest = f"of the list of {split} moved to {first}, whose list has the story too"
        notes += counted(count, f"line {rest}", f"lines {rest}")
    empty = sum(story.text is None for story in stories.values())
    unlabelled = sum(story.text is not None and not story.labels for story in stories.values())
    notes += counted(empty, "story without text left out", "stories without text left out")
    return notes + counted(unlabelled, "story without labels", "stories without labels")


DATASETS: dict[str, Callable[[Path, Spool, Tick], Corpus]] = {"wos": read_wos, "rcv1": read_rcv1, "nyt": read_nyt}
