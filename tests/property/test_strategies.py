"""Every strategy on every database against a short model of what it means, over random histories.

By default some thousand examples; ``-m long`` runs twenty thousand.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ematix_flow import DuckDBConnection, SQLiteConnection
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.relational import RelationalTarget
from ematix_flow.spec.connections import Connection
from tests.property.strategy_driving import Database
from tests.property.strategy_histories import Polling, Scenario, pollings, scenarios

PLAIN = ("append", "truncate")
NAN, INFINITE = float("nan"), float("inf")
POLLED = ("append", "keyed", "merge", "versions", "events")


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def opened(connection: Connection) -> Database:
    target = open_backend(connection).target()
    assert isinstance(target, RelationalTarget)
    return Database(target)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory where that can be had: these tests are about meaning, not about disks."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def sqlite(folder: Path) -> Database:
    return opened(SQLiteConnection(name="sqlite", path=str(folder / "target.db")))


@pytest.fixture(scope="module")
def duck(folder: Path) -> Iterator[Database]:
    path = folder / "target.duckdb"
    with duckdb.connect(str(path)):  # kept open: DuckDB takes long to open a file
        yield opened(DuckDBConnection(name="duckdb", path=str(path)))


class TestSQLite:
    @examples(400)
    @given(scenarios(PLAIN, (NAN,)))
    def test_append_and_truncate(self, sqlite: Database, scenario: Scenario) -> None:
        sqlite.check(scenario)

    @examples(600)
    @given(scenarios(("merge",), (NAN,)))
    def test_merge(self, sqlite: Database, scenario: Scenario) -> None:
        sqlite.check(scenario)

    @examples(300)
    @given(scenarios(("versions",), (NAN,)))
    def test_scd2_by_load_time(self, sqlite: Database, scenario: Scenario) -> None:
        sqlite.check(scenario)

    @examples(500)
    @given(scenarios(("events",), (NAN,)))
    def test_scd2_by_event_time(self, sqlite: Database, scenario: Scenario) -> None:
        sqlite.check(scenario)

    @examples(300)
    @given(pollings(POLLED, (NAN,)))
    def test_incremental_reads(self, sqlite: Database, polling: Polling) -> None:
        sqlite.poll(polling)


class TestDuckDB:
    @examples(400)
    @given(scenarios(PLAIN))
    def test_append_and_truncate(self, duck: Database, scenario: Scenario) -> None:
        duck.check(scenario)

    @examples(600)
    @given(scenarios(("merge",)))
    def test_merge(self, duck: Database, scenario: Scenario) -> None:
        duck.check(scenario)

    @examples(300)
    @given(scenarios(("versions",)))
    def test_scd2_by_load_time(self, duck: Database, scenario: Scenario) -> None:
        duck.check(scenario)

    @examples(500)
    @given(scenarios(("events",)))
    def test_scd2_by_event_time(self, duck: Database, scenario: Scenario) -> None:
        duck.check(scenario)

    @examples(300)
    @given(pollings(POLLED))
    def test_incremental_reads(self, duck: Database, polling: Polling) -> None:
        duck.poll(polling)
