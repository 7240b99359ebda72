"""Run logs of earlier and later versions of this package, in every database that can hold one."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from ematix_flow.backends.state_stores.run_logs import open_actions, open_run_log, open_slots, sql_tables
from ematix_flow.errors import ConfigError
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.runlog.tables import UPGRADES
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.sql.column_types import ExactText, UtcDateTime

NOON = dt.datetime(2026, 5, 17, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)
first_version = sa.MetaData()
version = sa.Table(
    "run_log_version",
    first_version,
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("migrated_at", UtcDateTime, nullable=False),
)
runs = sa.Table(
    "run_log",
    first_version,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("pipeline", ExactText(512), nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("mode", sa.String(255), nullable=False),
    sa.Column("path", sa.String(255)),
    sa.Column("trigger", sa.String(32), nullable=False, quote=True),
    sa.Column("slot", UtcDateTime),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("started_at", UtcDateTime, nullable=False),
    sa.Column("finished_at", UtcDateTime),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.BigInteger, nullable=False),
    *(sa.Column(f"rows_{what}", sa.BigInteger) for what in ("read", "inserted", "updated", "deleted")),
    sa.Column("rows_unchanged", sa.BigInteger),
    sa.Column("source_from", sa.Text),
    sa.Column("source_to", sa.Text),
    sa.Column("error_type", sa.String(255)),
    sa.Column("error_message", sa.Text),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Index("run_log_by_start", "started_at", "run_id"),
    sa.Index("run_log_by_pipeline", "pipeline", "started_at", "run_id"),
    sa.Index("run_log_by_status", "status", "started_at", "run_id"),
)
ROW = {
    "run_id": "old",
    "pipeline": "orders",
    "target": "dw.orders",
    "mode": "append",
    "trigger": "cli",
    "attempt": 1,
    "status": "succeeded",
    "started_at": NOON,
    "finished_at": NOON + dt.timedelta(seconds=3),
    "host": "here",
    "pid": 7,
    "rows_inserted": 12,
    "metrics": {"seconds": 3},
}


@pytest.fixture(params=["sqlite", "duckdb", "postgres", "mariadb", "mysql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a log as the first version of this package wrote it."""
    kind = request.param
    if kind in ("sqlite", "duckdb"):
        url = f"{kind}://{tmp_path}/run_log.db"
    else:
        url = request.getfixturevalue({"postgres": "pg_database"}.get(kind, f"{kind}_database"))
    tables = sql_tables(url)
    engine = tables.engine.execution_options(schema_translate_map={None: tables.schema})
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if tables.schema is not None:
            connection.execute(sa.schema.CreateSchema(tables.schema))
        first_version.create_all(connection)
        connection.execute(sa.insert(version).values(version=1, migrated_at=NOON))
        connection.execute(sa.insert(runs).values(ROW))
    return url


def test_a_log_of_the_first_version_is_used_with_its_runs(old: str) -> None:
    with open_run_log(old, env={}, reading=True) as log:
        found = log.get("old")
        assert (found.rows.inserted, found.metrics, found.started_at) == (12, {"seconds": 3}, NOON)
        assert (found.batch, found.overdue, found.engine, found.code_version) == (None, (), None, None)
        log.start(RunRecord("new", "orders", "dw.orders", "append", batch="run:1", code_version="1.0"))
        log.finish("new", "failed", error=ValueError("no"), engine="none")
        log.save_output("new", "it went so and so")
        assert (log.get("new").engine, log.output("new")) == ("none", "it went so and so")
        assert [run.run_id for run in log.list("orders")] == ["new", "old"]


def test_many_that_upgrade_it_at_once_do_it_once(old: str) -> None:
    together = threading.Barrier(4)

    def opened(number: int) -> str:
        together.wait()
        with open_run_log(old, env={}, reading=True) as log:
            log.start(RunRecord(f"r{number}", "orders", "dw.orders", "append", engine="none"))
            return log.get("old").run_id

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(opened, range(4))) == ["old"] * 4
    with open_run_log(old, env={}, reading=True) as log:
        assert len(log.list("orders")) == 5


