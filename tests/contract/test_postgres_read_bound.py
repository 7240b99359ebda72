"""How far an incremental read of PostgreSQL goes while transactions are open, and what the plan shows."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from ematix_flow import Pipeline, PostgresConnection, ematix, register_connection
from ematix_flow.backends.base import ReadBound, SourceQuery
from ematix_flow.backends.postgres import read_bound
from ematix_flow.backends.postgres.source import PostgresSource
from ematix_flow.errors import GuaranteeRefused
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from tests.contract.postgres_setup import backend_of, sql
from tests.services.postgres import PostgresServer, running_server

BIG, MOMENT = DataType("big_int"), DataType("timestamp_tz")
SELECT = "SELECT * FROM public.events"
EVENTS = """
CREATE TABLE events (
    id bigserial PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    local timestamp NOT NULL DEFAULT now(),
    day date NOT NULL DEFAULT now(),
    code text NOT NULL DEFAULT 'a'
)
"""
INSERT = "INSERT INTO events DEFAULT VALUES"
COPIED = TableSpec("copied", "events", (ColumnSpec("id", BIG, primary_key=True), ColumnSpec("at", MOMENT)))


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_bound, "WAIT_SECONDS", 0.3)


@pytest.fixture
def url(pg_database: str) -> str:
    sql(pg_database, EVENTS)
    return pg_database


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Another session with its own transactions."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def settled(url: str, column: str, kind: str, low: object = None, **fields: Any) -> ReadBound:
    data_type = DataType(kind)
    mark = None if low is None else Watermark(column, data_type, low)  # type: ignore[arg-type]
    query = SourceQuery(SELECT, SourceRange(column, mark, **fields))
    found = backend_of(url).source().safe_read_bound(query, data_type)
    assert found is not None
    return found


def pipeline_of(url: str, watermark: str, **options: Any) -> Pipeline:
    register_connection(PostgresConnection(name="wh", url=url))

    @ematix.pipeline(
        target=COPIED,
        target_connection="wh",
        incremental=True,
        watermark_column=watermark,
        name="load",
        **options,
    )
    def load(conn: Any) -> str:
        return "SELECT id, at FROM public.events"

    return load


def loaded(url: str) -> list[int]:
    return [row[0] for row in sql(url, "SELECT id FROM copied.events ORDER BY id")]


# ------------------------------------------------------------------ without other sessions


def test_with_nothing_open_all_that_is_there_is_settled(url: str) -> None:
    sql(url, INSERT)
    sql(url, INSERT)
    assert settled(url, "id", "big_int") == ReadBound(Watermark("id", BIG, 2))
    assert settled(url, "code", "text").high.value == "a"
    (newest,) = sql(url, "SELECT max(local), max(day), max(at) FROM events")
    assert newest[2] <= settled(url, "at", "timestamp_tz").high.value
    assert settled(url, "local", "timestamp").high.value == newest[0]
    assert settled(url, "day", "date").high.value == newest[1]


@pytest.mark.parametrize("kind", ["small_int", "integer", "big_int"])
def test_an_empty_source_is_settled_below_every_value(url: str, kind: str) -> None:
    found = settled(url, "id", kind)
    assert found.held_back_by is None
    sql(url, "INSERT INTO events (id) VALUES (-3)")
    assert found.high.value < -3  # type: ignore[operator]
    assert settled(url, "id", kind, low=7).high.value == 7


def test_a_lag_lowers_the_bound_further(url: str) -> None:
    sql(url, "INSERT INTO events (at) VALUES ('2024-01-01T00:00Z')")
    early = Watermark("at", MOMENT, dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc))
    assert settled(url, "at", "timestamp_tz", high=early) == ReadBound(early)
    naive = Watermark("local", DataType("timestamp"), dt.datetime(2024, 1, 1))
    sql(url, "INSERT INTO events (local) VALUES ('2023-05-05'), ('2024-05-05')")
    assert settled(url, "local", "timestamp", high=naive).high.value == dt.datetime(2023, 5, 5)


def test_an_incremental_plan_gives_no_warning_of_late_writers(url: str) -> None:
    plan = pipeline_of(url, "at", guarantee="exactly_once").plan()
    assert plan.targets[0].warnings == ()
    assert plan.targets[0].guarantee.value == "exactly_once"
    assert plan.targets[0].range is not None
    assert plan.targets[0].range.high is not None


@pytest.mark.parametrize("watermark", ["id", "at"])
def test_a_row_is_read_by_a_run_right_after_its_commit(url: str, watermark: str) -> None:
    load = pipeline_of(url, watermark)
    for number in (1, 2):
        sql(url, INSERT)
        load.sync()
        assert loaded(url)[-1] == number


def test_where_no_row_is_new_nobody_waits_for_a_moment_to_be_settled(url: str) -> None:
    sql(url, "INSERT INTO events (at, local, day) VALUES ('2024-01-01Z', '2024-01-01', '2024-01-01')")
    began = time.monotonic()
    before = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=1)
    assert before <= settled(url, "at", "timestamp_tz").high.value  # type: ignore[operator]
    assert settled(url, "local", "timestamp").high.value == dt.datetime(2024, 1, 1)
    assert settled(url, "day", "date").high.value == dt.date(2024, 1, 1)
    assert time.monotonic() - began < 0.8


# ------------------------------------------------------------------ with a transaction open


@pytest.mark.parametrize("column", ["at", "local"])
def test_a_transaction_that_is_shown_late_is_seen_all_the_same(
    url: str, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """The server may be slow to show one that has taken its start: here, half a second."""
    kind = {"at": "timestamp_tz", "local": "timestamp"}[column]
    other.execute("BEGIN")
    (value,) = other.execute(f"INSERT INTO events DEFAULT VALUES RETURNING {column}").fetchall()[0]
    sql(url, INSERT)
    shown, ask = time.monotonic() + 0.5, read_bound._open_transactions
    monkeypatch.setattr(
        read_bound, "_open_transactions", lambda c: ask(c) if time.monotonic() > shown else []
    )
    found = settled(url, column, kind)
    other.execute("COMMIT")
    assert found.high.value <= value


def test_rows_of_an_open_transaction_are_waited_for_and_arrive(
    url: str, other: psycopg.Connection[Any]
) -> None:
    load = pipeline_of(url, "id")
    sql(url, INSERT)
    load.sync()
    other.execute("BEGIN")
    other.execute(INSERT)  # 2
    sql(url, INSERT)  # 3, and it commits first
    held = load.sync()
    assert held.status == "skipped"
    assert loaded(url) == [1]
    words = f"server process {other.info.backend_pid} of user 'postgres' has a transaction open since 2"
    assert [note for note in held.notes if words in note]
    assert words in str(load.plan())
    other.execute("COMMIT")
    assert load.sync().notes == ()
    assert loaded(url) == [1, 2, 3]


@pytest.mark.parametrize("watermark", ["id", "at"])
def test_without_the_bound_the_row_would_be_missed(
    url: str, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, watermark: str
) -> None:
    monkeypatch.setattr(PostgresSource, "safe_read_bound", lambda *_: None)
    load = pipeline_of(url, watermark)
    other.execute("BEGIN")
    other.execute(INSERT)
    sql(url, INSERT)
    assert "may commit rows below the watermark" in str(load.plan())
    load.sync()
    other.execute("COMMIT")
    load.sync()
    assert loaded(url) == [2]


def test_a_value_that_is_drawn_before_anything_is_written_is_waited_for(
    url: str, other: psycopg.Connection[Any]
) -> None:
    other.execute("BEGIN")
    other.execute("SELECT nextval('events_id_seq')")  # it has no transaction id yet
    sql(url, INSERT)
    assert settled(url, "id", "big_int", low=0).high.value == 0
    other.execute("INSERT INTO events (id) VALUES (1)")
    other.execute("COMMIT")
    assert settled(url, "id", "big_int", low=0) == ReadBound(Watermark("id", BIG, 2))


def test_who_only_reads_or_writes_elsewhere_does_not_hold_back_a_sequence(
    url: str, other: psycopg.Connection[Any]
) -> None:
    sql(url, "CREATE TABLE elsewhere (a int)")
    sql(url, INSERT)
    other.execute("BEGIN")
    other.execute("SELECT * FROM events")
    other.execute("INSERT INTO elsewhere VALUES (1)")
    assert settled(url, "id", "big_int") == ReadBound(Watermark("id", BIG, 1))
    other.execute("ROLLBACK")


def test_times_are_read_up_to_the_start_of_the_oldest_transaction_even_if_it_only_read(
    url: str, other: psycopg.Connection[Any]
) -> None:
    load = pipeline_of(url, "at")
    sql(url, INSERT)
    other.execute("BEGIN")
    (start,) = other.execute("SELECT now()").fetchall()[0]
    time.sleep(1.1)
    sql(url, INSERT)
    began = time.monotonic()
    found = settled(url, "at", "timestamp_tz")
    assert time.monotonic() - began < 0.3, "a start is known at once"
    assert found.high.value == start
    assert f"wait for a later run: server process {other.info.backend_pid}" in str(found.held_back_by)
    load.sync()
    assert loaded(url) == [1]
    other.execute(INSERT)
    other.execute("COMMIT")
    load.sync()
    assert loaded(url) == [1, 2, 3]


def test_a_transaction_as_young_as_any_is_no_news(url: str, other: psycopg.Connection[Any]) -> None:
    other.execute("BEGIN")
    other.execute("SELECT 1")
    assert settled(url, "at", "timestamp_tz").held_back_by is None
    other.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("zone", "session_zone"),
    [
        ("UTC", "UTC"),
        ("UTC", "Etc/GMT+12"),
        ("America/Lima", "Pacific/Kiritimati"),
        ("Asia/Tokyo", "America/New_York"),
    ],
)
def test_times_without_zone_are_held_below_what_an_open_transaction_may_write_in_its_zone(
    url: str, zone: str, session_zone: str
) -> None:
    sql(url, f"ALTER DATABASE \"{url.rpartition('/')[2]}\" SET TimeZone = '{zone}'")
    with (
        psycopg.connect(url, autocommit=True) as writer,
        psycopg.connect(url, autocommit=True) as late,
    ):
        for connection in (writer, late):
            connection.execute(f"SET TimeZone = '{session_zone}'")
        late.execute("BEGIN")
        late.execute("SELECT 1")
        writer.execute(INSERT)
        local = settled(url, "local", "timestamp").high.value
        day = settled(url, "day", "date").high.value
        writes = late.execute("INSERT INTO events DEFAULT VALUES RETURNING local, day").fetchall()[0]
        assert local <= writes[0]
        assert day <= writes[1]
        late.execute("COMMIT")
    (newest,) = sql(url, "SELECT max(local) FROM events")
    assert settled(url, "local", "timestamp") == ReadBound(
        Watermark("local", DataType("timestamp"), newest[0])
    )


@pytest.mark.parametrize("zone", ["America/New_York", "UTC", "Asia/Tokyo"])
def test_a_late_row_of_writers_in_another_zone_than_the_database_is_read(url: str, zone: str) -> None:
    sql(url, f"ALTER DATABASE \"{url.rpartition('/')[2]}\" SET TimeZone = 'UTC'")
    register_connection(PostgresConnection(name="wh", url=url))
    columns = (ColumnSpec("id", BIG, primary_key=True), ColumnSpec("local", DataType("timestamp")))

    @ematix.pipeline(
        target=TableSpec("copied", "events", columns),
        target_connection="wh",
        incremental=True,
        watermark_column="local",
    )
    def load(conn: Any) -> str:
        return "SELECT id, local FROM public.events"

    old = "INSERT INTO events (id, local) VALUES (0, now() - interval '2 days')"
    with (
        psycopg.connect(url, autocommit=True) as first,
        psycopg.connect(url, autocommit=True) as second,
    ):
        for connection in (first, second):
            connection.execute(f"SET TimeZone = '{zone}'")
        first.execute("BEGIN")
        first.execute(INSERT)
        time.sleep(0.3)
        second.execute(INSERT)
        second.execute(old)
        load.sync()
        assert loaded(url) == [0], "what lies well below the open transaction's start is read"
        first.execute("COMMIT")
        load.sync()
        assert loaded(url) == [0, 1, 2]


def test_our_own_readers_hold_nothing_back(url: str) -> None:
    sql(url, INSERT)
    source = backend_of(url).source()
    with source.split(SourceQuery(SELECT), {}, 1):
        before = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=1)
        assert before <= settled(url, "at", "timestamp_tz").high.value  # type: ignore[operator]


# ------------------------------------------------------------------ prepared transactions


@pytest.mark.parametrize(
    ("column", "kind"), [("id", "big_int"), ("at", "timestamp_tz"), ("local", "timestamp")]
)
def test_a_prepared_transaction_holds_back_until_it_is_resolved(
    url: str, other: psycopg.Connection[Any], column: str, kind: str
) -> None:
    (low,) = sql(url, f"INSERT INTO events DEFAULT VALUES RETURNING {column}")
    other.execute("BEGIN")
    other.execute(INSERT)
    other.execute("PREPARE TRANSACTION 'transfer 7'")
    sql(url, INSERT)
    try:
        found = settled(url, column, kind, low=low[0])
    finally:
        other.execute("COMMIT PREPARED 'transfer 7'")
    assert found.high.value == low[0]
    assert "new rows wait for a later run: transaction 'transfer 7' of user 'postgres' is prepared" in str(
        found.held_back_by
    )
    assert settled(url, column, kind, low=low[0]).held_back_by is None


def test_a_prepared_transaction_that_wrote_to_no_table_holds_nothing_back(
    url: str, other: psycopg.Connection[Any]
) -> None:
    sql(url, INSERT)
    other.execute("BEGIN")
    other.execute("SELECT txid_current()")
    other.execute("PREPARE TRANSACTION 'idle'")
    try:
        assert settled(url, "at", "timestamp_tz").held_back_by is None
    finally:
        other.execute("ROLLBACK PREPARED 'idle'")


# ------------------------------------------------------------------ a user who sees little


@pytest.fixture
def reader(url: str, postgres: PostgresServer) -> Iterator[str]:
    """The same database for a user who may read the table and see no other user's activity."""
    sql(url, "CREATE ROLE plain_poller LOGIN PASSWORD 'poller-secret'")
    sql(url, "GRANT SELECT ON events TO plain_poller")
    yield postgres.url(url.rpartition("/")[2], user="plain_poller", password="poller-secret")
    sql(url, "DROP OWNED BY plain_poller")
    sql(url, "DROP ROLE plain_poller")


