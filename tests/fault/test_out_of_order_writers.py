"""Fifty writers that commit out of order while an incremental pipeline polls: no row is missed, none doubled.

Next to the pipeline, a naive reader polls by the highest value that it has seen. It must miss rows, or
the writers prove nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from ematix_flow import Pipeline, PostgresConnection, ematix, register_connection
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from tests.services.postgres import PostgresServer

pytestmark = pytest.mark.fault

WRITERS = 50
SECONDS, MOST_SECONDS = 6.0, 60.0
TABLE = TableSpec(
    "copied",
    "events",
    (
        ColumnSpec("id", DataType("big_int"), primary_key=True),
        ColumnSpec("at", DataType("timestamp_tz")),
        ColumnSpec("local", DataType("timestamp")),
    ),
)
SOURCE = """
CREATE TABLE events (
    id bigserial PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    local timestamp NOT NULL DEFAULT now()
);
CREATE TABLE others (id bigserial PRIMARY KEY, writer int);
"""


@pytest.fixture
def source(pg_database: str) -> Iterator[str]:
    """A database with the table that is written to; no prepared transaction is left in it."""
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(SOURCE)
        yield pg_database
        for (gid,) in connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        ):
            connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())


def pipeline_of(watermark: str, **options: Any) -> Pipeline:
    @ematix.pipeline(
        target=TABLE,
        target_connection="target",
        incremental=True,
        watermark_column=watermark,
        name="load",
        **options,
    )
    def load(conn: Any) -> str:
        return "SELECT id, at, local FROM public.events"

    return load


def write(url: str, number: int, enough: threading.Event, zone: str) -> None:
    """Transactions of every shape, each open for a random time, for some seconds and until that is enough."""
    chance = random.Random(number)
    insert = "INSERT INTO events DEFAULT VALUES"

    def pause(longest: float) -> None:
        time.sleep(chance.uniform(0, longest))

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT set_config('TimeZone', %s, false)", [zone])
        turn, began = 0, time.monotonic()
        while time.monotonic() < began + (SECONDS if enough.is_set() else MOST_SECONDS):
            turn += 1
            connection.execute("BEGIN")
            shape = chance.choice(["plain", "xid first", "value first", "snapshot first", "many"])
            if shape == "xid first":  # an older transaction id, a later value
                connection.execute("INSERT INTO others (writer) VALUES (%s)", [number])
                pause(0.2)
            elif shape == "snapshot first":  # its now() is taken, and it has written nothing
                connection.execute("SELECT count(*) FROM others WHERE id < 0")
                pause(0.3)
            if shape == "value first":  # a value is drawn, and nothing is written for a while
                row = connection.execute("SELECT nextval('events_id_seq')").fetchone()
                assert row is not None
                pause(0.3)
                connection.execute("INSERT INTO events (id) VALUES (%s)", [row[0]])
            else:
                for _ in range(chance.randint(2, 5) if shape == "many" else 1):
                    connection.execute(insert)
                    pause(0.05)
            pause(0.3)
            ending = chance.random()
            if ending < 0.15:
                connection.execute("ROLLBACK")
            elif ending < 0.25:
                name = f"'{number}_{turn}_{connection.info.backend_pid}'"
                connection.execute(f"PREPARE TRANSACTION {name}".encode())
                pause(0.2)
                connection.execute(f"COMMIT PREPARED {name}".encode())
            else:
                connection.execute("COMMIT")
            pause(0.1)


@contextmanager
def writers(url: str, enough: threading.Event, zone: str = "UTC") -> Iterator[Callable[[], bool]]:
    """Writers at work; the yielded function returns whether one still runs. All must succeed."""
    failures: list[BaseException] = []

    def one(number: int) -> None:
        try:
            write(url, number, enough, zone)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=one, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: any(thread.is_alive() for thread in threads)
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert failures == []


class NaiveReader(threading.Thread):
    """Reads from the highest value it has seen, inclusive, and ignores open transactions."""

    def __init__(self, url: str, watermark: str, busy: Callable[[], bool]) -> None:
        super().__init__()
        self.url, self.watermark, self.busy = url, watermark, busy
        self.seen: set[int] = set()
        self.low: Any = None
        self.start()

    def missed(self) -> set[int]:
        """Rows that were committed below its highest value, which it never reads."""
        below = f"SELECT id FROM events WHERE {self.watermark} < %s"
        with psycopg.connect(self.url) as connection:
            return {row[0] for row in connection.execute(below.encode(), [self.low])} - self.seen

    def run(self) -> None:
        query = f"SELECT id, {self.watermark} FROM events"
        beyond = f"{query} WHERE {self.watermark} >= %s"
        with psycopg.connect(self.url, autocommit=True) as connection:
            last = False
            while not last:
                last = not self.busy()
                asked = (beyond.encode(), [self.low]) if self.low is not None else (query.encode(), None)
                for found, mark in connection.execute(*asked).fetchall():
                    self.seen.add(found)
                    self.low = mark if self.low is None else max(self.low, mark)
                time.sleep(0.02)


def ids(url: str, table: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(f"SELECT id FROM {table} ORDER BY id".encode())]


def doubled(found: list[int]) -> list[int]:
    return [value for value, times in Counter(found).items() if times > 1]


@pytest.mark.parametrize(
    ("watermark", "zone"),
    [
        ("id", "UTC"),
        ("at", "UTC"),
        pytest.param("local", "UTC", marks=pytest.mark.long),
        pytest.param("local", "America/New_York", marks=pytest.mark.long),
        ("local", "Asia/Tokyo"),
    ],
)
def test_nothing_is_missed_or_doubled_inside_one_database(source: str, watermark: str, zone: str) -> None:
    """The database's own zone is UTC; where the writers have another, all have it."""
    register_connection(PostgresConnection(name="target", url=source))
    load = pipeline_of(watermark)
    load.sync()  # the first run imports and creates; the polls are for the writers
    polls, enough = 0, threading.Event()
    with writers(source, enough, zone) as busy:
        naive = NaiveReader(source, watermark, busy)
        while busy():
            assert load.sync().targets[0].path == "same_db"
            polls += 1
            if polls >= 3 and naive.missed():  # else the writers were too tame to show anything
                enough.set()
    naive.join()
    load.sync()
    written, loaded = ids(source, "events"), ids(source, "copied.events")
    assert len(written) > 10 * WRITERS
    assert polls >= 3 and naive.missed()
    assert sorted(set(written) - set(loaded)) == []
    assert doubled(loaded) == []
    assert sorted(set(loaded) - set(written)) == []


@pytest.mark.parametrize("watermark", ["id", "at"])
@pytest.mark.usefixtures("spark")
def test_nothing_is_missed_or_doubled_between_two_databases(
    source: str, postgres: PostgresServer, watermark: str
) -> None:
    name = postgres.create_database("copies")
    target = postgres.url(name)
    register_connection(PostgresConnection(name="source", url=source))
    register_connection(PostgresConnection(name="target", url=target))
    load = pipeline_of(watermark, source_connection="source")
    load.sync()
    polls, enough = 0, threading.Event()
    with writers(source, enough) as busy:
        while busy():
            assert load.sync().targets[0].path == "copy"
            polls += 1
            if polls >= 2:
                enough.set()
    load.sync()
    written, loaded = ids(source, "events"), ids(target, "copied.events")
    assert polls >= 2
    assert sorted(set(written) - set(loaded)) == []
    assert doubled(loaded) == []
    postgres.drop_database(name)
