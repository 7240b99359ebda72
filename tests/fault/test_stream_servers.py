"""A running stream while its servers die and come back: each message once, and no partial batch visible."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from ematix_flow.streams.running_stream import RunningStream
from tests.services.kafka import KafkaServer
from tests.services.postgres import PostgresServer
from tests.services.shared import private_server
from tests.stream_runs import kafka_connection, produce, query, stream, warehouse

postgres = private_server("postgres")  # tests here stop it
kafka = private_server("kafka")  # tests here stop it

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.usefixtures("spark")]

BOTH = "SELECT (SELECT count(*) FROM events), (SELECT coalesce(sum(rows_in), 0) FROM ematix_flow.ledger)"


@pytest.mark.timeout(400)
def test_a_stream_survives_the_restart_of_its_database_and_of_its_broker(
    kafka: KafkaServer, kafka_topic: str, postgres: PostgresServer, pg_database: str
) -> None:
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL)")
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        target=warehouse(pg_database),
        target_table=("public", "events"),
        idle_pause_ms=50,
        max_rows_per_batch=100,
    )
    seen = _Reader(pg_database)
    running = followed.start(restart_on_error=True, initial_backoff_ms=100, max_backoff_ms=1_000)
    try:
        produce(kafka, kafka_topic, [{"id": n} for n in range(300)])
        _until(lambda: _count(pg_database) >= 100, running)
        postgres.restart(crash=True)
        produce(kafka, kafka_topic, [{"id": n} for n in range(300, 600)])
        _until(lambda: _count(pg_database) >= 400, running)
        kafka.restart()
        produce(kafka, kafka_topic, [{"id": n} for n in range(600, 900)])
        _until(lambda: _count(pg_database) >= 900, running)
    finally:
        running.stop()
        seen.stop()
    running.wait(120)
    assert query(pg_database, "SELECT count(*), count(DISTINCT id) FROM events") == [(900, 900)]
    assert seen.looks > 10
    assert seen.halves == []


class _Reader:
    """A reader that polls table and ledger in one snapshot."""

    def __init__(self, url: str) -> None:
        self.looks, self.halves, self._url = 0, list[tuple[int, int]](), url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            try:
                [(rows, told)] = query(self._url, BOTH)
            except psycopg.Error:  # it is down, or there is no ledger yet
                continue
            self.looks += 1
            if rows != told:
                self.halves.append((rows, int(told)))


def _count(url: str) -> int:
    try:
        return int(query(url, "SELECT count(*) FROM events")[0][0])
    except psycopg.OperationalError:
        return 0


def _until(holds: Callable[[], bool], running: RunningStream, seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if not running.is_running:
            running.wait(1)
            raise AssertionError("the stream ended by itself")
        assert time.monotonic() < deadline, f"what was waited for did not come: {running.result()}"
        time.sleep(0.1)
