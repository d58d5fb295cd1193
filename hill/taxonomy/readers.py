"""Reading a taxonomy in any supported format, and writing it as JSON.

`read_taxonomy` recognises the format and calls its reader: tables, parent–child lines, paths, JSON, JSON Lines or SKOS.
A reader returns labels with their location in the file, so that errors can name the line.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

from hill.errors import ConfigError, TaxonomyError, need
from hill.io import as_path, write_json
from hill.taxonomy.taxonomy import (
    MAX_NAME,
    SEPARATOR,
    TAXONOMY_FORMAT,
    Label,
    Taxonomy,
    check_siblings,
    check_taxonomy,
    parse_label,
    text_field,
    unexpected_value,
)

SKOS_STARTS = ("@prefix", "@base", "prefix ", "base ", "<?xml", "<rdf:rdf", "<http")
SKOS_SUFFIXES = {".ttl", ".rdf", ".nt", ".owl", ".xml", ".skos"}
JSON_LINES_SUFFIXES = {".jsonl", ".ndjson"}


def read_taxonomy(path: str | os.PathLike[str], language: str = "en") -> Taxonomy:
    """Read a taxonomy from a file. The format is recognised from the file's name and content.

    Args:
        path: a table (TSV, CSV), parent–child lines, a list of paths, JSON, JSON Lines, or SKOS.
        language: the language of the labels, if the file has several (SKOS).
    """
    if not isinstance(language, str):
        raise ConfigError(f"language is {language!r}; expected a code such as 'en'")
    source = TaxonomyFile.open(as_path(path, "taxonomy", "the path of a taxonomy file"))
    suffix = source.path.suffix.casefold()
    start = source.text.lstrip()[: max(map(len, SKOS_STARTS))].casefold()
    if suffix in SKOS_SUFFIXES or start.startswith(SKOS_STARTS):
        return _read_skos(source, language)
    if suffix in JSON_LINES_SUFFIXES:
        return _read_json_lines(source)
    if suffix == ".json" or start.startswith(("{", "[")):
        return _read_json(source)
    if suffix == ".taxonomy":
        return _read_parent_child_lines(source)
    line, first = next(source.lines())
    if "\t" in first:
        return _read_table(source) if _is_table(source) else _read_parent_child_lines(source)
    if suffix in (".csv", ".tsv"):
        return _read_table(source)
    is_comment = first.lstrip().startswith("#")
    if not is_comment and any(_header(source, line, first.split(delimiter)) for delimiter in ",;"):
        return _read_table(source)
    return _read_paths(source)


def write_taxonomy(taxonomy: Taxonomy, path: str | os.PathLike[str]) -> None:
    """Write the taxonomy as JSON, completely or not at all; `read_taxonomy` restores an equal one."""
    write_json(as_path(path, "path"), check_taxonomy(taxonomy).to_dict())


# Files

MAGIC_BYTES = {
    b"\x1f\x8b": "compressed",
    b"PK\x03\x04": "a zip archive or spreadsheet",
    b"%PDF": "a PDF",
    b"PAR1": "Parquet",
}


class ParsedLabel(NamedTuple):
    """A label and where it was read: a line number, or a path inside a JSON document."""

    label: Label
    location: int | str


@dataclass(frozen=True)
class TaxonomyFile:
    """The path and text of a file."""

    path: Path
    text: str

    @classmethod
    def open(cls, path: Path) -> TaxonomyFile:
        """Read a text file that is not empty."""
        try:
            content = path.read_bytes()
        except IsADirectoryError:
            raise TaxonomyError(f"'{path}' is a directory; give the taxonomy file inside it") from None
        except FileNotFoundError:
            raise TaxonomyError(f"taxonomy file '{path}' does not exist") from None
        except OSError as error:
            raise TaxonomyError(f"taxonomy file '{path}' cannot be read ({error.strerror})") from None
        for magic, kind in MAGIC_BYTES.items():
            if content.startswith(magic):
                raise TaxonomyError(f"'{path}' is {kind}, not text; save the taxonomy as TSV, CSV, JSON or SKOS")
        encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            byte = content[error.start : error.start + 1].hex()
            raise TaxonomyError(f"'{path}' is not UTF-8 text: byte 0x{byte} on line {line}; save it as UTF-8") from None
        if "\0" in text:
            line = text.count("\n", 0, text.index("\0")) + 1
            raise TaxonomyError(f"'{path}' is a binary file (a zero byte on line {line}); a taxonomy is a text file")
        if not text.strip():
            raise TaxonomyError(f"taxonomy file '{path}' is empty; expected at least one label")
        return cls(path, text)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines that are not blank, numbered from 1, without line ends."""
        for number, line in enumerate(self.text.split("\n"), start=1):
            if line.strip():
                yield number, line.rstrip("\r")

    def at(self, location: int | str) -> str:
        """Format a location for a message: ` (line 14 of tax.tsv)`."""
        return f" ({'line' if isinstance(location, int) else 'at'} {location} of {self.path})"

    def taxonomy(self, parsed: Sequence[ParsedLabel], unique_names: bool = True) -> Taxonomy:
        """Build the taxonomy; errors name the location. With `unique_names`, siblings must have different names."""
        if not parsed:
            raise TaxonomyError(f"taxonomy file '{self.path}' contains no labels")
        labels = [label for label, _ in parsed]
        taxonomy = Taxonomy(labels, lambda row: self.at(parsed[row].location))
        if unique_names:
            check_siblings(labels, lambda row: self.at(parsed[row].location))
        return taxonomy


