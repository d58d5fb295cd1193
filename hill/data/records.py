"""Documents as they stand in a file: read one by one, with the line each comes from."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hill.data.files import format_of
from hill.data.jsonl import read_jsonl
from hill.data.parquet import read_parquet
from hill.data.problems import Problem, refuse
from hill.data.table import read_table

Report = Callable[[Problem], None]
READERS: dict[str, Callable[[Path], Iterator[tuple[int, "Mapping[str, Any] | str"]]]] = {
    "jsonl": read_jsonl,
    "table": read_table,
    "parquet": read_parquet,
}


class Record(NamedTuple):
    """A document as written: its labels are not yet looked up."""

    text: str
    labels: str | list[str]
    id: str
    file: str
    line: int


def read_records(files: Iterable[Path], report: Report) -> Iterator[Record]:
    """The usable documents of these files, streamed; what cannot be used goes to `report`."""
    for path in files:
        for line, fields in READERS[format_of(path)](path):
            if isinstance(fields, str):
                report(Problem("unreadable", str(path), line, fields))
                continue
            record = _record(fields, str(path), line, report)
            if record:
                yield record


def read_fields(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """The id and text of every record, for prediction: labels need not be there. What has no text is refused."""
    place = 0
    for path in files:
        for line, fields in READERS[format_of(path)](path):
            if isinstance(fields, str):
                refuse(Problem("unreadable", str(path), line, fields))
                continue
            record = _record({**fields, "labels": []}, str(path), line, refuse)
            if record:
                yield record.id or str(place), record.text
            place += 1


def _record(fields: Mapping[str, Any], file: str, line: int, report: Report) -> Record | None:
    text = fields.get("text")
    if text is None or "labels" not in fields:
        missing = "text" if text is None else "labels"
        report(Problem("missing-field", file, line, f"no '{missing}'{_hint(missing, fields)}"))
        return None
    if not isinstance(text, str):
        report(Problem("wrong-type", file, line, f"the text is {_kind(text)}; expected a string"))
        return None
    if not text.strip():
        report(Problem("empty-text", file, line, "the text is empty"))
        return None
    key = "" if fields.get("id") is None else str(fields["id"])
    if not (is_writable(text) and is_writable(key)):
        what = "id" if is_writable(text) else "text"
        half = f"the {what} has half of a character (a lone surrogate); remove it"
        report(Problem("unreadable", file, line, half))
        return None
    labels = _labels(fields["labels"])
    if labels is None:
        wanted = "expected a list of names or ids, or one string"
        report(Problem("wrong-type", file, line, f"the labels are {_kind(fields['labels'])}; {wanted}"))
        return None
    return Record(text, labels, key, file, line)


def is_writable(text: str) -> bool:
    """Whether a text can be written as UTF-8: JSON can name half a character."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _labels(value: Any) -> str | list[str] | None:
    """Labels as text; a list within the list is a path from the root down. None if they are of another kind."""
    if value is None or isinstance(value, str):
        return value or []
    if isinstance(value, int) and not isinstance(value, bool):
        return [str(value)]
    if not isinstance(value, list | tuple):
        return None
    labels = [" > ".join(map(str, item)) if isinstance(item, list) else item for item in value]
    good = all(isinstance(label, str | int) and not isinstance(label, bool) for label in labels)
    return [str(label) for label in labels] if good else None


def _hint(missing: str, fields: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(missing, [key for key in fields if isinstance(key, str)], n=1)
    held = ", ".join(f"'{key}'" for key in list(fields)[:6]) or "no fields"
    return f"; did you mean '{near[0]}'?" if near and near[0] != missing else f"; the record has {held}"


def _kind(value: Any) -> str:
    kinds = {"bool": "a truth value", "dict": "an object", "list": "a list", "NoneType": "null"}
    name = type(value).__name__
    return kinds.get(name, "a number" if isinstance(value, int | float) else name)
