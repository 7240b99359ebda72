"""The events of a real Debezium, mirrored: the target is what the source is.

`recorded/` has events of Debezium 3.6.3 as the long tests saw them, from PostgreSQL and MySQL, and the rows
that the source had in the end. To record them again:

    EMATIX_TEST_RECORD=1 .venv/bin/pytest tests/e2e/test_debezium.py -m long -k records
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import fault_points
from tests.change_workload import COLUMNS, Workload, comparable, create_statement, run_transaction
from tests.contract import mysql_setup
from tests.mirror_program import mirror_options
from tests.services import debezium, mysql, postgres
from tests.services.kafka import KafkaServer
from tests.services.mysql_server import MySQLServer
from tests.stream_runs import load, produce, query, stream

RECORDED = Path(__file__).parent / "recorded"
SELECT = f"SELECT {', '.join(COLUMNS)} FROM orders"
WITHOUT_SCHEMAS = {"decimal.handling.mode": "string"}
ReadRows = Callable[[], list[tuple[Any, ...]]]


# ------------------------------------------------------------------ sources


class PostgresSource:
    """A separate server. A transaction that changes the table is open while Debezium takes its snapshot."""

    kind = "postgresql"

    def __init__(self, server: postgres.PostgresServer) -> None:
        self.url = server.url(server.create_database("source"))
        self.table = "public.orders"
        with self.connect() as session:
            session.execute(create_statement(self.kind).encode())
            fill(session)
        query(self.url, "CREATE PUBLICATION dbz_publication FOR TABLE orders")
        query(self.url, "SELECT pg_create_logical_replication_slot('engine', 'pgoutput')")

    def connect(self) -> Any:
        return psycopg.connect(self.url)

    def rows(self) -> list[tuple[Any, ...]]:
        return comparable(query(self.url, SELECT))

    @contextmanager
    def engine(self, folder: Path, kafka: KafkaServer, topic: str) -> Iterator[debezium.DebeziumEngine]:
        """Debezium, whose snapshot is over."""
        with closing(self.connect()) as opened:
            opened.execute("UPDATE orders SET note = 'open during the snapshot' WHERE id IN (1, 2)")
            opened.execute("DELETE FROM orders WHERE id = 3")
            opened.execute("UPDATE orders SET id = 1004 WHERE id = 4")
            query(self.url, "INSERT INTO orders (region, id) VALUES ('eu', 1000), ('us', 1000)")
            followed = {self.table: topic}
            made = debezium.DebeziumEngine(folder, self.url, kafka.bootstrap, followed, WITHOUT_SCHEMAS)
            with debezium.following(made) as engine:
                wait_until(lambda: bool(kafka.consume_all(topic)), engine)
                opened.commit()
                yield engine


class MySQLSource:
    """A server with a binary log."""

    kind = "mysql"

    def __init__(self, server: MySQLServer) -> None:
        self.server, self.database = server, server.create_database("source")
        self.url, self.table = server.url(self.database), f"{self.database}.orders"
        server.execute(create_statement(self.kind), self.database)
        with closing(self.connect()) as session:
            fill(session)

    def connect(self) -> Any:
        import pymysql

        return pymysql.connect(
            host="127.0.0.1",
            port=self.server.port,
            user="tester",
            password=self.server.password,
            database=self.database,
            charset="utf8mb4",
        )

    def rows(self) -> list[tuple[Any, ...]]:
        return comparable(self.server.execute(SELECT, self.database))

    @contextmanager
    def engine(self, folder: Path, kafka: KafkaServer, topic: str) -> Iterator[debezium.DebeziumEngine]:
        followed = {self.table: topic}
        made = debezium.DebeziumEngine(folder, self.url, kafka.bootstrap, followed, WITHOUT_SCHEMAS)
        with debezium.following(made) as engine:
            wait_until(lambda: bool(kafka.consume_all(topic)), engine)
            yield engine


def fill(session: Any) -> None:
    cursor = session.cursor()
    rows = [(region, id, "first", 1) for region in ("eu", "us") for id in range(8)]
    cursor.executemany("INSERT INTO orders (region, id, note, amount) VALUES (%s, %s, %s, %s)", rows)
    session.commit()


@pytest.fixture(params=["postgresql", "mysql"])
def source(request: pytest.FixtureRequest) -> Iterator[PostgresSource | MySQLSource]:
    if request.param == "postgresql":
        with postgres.running_server() as server:
            yield PostgresSource(server)
    else:
        logged = {"log-bin": "binlog", "server-id": "1", "binlog-format": "ROW"}
        with mysql.running_server(logged) as server:
            yield MySQLSource(server)


def wait_until(holds: Callable[[], bool], engine: debezium.DebeziumEngine, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert engine.running, engine.log_tail()
        assert time.monotonic() < deadline, engine.log_tail()
        time.sleep(0.3)


# ------------------------------------------------------------------ recorded events, in every run


def recording(kind: str) -> tuple[list[bytes | None], list[tuple[Any, ...]]]:
    """The messages in their order, and the rows of the source after them."""
    lines = (RECORDED / f"debezium-{kind}.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    messages = [json.dumps(each["value"]).encode() if each["value"] else None for each in found[:-1]]
    return messages, comparable(found[-1]["rows"])


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_recorded_events_give_the_rows_of_the_source(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, kind: str
) -> None:
    messages, rows = recording(kind)
    followed = stream(**mirror_options("postgres", pg_database, kafka.bootstrap, kafka_topic))
    begun = sum(message is not None and b'"op": "r"' in message for message in messages)
    cuts = [begun // 2, begun, begun + 3, len(messages) // 2, len(messages)]
    for start, end in zip([0, *cuts], cuts, strict=False):
        produce(kafka, kafka_topic, messages[start:end])
        if start == begun:  # after the snapshot
            with (
                fault_points.inject("apply.before_commit", "crash"),
                pytest.raises(fault_points.InjectedCrash),
            ):
                load(followed)
        load(followed)
    assert comparable(query(pg_database, SELECT)) == rows
    produce(kafka, kafka_topic, messages[begun:])  # Debezium goes back to its start
    load(followed)
    assert comparable(query(pg_database, SELECT)) == rows


@pytest.mark.usefixtures("spark")
def test_recorded_events_in_one_batch_give_the_rows_of_the_source(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    messages, rows = recording("postgresql")
    options = mirror_options("sqlite", str(tmp_path / "mirror.db"), kafka.bootstrap, kafka_topic)
    produce(kafka, kafka_topic, messages)
    load(stream(**{**options, "max_rows_per_batch": 100_000}))
    with closing(sqlite3.connect(tmp_path / "mirror.db")) as database:
        assert comparable(database.execute(SELECT).fetchall()) == rows


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_recorded_events_give_versions_whose_open_ones_are_the_rows_of_the_source(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, kind: str
) -> None:
    messages, rows = recording(kind)
    options = mirror_options("sqlite", str(tmp_path / "mirror.db"), kafka.bootstrap, kafka_topic)
    followed = stream(**{**options, "mode": "scd2"})
    middle = len(messages) // 2
    for part in (
        messages[:middle],
        messages[middle - 5 :],
        messages,
    ):  # Debezium goes back, in the end to its start
        produce(kafka, kafka_topic, part)
        load(followed)
    with closing(sqlite3.connect(tmp_path / "mirror.db")) as database:
        assert comparable(database.execute(f"{SELECT} WHERE is_current").fetchall()) == rows
        overlapping = """
            SELECT count(*) FROM orders a JOIN orders b ON a.region = b.region AND a.id = b.id
            AND a.valid_from < b.valid_from AND (a.valid_to IS NULL OR a.valid_to > b.valid_from)"""
        assert database.execute(overlapping).fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM orders").fetchone()[0] > len(rows)


# ------------------------------------------------------------------ the real engine


@pytest.mark.long
@pytest.mark.timeout(300)
def test_debezium_records_what_is_recorded(
    source: PostgresSource | MySQLSource, kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    """The recorded events are what Debezium sends: the same operations with the same fields."""
    with (
        source.engine(tmp_path / "engine", kafka, kafka_topic) as engine,
        closing(source.connect()) as session,
    ):
        for number in range(30):
            run_transaction(session, random.Random(number))
        engine.kill()
        for number in range(30, 45):
            run_transaction(session, random.Random(number))
        engine.start()
        cursor = session.cursor()
        cursor.execute("INSERT INTO orders (region, id) VALUES ('eu', 5000)")
        session.commit()
        wait_until(lambda: b'"id":5000' in (kafka.consume_all(kafka_topic)[-1].value() or b""), engine)
    messages = [(m.key(), m.value()) for m in kafka.consume_all(kafka_topic)]
    sent = [{"key": json.loads(k), "value": json.loads(v) if v else None} for k, v in messages]
    if os.environ.get("EMATIX_TEST_RECORD"):
        RECORDED.mkdir(exist_ok=True)
        lines = [json.dumps(each, ensure_ascii=False) for each in sent]
        lines.append(json.dumps({"rows": source.rows()}, default=str, ensure_ascii=False))
        (RECORDED / f"debezium-{source.kind}.jsonl").write_text("\n".join(lines) + "\n")

    def shapes(values: list[Any]) -> set[Any]:
        return {(v["op"], frozenset(v), frozenset(v["source"])) for v in values if v}

    stored = [json.loads(message) if message else None for message in recording(source.kind)[0]]
    assert shapes([each["value"] for each in sent]) == shapes(stored)


@contextmanager
def running_mirror(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The stream in its own process, which is killed after the block."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])}
    with log.open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.mirror_program", *arguments],
            start_new_session=True,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def mirror_reader(kind: str, place: str) -> ReadRows:
    def rows() -> list[tuple[Any, ...]]:
        if kind == "postgres":
            return query(place, SELECT)
        if kind == "delta":
            from deltalake import DeltaTable

            table = DeltaTable(f"{place}/orders").to_pyarrow_table(columns=list(COLUMNS))
            return [tuple(row.values()) for row in table.to_pylist()]
        if kind == "mysql":
            return mysql_setup.sql(place, SELECT)
        import duckdb

        opened: Any = sqlite3.connect(place) if kind == "sqlite" else duckdb.connect(place, read_only=True)
        with closing(opened) as database:
            found: list[tuple[Any, ...]] = database.execute(SELECT).fetchall()
            return found

    return lambda: comparable(rows())


@pytest.fixture(params=["postgres", "sqlite", "duckdb", "mysql", "delta"])
def mirror_place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The kind of the mirror and where it is."""
    if request.param == "postgres":
        return "postgres", request.getfixturevalue("pg_database")
    if request.param == "mysql":
        return "mysql", request.getfixturevalue("mariadb_database")
    return request.param, str(tmp_path / f"mirror-{request.param}")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_mirror_whose_process_is_killed_again_and_again_equals_its_source(
    source: PostgresSource | MySQLSource,
    mirror_place: tuple[str, str],
    kafka: KafkaServer,
    kafka_topic: str,
    tmp_path: Path,
) -> None:
    """Sessions change the source all the time; the stream is killed three times, and Debezium once."""
    rows, log = mirror_reader(*mirror_place), tmp_path / "mirror.log"
    arguments = [*mirror_place, kafka.bootstrap, kafka_topic]
    chance = random.Random(4)
    seen: list[Any] = []

    def has_moved() -> bool:
        """Whether the mirror differs from the last time: the stream has loaded something since."""
        before = list(seen)
        seen[:] = rows_if_there(rows)
        return bool(seen) and seen != before

    with source.engine(tmp_path / "engine", kafka, kafka_topic) as engine:
        with Workload(source.connect, seed=1, pause=0.05) as work:
            for number in range(3):
                with running_mirror(arguments, log):
                    wait_until(has_moved, engine)
                    time.sleep(chance.random() * 4)  # in the middle of anything
                if number == 1:
                    engine.kill()
                    engine.start()
        assert work.transactions > 100
        with running_mirror(arguments, log) as process:
            deadline = time.monotonic() + 240
            expected = source.rows()
            while (found := rows_if_there(rows)) != expected:
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline, (differences(expected, found), log.read_text()[-3000:])
                time.sleep(1)


def rows_if_there(rows: ReadRows) -> list[tuple[Any, ...]]:
    """The rows; none while the table does not exist, or while the stream has locked it."""
    import duckdb
    from deltalake.exceptions import TableNotFoundError

    try:
        return rows()
    except (psycopg.errors.UndefinedTable, sqlite3.OperationalError, TableNotFoundError, duckdb.Error):
        return []
    except Exception as problem:
        if "doesn't exist" in str(problem):  # MariaDB
            return []
        raise


def differences(expected: list[Any], found: list[Any]) -> list[str]:
    more = [f"- {row}"[:200] for row in expected if row not in found]
    return more + [f"+ {row}"[:200] for row in found if row not in expected]
