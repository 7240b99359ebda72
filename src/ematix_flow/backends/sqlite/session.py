"""Sessions of a SQLite target.

A write session creates a missing file. A read session never writes; without a file it sees an empty
database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sqlite.connection import OpenConnection, file_uri, open_connection, target_error

_CACHE_KIB = 64 << 10  # keys in random order touch many pages of an index


class SQLiteSession(SqlSession):
    """One connection of a target, with explicit transactions."""

    def __init__(self, connection: OpenConnection, file: DatabaseFile) -> None:
        self.connection, self.failures = connection
        self.file = file

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> int:
        with self._translate_errors(), closing(self.connection.execute(sql, dict(params or {}))) as cursor:
            return max(cursor.rowcount, 0)

    def fetch(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with self._translate_errors(), closing(self.connection.execute(sql, dict(params or {}))) as cursor:
            return cursor.fetchall()

    def fetch_samples(self, sql: str) -> list[tuple[Any, ...]]:
        """Bytes of a text that are not UTF-8 become U+FFFD."""
        before, self.connection.text_factory = self.connection.text_factory, _read_text
        try:
            return self.fetch(sql)
        finally:
            self.connection.text_factory = before

    def begin(self) -> None:
        self.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self.execute("COMMIT")

    def rollback(self) -> None:
        if self.connection.in_transaction:  # a failed statement may have ended the transaction
            self.execute("ROLLBACK")

    def attach(self, path: str, name: str) -> None:
        """Attach another database for reading; not inside a transaction."""
        self.execute(f'ATTACH :path AS "{name}"', {"path": file_uri(path, "ro")})

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise target_error(error, self.file, self.failures) from error


def _read_text(raw: bytes) -> str:
    return raw.decode(errors="replace")


@contextmanager
def open_write_session(file: DatabaseFile) -> Iterator[SQLiteSession]:
    file.require_folder()
    with open_connection(file, "rwc") as found:
        found[0].execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        yield SQLiteSession(found, file)


@contextmanager
def open_read_session(file: DatabaseFile) -> Iterator[SQLiteSession]:
    """A read-only session; a missing database reads as empty."""
    file.require_folder()
    with open_connection(file, "ro" if file.exists else None) as found:
        yield SQLiteSession(found, file)
