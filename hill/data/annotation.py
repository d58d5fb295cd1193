"""Documents to annotate, and annotations of other tools: queues of `hill suggest`, Label Studio and Argilla.

Label Studio: https://labelstud.io/guide/task_format and https://labelstud.io/tags/taxonomy; a task is `{"data": ...}`
with `predictions` and `annotations`. Argilla: https://docs.argilla.io/latest/reference/argilla/records/records; a
record has `fields`, `suggestions` and `responses`.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hill.data.answers import Answer, document_key
from hill.data.documents import LabelLookup
from hill.data.readers import DEFAULT_COLUMNS, Problem, RecordParser, raise_error, read_file
from hill.errors import ConfigError, DataError
from hill.io import atomic_file, write_json, write_text
from hill.settings import check_one_of
from hill.taxonomy import Taxonomy

QUESTION = "labels"
"""Name of the Taxonomy tag and of the Argilla question that ask for the labels."""
FORMATS = ("label-studio", "argilla")
MAX_CHOICES = 20_000
"""Maximum number of choices of a Label Studio configuration; a label of a DAG has one choice per path."""


# Queues


@dataclass(frozen=True)
class QueuedDocument:
    """A document to annotate. `labels` are the suggested ids, without ancestors; empty if there is no suggestion."""

    id: str
    text: str
    labels: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def key(self) -> str:
        """The key of the document in an answers file."""
        return document_key(self.text)


def read_queue(path: Path, taxonomy: Taxonomy) -> list[QueuedDocument]:
    """The documents of a queue, each text once: JSONL, CSV or Parquet with text, and optionally id, labels, scores."""
    lookup, documents = LabelLookup(taxonomy), dict[str, QueuedDocument]()
    if not path.is_file():
        raise DataError(f"queue '{path}' does not exist; hill suggest writes a queue")
    parse = RecordParser(str(path), "text", ["labels"], "id", "")
    for index, (line, fields) in enumerate(read_file(path, DEFAULT_COLUMNS, with_labels=True)):
        if not isinstance(fields, str):
            fields = {**fields, "labels": fields.get("labels", [])}
        record = parse(line, fields)
        if isinstance(record, Problem) or isinstance(fields, str):
            raise DataError(str(record))
        rows, _ = lookup.rows(record, raise_error)
        document = QueuedDocument(
            record.id or str(index),
            record.text,
            tuple(taxonomy.decode(without_ancestors(taxonomy, rows))),
            _scores(fields.get("scores"), Problem("wrong-type", str(path), line, "")),
            str(fields.get("reason") or ""),
        )
        documents.setdefault(document.key, document)
    if not documents:
        raise DataError(f"queue '{path}' has no documents; expected one per line with a text, as hill suggest writes")
    return list(documents.values())


def _scores(value: Any, place: Problem) -> dict[str, float]:
    """The scores of a queued document; tables have them as JSON."""
    if isinstance(value, str) and value.strip():
        with suppress(ValueError):
            value = json.loads(value)
    if not value:
        return {}
    numbers = value.values() if isinstance(value, dict) else [None]
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
        message = f"the scores are {str(value)[:80]!r}; expected an object with one number per label id"
        raise DataError(str(Problem(place.kind, place.file, place.line, message)))
    return {str(label): float(number) for label, number in value.items()}


def without_ancestors(taxonomy: Taxonomy, rows: Iterable[int]) -> list[int]:
    """The rows without a descendant among them, in order. The rows must include all their ancestors."""
    closed = set(rows)
    inner = {parent for row in closed for parent in taxonomy.parents(row).tolist()}
    return sorted(closed - inner)


# Label Studio


def label_studio_config(taxonomy: Taxonomy) -> str:
    """The labelling configuration of a project: the text and its taxonomy. The alias of a choice is the label id."""
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Text", name="text", value="$text")
    tag = ElementTree.SubElement(view, "Taxonomy", name=QUESTION, toName="text", required="true", showFullPath="true")
    remaining = [(tag, taxonomy.roots.tolist())]
    count = 0
    while remaining:
        parent, rows = remaining.pop()
        names = [taxonomy[row].name for row in rows]
        for row, name in zip(rows, names, strict=True):
            label = taxonomy[row]
            # Label Studio shows only the first of several siblings with the same name
            attributes = {"value": f"{name} ({label.id})" if names.count(name) > 1 else name, "alias": label.id}
            if label.description:
                attributes["hint"] = label.description
            remaining.append((ElementTree.SubElement(parent, "Choice", attributes), taxonomy.children(row).tolist()))
        count += len(rows)
        if count > MAX_CHOICES:
            raise DataError(
                f"the taxonomy has more than {MAX_CHOICES:,} paths, too many for a Label Studio configuration; use a "
                "part of the taxonomy"
            )
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def label_studio_tasks(documents: Sequence[QueuedDocument | Answer], taxonomy: Taxonomy) -> list[dict[str, Any]]:
    """Tasks to import: suggested labels are predictions, answers are annotations."""
    tasks: list[dict[str, Any]] = []
    for document in documents:
        data = {"id": document.id, "text": document.text}
        task: dict[str, Any] = {"data": data}
        paths = [_path(taxonomy, label, document.id) for label in document.labels]
        value = {"taxonomy": paths}
        result = [{"from_name": QUESTION, "to_name": "text", "type": "taxonomy", "value": value}] if paths else []
        if isinstance(document, Answer):
            data["reviewer"] = document.reviewer  # not completed_by, which must be a user of the Label Studio server
            annotation = {"result": result, "was_cancelled": not paths, "created_at": document.time}
            task["annotations"] = [annotation]
        elif result:
            task["predictions"] = [{"model_version": "hill", "result": result, **_total_score(document)}]
        if isinstance(document, QueuedDocument) and document.reason:
            data["reason"] = document.reason
        tasks.append(task)
    return tasks


def _path(taxonomy: Taxonomy, label: str, document: str) -> list[str]:
    if label not in taxonomy:
        near = taxonomy.nearest(label)
        hint = f"; did you mean '{near}'?" if near else "; give the taxonomy that the reviewers used"
        raise DataError(f"label '{label}' of document '{document}' is not in the taxonomy{hint}")
    return taxonomy.decode(next(islice(taxonomy.paths(taxonomy.row(label)), 1)))


def _total_score(document: QueuedDocument) -> dict[str, float]:
    """The lowest score of the suggested labels, by which Label Studio sorts tasks; empty if one has none."""
    scores = [document.scores.get(label) for label in document.labels]
    known = [score for score in scores if score is not None]
    return {"score": min(known)} if known and len(known) == len(scores) else {}


def _read_label_studio(tasks: list[Any], taxonomy: Taxonomy, file: str) -> list[Answer]:
    answers: list[Answer] = []
    for index, task in enumerate(tasks):
        place = f"task {task.get('id', index)} of {file}"
        data = _object(task.get("data"), "data", place)
        id, text = str(data.get("id", task.get("id", index))), _text(data, place)
        predictions = _list(task.get("predictions"), "predictions", place)
        predicted = [_chosen_paths(prediction, place) for prediction in predictions if isinstance(prediction, dict)]
        suggested = [_labels(paths, taxonomy, place) for paths in predicted]
        for annotation in _list(task.get("annotations"), "annotations", place):
            annotation = _object(annotation, "annotation", place)
            paths, skipped = _chosen_paths(annotation, place), bool(annotation.get("was_cancelled"))
            if not paths and not skipped:
                continue
            labels = () if skipped else _labels(paths, taxonomy, place)
            action = "skip" if skipped else "accept" if labels in suggested else "correct"
            time = str(annotation.get("created_at") or "")
            reviewer = _reviewer(annotation.get("completed_by"), data)
            answers.append(Answer(0, time, reviewer, action, id, text, labels))
    return sorted(answers, key=lambda answer: answer.time)


def _chosen_paths(annotation: Mapping[str, Any], place: str) -> list[Any]:
    """The paths in all results of an annotation or a prediction."""
    results = [_object(result, "result", place) for result in _list(annotation.get("result"), "result", place)]
    values = [_object(result.get("value"), "value", place) for result in results if result.get("type") == "taxonomy"]
    return [path for value in values for path in _list(value.get("taxonomy"), "taxonomy", place)]


def _reviewer(completed_by: Any, data: Mapping[str, Any]) -> str:
    """The email or the number of a user of Label Studio, or else the name in our own tasks."""
    if isinstance(completed_by, dict):
        completed_by = completed_by.get("email") or completed_by.get("id")
    return str(completed_by) if completed_by else str(data.get("reviewer") or "label-studio")


# Argilla


def argilla_settings(taxonomy: Taxonomy) -> dict[str, Any]:
    """The settings of a data set, for `Settings.from_json`: a text, and a question with all labels as options."""
    options = [
        {"value": label.id, "text": path, "description": label.description or None}
        for label, path in zip(taxonomy, taxonomy.path_names(), strict=True)
    ]
    settings = {"type": "multi_label_selection", "options": options, "visible_options": min(20, max(3, len(options)))}
    return {
        "guidelines": "Choose the labels of the text. Ancestors of a label need not be chosen.",
        "allow_extra_metadata": True,
        "distribution": {"strategy": "overlap", "min_submitted": 1},
        "fields": [
            {"name": "text", "title": "text", "required": True, "settings": {"type": "text", "use_markdown": False}}
        ],
        "questions": [{"name": QUESTION, "title": QUESTION, "required": True, "settings": settings}],
        "metadata": [],
        "vectors": [],
        "mapping": None,
    }


def argilla_records(documents: Sequence[QueuedDocument | Answer], taxonomy: Taxonomy) -> list[dict[str, Any]]:
    """Records as in the file of `records.to_json`.

    Labels are suggestions, also those of answers: a response must have the id of a user of the Argilla server. The
    agent is the reviewer, or `hill`.
    """
    records: dict[str, dict[str, Any]] = {}
    for document in documents:
        for label in document.labels:
            _path(taxonomy, label, document.id)
        agent, scores = "hill", None
        if isinstance(document, Answer):
            agent = document.reviewer
        elif document.labels and set(document.labels) <= document.scores.keys():
            scores = [document.scores[label] for label in document.labels]
        suggestion = {"value": list(document.labels), "score": scores, "agent": agent}
        # Argilla keeps one record per id
        id = f"{document.id}-{document_key(document.text)[:8]}" if document.id in records else document.id
        records[id] = {
            "id": id,
            "fields": {"text": document.text},
            "metadata": {},
            "suggestions": {QUESTION: suggestion} if document.labels else {},
            "responses": {},
            "vectors": {},
        }
    return list(records.values())


def _read_argilla(records: list[Any], taxonomy: Taxonomy, file: str) -> list[Answer]:
    answers: list[Answer] = []
    for index, record in enumerate(records):
        place = f"record {record.get('id', index)} of {file}"
        text = _text(_object(record["fields"], "fields", place), place)
        responses = _object(record.get("responses") or {}, "responses", place)
        suggestion = _object(record.get("suggestions") or {}, "suggestions", place).get(QUESTION) or {}
        for response in _list(responses.get(QUESTION), "responses", place):
            response = _object(response, "response", place)
            value, status = response.get("value"), response.get("status", "submitted")
            if status == "draft" or (status == "submitted" and not value):
                continue
            labels = () if status == "discarded" else _labels(_list(value, "value", place), taxonomy, place)
            given = suggestion.get("value") if isinstance(suggestion, dict) else None
            suggested = _labels(given, taxonomy, place) if isinstance(given, list) else ()
            action = "skip" if status == "discarded" else "accept" if labels == suggested else "correct"
            id, reviewer = str(record.get("id") or index), str(response.get("user_id") or "argilla")
            answers.append(Answer(0, "", reviewer, action, id, text, labels))
    return answers


# Files


def write_labels(answers: Sequence[Answer], out: Path) -> int:
    """Write the labelled documents of answers as JSONL or CSV, as `hill train` reads them; return their number."""
    labelled = [answer for answer in answers if answer.labels]
    names = ("id", "text", "labels", "reviewer", "time", "action")
    rows = [{name: getattr(answer, name) for name in names} for answer in labelled]
    if out.suffix.lower() == ".csv":
        with atomic_file(out) as draft, draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(row | {"labels": _join(row["labels"])} for row in rows)
    elif out.suffix.lower() == ".jsonl":
        write_text(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    else:
        raise ConfigError(f"--out is '{out}'; expected a name that ends in .jsonl or .csv, or a --format")
    return len(rows)


def _join(labels: Sequence[str]) -> str:
    """The labels in one cell: with | between them, or as a JSON list if an id contains it."""
    return json.dumps(labels, ensure_ascii=False) if any("|" in label for label in labels) else "|".join(labels)


def write_tasks(documents: Sequence[QueuedDocument | Answer], taxonomy: Taxonomy, out: Path, format: str) -> Path:
    """Write tasks for Label Studio or records for Argilla, and the configuration beside them; return its path."""
    check_one_of(format, FORMATS, "--format")
    if out.suffix.lower() != ".json":
        raise ConfigError(f"--out is '{out}'; expected a name that ends in .json for {format}")
    if format == "label-studio":
        config = out.with_suffix(".xml")
        tasks, settings = label_studio_tasks(documents, taxonomy), label_studio_config(taxonomy)
    else:
        config = out.with_name(f"{out.stem}-settings.json")
        tasks, settings = (
            argilla_records(documents, taxonomy),
            json.dumps(argilla_settings(taxonomy), ensure_ascii=False),
        )
    write_text(config, settings)
    write_json(out, tasks)
    return config


def read_annotations(path: Path, taxonomy: Taxonomy) -> list[Answer]:
    """The answers in a JSON export of Label Studio or in the records of Argilla.

    The answers have no number, and those of Argilla no time.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror}; give a JSON file of an annotation tool") from None
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"'{path}' is not JSON ({error}); expected the JSON export of Label Studio or Argilla"
        ) from None
    if isinstance(document, list) and document and all(isinstance(entry, dict) for entry in document):
        if all("data" in entry for entry in document):
            return _read_label_studio(document, taxonomy, str(path))
        if all("fields" in entry for entry in document):
            return _read_argilla(document, taxonomy, str(path))
    raise DataError(
        f"'{path}' is not an export that hill knows; expected a JSON list of Label Studio tasks (export format JSON, "
        "not JSON-MIN) or of Argilla records (records.to_json)"
    )


