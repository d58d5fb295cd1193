"""The answers file: nothing is overwritten, several processes lose nothing, damage is noticed, backups are kept."""

import multiprocessing
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hill.data import answers as module
from hill.data.answers import Answer, Answers, backup_path, count_disagreements, document_key, read_answers
from hill.data.documents import read_data
from hill.errors import DataError
from hill.taxonomy import Taxonomy
from tests.conftest import ROOT

SPAWN = multiprocessing.get_context("spawn")
TEXTS = [f"text {i}" for i in range(60)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Answers]:
    with Answers(path) as store:
        store.set_queue([document_key(text) for text in TEXTS])
        yield store


def content(answer: Answer) -> tuple[str, str, str, str, tuple[str, ...]]:
    return answer.reviewer, answer.action, answer.id, answer.text, answer.labels


def test_answers_say_who_when_and_what(store: Answers) -> None:
    assert store.add("ann", "accept", "7", "wing sky", ["f", "bat"]) == 1
    store.add("bob", "skip", "8", "böse 文")
    first, second = store.all()
    assert content(first) == ("ann", "accept", "7", "wing sky", ("f", "bat"))
    assert content(second) == ("bob", "skip", "8", "böse 文", ())
    assert first.time <= second.time and first.time.startswith("20") and first.time.endswith("+00:00")


STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["accept", "undo"]), st.integers(0, 1)), max_size=12)


@settings(max_examples=20)
@given(STEPS)
def test_the_current_answer_is_the_last_that_was_not_undone(
    tmp_path_factory: pytest.TempPathFactory, steps: list
) -> None:
    counted: list[tuple[str, str, int]] = []  # reviewer, text, number: a slow and obvious model of the file
    with Answers(tmp_path_factory.mktemp("answers") / "a.sqlite") as store:
        number = 0
        for reviewer, action, text in steps:
            if action == "accept":
                number += 1
                store.add(reviewer, action, "", str(text), [str(number)])
                counted.append((reviewer, str(text), number))
            else:
                mine = [entry for entry in counted if entry[0] == reviewer]
                undone = store.undo(reviewer, reviewer)
                assert (undone.labels if undone else None) == ((str(mine[-1][2]),) if mine else None)
                if mine:
                    counted = [entry for entry in counted if entry[:2] != mine[-1][:2]]
        expected = {text: str(number) for _, text, number in counted}
        assert {answer.text: answer.labels[0] for answer in store.current()} == expected


def test_rows_cannot_be_changed_or_deleted(store: Answers, path: Path) -> None:
    store.add("ann", "accept", "7", "wing", ["f"])
    with sqlite3.connect(path) as connection:
        for statement in ("UPDATE answers SET labels = '[]'", "DELETE FROM answers"):
            with pytest.raises(sqlite3.IntegrityError, match="answers are only added"):
                connection.execute(statement)
    connection.close()
    assert len(store.all()) == 1


def test_an_unknown_action_is_refused_and_the_file_stays_usable(store: Answers) -> None:
    with pytest.raises(DataError, match="cannot be used: CHECK constraint failed"):
        store.add("ann", "guess", "7", "wing", ["f"])
    store.add("ann", "accept", "7", "wing", ["f"])
    assert len(store.all()) == 1


# The queue


def test_two_reviewers_get_different_documents(store: Answers, path: Path) -> None:
    with Answers(path) as other:
        other.set_queue([document_key(text) for text in TEXTS])
        assert store.claim("ann") == document_key(TEXTS[0]) == store.claim("ann")
        assert other.claim("bob") == document_key(TEXTS[1])
        store.add("ann", "accept", "0", TEXTS[0], ["f"])
        assert other.claim("bob") == document_key(TEXTS[1])
        assert store.claim("ann") == document_key(TEXTS[2])
        assert other.progress("ann") == {"total": 60, "labelled": 1, "skipped": 0, "mine": 1}
        other.add("bob", "skip", "1", TEXTS[1])
        assert store.progress("ann") == {"total": 60, "labelled": 1, "skipped": 1, "mine": 1}


