"""Feedback: what people accepted, rejected and added, in one SQLite file.

The file is in WAL mode, so that several processes read and write it at once, and what was answered
with an id is on disk whatever ends the process. Nothing is changed afterwards but the note which
update of a model took a correction in. Of several corrections of one text, the last counts.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from longtail.data import Dataset, build_label_matrix
from longtail.errors import DataError
from longtail.models.card import now

APPLICATION = 0x6C6F6E67  # tells our files from other SQLite files
SCHEMA_VERSION = 1
BUSY_SECONDS = 10.0  # to wait for another process that writes
SCHEMA = """
CREATE TABLE IF NOT EXISTS feedback (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    model TEXT NOT NULL,
    version TEXT NOT NULL,
    by TEXT,
    document TEXT,
    text TEXT NOT NULL,
    shown TEXT NOT NULL,
    accepted TEXT NOT NULL,
    rejected TEXT NOT NULL,
    added TEXT NOT NULL,
    used TEXT
)
"""
FIELDS = "at, model, version, by, document, text, shown, accepted, rejected, added"
LISTS = ("shown", "accepted", "rejected", "added")


@dataclass(frozen=True)
class Correction:
    """What a person said about one document.

    Attributes:
        model: the name of the model that suggested labels.
        version: its version.
        text: the document.
        shown: the labels that were suggested, with their scores.
        accepted: those that are right.
        rejected: those that are wrong.
        added: right labels that were not suggested.
        by: who said so; None if nobody knows.
        document: what the client calls the document, if anything.
        at: when, in UTC; now, unless given.
    """

    model: str
    version: str
    text: str
    shown: Sequence[dict[str, Any]] = ()
    accepted: Sequence[str] = ()
    rejected: Sequence[str] = ()
    added: Sequence[str] = ()
    by: str | None = None
    document: str | None = None
    at: str = ""

    @property
    def labels(self) -> list[str]:
        """The labels that the document has, by this correction."""
        return list(dict.fromkeys([*self.accepted, *self.added]))

    def to_dict(self) -> dict[str, Any]:
        """Return a line of an export, which `longtail train` reads as a document with labels."""
        known = {} if self.document is None else {"id": self.document}
        return {
            **known,
            "text": self.text,
            "labels": self.labels,
            "rejected": list(self.rejected),
            "shown": list(self.shown),
            "model": self.model,
            "version": self.version,
            "by": self.by,
            "at": self.at,
        }


class FeedbackStore:
    """A feedback file that is open."""

    def __init__(self, path: Path, *, create: bool) -> None:
        """Open the file, and make it if that is wanted; DataError if it is something else."""
        self.path = path
        self._lock = Lock()  # for one connection, which several threads use
        if not create and not path.is_file():
            raise DataError("there is no such file; longtail serve --feedback makes it", path=path)
        try:
            self._connection = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise DataError(f"cannot be used for feedback: {error}", path=path) from error
        try:
            self._prepare(create)
        except DataError:
            self._connection.close()
            raise
        except sqlite3.Error as error:
            self._connection.close()
            raise DataError(f"cannot be used for feedback: {error}", path=path) from error

    def _prepare(self, create: bool) -> None:
        run = self._connection.execute
        (application,), (version,) = (
            run("PRAGMA application_id").fetchone(),
            run("PRAGMA user_version").fetchone(),
        )
        (n_tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if (n_tables or not create) and application != APPLICATION:
            raise DataError("is a file of SQLite, but not one with feedback", path=self.path)
        if version > SCHEMA_VERSION:
            raise DataError("was made by a newer version of longtail; upgrade", path=self.path)
        if create:
            run("PRAGMA journal_mode = WAL")
            run("PRAGMA synchronous = FULL")
            run(f"PRAGMA application_id = {APPLICATION}")
            run(f"PRAGMA user_version = {SCHEMA_VERSION}")
            run(SCHEMA)

    def add(self, corrections: Sequence[Correction]) -> list[int]:
        """Store corrections, all or none; return their ids once they are on disk."""
        with self._transaction() as cursor:
            return [_insert(cursor, each) for each in corrections]

    def read(self, model: str | None = None, *, unused: bool = False) -> dict[int, Correction]:
        """Return corrections by id, oldest first: of one model, only those not used yet."""
        with self._lock, _as_data_error(self.path):
            rows = self._connection.execute(
                f"SELECT id, {FIELDS} FROM feedback "
                "WHERE (?1 IS NULL OR model = ?1) AND (used IS NULL OR NOT ?2) ORDER BY id",
                (model, unused),
            ).fetchall()
        return {row[0]: self._read_row(row) for row in rows}

    def _read_row(self, row: tuple[Any, ...]) -> Correction:
        number, at, model, version, by, document, text, *lists = row
        try:
            held = dict(zip(LISTS, map(json.loads, lists), strict=True))
        except (TypeError, ValueError):
            raise DataError(f"the feedback {number} is damaged", path=self.path) from None
        return Correction(model, version, text, by=by, document=document, at=at, **held)

    def models(self) -> list[str]:
        """Return the names of the models that there is feedback for."""
        with self._lock, _as_data_error(self.path):
            rows = self._connection.execute("SELECT DISTINCT model FROM feedback ORDER BY model")
            return [name for (name,) in rows]

    def mark_used(self, ids: Sequence[int]) -> None:
        """Note that an update took these corrections in."""
        with self._transaction() as cursor:
            cursor.executemany(
                "UPDATE feedback SET used = ? WHERE id = ?", [(now(), number) for number in ids]
            )

    def check_markable(self) -> None:
        """Raise DataError if nothing can be noted now, as in a file that is only to be read."""
        with self._transaction() as cursor:
            cursor.execute("UPDATE feedback SET used = used WHERE id = -1")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        with self._lock, _as_data_error(self.path), closing(self._connection.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite may have ended it
                    cursor.execute("ROLLBACK")
                raise


@contextmanager
def _as_data_error(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise DataError(f"the feedback cannot be read or written: {error}", path=path) from error


def _insert(cursor: sqlite3.Cursor, each: Correction) -> int:
    lists = [json.dumps(list(getattr(each, name))) for name in LISTS]
    known = (each.at or now(), each.model, each.version, each.by, each.document, each.text)
    values = (*known, *lists)
    marks = ", ".join("?" * len(values))
    cursor.execute(f"INSERT INTO feedback ({FIELDS}) VALUES ({marks})", values)
    number = cursor.lastrowid
    if number is None:
        raise sqlite3.DatabaseError("no row was added")
    return number


def read_feedback(
    path: Path, model: str | None = None, *, unused: bool = False
) -> dict[int, Correction]:
    """Return the corrections in a file by id: of one model, only those that no update took in."""
    with closing(FeedbackStore(path, create=False)) as store:
        known = store.models()
        if model is not None and model not in known:
            names = ", ".join(known) or "none"
            raise DataError(
                f"there is no feedback on a model '{model}'; there is on: {names}", path=path
            )
        return store.read(model, unused=unused)


def mark_used(path: Path, ids: Sequence[int]) -> None:
    """Note in a file that an update took these corrections in."""
    with closing(FeedbackStore(path, create=False)) as store:
        store.mark_used(ids)


def check_markable(path: Path) -> None:
    """Raise DataError if no update could be noted in a file."""
    with closing(FeedbackStore(path, create=False)) as store:
        store.check_markable()


def name_model(folder: Path) -> str:
    """Return what servers and feedback call a model: the name of its folder, or of a link to it."""
    return Path(os.path.normpath(folder.absolute())).name


# -- what becomes of it ---------------------------------------------------------------------------


def keep_last(corrections: Sequence[Correction]) -> list[Correction]:
    """Return the last correction of each text of each model."""
    return list({(each.model, each.text): each for each in corrections}.values())


def as_dataset(corrections: Sequence[Correction], path: Path) -> Dataset:
    """Return the corrected documents that have labels, to learn from."""
    labelled = [each for each in keep_last(corrections) if each.labels]
    if not labelled:
        raise DataError("no new feedback says which labels a document has", path=path)
    Y, names = build_label_matrix(each.labels for each in labelled)
    return Dataset(Y=Y, label_names=names, texts=[each.text for each in labelled])


@dataclass(frozen=True)
class Report:
    """How good the suggestions were.

    Attributes:
        n_documents: that were corrected.
        months: for each month its documents, suggestions that were judged, and of these the right.
        rejected: the labels that were rejected most often, with how often.
        added: the labels that were missed most often, with how often.
    """

    n_documents: int
    months: dict[str, tuple[int, int, int]]
    rejected: list[tuple[str, int]]
    added: list[tuple[str, int]]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        months = {
            month: {"documents": n, "suggestions": judged, "right": right}
            for month, (n, judged, right) in self.months.items()
        }
        return {
            "documents": self.n_documents,
            "months": months,
            "rejected": dict(self.rejected),
            "added": dict(self.added),
        }


def count_feedback(corrections: Sequence[Correction], n_labels: int) -> Report:
    """Count what was accepted, rejected and added; `n_labels` of each list."""
    last = keep_last(corrections)
    months: dict[str, tuple[int, int, int]] = {}
    rejected: Counter[str] = Counter()
    added: Counter[str] = Counter()
    for each in last:
        n, judged, right = months.get(each.at[:7], (0, 0, 0))
        n_right = len(each.accepted)
        months[each.at[:7]] = (n + 1, judged + n_right + len(each.rejected), right + n_right)
        rejected.update(each.rejected)
        added.update(each.added)
    return Report(
        len(last),
        dict(sorted(months.items())),
        rejected.most_common(n_labels),
        added.most_common(n_labels),
    )