# Tables

COLUMNS = ("id", "parents", "name", "description")

COLUMN_WORDS = {
    "parents": {"parent", "parents", "broader"},
    "description": {"description", "definition"},
    "name": {"name", "title", "term"},
    "id": {"id", "identifier", "code", "key", "label", "category", "concept"},
}
"""Words in the headers of other programs, for the remedy in an error message; earlier columns take precedence."""

MAX_COLUMNS = 50
"""Cells of a row that are compared with column names."""


def _read_table(source: TaxonomyFile) -> Taxonomy:
    """Read one label per row. Several parents are joined by `|`; without a name column the id is the name.

    Without a header, an empty name becomes the id and siblings may share a name.
    """
    rows = _table_rows(source)
    first = next(rows, None)
    if first is None:
        raise TaxonomyError(f"taxonomy file '{source.path}' contains no labels, only empty cells")
    header = _header(source, *first)
    columns = header or COLUMNS[: len(first[1])]
    parsed = []
    for line, cells in rows if header else chain([first], rows):
        if len(cells) != len(columns):
            count, expected = (f"{n} column{'s' if n != 1 else ''}" for n in (len(cells), len(columns)))
            raise TaxonomyError(f"{count}{source.at(line)}; {'the header' if header else 'line 1'} has {expected}")
        values = dict(zip(columns, (" ".join(cell.strip().splitlines()) for cell in cells), strict=True))
        parents = tuple(parent for cell in values.get("parents", "").split("|") if (parent := cell.strip()))
        label = Label(values["id"], values.get("name", values["id"]), parents, values.get("description", ""))
        parsed.append(ParsedLabel(label if label.name or header else replace(label, name=label.id), line))
    return source.taxonomy(parsed, unique_names=header is not None)


def _is_table(source: TaxonomyFile) -> bool:
    """Return whether a tab-separated file is a table: it has a header, or a root with an empty second column."""
    rows = _table_rows(source)
    first = next(rows, None)
    if first is None or _header(source, *first):
        return True
    empty = (len(cells) > 1 and not cells[1].strip() for _, cells in chain([first], rows))
    return 2 <= len(first[1]) <= len(COLUMNS) and any(empty)