def test_a_claim_expires(store: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    store.claim("ann")
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + module.CLAIM_SECONDS - 5)
    assert store.claim("bob") == document_key(TEXTS[1])
    monkeypatch.setattr(module.time, "time", lambda: now + module.CLAIM_SECONDS + 5)
    assert store.claim("cy") == document_key(TEXTS[0])


def test_both_answers_stay_if_a_document_is_answered_twice(store: Answers, path: Path) -> None:
    store.add("ann", "accept", "0", TEXTS[0], ["f"])
    store.add("bob", "correct", "0", TEXTS[0], ["m"])
    store.add("ann", "accept", "1", TEXTS[1], ["f", "m"])
    store.add("bob", "correct", "1", TEXTS[1], ["m", "f"])
    assert len(store.all()) == 4 and count_disagreements(path) == 1
    assert store.current()[0].labels == ("m",)
    store.undo("bob", "bob")
    store.undo("bob", "bob")
    assert store.current()[0].labels == ("f",) and count_disagreements(path) == 0


def test_undo_reserves_the_document_again(store: Answers) -> None:
    assert store.undo("ann", "ann") is None
    store.add("ann", "accept", "0", TEXTS[0], ["f"])
    store.add("ann", "accept", "", "not in the queue", ["f"])
    undone = store.undo("ann", "ann", [document_key(text) for text in TEXTS])
    assert undone and undone.text == TEXTS[0]
    assert store.claim("bob") == document_key(TEXTS[1]) and store.claim("ann") == document_key(TEXTS[0])


def test_the_end_of_the_queue(store: Answers) -> None:
    for text in TEXTS[1:]:
        store.add("ann", "accept", "", text, ["f"])
    assert store.claim("ann") == document_key(TEXTS[0]) and store.claim("bob") is None
    store.add("ann", "skip", "", TEXTS[0])
    assert store.claim("ann") is None


# Several processes


def review_all(path: Path, reviewer: str, barrier: Barrier) -> None:
    """A reviewer in a process of its own: answers documents until there are none."""
    barrier.wait(60)
    texts = {document_key(text): text for text in TEXTS}
    with Answers(path) as store:
        store.set_queue(list(texts))
        while key := store.claim(reviewer):
            time.sleep(0.01)  # a reviewer reads, and others come to their turn
            store.add(reviewer, "accept", texts[key], texts[key], [reviewer])


