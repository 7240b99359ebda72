"""Every target backend against the one contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ematix_flow import DuckDBConnection, ObjectStoreLocalConnection, PostgresConnection, SQLiteConnection
from ematix_flow.backends.base import Backend
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.tables import TableSpec
from ematix_flow.testing.contract import APPLY_POINTS, TargetContract
from ematix_flow.testing.contract_merge import MergeContract
from ematix_flow.testing.contract_scd2 import Scd2Contract
from tests.contract.chosen import IN_EVERY_RUN
from tests.reading import read_table


class ReadBack(MergeContract, Scd2Contract):
    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        return read_table(backend, table)


class TestSQLite(ReadBack):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return open_backend(SQLiteConnection(name="target", path=str(tmp_path / "target.db")))


@pytest.mark.sampled(0, of=3)
class TestDuckDB(ReadBack):
    """The statements are Postgres' but for types and functions; MariaDB runs another third."""

    in_every_run = IN_EVERY_RUN

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Backend]:
        path = str(tmp_path / "target.duckdb")
        with duckdb.connect(path):  # opening a file takes long if no connection has it open
            yield open_backend(DuckDBConnection(name="target", path=path))


class TestPostgres(ReadBack):
    @pytest.fixture
    def backend(self, pg_database: str) -> Backend:
        return open_backend(PostgresConnection(name="target", url=pg_database))


class TestParquet(TargetContract):
    """Never merge and scd2: files are written once, and a folder of them finds no row by its key."""

    points = (*APPLY_POINTS, "files.version_written", "files.before_publish", "files.after_publish")

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        connection = ObjectStoreLocalConnection(name="target", path=str(tmp_path / "lake"), format="parquet")
        return open_backend(connection)

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        return read_table(backend, table)
