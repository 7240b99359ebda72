"""The events of a real Maxwell, mirrored: the target is what the source is.

`recorded/maxwell-mariadb.jsonl` has events of Maxwell 1.22.6 as the long test saw them, from MariaDB 10.11,
with a bootstrap in between and what came again after Maxwell was killed; the last line has the rows of the
source in the end. To record them again:

    EMATIX_TEST_RECORD=1 .venv/bin/pytest tests/e2e/test_maxwell.py -m long -k records
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import CDC, fault_points
from tests.change_workload import COLUMNS, Workload, comparable
from tests.e2e.test_debezium import MySQLSource
from tests.mirror_program import mirror_options
from tests.services import mariadb, maxwell
from tests.services.kafka import KafkaServer
from tests.services.maxwell import MaxwellDaemon
from tests.services.mysql_server import MySQLServer
from tests.stream_runs import load, produce, query, stream

RECORDED = Path(__file__).parent / "recorded" / "maxwell-mariadb.jsonl"
SELECT = f"SELECT {', '.join(COLUMNS)} FROM orders"
LAST = ("eu", 5000, "na\u00efve \U0001f600", "-0.01", "2026-01-02 03:04:05")
MOST_RECORDED = 150


def recording() -> tuple[list[bytes], list[tuple[Any, ...]]]:
    """The messages in their order, and the rows of the source after them."""
    *messages, rows = RECORDED.read_bytes().splitlines()
    return messages, comparable(json.loads(rows)["rows"])


def maxwell_mirror(kind: str, place: str, kafka: KafkaServer, topic: str, **more: Any) -> Any:
    options = mirror_options(kind, place, kafka.bootstrap, topic)
    return stream(**{**options, "cdc": CDC(envelope="maxwell"), **more})


def sqlite_rows(place: Path, condition: str = "") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(place)) as database:
        return comparable(database.execute(f"{SELECT} {condition}").fetchall())


# ------------------------------------------------------------------ recorded events, in every run


@pytest.mark.usefixtures("spark")
def test_recorded_events_give_the_rows_of_the_source(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    messages, rows = recording()
    followed = maxwell_mirror("postgres", pg_database, kafka, kafka_topic)
    middle = len(messages) // 2
    cuts = [3, middle, middle + 5, len(messages)]
    for start, end in zip([0, *cuts], cuts, strict=False):
        produce(kafka, kafka_topic, messages[start:end])
        if start == middle:
            with (
                fault_points.inject("apply.before_commit", "crash"),
                pytest.raises(fault_points.InjectedCrash),
            ):
                load(followed)
        load(followed)
    assert comparable(query(pg_database, SELECT)) == rows
    produce(kafka, kafka_topic, messages)  # Maxwell goes back to its start
    load(followed)
    assert comparable(query(pg_database, SELECT)) == rows


@pytest.mark.usefixtures("spark")
def test_recorded_events_in_one_batch_give_the_rows_of_the_source(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    messages, rows = recording()
    produce(kafka, kafka_topic, messages)
    load(maxwell_mirror("sqlite", str(tmp_path / "mirror.db"), kafka, kafka_topic, max_rows_per_batch=10_000))
    assert sqlite_rows(tmp_path / "mirror.db") == rows


@pytest.mark.usefixtures("spark")
def test_recorded_events_give_versions_whose_open_ones_are_the_rows_of_the_source(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    messages, rows = recording()
    place = tmp_path / "mirror.db"
    followed = maxwell_mirror("sqlite", str(place), kafka, kafka_topic, mode="scd2")
    middle = len(messages) // 2
    for part in (messages[:middle], messages[middle - 5 :], messages):  # Maxwell goes back, then to its start
        produce(kafka, kafka_topic, part)
        load(followed)
    assert sqlite_rows(place, "WHERE is_current") == rows
    with closing(sqlite3.connect(place)) as database:
        overlapping = """
            SELECT count(*) FROM orders a JOIN orders b ON a.region = b.region AND a.id = b.id
            AND a.valid_from < b.valid_from AND (a.valid_to IS NULL OR a.valid_to > b.valid_from)"""
        assert database.execute(overlapping).fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM orders").fetchone()[0] > len(rows)


# ------------------------------------------------------------------ the real Maxwell


@pytest.fixture
def server() -> Iterator[MySQLServer]:
    with mariadb.running_server(maxwell.SERVER_SETTINGS) as started:
        yield started


def wait_until(holds: Callable[[], bool], daemon: MaxwellDaemon, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert daemon.running, daemon.log_tail()
        assert time.monotonic() < deadline, daemon.log_tail()
        time.sleep(0.3)


def sends(daemon: MaxwellDaemon, wanted: str) -> Callable[[], bool]:
    return lambda: any(event["type"] == wanted for event in daemon.events())


def fields_by_type(messages: list[bytes]) -> set[tuple[str, str]]:
    """The fields that messages of each type have, and the columns with the kinds of their values."""
    found = set()
    for message in map(json.loads, messages):
        found |= {(message["type"], field) for field in message}
        told = [*message.get("data", {}).items(), *message.get("old", {}).items()]
        found |= {(column, type(value).__name__) for column, value in told if value is not None}
    return found


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark")
def test_maxwell_records_what_is_recorded(
    server: MySQLServer, kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    """The recorded events are what Maxwell sends, and those that it sends now give the rows of the source.

    Sessions change the table all the time; Maxwell bootstraps it meanwhile, and is killed once.
    """
    source = MySQLSource(server)
    recorded = bool(os.environ.get("EMATIX_TEST_RECORD"))
    few = 12 if recorded else 60
    daemon = MaxwellDaemon(tmp_path / "maxwell", server, source.database, "orders")

    def work(seed: int) -> Workload:
        return Workload(source.connect, seed=seed, pause=0.15 if recorded else 0.05)

    with maxwell.following(daemon):
        wait_until(lambda: daemon.follows, daemon)
        with work(1) as sessions:
            wait_until(lambda: sessions.transactions >= few, daemon)
            bootstrap = "INSERT INTO maxwell.bootstrap (database_name, table_name) VALUES ('{}', 'orders')"
            server.execute(bootstrap.format(source.database))
            wait_until(sends(daemon, "bootstrap-complete"), daemon)
        with work(2) as sessions:
            wait_until(lambda: sessions.transactions >= few, daemon)
            daemon.kill()
        with work(3) as sessions:
            daemon.start()
            wait_until(lambda: sessions.transactions >= few, daemon)
        server.execute(f"INSERT INTO orders VALUES {LAST}", source.database)
        wait_until(lambda: (daemon.events()[-1].get("data") or {}).get("id") == 5000, daemon)
        sent = daemon.messages()
    if recorded:
        assert len(sent) <= MOST_RECORDED
        rows = json.dumps({"rows": source.rows()}, default=str, ensure_ascii=False)
        RECORDED.write_bytes(b"\n".join([*sent, rows.encode(), b""]))
    assert fields_by_type(sent) == fields_by_type(recording()[0])
    produce(kafka, kafka_topic, sent)
    load(maxwell_mirror("sqlite", str(tmp_path / "mirror.db"), kafka, kafka_topic))
    assert sqlite_rows(tmp_path / "mirror.db") == source.rows()
