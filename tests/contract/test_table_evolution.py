"""Tables that change, on every SQL database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ematix_flow import DuckDBConnection, PostgresConnection, SQLiteConnection
from ematix_flow.backends.base import Backend
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.tables import TableSpec
from ematix_flow.testing.history import HistoryContract
from tests.reading import read_table


class ReadBack(HistoryContract):
    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        return read_table(backend, table)


class TestSQLite(ReadBack):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return open_backend(SQLiteConnection(name="target", path=str(tmp_path / "target.db")))


class TestDuckDB(ReadBack):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return open_backend(DuckDBConnection(name="target", path=str(tmp_path / "target.duckdb")))


class TestPostgres(ReadBack):
    @pytest.fixture
    def backend(self, pg_database: str) -> Backend:
        return open_backend(PostgresConnection(name="target", url=pg_database))