def test_a_user_who_sees_no_starts_waits_for_every_transaction(
    url: str, reader: str, other: psycopg.Connection[Any]
) -> None:
    before = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=1)
    assert before <= settled(reader, "at", "timestamp_tz").high.value  # type: ignore[operator]
    other.execute("BEGIN")
    other.execute("SELECT 1")
    sql(url, INSERT)
    found = settled(reader, "at", "timestamp_tz", low=before)
    assert found.high.value == before
    assert f"server process {other.info.backend_pid} of user 'postgres'" in str(found.held_back_by)
    assert "pg_read_all_stats" in str(found.held_back_by)
    assert settled(reader, "day", "date", low=before.date()).high.value == before.date()
    assert settled(reader, "id", "big_int") == ReadBound(Watermark("id", BIG, 1))
    sql(url, "GRANT pg_read_all_stats TO plain_poller")
    assert before < settled(reader, "at", "timestamp_tz", low=before).high.value  # type: ignore[operator]
    other.execute("ROLLBACK")


def test_a_user_who_sees_no_starts_waits_for_writers_of_the_table(
    url: str, reader: str, other: psycopg.Connection[Any]
) -> None:
    other.execute("BEGIN")
    other.execute(INSERT)
    sql(url, INSERT)
    found = settled(reader, "id", "big_int", low=0)
    assert found.high.value == 0
    assert f"server process {other.info.backend_pid} of user 'postgres'" in str(found.held_back_by)
    assert "pg_read_all_stats" not in str(found.held_back_by)
    other.execute("COMMIT")
    assert settled(reader, "id", "big_int", low=0).high.value == 2


# ------------------------------------------------------------------ a standby


def test_a_standby_cannot_tell_and_the_plan_says_so() -> None:
    with running_server() as server:
        server.execute(EVENTS)
        server.execute("CREATE SCHEMA copied")
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        source = backend_of(server.url()).source()
        assert source.safe_read_bound(SourceQuery(SELECT, SourceRange("at", None)), MOMENT) is None
        words = str(pipeline_of(server.url(), "at").plan())
        assert "lag= holds the read back" in words
        assert "guarantee at_most_once: wh does not show which transactions are open" in words
        with pytest.raises(GuaranteeRefused, match="below the watermark is never read"):
            pipeline_of(server.url(), "at", guarantee="exactly_once").plan()
        held_back = pipeline_of(server.url(), "at", guarantee="exactly_once", lag=300).plan()
        assert "longer than lag=300 seconds" in held_back.targets[0].guarantee.reason