def test_half_an_upgrade_is_finished(old: str) -> None:
    """As MySQL leaves it, whose changes of tables are no part of a transaction."""
    tables = sql_tables(old)
    name = "run_log" if tables.schema is None else f"{tables.schema}.run_log"
    with tables.engine.connect().execution_options(writes=True) as connection, connection.begin():
        connection.execute(sa.text(f"ALTER TABLE {name} ADD COLUMN batch TEXT"))
    with open_run_log(old, env={}, reading=True) as log:
        log.record_batch("old", "run:1", ["a"])
        assert (log.get("old").batch, log.get("old").overdue) == ("run:1", ("a",))


def test_a_log_of_a_later_version_is_refused(old: str) -> None:
    tables = sql_tables(old)
    engine = tables.engine.execution_options(schema_translate_map={None: tables.schema})
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        connection.execute(sa.update(version).values(version=99))
    told = f"has version 99, and .* knows only up to {len(UPGRADES) + 1}"
    with pytest.raises(ConfigError, match=told):
        open_run_log(old, env={}, reading=True)
    with pytest.raises(ConfigError, match=told):
        open_slots(old, env={})


def test_a_log_of_the_first_version_gets_slots_from_any_process_that_opens_it(old: str) -> None:
    with open_slots(old, env={}) as slots:
        assert slots.open([Slot("orders", NOON)]) == 1
    with open_run_log(f"{old}?create_tables=false", env={}, reading=True) as log:
        assert log.get("old").status == "succeeded"
    with open_slots(f"{old}?create_tables=false", env={}) as slots:
        assert [record.slot.fire_time for record in slots.unfinished()] == [NOON]


def test_a_log_of_the_first_version_gets_actions_and_one_that_only_looks_sees_none(old: str) -> None:
    with open_actions(old, env={}, read_only=True) as actions:
        assert actions.list() == () and actions.holds() == ()
    assert version_of(old) == 1
    with open_actions(old, env={}) as actions:
        assert actions.request("run", "orders", {}, by="ada", via="cli")[1]
        assert actions.hold("schedule", "orders", by="ada")
    with open_actions(f"{old}?create_tables=false", env={}, read_only=True) as actions:
        assert [record.subject for record in actions.list()] == ["orders"]
        assert [hold.name for hold in actions.holds()] == ["orders"]


def test_one_that_only_looks_upgrades_nothing(old: str) -> None:
    with pytest.raises(ConfigError, match="has version 1") as refused:
        open_run_log(old, env={}, read_only=True, reading=True)
    assert "flow run" in (refused.value.next_step or "")
    with open_slots(old, env={}, read_only=True) as slots:
        assert slots.unfinished() == [] and slots.last_fires(["orders"]) == {}
    assert version_of(old) == 1
    open_run_log(old, env={}, reading=True).close()
    tables = sql_tables(old)
    engine = tables.engine.execution_options(schema_translate_map={None: tables.schema})
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        connection.execute(sa.update(version).values(version=4))
        for table in ("flow_slots", "flow_leases"):
            name = table if tables.schema is None else f"{tables.schema}.{table}"
            connection.execute(sa.text(f"DROP TABLE {name}"))
    with open_run_log(old, env={}, read_only=True, reading=True) as log:
        assert log.get("old").rows.inserted == 12
    with open_slots(old, env={}, read_only=True) as slots:
        assert slots.newest(["orders"]) == {}
    assert version_of(old) == 4


def version_of(url: str) -> int:
    tables = sql_tables(url)
    engine = tables.engine.execution_options(schema_translate_map={None: tables.schema})
    with engine.connect() as connection:
        return int(connection.execute(sa.select(version.c.version)).scalar_one())


def test_tables_are_not_changed_where_that_is_forbidden(old: str) -> None:
    with pytest.raises(ConfigError, match="create_tables=false"):
        open_run_log(f"{old}?create_tables=false", env={}, reading=True)
    open_run_log(old, env={}, reading=True).close()
    with open_run_log(f"{old}?create_tables=false", env={}, reading=True) as log:
        assert log.get("old").status == "succeeded"
