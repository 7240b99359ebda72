"""One SQLite file as a backend."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from ematix_flow.backends.base import Backend, BatchSource, BatchTarget
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.backends.sqlite.connection import source_connection, source_error
from ematix_flow.backends.sqlite.source import SQLiteSource
from ematix_flow.backends.sqlite.target import SQLiteTarget
from ematix_flow.spec.connections import Connection, SQLiteConnection


class SQLiteBackend(Backend):
    kind = "sqlite"
    capabilities = Capabilities(
        source=True,
        strategies=frozenset({"append", "truncate", "merge", "scd2"}),
        transactions=True,
        same_db=True,
        parallel_read=False,
        parallel_write=False,
        shared_filesystem=True,
        schemas=False,
    )

    def __init__(self, connection: Connection) -> None:
        assert isinstance(connection, SQLiteConnection)
        super().__init__(connection)
        self.file = DatabaseFile.of("SQLite", connection.name, connection.path)

    def check(self) -> str:
        product = f"SQLite {sqlite3.sqlite_version}"
        if self.file.in_memory:
            return f"{product}, in memory"
        if not self.file.exists:
            self.file.require_folder()
            return f"{product}, {self.file.path} (does not exist yet; the first load creates it)"
        with source_connection(self.file):
            return f"{product}, {self.file.path}"

    def identity(self) -> str:
        return self.file.identity()

    def query_context(self) -> Mapping[str, str]:
        """Another hard link to the file has another catalog name and another journal."""
        return {"file": str(self.file.path)}

    def source(self) -> BatchSource:
        return SQLiteSource(self.file)

    def target(self) -> BatchTarget:
        return SQLiteTarget(self.file)

    def query(self, sql: str, limit: int | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
        self.file.require_shared("source")
        with source_connection(self.file) as (connection, failures):
            try:
                cursor = connection.execute(sql)
                rows = cursor.fetchall() if limit is None else cursor.fetchmany(limit)
                return [column[0] for column in cursor.description or ()], rows
            except sqlite3.Error as error:
                raise source_error(error, self.file, sql, failures) from error
