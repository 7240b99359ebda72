"""One SQLite file as a backend."""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager
from typing import Any

from ematix_flow.backends.base import BatchSource, BatchTarget
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.embedded.backend import EmbeddedBackend
from ematix_flow.backends.sqlite.connection import source_connection, source_error
from ematix_flow.backends.sqlite.source import SQLiteSource
from ematix_flow.backends.sqlite.target import SQLiteTarget


class SQLiteBackend(EmbeddedBackend):
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
    product = "SQLite"
    version = sqlite3.sqlite_version

    def open_file(self) -> AbstractContextManager[object]:
        return source_connection(self.file)

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
