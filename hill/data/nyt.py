"""NYT: stories of the New York Times Annotated Corpus (LDC2008T19) in the selection of HiAGM, HGCLR and HILL.

The text is all paragraphs but the first one after the other with nothing between them, lower-cased, as in the research
code. The id lists repeat some stories, within a list and between lists. As there, every line makes a document, and the
document belongs to the first of train, dev and test whose list has the story: nothing of train is in dev or test, but
some documents of train, dev or test come twice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hill.data.corpus import Corpus, Entry, Tick, counted, find_file, find_list, read_lines, ticking
from hill.data.spool import Spool
from hill.data.stories import Story, read_stories
from hill.errors import DataError
from hill.taxonomy import Taxonomy, read_taxonomy

LDC = "The New York Times Annotated Corpus (LDC2008T19)"
RESEARCH = "the repositories of HILL and HGCLR, folder data/nyt"
LISTS = {"train": "idnewnyt_train.json", "dev": "idnewnyt_val.json", "test": "idnewnyt_test.json"}
GLUED = "paragraphs but the first are joined with nothing between them, as in the research code"


@dataclass(frozen=True)
class Found:
    """A story that was read: the number of its text in the spool (none if it has no text), and its labels."""

    text: int | None
    labels: tuple[str, ...]


def read_nyt(source: Path, texts: Spool, tick: Tick) -> Corpus:
    """The corpus in folders of stories or the monthly archives, with the id lists and the taxonomy beside them."""
    taxonomy = read_taxonomy(find_file([source / "nyt.taxonomy"], RESEARCH))
    vocabulary = _read_vocabulary(find_list(source, "nyt_label.vocab", RESEARCH), taxonomy)
    lists = {split: _read_list(find_list(source, name, RESEARCH)) for split, name in LISTS.items()}
    wanted = dict.fromkeys(name for names in lists.values() for name in names)
    found: dict[str, Found] = {}
    for story in ticking(read_stories(source, lambda name: name in wanted and name not in found), tick):
        text = "".join(story.paragraphs()[1:]).lower()
        place = texts.append(text) if text.strip() else None
        found[story.name] = Found(place, _labels(story, vocabulary, taxonomy))
        if len(found) == len(wanted):
            break
    _check_all_found(wanted, found, source)
    splits = {split: _entries(names, found) for split, names in assign(lists).items()}
    ordered = _by_first_use(taxonomy, [found[name] for name in wanted])
    return Corpus(splits, ordered, [*_notes(lists, found), GLUED])


def assign(lists: dict[str, list[str]]) -> dict[str, list[str]]:
    """Each split's stories: every line of every list, in the first split whose list has its story.

    >>> assign({"train": ["1", "2", "2"], "dev": ["3", "1"], "test": ["3", "4"]})
    {'train': ['1', '2', '2', '1'], 'dev': ['3', '3'], 'test': ['4']}
    """
    splits: dict[str, list[str]] = {split: [] for split in lists}
    for name, first in _with_first_split(lists):
        splits[first].append(name)
    return splits


def _with_first_split(lists: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    first: dict[str, str] = {}
    for split, names in lists.items():
        for name in names:
            yield name, first.setdefault(name, split)


def _read_list(path: Path) -> list[str]:
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
                f"label '{label}' on line {line} of '{path}' is not in the taxonomy; get both from {RESEARCH}"
            )
    return set(vocabulary)


def _labels(story: Story, vocabulary: set[str], taxonomy: Taxonomy) -> tuple[str, ...]:
    """The labels on the way to each taxonomic classifier of three steps or more, such as `Top/News/Sports`."""
    labels: dict[str, None] = {}
    for classifier in story.root.iter("classifier"):
        steps = "".join(classifier.itertext()).strip().split("/")
        if classifier.get("type") == "taxonomic_classifier" and len(steps) >= 3:
            ways = ("/".join(steps[:end]) for end in range(2, len(steps) + 1))
            labels.update(dict.fromkeys(way for way in ways if way in vocabulary))
    rows = [taxonomy.row(label) for label in labels]
    return tuple(labels | dict.fromkeys(taxonomy.decode(taxonomy.closure(rows))))


def _check_all_found(wanted: Iterable[str], found: dict[str, Found], source: Path) -> None:
    if missing := [name for name in wanted if name not in found]:
        lacking = f"{len(missing):,} stories of the id lists are not below '{source}' or in an archive there"
        raise DataError(f"{lacking}, such as '{missing[0]}'; get them from {LDC}")


def _entries(names: list[str], found: dict[str, Found]) -> Iterator[Entry]:
    for name in names:
        if (place := found[name].text) is not None:
            yield Entry(name.removesuffix(".xml"), place, found[name].labels)


def _by_first_use(taxonomy: Taxonomy, stories: list[Found]) -> Taxonomy:
    """The labels in the order the stories first use them, which numbers them as in the research code; others last."""
    used = dict.fromkeys(label for story in stories if story.text is not None for label in story.labels)
    return Taxonomy(taxonomy[taxonomy.row(label)] for label in used | dict.fromkeys(taxonomy.ids))


def _notes(lists: dict[str, list[str]], found: dict[str, Found]) -> list[str]:
    notes = []
    for split, names in lists.items():
        repeats = len(names) - len(set(names))
        notes += counted(repeats, f"repeated line in the list of {split}", f"repeated lines in the list of {split}")
    given = (split for split, names in lists.items() for _ in names)
    moves = Counter((split, first) for split, (_, first) in zip(given, _with_first_split(lists), strict=True))
    for (split, first), count in moves.items():
        if split != first:
            what = f"of the list of {split} moved to {first}, whose list has the story too"
            notes += counted(count, f"line {what}", f"lines {what}")
    empty = sum(story.text is None for story in found.values())
    bare = sum(story.text is not None and not story.labels for story in found.values())
    notes += counted(empty, "story without text left out", "stories without text left out")
    return notes + counted(bare, "story without labels", "stories without labels")
