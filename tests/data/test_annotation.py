"""Label Studio and Argilla: what is written and read, in the formats that they document.

The formats: https://labelstud.io/guide/task_format, /guide/predictions, /tags/taxonomy, /tags/choice (`alias` replaces
the value in results), and https://docs.argilla.io/latest/reference/argilla/records/records (`to_dict`).
"""

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hill.data.annotation import (
    argilla_settings,
    label_studio_config,
    read_annotations,
    read_queue,
    write_labels,
    write_tasks,
)
from hill.data.answers import Answer, Answers, read_answers
from hill.data.documents import read_data
from hill.errors import ConfigError, DataError
from hill.taxonomy import Label, Taxonomy
from tests.command import hill
from tests.conftest import random_taxonomy

LINES = [
    {
        "id": "x",
        "text": "cave",
        "labels": ["bat", "p"],
        "scores": {"bat": 0.9, "p": 0.6, "m": 0.95},
        "reason": "unsure",
    },
    {"id": "y", "text": "wing ]]> <b>", "labels": ["fo"]},
    {"id": "z", "text": "fur"},
]
ANSWERS = [
    Answer(1, "2026-01-02T03:04:05.000+00:00", "ann", "accept", "x", "cave, \n wing", ("bat", "p")),
    Answer(2, "2026-01-02T03:04:06.000+00:00", "bob", "correct", "y", '=1+1 "quoted"', ("fo",)),
    Answer(3, "2026-01-02T03:04:07.000+00:00", "bob", "skip", "z", "fur", ()),
]


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "queue.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture
def taxonomy_file(tmp_path: Path, animals: Taxonomy) -> Path:
    path = tmp_path / "taxonomy.json"
    path.write_text(json.dumps(animals.to_dict()))
    return path


def written(path: Path, taxonomy: Taxonomy, queue: Path, tool: str) -> Any:
    write_tasks(read_queue(queue, taxonomy), taxonomy, path, tool)
    return json.loads(path.read_text())


def contents(answers: list[Answer]) -> list[tuple[str, str, str, str, tuple[str, ...]]]:
    return [(answer.reviewer, answer.action, answer.id, answer.text, answer.labels) for answer in answers]