def test_several_processes_lose_no_answer_and_share_the_work(path: Path) -> None:
    """They also create the file at the same time."""
    names = ["ann", "bob", "cy", "dee"]
    barrier = SPAWN.Barrier(len(names))
    processes = [SPAWN.Process(target=review_all, args=(path, name, barrier)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    with Answers(path) as store:
        assert Counter(answer.text for answer in store.all()) == Counter(TEXTS)  # each once
        assert len({answer.reviewer for answer in store.all()}) > 1


def add_and_die(path: Path) -> None:
    store = Answers(path)
    store.add("ann", "accept", "1", "wing", ["f"])
    store._connection.execute("BEGIN IMMEDIATE")
    store._connection.execute(
        "INSERT INTO answers SELECT 9, time, reviewer, action, key, id, text, labels FROM answers"
    )
    os._exit(1)


def test_a_killed_process_loses_only_what_was_not_finished(path: Path) -> None:
    process = SPAWN.Process(target=add_and_die, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == 1
    assert [answer.number for answer in read_answers(path)] == [1]
    with Answers(path) as store:
        assert [answer.number for answer in store.all()] == [1]


# Training data


def test_a_data_set_is_the_current_labels(store: Answers, path: Path, animals: Taxonomy) -> None:
    store.add("ann", "accept", "x", "wing sky", ["fo"])
    store.add("ann", "correct", "x", "wing sky", ["bat"])
    store.add("ann", "skip", "y", "fur")
    (documents,) = read_data(path, animals).values()
    assert (documents.ids, documents.texts) == (["x"], ["wing sky"])
    assert animals.decode(documents.labels[[0]].indices.tolist()) == ["a", "m", "f", "bat"]


def test_unknown_labels_are_named_with_the_number_of_the_answer(store: Answers, path: Path, animals: Taxonomy) -> None:
    store.add("ann", "accept", "x", "wing sky", ["Mammal"])
    with pytest.raises(
        DataError, match=r"label 'Mammal' is not in the taxonomy; did you mean 'Mammals'\? \(line 1 of .*"
    ):
        read_data(path, animals)


def test_reading_leaves_no_files(path: Path) -> None:
    with Answers(path) as store:
        store.add("ann", "accept", "x", "wing sky", ["f"])
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert len(read_answers(path)) == 1
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


# Damage and backups


@pytest.fixture
def filled(path: Path) -> Path:
    with Answers(path) as store:
        for text in TEXTS:
            store.add("ann", "accept", text, text * 50, ["f"])
    return path


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def damage_text(path: Path) -> None:
    flip(path, path.read_bytes().rindex(b"text 5text 5"))


def damage_labels(path: Path) -> None:
    flip(path, path.read_bytes().rindex(b'["f"]'))


DAMAGES = {
    "header": lambda path: flip(path, 3),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:20_000]),
    "page": lambda path: path.write_bytes(path.read_bytes()[:8192] + b"\xff" * 4096 + path.read_bytes()[12_288:]),
    "text": damage_text,
    "labels": damage_labels,
    "not a database": lambda path: path.write_text("id,text\n1,wing\n"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_refused_by_name_and_the_backup_is_kept(filled: Path, kind: str) -> None:
    DAMAGES[kind](filled)
    damaged, backup = filled.read_bytes(), backup_path(filled).read_bytes()
    pattern = rf"answers file '{filled}' is damaged \(.+\) and was not changed; the last backup, '.+\.bak', has 60 rows"
    for use in (Answers, read_answers):
        with pytest.raises(DataError, match=pattern):
            use(filled)
    assert (filled.read_bytes(), backup_path(filled).read_bytes()) == (damaged, backup)
    filled.write_bytes(backup)  # as the message says
    assert len(read_answers(filled)) == 60


def test_a_file_that_lost_or_changed_rows_does_not_replace_its_backup(path: Path) -> None:
    with Answers(path) as store:
        for text in TEXTS[:10]:
            store.add("ann", "accept", "", text, ["CS.001"])
        early = path.with_name("early")
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(early)) as copy:
            source.backup(copy)
        for text in TEXTS[10:]:
            store.add("ann", "accept", "", text, ["CS.001"])
    whole, backup = path.read_bytes(), backup_path(path).read_bytes()
    changed = whole.replace(b"CS.001", b"CS.009", 1)
    for content, state in ((early.read_bytes(), "the backup has 60"), (changed, r"answer \d+ differs")):
        path.write_bytes(content)
        for use in (Answers, read_answers):
            with pytest.raises(DataError, match=rf"does not agree with its backup '.+\.bak': {state}. Nothing was"):
                use(path)
        assert (path.read_bytes(), backup_path(path).read_bytes()) == (content, backup)
    path.write_bytes(backup)  # as the message says
    assert len(read_answers(path)) == 60


def test_without_a_backup_the_message_says_so(filled: Path) -> None:
    backup_path(filled).write_bytes(b"damaged too")
    flip(filled, 3)
    with pytest.raises(DataError, match=r"there is no backup; try: sqlite3 '.+' .recover"):
        Answers(filled)


@pytest.mark.parametrize("state", ["is empty", "does not exist"])
def test_a_lost_file_with_a_backup_is_not_begun_anew(filled: Path, state: str) -> None:
    filled.unlink() if state == "does not exist" else filled.write_bytes(b"")
    with pytest.raises(DataError, match=f"{state}, but its backup '.+' has 60 rows; copy the backup to it, or move"):
        Answers(filled)
    backup_path(filled).unlink()
    with Answers(filled) as store:
        assert store.all() == []


def test_backups_are_made_while_the_file_is_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKUP_EVERY", 3)
    with Answers(path) as store:
        counts = []
        for text in TEXTS[:7]:
            store.add("ann", "accept", "", text, ["f"])
            counts.append(len(read_answers(backup_path(path))) if backup_path(path).exists() else 0)
        assert counts == [0, 0, 3, 3, 3, 6, 6]
    assert len(read_answers(backup_path(path))) == 7


def test_a_backup_with_more_answers_is_kept(path: Path, filled: Path) -> None:
    kept = backup_path(filled).read_bytes()
    backup_path(filled).rename(path.parent / "kept")
    filled.unlink()
    with Answers(path) as store:
        store.add("ann", "accept", "", "new", ["f"])
        (path.parent / "kept").rename(backup_path(path))
    assert backup_path(path).read_bytes() == kept


def test_a_backup_that_cannot_be_written(path: Path, filled: Path) -> None:
    backup_path(path).unlink()
    backup_path(path).mkdir()
    with pytest.raises(DataError, match=r"cannot write '.+\.bak': it is a folder"):
        Answers(path)
    assert len(read_answers(path)) == 60


def test_files_of_others(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (name)")
    connection.close()
    before = path.read_bytes()
    for use in (Answers, read_answers):
        with pytest.raises(DataError, match="is not an answers file; expected a file that hill serve --review wrote"):
            use(path)
    assert path.read_bytes() == before
    with pytest.raises(DataError, match="is a folder; expected an answers file"):
        Answers(ROOT)
    with pytest.raises(DataError, match=r"'none.sqlite' does not exist; hill serve --review writes one"):
        read_answers(Path("none.sqlite"))
    with pytest.raises(DataError, match="cannot be used: unable to open database file; check the disk"):
        Answers(path.parent / "none" / "answers.sqlite")


def test_a_file_of_a_later_version(filled: Path) -> None:
    with sqlite3.connect(filled) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(DataError, match="has version 2, but this hill reads up to 1; upgrade hill"):
        Answers(filled)


def test_merge_adds_each_answer_once(store: Answers) -> None:
    given = [
        Answer(0, "2021-03-09T22:16:08Z", "x", "accept", "1", "wing", ("f",)),
        Answer(0, "", "y", "skip", "2", "fur", ()),
    ]
    assert store.merge(given) == 2 and store.merge(given) == 0
    changed = given[0]._replace(labels=("m",))
    assert store.merge([changed]) == 1
    assert [answer.labels for answer in store.all()] == [("f",), (), ("m",)]
    assert store.all()[0].time == "2021-03-09T22:16:08Z" and store.all()[1].time.startswith("20")


def test_answers_with_a_time_are_merged_once(store: Answers) -> None:
    """An annotator with two answers to a document, and one that was corrected here after an import."""
    times = ["2026-01-01T10:00:00.000+00:00", "2026-01-01T11:00:00.000+00:00"]
    export = [Answer(0, at, "ann", "correct", "7", "text", (label,)) for at, label in zip(times, "pq", strict=True)]
    assert store.merge(export) == 2 and store.merge(export) == 0
    store.add("ann", "correct", "7", "text", ["r"])
    assert store.merge(export) == 0 and store.current()[0].labels == ("r",)


def test_merge_adds_all_or_none(store: Answers) -> None:
    given = [Answer(0, "", "x", action, "1", text, ("f",)) for action, text in (("accept", "wing"), ("guess", "fur"))]
    with pytest.raises(DataError, match="CHECK"):
        store.merge(given)
    assert store.all() == []


def test_views_use_the_index_of_documents(store: Answers) -> None:
    """With the index of reviewers, each document would read all answers of its reviewer."""
    plan = store._connection.execute("EXPLAIN QUERY PLAN SELECT * FROM current").fetchall()
    assert "answers_of_document" in str(plan) and "answers_of_reviewer" not in str(plan)
