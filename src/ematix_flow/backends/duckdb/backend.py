"""One DuckDB file as a backend."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import duckdb

from ematix_flow.backends.base import BatchSource, BatchTarget
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.duckdb.failures import source_error, translate_errors
from ematix_flow.backends.duckdb.shared_connections import open_connection
from ematix_flow.backends.duckdb.source import DuckDBSource
from ematix_flow.backends.duckdb.target import DuckDBTarget
from ematix_flow.backends.embedded.backend import EmbeddedBackend


class DuckDBBackend(EmbeddedBackend):
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
    product = "DuckDB"
    version = duckdb.__version__

    def open_file(self) -> AbstractContextManager[object]:
        self.file.require_existing()
        return open_connection(self.file, write=False)

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