def save(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


# Label Studio


def paths_of(choice: ElementTree.Element, above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """All paths that annotators can choose, as in results: aliases."""
    found = set()
    for child in choice:
        path = (*above, child.attrib["alias"])
        found |= {path} | paths_of(child, path)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_the_label_studio_configuration_has_every_path(seed: int) -> None:
    taxonomy = random_taxonomy(seed, most_parents=3)
    view = ElementTree.fromstring(label_studio_config(taxonomy))
    text, tag = view
    assert view.tag == "View" and (text.tag, text.attrib) == ("Text", {"name": "text", "value": "$text"})
    assert tag.tag == "Taxonomy" and tag.attrib["name"] == "labels" and tag.attrib["toName"] == "text"
    expected = {tuple(taxonomy.decode(path)) for row in range(len(taxonomy)) for path in taxonomy.paths(row)}
    assert paths_of(tag) == expected


def test_names_and_descriptions_in_the_label_studio_configuration() -> None:
    taxonomy = Taxonomy([Label("1", "Same", (), 'A "<&> hint'), Label("2", "Same"), Label("3", "Other", ("2",))])
    tag = ElementTree.fromstring(label_studio_config(taxonomy))[1]
    assert [choice.attrib for choice in tag] == [
        {"value": "Same (1)", "alias": "1", "hint": 'A "<&> hint'},
        {"value": "Same (2)", "alias": "2"},  # Label Studio would show only one of two equal siblings
    ]
    assert tag[1][0].attrib == {"value": "Other", "alias": "3"}


def test_too_many_paths_for_label_studio() -> None:
    labels = [Label("0", "0")]
    for level in range(1, 17):
        above = ("0",) if level == 1 else (f"{level - 1}a", f"{level - 1}b")
        labels += [Label(f"{level}{side}", f"{level}{side}", above) for side in "ab"]
    with pytest.raises(DataError, match="more than 20,000 paths, too many for a Label Studio configuration"):
        label_studio_config(Taxonomy(labels))


def test_label_studio_tasks_have_predictions(tmp_path: Path, animals: Taxonomy, queue: Path) -> None:
    first, second, third = written(tmp_path / "tasks.json", animals, queue, "label-studio")
    assert first == {
        "data": {"id": "x", "text": "cave", "reason": "unsure"},
        "predictions": [
            {
                "model_version": "hill",
                "score": 0.6,
                "result": [
                    {
                        "from_name": "labels",
                        "to_name": "text",
                        "type": "taxonomy",
                        "value": {"taxonomy": [["a", "m", "bat"], ["p"]]},
                    }
                ],
            }
        ],
    }
    assert second["predictions"][0]["result"][0]["value"] == {"taxonomy": [["a", "f", "fo"]]}
    assert "score" not in second["predictions"][0] and third == {"data": {"id": "z", "text": "fur"}}
    assert ElementTree.parse(tmp_path / "tasks.xml").getroot().tag == "View"


def annotated(task: dict[str, Any], number: int, paths: list[list[str]], **more: Any) -> dict[str, Any]:
    """A task as Label Studio exports it after somebody annotated it."""
    region = {"from_name": "labels", "id": "Dx_aB91ISN", "to_name": "text", "type": "taxonomy", "origin": "manual"}
    annotation = {
        "id": 1000 + number,
        "result": [region | {"value": {"taxonomy": paths}}] if paths else [],
        "was_cancelled": False,
        "ground_truth": False,
        "created_at": f"2021-03-09T22:16:0{number}.728353Z",
        "updated_at": "2021-03-09T22:16:08.728378Z",
        "lead_time": 4.288,
        "result_count": 0,
        "task": number,
        "completed_by": 10,
    }
    exported = {"id": number, "project": 83, "created_at": "2021-03-09T21:52:49.513742Z", **task}
    return exported | {"annotations": [*exported.get("annotations", []), annotation | more]}


def test_a_round_trip_through_label_studio(tmp_path: Path, animals: Taxonomy, queue: Path) -> None:
    first, second, third = written(tmp_path / "tasks.json", animals, queue, "label-studio")
    accepted = annotated(first, 3, first["predictions"][0]["result"][0]["value"]["taxonomy"])
    both = annotated(second, 2, [["a"], ["a", "m"], ["a", "m", "mo"]], completed_by={"id": 5, "email": "a@b.example"})
    both = annotated(both, 4, [["Animals", "Flyers", "Others"], ["Plants"]])  # names: no alias
    skipped = annotated(third, 1, [], was_cancelled=True)
    export = save(tmp_path / "export.json", [accepted, both, skipped])
    answers = read_annotations(export, animals)
    assert contents(answers) == [
        ("10", "skip", "z", "fur", ()),
        ("a@b.example", "correct", "y", "wing ]]> <b>", ("mo",)),
        ("10", "accept", "x", "cave", ("bat", "p")),
        ("10", "correct", "y", "wing ]]> <b>", ("fo", "p")),
    ]
    assert [answer.time for answer in answers] == [f"2021-03-09T22:16:0{i}.728353Z" for i in (1, 2, 3, 4)]


def test_answers_go_to_label_studio_and_back(tmp_path: Path, animals: Taxonomy) -> None:
    write_tasks(ANSWERS, animals, tmp_path / "tasks.json", "label-studio")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert "completed_by" not in tasks[0]["annotations"][0], "an import would ask for a user of that name"
    again = read_annotations(tmp_path / "tasks.json", animals)
    assert [(a.reviewer, a.id, a.text, a.labels, a.time) for a in again] == [
        (a.reviewer, a.id, a.text, a.labels, a.time) for a in ANSWERS
    ]
    assert [answer.action for answer in again] == ["correct", "correct", "skip"], (
        "without predictions nothing is accepted"
    )


def test_tasks_without_annotations_are_left_out(tmp_path: Path, animals: Taxonomy) -> None:
    task = {"id": 1, "data": {"text": "cave"}, "annotations": [], "predictions": []}
    other = annotated({"data": {"text": "cave"}}, 2, [])
    other["annotations"][0]["result"] = [
        {"type": "choices", "value": {"choices": ["x"]}, "from_name": "c", "to_name": "t"}
    ]
    assert read_annotations(save(tmp_path / "export.json", [task, other]), animals) == []


# Argilla


def test_argilla_records_have_suggestions(tmp_path: Path, animals: Taxonomy, queue: Path) -> None:
    first, second, third = written(tmp_path / "records.json", animals, queue, "argilla")
    assert first == {
        "id": "x",
        "fields": {"text": "cave"},
        "metadata": {},
        "suggestions": {"labels": {"value": ["bat", "p"], "score": [0.9, 0.6], "agent": "hill"}},
        "responses": {},
        "vectors": {},
    }
    assert second["suggestions"]["labels"] == {"value": ["fo"], "score": None, "agent": "hill"}
    assert third["suggestions"] == {}
    settings = json.loads((tmp_path / "records-settings.json").read_text())
    assert settings == argilla_settings(animals)
    (question,) = settings["questions"]
    assert question["name"] == "labels" and question["settings"]["type"] == "multi_label_selection"
    assert {option["value"]: option["text"] for option in question["settings"]["options"]} == {
        "a": "Animals",
        "m": "Animals > Mammals",
        "f": "Animals > Flyers",
        "bat": "Animals > Mammals > Bats",
        "mo": "Animals > Mammals > Others",
        "fo": "Animals > Flyers > Others",
        "p": "Plants",
    }


def test_a_round_trip_through_argilla(tmp_path: Path, animals: Taxonomy, queue: Path) -> None:
    """`records.to_json` adds responses, a status and the id of the server."""
    records = written(tmp_path / "records.json", animals, queue, "argilla")
    user, other = "3f2b1c9e-0000-4000-8000-000000000001", "3f2b1c9e-0000-4000-8000-000000000002"
    records[0]["responses"] = {"labels": [{"value": ["p", "bat"], "user_id": user}, {"value": ["m"], "user_id": other}]}
    records[1]["responses"] = {"labels": [{"value": ["p"], "user_id": user, "status": "draft"}]}
    records[2]["responses"] = {"labels": [{"value": None, "user_id": user, "status": "discarded"}], "other": []}
    exported = [record | {"status": "completed", "_server_id": "1"} for record in records]
    assert contents(read_annotations(save(tmp_path / "export.json", exported), animals)) == [
        (user, "accept", "x", "cave", ("bat", "p")),
        (other, "correct", "x", "cave", ("m",)),
        (user, "skip", "z", "fur", ()),
    ]


def test_answers_are_suggestions_in_argilla(tmp_path: Path, animals: Taxonomy) -> None:
    write_tasks([*ANSWERS, ANSWERS[0]._replace(text="another text")], animals, tmp_path / "records.json", "argilla")
    records = json.loads((tmp_path / "records.json").read_text())
    assert records[0]["suggestions"] == {"labels": {"value": ["bat", "p"], "score": None, "agent": "ann"}}
    assert len({record["id"] for record in records}) == 4, "Argilla keeps one record per id"


# Labels as training data


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_labels_are_read_back_as_data(tmp_path: Path, animals: Taxonomy, suffix: str) -> None:
    out = tmp_path / f"labels{suffix}"
    assert write_labels(ANSWERS, out) == 2
    documents = read_data(out, animals)["data"]
    assert (documents.ids, documents.texts) == (["x", "y"], [answer.text for answer in ANSWERS[:2]])
    closures = [{"a", "m", "f", "bat", "p"}, {"a", "f", "fo"}]
    assert [set(animals.decode(documents.labels[[i]].indices.tolist())) for i in range(2)] == closures
    if suffix == ".csv":
        with out.open(newline="") as file:
            assert [(row["labels"], row["reviewer"], row["action"]) for row in csv.DictReader(file)] == [
                ("bat|p", "ann", "accept"),
                ("fo", "bob", "correct"),
            ]


def test_label_ids_with_a_separator(tmp_path: Path) -> None:
    taxonomy = Taxonomy([Label("a|b", "A"), Label("c", "C")])
    write_labels([ANSWERS[0]._replace(labels=("a|b", "c"))], tmp_path / "labels.csv")
    documents = read_data(tmp_path / "labels.csv", taxonomy)["data"]
    assert documents.labels.indices.tolist() == [0, 1]


# Errors


BAD_EXPORTS: dict[str, tuple[Any, str]] = {
    "other JSON": ({"tasks": []}, "is not an export that hill knows; expected a JSON list of Label Studio tasks"),
    "empty": ([], "is not an export that hill knows"),
    "JSON-MIN": ([{"id": 1, "text": "cave", "labels": [["a"]]}], r"export format JSON, not JSON-MIN"),
    "no text": (
        [{"id": 4, "data": {"body": "x"}}],
        "task 4 of .* has no text; expected a field 'text', and there is 'body'",
    ),
    "unknown": (
        [annotated({"data": {"text": "x"}}, 7, [["Animals", "Mammal"]])],
        "label 'Animals > Mammal' of task 7 of .* is not in the taxonomy; did you mean 'Mammals'",
    ),
    "ambiguous": (
        [annotated({"data": {"text": "x"}}, 7, [["Others"]])],
        "'Others' of task 7 of .* belongs to 2 labels; use ids",
    ),
    "types": ([{"data": {"text": "x"}, "annotations": {}}], "'annotations' of task 0 of .* is dict; expected a list"),
    "value": (
        [{"data": {"text": "x"}, "annotations": [{"result": [{"type": "taxonomy"}]}]}],
        "'value' of task 0 of .* is NoneType; expected an object",
    ),
    "record": ([{"fields": {}}], "record 0 of .* has no text"),
    "response": (
        [{"id": "q", "fields": {"text": "x"}, "responses": {"labels": [{"value": ["xyzzy"]}]}}],
        "label 'xyzzy' of record q of .* is not in the taxonomy; give the taxonomy that the annotators used",
    ),
}


@pytest.mark.parametrize("kind", BAD_EXPORTS)
def test_exports_that_cannot_be_used(tmp_path: Path, animals: Taxonomy, kind: str) -> None:
    document, message = BAD_EXPORTS[kind]
    with pytest.raises(DataError, match=message):
        read_annotations(save(tmp_path / "export.json", document), animals)


def test_files_that_cannot_be_used(tmp_path: Path, animals: Taxonomy) -> None:
    (tmp_path / "x.json").write_text("[{")
    with pytest.raises(
        DataError, match=r"x.json' is not JSON \(.*\); expected the JSON export of Label Studio or Argilla"
    ):
        read_annotations(tmp_path / "x.json", animals)
    with pytest.raises(DataError, match=r"none.json' cannot be read: No such file or directory"):
        read_annotations(tmp_path / "none.json", animals)
    with pytest.raises(ConfigError, match=r"labels.txt'; expected a name that ends in .jsonl or .csv, or a --format"):
        write_labels(ANSWERS, tmp_path / "labels.txt")
    with pytest.raises(ConfigError, match=r"tasks.jsonl'; expected a name that ends in .json for argilla"):
        write_tasks(ANSWERS, animals, tmp_path / "tasks.jsonl", "argilla")
    with pytest.raises(ConfigError, match=r"unknown --format 'prodigy'; expected label-studio, argilla"):
        write_tasks(ANSWERS, animals, tmp_path / "tasks.json", "prodigy")
    for tool in ("label-studio", "argilla"):
        with pytest.raises(
            DataError, match=r"label 'bats' of document 'x' is not in the taxonomy; did you mean 'Bats'\?"
        ):
            write_tasks([ANSWERS[0]._replace(labels=("bats",))], animals, tmp_path / "tasks.json", tool)
    assert not list(tmp_path.glob("tasks*"))


# The commands


def test_the_commands(tmp_path: Path, animals: Taxonomy, queue: Path, taxonomy_file: Path) -> None:
    tasks, answers, out = tmp_path / "tasks.json", tmp_path / "answers.sqlite", tmp_path / "labels.jsonl"
    options = ("--format", "label-studio", "--taxonomy", taxonomy_file)
    assert hill("export-labels", queue, "--out", tasks, *options).stdout == (
        f"3 documents in {tasks}; configuration in {tmp_path / 'tasks.xml'}\n"
    )
    first, second, third = json.loads(tasks.read_text())
    export = [
        annotated(first, 1, [["a", "m", "bat"]]),
        annotated(second, 2, [["p"]]),
        annotated(third, 3, [], was_cancelled=True),
    ]
    imported = (
        "import-labels",
        save(tmp_path / "export.json", export),
        "--taxonomy",
        taxonomy_file,
        "--answers",
        answers,
    )
    assert hill(*imported).stdout == f"3 answers added to {answers}; 0 were already there\n"
    assert hill(*imported).stdout == f"0 answers added to {answers}; 3 were already there\n"
    assert hill("export-labels", answers, "--out", out).stdout == f"2 labelled documents in {out}; 1 skipped\n"
    assert [json.loads(line)["labels"] for line in out.read_text().splitlines()] == [["bat"], ["p"]]
    assert hill("export-labels", answers, "--out", tasks, *options).returncode == 0
    assert len(json.loads(tasks.read_text())) == 2
    with Answers(answers) as store:
        store.add("ann", "correct", "x", "cave", ["p"])
    result = hill("export-labels", answers, "--out", out)
    assert result.stderr == "hill: documents on which reviewers disagree: 1; the last answer counts\n"
    assert read_answers(answers)[-1].labels == ("p",)


def test_commands_that_lack_something(tmp_path: Path, queue: Path, taxonomy_file: Path) -> None:
    cases = [
        (
            (queue, "--out", tmp_path / "x.jsonl"),
            "has no answers; give an answers file, or a --format for an annotation tool",
        ),
        ((queue, "--out", tmp_path / "x.json", "--format", "argilla"), "--format argilla needs --taxonomy"),
        (
            (tmp_path / "none.sqlite", "--out", tmp_path / "x.jsonl"),
            "none.sqlite' does not exist; hill serve --review writes",
        ),
    ]
    for arguments, message in cases:
        result = hill("export-labels", *arguments)
        assert result.returncode == 2 and message in result.stderr and result.stderr.count("\n") == 1