def _text(fields: Mapping[str, Any], place: str) -> str:
    text = fields.get("text")
    if not isinstance(text, str) or not text.strip():
        names = ", ".join(f"'{name}'" for name in list(fields)[:6]) or "nothing"
        raise DataError(f"{place} has no text; expected a field 'text', and there is {names}")
    return text


def _labels(given: Sequence[Any], taxonomy: Taxonomy, place: str) -> tuple[str, ...]:
    """The ids of labels that are given as ids or names, or as paths of ids or names, without their ancestors."""
    rows: set[int] = set()
    for entry in given:
        path = [str(step) for step in entry] if isinstance(entry, list) else [str(entry)]
        if path and path[-1] in taxonomy:
            rows.add(taxonomy.row(path[-1]))
            continue
        label = " > ".join(path)
        matches = taxonomy.find(label)
        if len(matches) != 1:
            near = taxonomy.nearest(path[-1] if path else "")
            hint = f"did you mean '{near}'?" if near else "give the taxonomy that the annotators used"
            problem = f"belongs to {len(matches)} labels; use ids" if matches else f"is not in the taxonomy; {hint}"
            raise DataError(f"label '{label[:80]}' of {place} {problem}")
        rows.add(matches[0])
    return tuple(taxonomy.decode(without_ancestors(taxonomy, taxonomy.closure(rows).tolist())))


def _object(value: Any, name: str, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"'{name}' of {place} is {type(value).__name__}; expected an object")
    return value


def _list(value: Any, name: str, place: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise DataError(f"'{name}' of {place} is {type(value).__name__}; expected a list")
    return value or []
