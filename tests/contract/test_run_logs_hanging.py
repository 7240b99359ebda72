"""A run log whose tables another session holds, or whose server does not answer: loads continue."""

from __future__ import annotations

import datetime as dt
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from ematix_flow import BigInt, SQLiteConnection, ematix, register_connection
from ematix_flow.backends.postgres import timeouts
from ematix_flow.backends.state_stores import run_logs
from ematix_flow.backends.state_stores.run_logs import open_slots, sql_tables
from ematix_flow.errors import ConfigError
from ematix_flow.state.slots.base import Slot

T = TypeVar("T")
SLOT = Slot("orders", dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc))
TABLES = ("run_log", "run_log_output", "flow_slots")


@pytest.fixture(params=["postgres", "mariadb"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    found: str = request.getfixturevalue({"postgres": "pg_database"}.get(request.param, "mariadb_database"))
    with open_slots(found, env={}) as slots:
        slots.open([SLOT])
    monkeypatch.setattr(run_logs, "MAX_WAIT_SECONDS", 1.0)
    return found


@pytest.fixture
def held(url: str) -> Iterator[str]:
    """Its tables are another session's."""
    tables = sql_tables(url)
    assert tables.maker is not None
    with tables.maker.connect() as other:
        if other.dialect.name == "postgresql":
            names = ", ".join(f"{tables.schema}.{name}" for name in TABLES)
            other.exec_driver_sql(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
        else:
            other.exec_driver_sql(f"LOCK TABLES {', '.join(f'{name} WRITE' for name in TABLES)}")
        yield url
        other.exec_driver_sql("ROLLBACK" if other.dialect.name == "postgresql" else "UNLOCK TABLES")


def not_for_ever(call: Callable[[], T]) -> T:
    """Its output; a test that hangs fails."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).result(60)
    finally:
        pool.shutdown(wait=False)


def test_a_load_goes_on_while_the_tables_of_its_run_log_are_locked(
    held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as shop, shop:
        shop.execute("CREATE TABLE raw (id INTEGER)")
        shop.execute("INSERT INTO raw VALUES (1), (2)")
    register_connection(SQLiteConnection(name="shop", path=str(file)))
    monkeypatch.setenv("EMATIX_FLOW_RUN_LOG_URL", held)

    @ematix.table(name="numbers")
    class Numbers:
        id: BigInt

    @ematix.pipeline(target=Numbers, target_connection="shop", name="numbers")
    def numbers(conn: Any) -> str:
        return "SELECT id FROM raw"

    assert not_for_ever(numbers.sync).rows_inserted == 2
    assert "could not record the start of run" in caplog.text


def test_a_read_of_locked_tables_ends_with_an_error(held: str) -> None:
    def asked() -> None:
        with open_slots(held, env={}) as slots:
            slots.unfinished()

    with pytest.raises(ConfigError, match="timeout") as caught:
        not_for_ever(asked)
    assert "locks its tables" in (caught.value.next_step or "")


def test_a_connection_whose_server_stands_still_is_given_up(
    pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_slots(pg_database, env={}).close()
    monkeypatch.setattr(run_logs, "MAX_WAIT_SECONDS", 0.5)
    monkeypatch.setattr(timeouts, "_GRACE_SECONDS", 0.5)
    with open_slots(pg_database, env={}, keep_open=True) as slots, psycopg.connect(pg_database) as other:
        slots.open([SLOT])
        ours = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        found = [pid for (pid,) in other.execute(ours)]
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert len(found) == 1
            assert [record.slot for record in not_for_ever(slots.unfinished)] == [SLOT]
        finally:
            for pid in found:
                os.kill(pid, signal.SIGCONT)
