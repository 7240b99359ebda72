"""One DuckDB file as a backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb

from ematix_flow.backends.base import Backend, BatchSource, BatchTarget
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.duckdb.failures import source_error, translate_errors
from ematix_flow.backends.duckdb.shared_connections import open_connection
from ematix_flow.backends.duckdb.source import DuckDBSource
from ematix_flow.backends.duckdb.target import DuckDBTarget
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.spec.connections import Connection, DuckDBConnection


class DuckDBBackend(Backend):
    kind = "duckdb"
    capabilities = Capabilities(
        source=True,
        strategies=frozenset({"append", "truncate", "merge", "scd2"}),
        transactions=True,
        same_db=True,
        parallel_read=False,
        parallel_write=True,
        shared_filesystem=True,
    )

    def __init__(self, connection: Connection) -> None:
        assert isinstance(connection, DuckDBConnection)
        super().__init__(connection)
        self.file = DatabaseFile.of("DuckDB", connection.name, connection.path)

    def check(self) -> str:
        product = f"DuckDB {duckdb.__version__}"
        if self.file.in_memory:
            return f"{product}, in memory"
        if not self.file.exists:
            self.file.require_folder()
            return f"{product}, {self.file.path} (does not exist yet; the first load creates it)"
        self.file.require_existing()
        with open_connection(self.file, write=False):
            return f"{product}, {self.file.path}"

    def identity(self) -> str:
        return self.file.identity()

    def query_context(self) -> Mapping[str, str]:
        """Another hard link to the file has another catalog name and another journal."""
        return {"file": str(self.file.path)}

    def source(self) -> BatchSource:
        return DuckDBSource(self.file)

    def target(self) -> BatchTarget:
        return DuckDBTarget(self.file)

    def query(self, sql: str, limit: int | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
        self.file.require_shared("source")
        self.file.require_existing()
        with (
            open_connection(self.file, write=False) as connection,
            translate_errors(lambda error: source_error(error, self.file)),
        ):
            found = connection.execute(sql)
            rows = found.fetchall() if limit is None else found.fetchmany(limit)
            return [column[0] for column in found.description or ()], rows