def _table_rows(source: TaxonomyFile) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the line they begin on. Tab-separated files have no quoting."""
    _, first = next(source.lines())
    if "\t" in first:
        yield from ((line, text.split("\t")) for line, text in source.lines())
        return
    delimiter = ";" if first.count(";") > first.count(",") else ","
    reader = csv.reader(io.StringIO(source.text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise TaxonomyError(f"this is not CSV: {error}{source.at(line)}; check the quotes") from None


def _header(source: TaxonomyFile, line: int, cells: list[str]) -> list[str] | None:
    """Return the column names if this row is a header, or None; raise an error if its columns are unknown."""
    columns = _columns(cells)
    if _are_known(columns):
        return columns
    recognised = sum(_nearest_column(cell) is not None for cell in cells[:MAX_COLUMNS])
    if recognised < 2 or 2 * recognised <= len(cells):
        return None
    raise _unknown_columns(source, line, "the header has the columns", cells)


def _columns(names: Iterable[str]) -> list[str]:
    lower = (name.strip().casefold() for name in names)
    return ["parents" if name == "parent" else name for name in lower]


def _are_known(columns: Sequence[str]) -> bool:
    """Return whether the columns describe labels; a parents column with another name must not be ignored."""
    if "id" not in columns or not {"parents", "name"} & set(columns):
        return False
    return "parents" in columns or not any(_nearest_column(column) == "parents" for column in columns[:MAX_COLUMNS])


def _nearest_column(name: str) -> str | None:
    """Return the column that a name in a header probably means."""
    if len(name) > 40:
        return None
    words = set(re.split(r"[\W_]+", name.strip().casefold()))
    for column, synonyms in COLUMN_WORDS.items():
        if words & synonyms:
            return column
    return next(iter(get_close_matches(name.strip().casefold(), [*COLUMNS, "parentid"], 1, 0.7)), None)


def _unknown_columns(source: TaxonomyFile, line: int, subject: str, names: Sequence[str]) -> TaxonomyError:
    columns = _columns(names)
    taken, renames = set(columns) & set(COLUMNS), []
    for name, column in zip(names, columns, strict=True):
        nearest = _nearest_column(name)
        if nearest == "id" and "id" in taken:
            nearest = "name"
        if column not in COLUMNS and nearest and nearest not in taken:
            taken.add(nearest)
            renames.append(f"'{name.strip()[:40]}' to '{nearest}'")
    shown = ", ".join(f"'{name.strip()[:40]}'" for name in names[:10])
    remedy = f": rename {', '.join(renames)}" if renames else ""
    if {"text", "labels"} <= set(columns):
        remedy = ": these are documents, not labels; give the file with the taxonomy"
    return TaxonomyError(
        f"{subject} {shown}{source.at(line)}; expected 'id' with 'parents' or 'name', and optionally "
        f"'description'{remedy}"
    )


# Parent–child lines


def _read_parent_child_lines(source: TaxonomyFile) -> Taxonomy:
    """Read a parent and its children per line. Labels are in the order in which they first appear as a child.

    A `Root` line lists the roots and is not a label itself.
    """
    parents: dict[str, list[str]] = {}
    first_line: dict[str, int] = {}
    head_lines: dict[str, int] = {}
    for line, text in source.lines():
        head, *children = (cell.strip() for cell in text.split("\t"))
        if not head or not all(children):
            raise TaxonomyError(f"an empty name{source.at(line)}; expected a parent and its children, tab-separated")
        if not children:
            raise TaxonomyError(
                f"1 column, '{head[:40]}'{source.at(line)}; expected a parent and its children, tab-separated"
            )
        head_lines.setdefault(head, line)
        for child in children:
            if head in parents.setdefault(child, []):
                raise TaxonomyError(f"'{child}' occurs twice under '{head}'{source.at(line)}; remove one")
            parents[child].append(head)
            first_line.setdefault(child, line)
    root = next((head for head in head_lines if head.casefold() == "root" and head not in parents), None)
    for head, line in head_lines.items():
        if head != root and head not in parents:
            if root:
                raise TaxonomyError(
                    f"'{head}' has children but is not in the taxonomy{source.at(line)}; "
                    f"list it under its parent or on the '{root}' line"
                )
            parents[head], first_line[head] = [], line
    parents = {label: [parent for parent in above if parent != root] for label, above in parents.items()}
    # Ids that extend their parent's id by a slash (Top/News/Sports) are paths; the last part is the name.
    are_paths = all(label.startswith(f"{parent}/") for label, above in parents.items() for parent in above)
    parsed = []
    for label in sorted(parents, key=lambda label: first_line[label]):
        name = label.rsplit("/", 1)[-1] if are_paths else label
        parsed.append(ParsedLabel(Label(label, name, tuple(parents[label])), first_line[label]))
    return source.taxonomy(parsed)


# Paths

LEADING_ID = re.compile(r"\s*(?P<id>\d+|gid://\S+)\s+[-:]\s+(?P<path>.+)")

Steps = tuple[str, ...]


def _read_paths(source: TaxonomyFile) -> Taxonomy:
    """Read one path per line. Without leading ids, the path is the id and missing parents are added."""
    lines = [(line, text) for line, text in source.lines() if not text.lstrip().startswith("#")]
    matches = [LEADING_ID.fullmatch(text) for _, text in lines]
    with_ids = all(matches)
    ids: dict[Steps, str] = {}
    line_numbers: dict[Steps, int] = {}
    for (line, text), match in zip(lines, matches, strict=True):
        path = match["path"] if match and with_ids else text
        if len(path) > 2 * MAX_NAME and not with_ids:  # the path is the id, and every prefix is an id, too
            raise TaxonomyError(
                f"the path '{path.strip()[:40]}…' is {len(path):,} characters long{source.at(line)}; "
                f"at most {MAX_NAME:,} are allowed: is this a taxonomy?"
            )
        steps = tuple(step.strip() for step in path.split(">"))
        if not all(steps):
            raise TaxonomyError(f"an empty name in '{path.strip()[:80]}'{source.at(line)}; write the path as A > B > C")
        if steps in line_numbers:
            raise TaxonomyError(
                f"'{SEPARATOR.join(steps)}' occurs twice{source.at(line)}, first{source.at(line_numbers[steps])}; "
                "remove one"
            )
        ids[steps] = match["id"] if match and with_ids else SEPARATOR.join(steps)
        line_numbers[steps] = line
    if not with_ids:
        ids = _add_missing_parents(ids, line_numbers)
    parsed = []
    for steps, label_id in ids.items():
        parent = steps[:-1]
        if parent and parent not in ids:
            raise TaxonomyError(
                f"'{SEPARATOR.join(steps)}' is under '{SEPARATOR.join(parent)}', which has no line"
                f"{source.at(line_numbers[steps])}; add one with its id"
            )
        label = Label(label_id, steps[-1], (ids[parent],) if parent else ())
        parsed.append(ParsedLabel(label, line_numbers[steps]))
    return source.taxonomy(parsed)


def _add_missing_parents(ids: dict[Steps, str], line_numbers: dict[Steps, int]) -> dict[Steps, str]:
    """Add parents without a line before their first child."""
    result: dict[Steps, str] = {}
    for path in ids:
        for steps in accumulate((step,) for step in path):
            if steps == path or steps not in ids:
                result.setdefault(steps, SEPARATOR.join(steps))
                line_numbers.setdefault(steps, line_numbers[path])
    return result


# JSON

MAX_LOCATION = 200
"""Characters of a location inside a JSON document."""


def _read_json(source: TaxonomyFile) -> Taxonomy:
    """Read labels in document order. A node without an `id` is identified by its path."""
    try:
        document = json.loads(source.text)
        if isinstance(document, dict) and document.get("format") == TAXONOMY_FORMAT:
            return Taxonomy.from_dict(document, str(source.path))
        if isinstance(document, list) and any(isinstance(item, dict) and "parents" in item for item in document):
            locations = [f"$[{number}]" for number in range(len(document))]
            labels = (parse_label(entry, source.at(at)) for entry, at in zip(document, locations, strict=True))
            return source.taxonomy([ParsedLabel(*pair) for pair in zip(labels, locations, strict=True)])
        return source.taxonomy(list(_nested_labels(source, document)))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and "\n" not in source.text[: error.pos].strip():
            return _read_json_lines(source)
        raise TaxonomyError(f"this is not JSON: {error.msg}{source.at(error.lineno)}") from None
    except RecursionError:
        raise TaxonomyError(
            f"'{source.path}' is nested too deep for JSON; write it as a table of id, parents, name"
        ) from None
    except TaxonomyError:
        raise
    except ValueError as error:
        raise TaxonomyError(f"'{source.path}' is not usable JSON: {error}") from None


def _read_json_lines(source: TaxonomyFile) -> Taxonomy:
    """Read one object per line with the columns of a table as keys; parents are a list of ids or one id."""
    entries: list[tuple[int, dict[str, Any]]] = []
    names: dict[str, str] = {}
    for line, text in source.lines():
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            raise TaxonomyError(
                f"'{source.path}' looks like JSON Lines, but a line is not an object with id, name and parents: "
                f"{text.strip()[:60]}{source.at(line)}"
            )
        columns = _columns(entry)
        names |= dict(zip(columns, entry, strict=True))
        entries.append((line, dict(zip(columns, entry.values(), strict=True))))
    if not _are_known(list(names)):
        raise _unknown_columns(source, entries[0][0], "the objects have the keys", list(names.values()))
    for _, entry in entries:
        if isinstance(entry.get("parents"), str):
            entry["parents"] = [entry["parents"]] if entry["parents"].strip() else []
    return source.taxonomy([ParsedLabel(parse_label(entry, source.at(line)), line) for line, entry in entries])


class Node(NamedTuple):
    """A node of a nested document."""

    name: str
    fields: dict[str, Any]
    children: Any
    location: str


def _nested_labels(source: TaxonomyFile, document: Any) -> Iterator[ParsedLabel]:
    """Yield the nodes of a nested document, parents first; a single top node called Root is not a label."""
    top = _nodes(source, document, "$")
    if len(top) == 1 and top[0].name.casefold() == "root" and top[0].children:
        top = _nodes(source, top[0].children, top[0].location)
    stack: list[tuple[Node, Label | None, str]] = [(node, None, "") for node in reversed(top)]
    while stack:
        node, parent, parent_path = stack.pop()
        at, has_id = source.at(node.location), "id" in node.fields
        path = f"{parent_path}{SEPARATOR}{node.name}" if parent else node.name
        if len(path) > MAX_NAME and not has_id:
            raise TaxonomyError(
                f"the path '{path[:40]}…' is {len(path):,} characters long{at}; a label without an id is identified by "
                f"its path, of at most {MAX_NAME:,} characters: give it an id"
            )
        path = path if len(path) <= MAX_NAME else ""
        label_id = text_field(node.fields, "id", at) if has_id else path
        description = text_field(node.fields, "description", at)
        label = Label(label_id, node.name, (parent.id,) if parent else (), description)
        yield ParsedLabel(label, node.location)
        location = _within(node.location, ".children") if node.fields else node.location
        stack.extend((child, label, path) for child in reversed(_nodes(source, node.children, location)))


def _nodes(source: TaxonomyFile, value: Any, location: str) -> list[Node]:
    """Return the nodes in a value: an object with a name, an object of objects, a list, or a name."""
    if not value and not isinstance(value, bool | int):
        return []
    if isinstance(value, str):
        return [Node(value.strip(), {}, None, location)]
    if isinstance(value, list):
        return [node for i, item in enumerate(value) for node in _nodes(source, item, _within(location, f"[{i}]"))]
    if not isinstance(value, dict):
        raise unexpected_value("an object, a list or a name", value, source.at(location))
    if "name" in value or "children" in value:
        name = text_field(value, "name", source.at(location)).strip()
        return [Node(name, value, value.get("children"), location)]
    return [Node(key.strip(), {}, inner, _within(location, f".{key}")) for key, inner in value.items()]


def _within(location: str, step: str) -> str:
    """Return a location inside another; only its end if it is long, since each of a million labels stores one."""
    inside = f"{location}{step}"
    return inside if len(inside) <= MAX_LOCATION else f"…{inside[-MAX_LOCATION // 2 :]}"


# SKOS

TEXT_ENTITY = re.compile(r"""<!ENTITY\s+([\w.:-]+)\s+("[^"&%]*"|'[^'&%]*')\s*>""")
"""An entity that stands for plain text, for example the common start of addresses."""

