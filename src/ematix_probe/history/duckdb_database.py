"""A history in a DuckDB file, and the part of a SQLAlchemy dialect that its few statements need.

DuckDB lets one process at a time write a file: a connection waits until the file is free.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import SQLAlchemyError

from ematix_probe.errors import HistoryError
from ematix_probe.history.database import HistoryDatabase, database_message
from ematix_probe.history.tables import history_tables

SCHEMA = "ematix_probe"
_BUSY_SECONDS = 30.0


class DuckDBDatabase(HistoryDatabase):
    gives_ids = False

    def __init__(self, path: Path) -> None:
        self._path, self.location = path, f"duckdb://{path}"
        self.tables = history_tables(schema=SCHEMA, foreign_key=False)

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def engine(self, *, write: bool) -> sa.Engine:
        if write and not self._path.parent.is_dir():
            raise HistoryError(
                f"the history {self.location} cannot be made: there is no folder {self._path.parent}",
                next_step="make the folder, or name another file",
            )
        return sa.create_engine(
            "duckdb+ematix_probe://",
            creator=lambda: _DbApiConnection(self._path, write=write),
            poolclass=sa.pool.NullPool,
            hide_parameters=True,
        )

    def create(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{SCHEMA}"')
        super().create(connection)

    def is_conflict(self, error: SQLAlchemyError) -> bool:
        text = database_message(error).lower()
        return "conflict" in text or "duplicate key" in text or "already exists" in text


class _DbApiConnection:
    """DuckDB's connection as SQLAlchemy expects it."""

    def __init__(self, path: Path, *, write: bool) -> None:
        self._connection = _open(path, read_only=not write)

    def cursor(self) -> _DbApiCursor:
        return _DbApiCursor(self._connection)

    def begin(self) -> None:
        self._connection.execute("BEGIN TRANSACTION")

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        try:
            self._connection.execute("ROLLBACK")
        except duckdb.TransactionException:
            return  # there was none, or a failed commit has ended it

    def close(self) -> None:
        self._connection.close()


class _DbApiCursor:
    """Gives ``rowcount`` the number of changed rows, which DuckDB returns as a row."""

    arraysize = 1
    lastrowid = None

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self.rowcount = -1
        self.description: Any = None

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self._connection.execute(statement, list(parameters))
        self.rowcount, self.description = -1, self._connection.description
        if statement.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE")):
            counted = self._connection.fetchone()
            self.rowcount, self.description = int(counted[0]) if counted else 0, None

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        for parameters in rows:
            self.execute(statement, parameters)

    def fetchone(self) -> Any:
        return self._connection.fetchone()

    def fetchmany(self, size: int = 1) -> list[Any]:
        return self._connection.fetchmany(size)

    def fetchall(self) -> list[Any]:
        return self._connection.fetchall()

    def close(self) -> None:
        return


def _open(path: Path, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    """A connection to the file, when no other process has it any more."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return duckdb.connect(str(path), read_only=read_only)
        except duckdb.IOException as error:
            if "lock" not in str(error).lower() or time.monotonic() > deadline:
                raise
        except duckdb.ConnectionException as error:  # this process has it open in the other mode
            if "configuration" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.005, 0.05))


class _DbApiModule:
    """DuckDB's module plus the one DB-API name that it lacks."""

    Binary = bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(duckdb, name)


class DuckDBHistoryDialect(DefaultDialect):
    name = "duckdb"
    driver = "ematix_probe"
    default_paramstyle = "qmark"
    supports_statement_cache = True
    supports_native_boolean = True

    @classmethod
    def import_dbapi(cls) -> Any:
        return _DbApiModule()

    def do_begin(self, dbapi_connection: Any) -> None:
        dbapi_connection.begin()

    def has_table(
        self, connection: sa.Connection, table_name: str, schema: str | None = None, **_: Any
    ) -> bool:
        query = "SELECT 1 FROM duckdb_tables() WHERE database_name = current_database()"
        query += " AND schema_name = ? AND table_name = ?"
        return bool(connection.exec_driver_sql(query, (schema or "main", table_name)).fetchall())


sa.dialects.registry.register("duckdb.ematix_probe", __name__, DuckDBHistoryDialect.__name__)
