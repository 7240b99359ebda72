"""Sessions of a DuckDB target."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb

from ematix_flow.backends.duckdb import row_hash
from ematix_flow.backends.duckdb.failures import target_error, translate_errors
from ematix_flow.backends.duckdb.shared_connections import open_connection
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.backends.sql.session import SqlSession

_PAUSE_SECONDS = 0.05


class DuckDBSession(SqlSession):
    """One connection of a target, with explicit transactions."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, file: DatabaseFile) -> None:
        self.connection, self.file = connection, file

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> int:
        with translate_errors(lambda error: target_error(error, self.file)):
            self._run(sql, params)
            named = [column[0] for column in self.connection.description or ()]
            row = self.connection.fetchone() if named == ["Count"] else None
            return int(row[0]) if row else 0

    def fetch(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with translate_errors(lambda error: target_error(error, self.file)):
            self._run(sql, params)
            return self.connection.fetchall()

    def _run(self, sql: str, params: Mapping[str, Any] | None) -> None:
        """In the main thread, where Ctrl-C arrives, run it in another thread: DuckDB would react late."""
        values = dict(params) if params else None
        if threading.current_thread() is not threading.main_thread():
            self.connection.execute(sql, values)
            return
        done = threading.Event()  # not Thread.join: after an interrupt it treats a running thread as ended
        failed: list[Exception] = []

        def run() -> None:
            try:
                self.connection.execute(sql, values)
            except Exception as error:
                failed.append(error)
            finally:
                done.set()

        threading.Thread(target=run, name="duckdb-statement", daemon=True).start()
        try:
            done.wait()
        finally:
            while not done.is_set():
                self.connection.interrupt()
                done.wait(_PAUSE_SECONDS)
        if failed:
            raise failed[0]

    def begin(self) -> None:
        self.execute("BEGIN TRANSACTION")

    def commit(self) -> None:
        with translate_errors(lambda error: target_error(error, self.file)):  # a commit is never interrupted
            self.connection.execute("COMMIT")

    def rollback(self) -> None:
        try:
            self.connection.execute("ROLLBACK")
        except duckdb.TransactionException:
            return  # a failed commit has ended it already
        except duckdb.Error as error:
            raise target_error(error, self.file) from error


@contextmanager
def open_write_session(file: DatabaseFile) -> Iterator[DuckDBSession]:
    """A write session; it creates a missing database."""
    file.require_folder()
    with open_connection(file, write=True) as connection:
        row_hash.register_normal_json(connection)
        yield DuckDBSession(connection, file)


@contextmanager
def open_read_session(file: DatabaseFile) -> Iterator[DuckDBSession]:
    """A read-only session; a missing database reads as empty."""
    file.require_folder()
    if file.exists:
        with open_connection(file, write=False) as connection:
            yield DuckDBSession(connection, file)
    else:
        with duckdb.connect(":memory:") as empty:
            yield DuckDBSession(empty, file)