MAX_EXPANSION = 10
"""Factor by which entities may enlarge a file."""


def _read_skos(source: TaxonomyFile, language: str) -> Taxonomy:
    """Read the concepts in file order. The address is the id; names are in `language` if available."""
    rdflib = need("rdflib", "skos", "reading SKOS")
    skos = rdflib.SKOS
    xml = source.text.lstrip().startswith("<?xml") or "<rdf:RDF" in source.text[:2_000]
    if xml:
        _check_entities(source)
    logging.getLogger("rdflib").setLevel(logging.ERROR)
    try:
        graph = rdflib.Graph().parse(data=source.text, format="xml" if xml else "turtle")
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise TaxonomyError(f"'{source.path}' is not valid {'RDF/XML' if xml else 'Turtle'}: {reason}") from None
    concepts = list(dict.fromkeys(graph.subjects(rdflib.RDF.type, skos.Concept)))
    if not concepts:
        raise TaxonomyError(f"'{source.path}' contains no skos:Concept; is it a SKOS thesaurus?")
    broader: dict[Any, list[Any]] = {concept: list(graph.objects(concept, skos.broader)) for concept in concepts}
    for broad, narrow in graph.subject_objects(skos.narrower):
        broader.setdefault(narrow, []).append(broad)
    parsed = []
    for concept in concepts:
        location = f"concept {concept}"
        name = _literal(graph, concept, (skos.prefLabel, rdflib.RDFS.label), language)
        if not name:
            raise TaxonomyError(f"no skos:prefLabel{source.at(location)}; every concept needs one")
        description = _literal(graph, concept, (skos.definition, skos.scopeNote), language)
        parents = tuple(dict.fromkeys(map(str, broader[concept])))
        parsed.append(ParsedLabel(Label(str(concept), name, parents, description), location))
    return source.taxonomy(parsed, unique_names=False)


