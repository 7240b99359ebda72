"""A SQLite file as a source, opened for reading. A probe reads in one transaction."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlglot import exp

from ematix_probe.column_types import family_of, plain_type
from ematix_probe.errors import CannotConnect, DeclarationError, SourceFailed
from ematix_probe.location import caller_location
from ematix_probe.sources.base import ColumnInfo, OpenSubject, Source, Subject
from ematix_probe.sources.interrupting import run_interruptibly
from ematix_probe.sources.sql_subject import (
    check_timeout,
    describing,
    reference_subject,
    subject_tree,
    without_secrets,
)

_BUSY_SECONDS = 10.0
_STEPS = 100_000  # of SQLite's machine, between two looks at the clock
_VIEW = "ematix_probe_described"


@dataclass(frozen=True)
class SQLiteSource(Source):
    """A file. ``timeout``: the seconds that a statement may take."""

    kind = "sqlite"
    path: str
    timeout: float | None = None

    @property
    def label(self) -> str:
        return self.path

    @contextmanager
    def open(self, subject: Subject) -> Iterator[OpenSubject]:
        path = Path(self.path).expanduser()
        if not path.is_file():
            raise CannotConnect(f"there is no SQLite file {self.path}", next_step="correct the path")
        uri = f"file:{quote(str(path.resolve()))}?mode=ro"
        try:
            connection = sqlite3.connect(
                uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise CannotConnect(f"{self.path} cannot be opened: {error}") from None
        with closing(connection):
            yield OpenSQLite(connection, subject, self)


class OpenSQLite(OpenSubject):
    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection, subject: Subject, source: SQLiteSource) -> None:
        from ematix_probe.sources.sqlite_functions import register

        self._connection, self._source = connection, source
        connection.text_factory = lambda raw: raw.decode(errors="replace")
        register(connection)
        self._run("BEGIN")
        self._subject = self._stored(subject)
        self._columns, self._key = self._describe(self._subject)

    def columns(self) -> Sequence[ColumnInfo]:
        return self._columns

    def rows(self) -> exp.Query | exp.Table:
        return subject_tree(self._subject)

    def reference(self, table: str) -> exp.Query | exp.Table:
        return subject_tree(self._stored(reference_subject(table)))

    def reference_columns(self, table: str) -> Sequence[ColumnInfo]:
        return self._describe(self._stored(reference_subject(table)))[0]

    def key(self) -> Sequence[str]:
        return self._key

    def fetch(self, query: exp.Query) -> list[tuple[object, ...]]:
        return self._run(query.sql(dialect=self.dialect))

    def _stored(self, subject: Subject) -> Subject:
        """The subject as it is stored: a pipeline writes the table ``schema__table``, for want of schemas."""
        if subject.query is not None or subject.schema in (None, "main", "temp"):
            return subject
        flat = f"{subject.schema}__{subject.table}"
        found = self._run(f"PRAGMA main.table_info({exp.to_identifier(flat, quoted=True).sql('sqlite')})")
        return Subject(flat) if found else subject

    def _describe(self, subject: Subject) -> tuple[tuple[ColumnInfo, ...], tuple[str, ...]]:
        self._run(describing(subject_tree(subject)).sql(dialect=self.dialect))
        schema, name, query = subject.schema, subject.table, subject.query
        if query is not None:
            schema, name = "temp", _VIEW
            inner = subject_tree(subject).this.this.this
            self._run(f'CREATE TEMP VIEW "{_VIEW}" AS {inner}')
        pragma = exp.to_identifier(name, quoted=True).sql("sqlite")
        where = f"{exp.to_identifier(schema, quoted=True).sql('sqlite')}." if schema else ""
        found = self._run(f"PRAGMA {where}table_xinfo({pragma})")
        if query is not None:
            self._run(f'DROP VIEW temp."{_VIEW}"')
        shown = [row for row in found if row[6] != 1]  # 1: hidden columns of virtual tables
        columns = tuple(
            _column(str(row[1]), str(row[2]), None if query is not None else not (row[3] or row[5]))
            for row in shown
        )
        key = sorted((row for row in shown if row[5]), key=lambda row: int(str(row[5])))
        return columns, tuple(str(row[1]) for row in key)

    def _run(self, sql: str) -> list[tuple[object, ...]]:
        limit = self._source.timeout
        if limit is not None:
            deadline = time.monotonic() + limit
            self._connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _STEPS)
        try:
            return run_interruptibly(
                lambda: self._connection.execute(sql).fetchall(), self._connection.interrupt
            )
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            message = without_secrets(str(error), ())
            if message == "interrupted" and limit is not None:
                message = f"the statement took longer than {limit:g} s"
            state = next_step = None
            if "not a database" in message:
                next_step = "name a SQLite file"
            elif "user-defined function raised" in message:  # whose arguments Python could not read
                message = (
                    "a text is not valid UTF-8: no pattern can be compared with it, no time read from it"
                )
                next_step = "correct the text, or leave such rows out with where= or a query"
            elif "is locked" in message:
                state = f"another connection writes to it, and {_BUSY_SECONDS:g} s were waited"
                next_step = "run the probe when that transaction has ended; with WAL, readers need not wait"
            raise SourceFailed(message, where=self._source.label, state=state, next_step=next_step) from None


def sqlite(path: str | Path, *, timeout: float | None = None) -> SQLiteSource:
    """A SQLite file."""
    if not isinstance(path, (str, Path)) or not str(path).strip():
        raise DeclarationError(f"sqlite() takes a path, not {path!r}", where=caller_location())
    return SQLiteSource(str(path), check_timeout(timeout))


def _column(name: str, declared: str, nullable: bool | None) -> ColumnInfo:
    plain = _plain(declared)
    return ColumnInfo(name, family_of(plain), plain, nullable, declared)  # type: ignore[arg-type]


def _plain(declared: str) -> str:
    """The declared type; where it is none that we know, by SQLite's own rules of affinity."""
    try:
        return plain_type(declared)
    except ValueError:
        pass
    upper = re.sub(r"\(.*", "", declared.upper())
    if "INT" in upper:
        return "integer"
    if any(part in upper for part in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in upper:
        return "bytes"
    if any(part in upper for part in ("REAL", "FLOA", "DOUB")):
        return "double"
    return "other"
