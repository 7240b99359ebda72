"""Tables that change, on every SQL database: whole on SQLite and Postgres, a third on each of the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import DuckDBConnection, MySQLConnection, PostgresConnection, SQLiteConnection
from ematix_flow.backends.base import Backend, BatchTarget
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.evolution import BIG, load_with_changes, table_of, value_column
from ematix_flow.testing.history import HistoryContract
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.samples import HOSTILE_NAMES
from tests.reading import read_table


class ReadBack(HistoryContract):
    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        return read_table(backend, table)


class TestSQLite(ReadBack):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return open_backend(SQLiteConnection(name="target", path=str(tmp_path / "target.db")))


@pytest.mark.sampled(0, of=3)
class TestDuckDB(ReadBack):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return open_backend(DuckDBConnection(name="target", path=str(tmp_path / "target.duckdb")))


class Alters(ReadBack):
    """Databases that change a table statement by statement."""

    def test_any_part_of_a_switch_to_versions_is_finished_by_the_next_run(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        matching = Matching(keys=("id",), compare=("value",), update=("value",))
        for done in range(7):
            table = table_of(value_column(DataType("integer")), name=f"evolving{done}")
            first = new_load(table, "merge", matching=matching)
            load_rows(target, first, [{"id": 1, "value": 1}, {"id": 2, "value": 2}])
            history = replace(
                table_of(value_column(BIG), name=table.name), keeps="versions", merge_keys=("id",)
            )
            changes = target.plan_table(history, target.inspect(history), matching).changes
            assert len(changes) == 7
            for change in changes[:done]:
                target.run_sql(change.sql)
            load = new_load(history, "scd2", matching=matching)
            load_with_changes(target, load, [{"id": 1, "value": 1}, {"id": 2, "value": 22}])
            began, now = first.loaded_at, load.loaded_at
            assert self.versions(backend, history) == [
                (1, 1, began, None, True),
                (2, 2, began, now, False),
                (2, 22, now, None, True),
            ]


class TestPostgres(Alters):
    @pytest.fixture
    def backend(self, pg_database: str) -> Backend:
        return open_backend(PostgresConnection(name="target", url=pg_database))


class Family(Alters):
    never_named = tuple(name for name in HOSTILE_NAMES if name.startswith("emoji"))  # never: 3 bytes a letter


@pytest.mark.sampled(1, of=3)
class TestMariaDB(Family):
    @pytest.fixture
    def backend(self, mariadb_database: str) -> Backend:
        return open_backend(MySQLConnection(name="target", url=mariadb_database))


@pytest.mark.sampled(2, of=3)
class TestMySQL(Family):
    @pytest.fixture
    def backend(self, mysql_database: str) -> Backend:
        return open_backend(MySQLConnection(name="target", url=mysql_database))
