"""Answers of reviewers in one SQLite file: who gave which labels to which document, and when.

Rows are only added. An undo is a row too. The current answer of a document is the last one that its reviewer has not
undone. Several threads and processes may use a file at the same time.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from hill.errors import DataError
from hill.io import atomic_file

ACTIONS = ("accept", "correct", "skip", "undo")
CLAIM_SECONDS = 600.0
"""How long a document is reserved for the reviewer who received it."""
BACKUP_EVERY = 100
"""Answers between two backups of a file that is open."""
BUSY_SECONDS = 60.0
"""How long to wait for other processes that write."""
APPLICATION_ID = 0x68696C6C  # "hill"
SCHEMA_VERSION = 1
SCHEMA = (
    f"""CREATE TABLE answers (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        time TEXT NOT NULL,
        reviewer TEXT NOT NULL,
        action TEXT NOT NULL CHECK (action IN {ACTIONS}),
        key TEXT NOT NULL,
        id TEXT NOT NULL,
        text TEXT NOT NULL,
        labels TEXT NOT NULL
    )""",
    "CREATE INDEX answers_of_document ON answers (key, number)",
    "CREATE INDEX answers_of_reviewer ON answers (reviewer, number)",
    *(
        f"CREATE TRIGGER no_{event} BEFORE {event} ON answers BEGIN SELECT RAISE(ABORT, 'answers are only added'); END"
        for event in ("UPDATE", "DELETE")
    ),
    # "+" keeps SQLite from using the index of reviewers, which is slow here
    """CREATE VIEW counted AS SELECT * FROM answers AS a WHERE action != 'undo' AND NOT EXISTS (
        SELECT 1 FROM answers AS later
        WHERE later.key = a.key AND later.number > a.number AND +later.reviewer = a.reviewer AND later.action = 'undo'
    )""",
    """CREATE VIEW current AS SELECT * FROM counted AS a
        WHERE number = (SELECT max(number) FROM counted WHERE counted.key = a.key)""",
    "CREATE TABLE claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL, expires REAL NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_COLUMNS = "number, time, reviewer, action, id, text, labels"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Answer(NamedTuple):
    """An answer; `labels` are label ids, without those of a skip or an undo."""

    number: int
    time: str
    reviewer: str
    action: str
    id: str
    text: str
    labels: tuple[str, ...]


def document_key(text: str) -> str:
    """The key of a document: the SHA-256 of its text. Documents with the same text share their answer."""
    return hashlib.sha256(text.encode()).hexdigest()


def backup_path(path: Path) -> Path:
    """Where the backup of an answers file is."""
    return path.with_name(f"{path.name}.bak")


class Answers:
    """An answers file that is open for reading and writing; it is created if it does not exist.

    The file is checked when it is opened, and refused if it is damaged. A backup is made when it is opened and closed,
    and every `BACKUP_EVERY` answers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._added = 0
        _check_not_lost(path)
        self._connection = _open(path, writable=True)
        try:
            self.backup()
        except DataError:
            self._connection.close()
            raise

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Make a backup and close the file."""
        with self._lock:
            with suppress(DataError):  # the answers themselves are saved
                self.backup()
            self._connection.close()

    # Answers

    def add(
        self, reviewer: str, action: str, id: str, text: str, labels: Iterable[str] = (), time: str | None = None
    ) -> int:
        """Add an answer, end the claim of its document, and return the number of the answer."""
        answer = Answer(0, time or _now(), reviewer, action, id, text, tuple(labels))
        with self._writing() as connection:
            number = _insert(connection, answer)
        self._added += 1
        if self._added % BACKUP_EVERY == 0:
            with suppress(DataError):  # the answer itself is saved
                self.backup()
        return number

    def merge(self, answers: Iterable[Answer]) -> int:
        """Add all or none of these answers, and return how many were added.

        Answers that the file has with the same time are left out, and those that repeat their reviewer's last answer.
        """
        added = 0
        with self._writing() as connection:
            last: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}
            every = self.all()
            stored = {known._replace(number=0, id="") for known in every}
            for known in every:
                last[known.reviewer, known.text] = known.action, known.labels
            for answer in answers:
                if answer._replace(number=0, id="") in stored:
                    continue
                if last.get((answer.reviewer, answer.text)) != (answer.action, answer.labels):
                    _insert(connection, answer._replace(time=answer.time or _now()))
                    last[answer.reviewer, answer.text] = answer.action, answer.labels
                    added += 1
        return added

    def undo(self, reviewer: str, owner: str, keys: Iterable[str] | None = None) -> Answer | None:
        """Undo the reviewer's last answer that counts, and reserve its document again; None if there is none.

        With `keys`, only answers to these documents are undone.
        """
        allowed = None if keys is None else set(keys)
        with self._writing() as connection:
            rows = connection.execute(
                f"SELECT key, {_COLUMNS} FROM counted WHERE reviewer = ? ORDER BY number DESC", (reviewer,)
            )
            key, *fields = next((row for row in rows if allowed is None or row[0] in allowed), (None,))
            rows.close()
            if key is None:
                return None
            answer = _answer(fields)
            _insert(connection, answer._replace(time=_now(), action="undo", labels=()))
            _set_claim(connection, key, owner)
        return answer

    def all(self) -> list[Answer]:
        """Every row, in order."""
        with self._reading() as connection:
            return [_answer(row) for row in connection.execute(f"SELECT {_COLUMNS} FROM answers ORDER BY number")]

    def current(self) -> list[Answer]:
        """The current answer of each document, in order."""
        with self._reading() as connection:
            return _current(connection)

    # A queue of documents, shared with other processes that use the same file

    def set_queue(self, keys: Sequence[str]) -> None:
        """The documents to review, in order, for this connection."""
        with self._writing() as connection:
            connection.execute("CREATE TEMP TABLE queue (position INTEGER PRIMARY KEY, key TEXT UNIQUE)")
            connection.executemany("INSERT INTO queue VALUES (?, ?)", enumerate(keys))

    def claim(self, owner: str) -> str | None:
        """Reserve the next document of the queue for `CLAIM_SECONDS`: the key of one without an answer.

        A document that is already reserved for this owner comes first. None if there is no document that nobody else
        has.
        """
        with self._writing() as connection:
            connection.execute("DELETE FROM claims WHERE expires <= ?", (time.time(),))
            is_open = "NOT EXISTS (SELECT 1 FROM counted WHERE counted.key = queue.key)"
            found = connection.execute(
                f"SELECT key FROM queue JOIN claims USING (key) WHERE owner = ? AND {is_open} "
                "ORDER BY position LIMIT 1",
                (owner,),
            ).fetchone()
            found = (
                found
                or connection.execute(
                    f"SELECT key FROM queue WHERE key NOT IN (SELECT key FROM claims) AND {is_open} "
                    "ORDER BY position LIMIT 1"
                ).fetchone()
            )
            if found:
                _set_claim(connection, found[0], owner)
        return found[0] if found else None

    def progress(self, reviewer: str = "") -> dict[str, int]:
        """Documents of the queue: total, labelled, skipped, and labelled or skipped by this reviewer."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT action = 'skip', reviewer = ?, count(*) FROM queue JOIN current USING (key) GROUP BY 1, 2",
                (reviewer,),
            ).fetchall()
            total = connection.execute("SELECT count(*) FROM queue").fetchone()[0]
        skipped = sum(count for skip, _, count in rows if skip)
        done = sum(count for _, _, count in rows)
        return {
            "total": total,
            "labelled": done - skipped,
            "skipped": skipped,
            "mine": sum(count for _, mine, count in rows if mine),
        }

    # The file

    def backup(self) -> None:
        """Copy the file to `backup_path`, unless the backup has more answers."""
        target = backup_path(self.path)
        with self._reading() as connection:
            number = _count(connection)
            if not number or (target.exists() and _backup_count(target) > number):
                return
            with atomic_file(target) as draft, closing(sqlite3.connect(draft)) as copy:
                connection.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a WAL file beside it

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _storage_errors(self.path):
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that waits for other writers before it reads, so that it sees what they wrote."""
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def read_answers(path: Path) -> list[Answer]:
    """The current answer of each document of an answers file, in order; the file is not changed."""
    if not path.is_file():
        raise DataError(f"answers file '{path}' does not exist; hill serve --review writes one")
    with closing(_open(path, writable=False)) as connection, _storage_errors(path):
        return _current(connection)


def count_disagreements(path: Path) -> int:
    """The number of documents to which reviewers gave different labels."""
    with closing(_open(path, writable=False)) as connection, _storage_errors(path):
        labels: dict[str, dict[str, frozenset[str]]] = {}
        rows = connection.execute("SELECT key, reviewer, labels FROM counted WHERE action != 'skip' ORDER BY number")
        for key, reviewer, document in rows:
            labels.setdefault(key, {})[reviewer] = frozenset(json.loads(document))
    return sum(len(set(sets.values())) > 1 for sets in labels.values())


def _current(connection: sqlite3.Connection) -> list[Answer]:
    return [_answer(row) for row in connection.execute(f"SELECT {_COLUMNS} FROM current ORDER BY number")]


def _answer(row: Sequence[Any]) -> Answer:
    number, time, reviewer, action, id, text, labels = row
    return Answer(number, time, reviewer, action, id, text, tuple(json.loads(labels)))


def _insert(connection: sqlite3.Connection, answer: Answer) -> int:
    """Add a row, end the claim of its document, and return the number of the row."""
    _, time, reviewer, action, id, text, labels = answer
    row = (time, reviewer, action, document_key(text), id, text, json.dumps(labels, ensure_ascii=False))
    insert = "INSERT INTO answers (time, reviewer, action, key, id, text, labels) VALUES (?, ?, ?, ?, ?, ?, ?)"
    number = connection.execute(insert, row).lastrowid
    connection.execute("DELETE FROM claims WHERE key = ?", (document_key(text),))
    assert number is not None
    return number


def _set_claim(connection: sqlite3.Connection, key: str, owner: str) -> None:
    connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (key, owner, time.time() + CLAIM_SECONDS))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM answers").fetchone()[0])


# Opening and checking a file


def _open(path: Path, writable: bool) -> sqlite3.Connection:
    """A connection to a checked answers file."""
    options = "mode=rwc" if writable else "mode=ro"
    if not writable and not path.with_name(f"{path.name}-wal").exists():
        options += "&immutable=1"  # no process has the file open: create no files beside it
    with _storage_errors(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{options}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            if writable and _is_empty(connection):
                _create(connection)
            _check(connection, path)
            if writable:
                connection.execute("PRAGMA synchronous = FULL")  # an answer is on disk before the next one is shown
        except BaseException:
            connection.close()
            raise
    return connection


def _is_empty(connection: sqlite3.Connection) -> bool:
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _create(connection: sqlite3.Connection) -> None:
    """Create the tables, unless another process does so at the same time."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:  # this statement does not wait for other processes
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    connection.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA if _is_empty(connection) else ():
        connection.execute(statement)
    connection.execute("COMMIT")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise a `DataError` unless this is an intact answers file of a known version."""
    pragmas = ("application_id", "user_version", "integrity_check(1)")
    application, version, problem = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas)
    if application != APPLICATION_ID:
        raise DataError(f"'{path}' is not an answers file; expected a file that hill serve --review wrote")
    if version > SCHEMA_VERSION:
        raise DataError(f"'{path}' has version {version}, but this hill reads up to {SCHEMA_VERSION}; upgrade hill")
    if problem != "ok":
        raise DataError(_damaged(path, problem))
    for number, key, text, labels in connection.execute("SELECT number, key, text, labels FROM answers"):
        try:
            intact = document_key(text) == key and isinstance(json.loads(labels), list)
        except (ValueError, AttributeError):
            intact = False
        if not intact:
            raise DataError(_damaged(path, f"answer {number} was changed"))
    _check_backup(connection, path)


def _check_backup(connection: sqlite3.Connection, path: Path) -> None:
    """Raise a `DataError` unless the file has every row of its backup: rows are only ever added."""
    select, backup = "SELECT * FROM answers ORDER BY number", backup_path(path)
    try:  # read before the file, to which another process may add rows that it then backs up
        with closing(sqlite3.connect(f"{backup.absolute().as_uri()}?mode=ro", uri=True)) as copy:
            saved = copy.execute(select).fetchall()
    except sqlite3.Error:  # there is no backup, or it cannot be read
        return
    rows = connection.execute(select).fetchmany(len(saved))
    different = [row[0] for row, own in zip(rows, saved, strict=False) if row != own]
    if len(rows) < len(saved) or different:
        state = f"answer {different[0]} differs" if different else f"the backup has {len(saved):,}"
        raise DataError(
            f"answers file '{path}' has {len(rows):,} rows and does not agree with its backup '{backup}': {state}. "
            "Nothing was changed; if the backup is right, copy it to the file, else move it away"
        )


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into a `DataError` that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
            raise DataError(_damaged(path, str(error))) from None
        raise DataError(f"answers file '{path}' cannot be used: {error}; check the disk and the permissions") from None


def _damaged(path: Path, problem: str) -> str:
    backup = backup_path(path)
    if number := _backup_count(backup):
        remedy = (
            f"the last backup, '{backup}', has {number:,} rows: move the damaged file away and copy the backup to it"
        )
    else:
        remedy = f"there is no backup; try: sqlite3 '{path}' .recover"
    return f"answers file '{path}' is damaged ({problem}) and was not changed; {remedy}"


def _check_not_lost(path: Path) -> None:
    """Refuse to create a file whose backup has answers."""
    if path.is_dir():
        raise DataError(f"'{path}' is a folder; expected an answers file such as answers.sqlite")
    backup = backup_path(path)
    if (not path.exists() or not path.stat().st_size) and (number := _backup_count(backup)):
        state = "is empty" if path.exists() else "does not exist"
        raise DataError(
            f"answers file '{path}' {state}, but its backup '{backup}' has {number:,} rows; copy the backup to it, or "
            "move the backup away to begin anew"
        )


def _backup_count(backup: Path) -> int:
    """The number of rows of a backup; 0 if it does not exist or cannot be read."""
    if not backup.is_file():
        return 0
    try:
        with closing(sqlite3.connect(f"{backup.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return _count(connection)
    except sqlite3.Error:
        return 0
