"""Sessions of a DuckDB target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb

from ematix_flow.backends.duckdb import row_hash
from ematix_flow.backends.duckdb.failures import target_error, translate_errors
from ematix_flow.backends.duckdb.shared_connections import open_connection
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.backends.sql.session import SamplesRefused, SqlSession
from ematix_flow.errors import FlowError
from ematix_probe.sources.interrupting import run_interruptibly


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

    def fetch_samples(self, sql: str) -> list[tuple[Any, ...]]:
        """DuckDB has no savepoints: any error of a statement ends the transaction."""
        try:
            return self.fetch(sql)
        except FlowError as error:
            raise SamplesRefused from error

    def _run(self, sql: str, params: Mapping[str, Any] | None) -> None:
        values = dict(params) if params else None
        run_interruptibly(lambda: self.connection.execute(sql, values), self.connection.interrupt)

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