def _check_entities(source: TaxonomyFile) -> None:
    """Refuse entities that read other files or expand without limit."""
    entities = TEXT_ENTITY.findall(source.text)
    if source.text.count("<!ENTITY") != len(entities):
        raise TaxonomyError(
            f"'{source.path}' declares an entity that is more than plain text, which is never read; "
            "replace it by its text"
        )
    values: dict[str, str] = dict(entities)
    uses = Counter(re.findall(r"&([\w.:-]+);", source.text)) if values else Counter[str]()
    expanded = sum(count * len(values.get(name, "")) for name, count in uses.items())
    if expanded > MAX_EXPANSION * len(source.text):
        raise TaxonomyError(
            f"the entities of '{source.path}' stand for {expanded:,} characters, more than {MAX_EXPANSION} times the "
            "file; replace them by their text"
        )


def _literal(graph: Any, concept: Any, properties: Iterable[Any], language: str) -> str:
    """Return the first text: in the language, else without a language, else in the first of the others."""

    def rank(value: Any) -> tuple[int, str, str]:
        tag = (value.language or "").lower()
        matches = tag == language.lower() or tag.startswith(f"{language.lower()}-")
        return (0 if matches else 1 if not tag else 2, tag, str(value))

    for name in properties:
        texts = [value for value in graph.objects(concept, name) if hasattr(value, "language") and str(value).strip()]
        if texts:
            return " ".join(str(min(texts, key=rank)).split())
    return ""
