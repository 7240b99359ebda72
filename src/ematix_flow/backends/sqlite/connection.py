"""Connections to a SQLite file, and translation of its errors. Tasks import this module too."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote

from ematix_flow.backends.embedded.database_file import UNCHANGED, DatabaseFile
from ematix_flow.backends.sqlite import value_function
from ematix_flow.errors import CannotConnect, FlowError, RowRejected, SourceFailed, TargetFailed

BUSY_SECONDS = 30.0
OpenConnection = tuple[sqlite3.Connection, list[RowRejected]]  # with the rows that our function refused
_STEPS_BETWEEN_CALLS = 100_000
_CONSTRAINT = re.compile(r"(NOT NULL|UNIQUE|CHECK|FOREIGN KEY) constraint failed(?:: (.*))?", re.DOTALL)
_NAMED = re.compile(r'near "(.+)": syntax error|no such (?:column|table|function): (.+)', re.DOTALL)


@contextmanager
def source_connection(file: DatabaseFile, *, compiled: bool = True) -> Iterator[OpenConnection]:
    """A read-only connection for a source. ``compiled``: with the SQL functions that generated SQL needs."""
    file.require_existing()
    with open_connection(file, "ro", compiled=compiled) as found:
        yield found


@contextmanager
def open_connection(
    file: DatabaseFile, mode: str | None, *, compiled: bool = True
) -> Iterator[OpenConnection]:
    failures: list[RowRejected] = []
    where = ":memory:" if mode is None else file_uri(str(file.path), mode)
    try:
        # one thread after another may read a task's iterator
        connection = sqlite3.connect(
            where, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise open_error(error, file) from error
    with closing(connection):
        try:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        except sqlite3.Error as error:
            raise _locked_error(file) if "locked" in str(error) else open_error(error, file) from error
        # Python runs during a long statement, so that Ctrl-C works
        connection.set_progress_handler(_continue, _STEPS_BETWEEN_CALLS)
        value_function.register(connection, failures)
        if compiled:
            from ematix_flow.backends.sqlite import scd2_functions
            from ematix_flow.strategies.functions import sqlite as functions
            from ematix_probe.sources import sqlite_functions

            functions.register(connection)
            scd2_functions.register(connection)
            sqlite_functions.register(connection)  # for the gate of a load
        yield connection, failures


def _continue() -> int:
    return 0


def file_uri(path: str, mode: str) -> str:
    return f"file:{quote(path)}?mode={mode}"


# ------------------------------------------------------------------ errors


def open_error(error: sqlite3.Error, file: DatabaseFile) -> CannotConnect:
    return CannotConnect(
        f"connection {file.connection!r}: SQLite cannot open {file.path}: {error}",
        state="nothing was read or written",
        next_step="check the path, its permissions, and whether it is a SQLite database",
    )


def target_error(error: sqlite3.Error, file: DatabaseFile, failures: list[RowRejected]) -> FlowError:
    """The error of a write; the open transaction is rolled back."""
    text = str(error)
    _raise_if_interrupted(text)
    refused = _find_rejection(text, failures)
    if refused is not None:
        refused.state = UNCHANGED
        refused.next_step = (
            refused.next_step or "correct or filter the row in the source SQL, or change the column's type"
        )
        return refused
    if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
        return _constraint_error(text)
    if "locked" in text or "busy" in text:
        return _locked_error(file)
    if "readonly" in text or "full" in text or "I/O" in text:
        return TargetFailed(
            f"SQLite cannot write {file.path}: {text}",
            state=UNCHANGED,
            next_step="check the disk's free space and the permissions of the file and its folder",
        )
    return TargetFailed(
        f"SQLite refused a statement on {file.path}: {text}",
        state=UNCHANGED,
        next_step="correct the SQL or column_map= of the pipeline;  flow plan  shows what a run does",
    )


def source_error(
    error: sqlite3.Error, file: DatabaseFile, sql: str, failures: list[RowRejected]
) -> FlowError:
    """The error of a read, with the position in the SQL when it is known."""
    text = str(error)
    _raise_if_interrupted(text)
    refused = _find_rejection(text, failures)
    if refused is not None:
        return refused
    if "locked" in text or "busy" in text:
        return SourceFailed(
            f"{file.path} has been locked by another process for {BUSY_SECONDS:g} s",
            next_step="wait until the other process has committed, then run it again",
        )
    if "unable to open" in text or "not a database" in text:
        return open_error(error, file)
    return SourceFailed(
        f"SQLite on connection {file.connection!r} reports: {text}{_position(text, sql)}",
        next_step="correct the source SQL",
    )


def _raise_if_interrupted(text: str) -> None:
    """SQLite reports a Ctrl-C during a statement as this error."""
    if text == "interrupted":
        raise KeyboardInterrupt


def _find_rejection(text: str, failures: list[RowRejected]) -> RowRejected | None:
    from ematix_flow.strategies.functions.base import find_rejection

    rejection = find_rejection(text)
    if rejection is not None:
        return RowRejected(rejection)
    if failures and "user-defined function" in text:
        return failures.pop()
    return None


def _constraint_error(text: str) -> RowRejected:
    match = _CONSTRAINT.match(text)
    kind, subject = (match[1], match[2] or "") if match else ("", text)
    what, step = {
        "NOT NULL": (
            f"{subject} would be null, and does not allow nulls",
            "fill or filter them in the source SQL",
        ),
        "UNIQUE": (
            f"a row with the same {subject} exists already, or comes twice",
            "remove duplicates in the source SQL, or load with a mode that replaces rows",
        ),
        "CHECK": (f"a value breaks the rule: {subject}", "correct or filter the value in the source SQL"),
        "FOREIGN KEY": ("a row refers to a row that does not exist", "load the table it refers to first"),
    }.get(kind, (f"SQLite refused a row: {text}", "correct or filter the row in the source SQL"))
    return RowRejected(what, state=UNCHANGED, next_step=step)


def _locked_error(file: DatabaseFile) -> TargetFailed:
    return TargetFailed(
        f"{file.path} has been locked by another process for {BUSY_SECONDS:g} s",
        state=UNCHANGED,
        next_step="wait until the other process has committed, then run it again",
    )


def _position(text: str, sql: str) -> str:
    """Line and column of the word that SQLite names, when it occurs once in the SQL."""
    match = _NAMED.match(text)
    name = (match[1] or match[2]) if match else ""
    if not name or sql.count(name) != 1:
        return ""
    before = sql[: sql.index(name)]
    return f" (line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))})"
