"""A SQLAlchemy engine for a DuckDB file, for run logs, slots and dead letters.

SQLAlchemy has no DuckDB dialect: this is the part that a few plain statements need. Connections come from
`shared_connections`, so that the file is free for other processes between two calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import duckdb
import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.sql.compiler import GenericTypeCompiler, SQLCompiler

from ematix_flow.backends.duckdb.shared_connections import open_connection
from ematix_flow.backends.embedded.database_file import DatabaseFile


def sql_engine(file: DatabaseFile, *, write: bool) -> sa.Engine:
    def opened() -> _DbApiConnection:
        return _DbApiConnection(file, write=write or not file.exists)

    return sa.create_engine(
        "duckdb+ematix://", creator=opened, poolclass=sa.pool.NullPool, hide_parameters=True
    )


class _DbApiConnection:
    """A cursor of a shared connection as a DB-API connection; closing it releases the shared connection."""

    def __init__(self, file: DatabaseFile, *, write: bool) -> None:
        self._write = write
        with ExitStack() as stack:
            self._connection = stack.enter_context(open_connection(file, write=write))
            self._opened = stack.pop_all()

    def begin(self) -> None:
        if self._write:  # a reader is in a transaction already
            self._connection.execute("BEGIN TRANSACTION")

    def cursor(self) -> _DbApiCursor:
        return _DbApiCursor(self._connection)

    def commit(self) -> None:
        if self._write:
            self._connection.execute("COMMIT")

    def rollback(self) -> None:
        try:
            if self._write:
                self._connection.execute("ROLLBACK")
        except duckdb.TransactionException:
            return  # there was none, or a failed commit has ended it

    def close(self) -> None:
        self._opened.close()


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


class _StatementCompiler(SQLCompiler):
    def for_update_clause(self, select: Any, **_: Any) -> str:
        return ""


class _TypeCompiler(GenericTypeCompiler):
    def visit_JSON(self, type_: Any, **_: Any) -> str:
        return "VARCHAR"


class _DbApiModule:
    """DuckDB's module plus the one DB-API name that it lacks."""

    Binary = bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(duckdb, name)


class DuckDBEngineDialect(DefaultDialect):
    name = "duckdb"
    driver = "ematix"
    default_paramstyle = "qmark"
    statement_compiler = _StatementCompiler
    type_compiler_cls = _TypeCompiler
    supports_statement_cache = True
    supports_native_boolean = True
    supports_multivalues_insert = True

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

    def has_schema(self, connection: sa.Connection, schema_name: str, **_: Any) -> bool:
        query = "SELECT 1 FROM duckdb_schemas() WHERE database_name = current_database() AND schema_name = ?"
        return bool(connection.exec_driver_sql(query, (schema_name,)).fetchall())


sa.dialects.registry.register("duckdb.ematix", __name__, DuckDBEngineDialect.__name__)
