"""JSON: the form that `write_taxonomy` writes, trees of objects with `children`, objects within objects, flat lists."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from hill.errors import TaxonomyError
from hill.taxonomy.checks import MAX_NAME
from hill.taxonomy.label import Label
from hill.taxonomy.source import Found, Source
from hill.taxonomy.taxonomy import SEPARATOR, Taxonomy

FORMAT = "hill-taxonomy"
VERSION = 1
LONGEST = 200
"""Characters of a place in the document."""


def read_json(source: Source) -> Taxonomy:
    """Labels in document order. A node without an `id` is known by its path."""
    document = _parse(source)
    if isinstance(document, dict) and document.get("format") == FORMAT:
        if document.get("version") != VERSION:
            raise TaxonomyError(f"taxonomy form of version {document.get('version')!r}; this program reads {VERSION}")
        return source.taxonomy(list(_flat(source, document.get("labels"), "labels")), unique_names=False)
    if isinstance(document, list) and any(isinstance(item, dict) and "parents" in item for item in document):
        return source.taxonomy(list(_flat(source, document, "$")))
    try:
        return source.taxonomy(list(_tree(source, document)))
    except RecursionError:
        raise _too_deep(source) from None


def taxonomy_document(taxonomy: Taxonomy) -> dict[str, Any]:
    """The taxonomy as plain values, from which `read_json` makes an equal one."""
    labels = []
    for label in taxonomy:
        entry: dict[str, Any] = {"id": label.id, "name": label.name, "parents": list(label.parents)}
        labels.append(entry | ({"description": label.description} if label.description else {}))
    return {"format": FORMAT, "version": VERSION, "labels": labels}


def _parse(source: Source) -> Any:
    try:
        return json.loads(source.text)
    except json.JSONDecodeError as error:
        raise TaxonomyError(f"this is not JSON: {error.msg}{source.place(error.lineno)}") from None
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError as error:
        raise TaxonomyError(f"'{source.path}' is not usable JSON: {error}") from None


def _too_deep(source: Source) -> TaxonomyError:
    return TaxonomyError(f"'{source.path}' is nested too deep for JSON; write it as a table of id, parents, name")


def _flat(source: Source, entries: Any, place: str) -> Iterator[Found]:
    if not isinstance(entries, list):
        raise _wrong(source, place, entries, "a list of labels")
    for number, entry in enumerate(entries):
        here = f"{place}[{number}]"
        if not isinstance(entry, dict):
            raise _wrong(source, here, entry, "an object with id, name and parents")
        label_id = _text(source, entry, "id", here)
        parents = entry.get("parents") or []
        if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
            raise _wrong(source, f"{here}.parents", parents, "a list of ids")
        name = _text(source, entry, "name", here) if "name" in entry else label_id
        yield Found(Label(label_id, name, tuple(parents), _text(source, entry, "description", here)), here)


class Node(NamedTuple):
    """A node of a nested document: its name, its other fields, what stands inside it, and where it is."""

    name: str
    fields: dict[str, Any]
    inner: Any
    place: str


def _tree(source: Source, document: Any) -> Iterator[Found]:
    """Nodes of a nested document, parents first; one all-embracing node called Root is no label."""
    top = _nodes(source, document, "$")
    if len(top) == 1 and top[0].name.casefold() == "root" and top[0].inner:
        top = _nodes(source, top[0].inner, top[0].place)
    waiting: list[tuple[Node, Label | None, str]] = [(node, None, "") for node in reversed(top)]
    while waiting:
        node, parent, above = waiting.pop()
        path = f"{above}{SEPARATOR}{node.name}" if parent else node.name
        if len(path) > MAX_NAME:
            path = _too_long(source, node, path)
        label = Label(
            _text(source, node.fields, "id", node.place) if "id" in node.fields else path,
            node.name,
            (parent.id,) if parent else (),
            _text(source, node.fields, "description", node.place),
        )
        yield Found(label, node.place)
        inside = _within(node.place, ".children") if node.fields else node.place
        waiting.extend((below, label, path) for below in reversed(_nodes(source, node.inner, inside)))


def _nodes(source: Source, value: Any, place: str) -> list[Node]:
    """The nodes that a value holds: an object with a name, an object of objects, a list, or a bare name."""
    if not value and not isinstance(value, bool | int):
        return []
    if isinstance(value, str):
        return [Node(value.strip(), {}, None, place)]
    if isinstance(value, list):
        return [node for i, item in enumerate(value) for node in _nodes(source, item, _within(place, f"[{i}]"))]
    if not isinstance(value, dict):
        raise _wrong(source, place, value, "an object, a list or a name")
    if "name" in value or "children" in value:
        return [Node(_text(source, value, "name", place).strip(), value, value.get("children"), place)]
    return [Node(key.strip(), {}, inner, _within(place, f".{key}")) for key, inner in value.items()]


def _within(place: str, step: str) -> str:
    """A place inside another; far down its end alone, since each of a million labels has one."""
    inside = f"{place}{step}"
    return inside if len(inside) <= LONGEST else f"…{inside[-LONGEST // 2 :]}"


def _too_long(source: Source, node: Node, path: str) -> str:
    """A path that no more grows, where labels have ids; an error where it is the id itself."""
    if "id" in node.fields:
        return ""
    raise TaxonomyError(
        f"the path '{path[:40]}…' is {len(path):,} characters long{source.place(node.place)}; a label without an id is "
        f"known by its path, of at most {MAX_NAME:,} characters: give it an id"
    )


def _text(source: Source, fields: dict[str, Any], key: str, place: str) -> str:
    value = fields.get(key, "")
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise _wrong(source, f"{place}.{key}", value, "text")
    return "" if value is None else str(value)


def _wrong(source: Source, place: str, value: Any, expected: str) -> TaxonomyError:
    shown = "".join(islice(json.JSONEncoder().iterencode(value), 20))[:60]
    return TaxonomyError(f"{shown} where {expected} was expected{source.place(place)}")
