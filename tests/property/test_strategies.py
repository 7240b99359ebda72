"""Every strategy on every database against a short model of what it means, over random histories.

By default some thousand: most on SQLite and Postgres, fewer on DuckDB and MariaDB, whose statements are made
by the same code. ``make test-long`` takes twenty thousand on each of the databases in a file, and hundreds on
the servers.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ematix_flow import DuckDBConnection, MySQLConnection, PostgresConnection, SQLiteConnection
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.spec.connections import Connection
from tests.property.strategy_driving import Database
from tests.property.strategy_histories import Polling, Scenario, pollings, scenarios
from tests.services.mysql_server import MySQLServer
from tests.services.postgres import PostgresServer

pytestmark = pytest.mark.timeout(3_600)

NAN, INFINITE = float("nan"), float("inf")
PLAIN = ("append", "truncate")
EVERY = (*PLAIN, "merge", "versions", "events")
POLLED = ("append", "keyed", "merge", "versions", "events")
SQLITE_LACKS, MARIADB_LACKS = (NAN,), (NAN, INFINITE)
# names, or a character of names, that the database itself cannot keep
MARIADB_NEVER, SQLITE_NEVER = ("\U0001f600", "  ", "İ"), ("true",)


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
    """In memory if possible: these tests are not about disks."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def sqlite(folder: Path) -> Database:
    return opened(SQLiteConnection(name="sqlite", path=str(folder / "target.db")))


class DatabaseThread:
    """A database in one separate thread, where DuckDB needs no further thread for each statement."""

    def __init__(self, database: Database, pool: ThreadPoolExecutor) -> None:
        self.database, self.pool = database, pool

    def check(self, scenario: Scenario) -> None:
        self.pool.submit(self.database.check, scenario).result()

    def poll(self, polling: Polling) -> None:
        self.pool.submit(self.database.poll, polling).result()


@pytest.fixture(scope="module")
def duck(folder: Path) -> Iterator[DatabaseThread]:
    path = folder / "target.duckdb"
    with duckdb.connect(str(path)) as kept, ThreadPoolExecutor(1) as pool:  # it takes long to open a file
        kept.execute("SET threads = 1")
        yield DatabaseThread(opened(DuckDBConnection(name="duckdb", path=str(path))), pool)


@pytest.fixture(scope="module")
def pg(postgres: PostgresServer) -> Iterator[Database]:
    postgres.start()
    name = postgres.create_database("strategies")
    yield opened(PostgresConnection(name="postgres", url=postgres.url(name)))
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def maria(mariadb: MySQLServer) -> Iterator[Database]:
    with mariadb.own_database("strategies") as url:
        yield opened(MySQLConnection(name="mariadb", url=url))


class TestSQLite:
    @examples(120)
    @given(scenarios(PLAIN, SQLITE_LACKS, SQLITE_NEVER))
    def test_append_and_truncate(self, sqlite: Database, scenario: Scenario) -> None:
        sqlite.check(scenario)

    @examples(120)
    @given(scenarios(("merge",), SQLITE_LACKS, SQLITE_NEVER))
    def test_merge(self, sqlite: Database, scenario: Scenario) -> None:
        sqlite.check(scenario)

    @examples(70)
    @given(scenarios(("versions",), SQLITE_LACKS, SQLITE_NEVER))
    def test_scd2_by_load_time(self, sqlite: Database, scenario: Scenario) -> None:
        sqlite.check(scenario)

    @examples(70)
    @given(scenarios(("events",), SQLITE_LACKS, SQLITE_NEVER))
    def test_scd2_by_event_time(self, sqlite: Database, scenario: Scenario) -> None:
        sqlite.check(scenario)

    @examples(80)
    @given(pollings(POLLED, SQLITE_LACKS, SQLITE_NEVER))
    def test_incremental_reads(self, sqlite: Database, polling: Polling) -> None:
        sqlite.poll(polling)

    @pytest.mark.long
    @examples(20_000)
    @given(scenarios(EVERY, SQLITE_LACKS, SQLITE_NEVER))
    def test_twenty_thousand_histories(self, sqlite: Database, scenario: Scenario) -> None:
        sqlite.check(scenario)


class TestDuckDB:
    @examples(40)
    @given(scenarios(PLAIN))
    def test_append_and_truncate(self, duck: DatabaseThread, scenario: Scenario) -> None:
        duck.check(scenario)

    @examples(20)
    @given(scenarios(("merge",)))
    def test_merge(self, duck: DatabaseThread, scenario: Scenario) -> None:
        duck.check(scenario)

    @examples(20)
    @given(scenarios(("versions",)))
    def test_scd2_by_load_time(self, duck: DatabaseThread, scenario: Scenario) -> None:
        duck.check(scenario)

    @examples(20)
    @given(scenarios(("events",)))
    def test_scd2_by_event_time(self, duck: DatabaseThread, scenario: Scenario) -> None:
        duck.check(scenario)

    @examples(15)
    @given(pollings(POLLED))
    def test_incremental_reads(self, duck: DatabaseThread, polling: Polling) -> None:
        duck.poll(polling)

    @pytest.mark.long
    @examples(20_000)
    @given(scenarios(EVERY))
    def test_twenty_thousand_histories(self, duck: DatabaseThread, scenario: Scenario) -> None:
        duck.check(scenario)


class TestPostgres:
    @examples(80)
    @given(scenarios(EVERY))
    def test_every_strategy(self, pg: Database, scenario: Scenario) -> None:
        pg.check(scenario)

    @examples(40)
    @given(pollings(POLLED))
    def test_incremental_reads(self, pg: Database, polling: Polling) -> None:
        pg.poll(polling)

    @pytest.mark.long
    @examples(500)
    @given(scenarios(EVERY))
    def test_hundreds_of_histories(self, pg: Database, scenario: Scenario) -> None:
        pg.check(scenario)


class TestMariaDB:
    @examples(20)
    @given(scenarios(EVERY, MARIADB_LACKS, MARIADB_NEVER))
    def test_every_strategy(self, maria: Database, scenario: Scenario) -> None:
        maria.check(scenario)

    @examples(15)
    @given(pollings(POLLED, MARIADB_LACKS, MARIADB_NEVER))
    def test_incremental_reads(self, maria: Database, polling: Polling) -> None:
        maria.poll(polling)

    @pytest.mark.long
    @examples(500)
    @given(scenarios(EVERY, MARIADB_LACKS, MARIADB_NEVER))
    def test_hundreds_of_histories(self, maria: Database, scenario: Scenario) -> None:
        maria.check(scenario)

    @pytest.mark.long
    @examples(200)
    @given(pollings(POLLED, MARIADB_LACKS, MARIADB_NEVER))
    def test_hundreds_of_incremental_reads(self, maria: Database, polling: Polling) -> None:
        maria.poll(polling)
