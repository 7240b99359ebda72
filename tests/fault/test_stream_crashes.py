"""A stream that dies between any two durable effects and is started again: each message arrives once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import Target, ematix, fault_points
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.graph.registry import DeclaredStream
from ematix_flow.spec.connections import SQLiteConnection
from ematix_flow.state.dead_letters.base import LetterSelection
from ematix_flow.streams.dead_letter_replay import letter_runner, replay_letters
from tests.services.kafka import KafkaServer
from tests.stream_runs import events_into, kafka_connection, load, produce, query, stream, warehouse

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("spark")]

POINTS = [
    pytest.param("staging.created", marks=pytest.mark.long),
    "staging.loaded",
    "stream.dead_letters",
    "stream.staged",
    "apply.before_commit",
    "apply.after_commit",
    pytest.param("staging.dropped", marks=pytest.mark.long),
    "stream.target_committed",
    "stream.committed",
    "stream.acknowledged",
]


@pytest.fixture
def events(pg_database: str) -> str:
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL, name text)")
    return pg_database


def into(kafka: KafkaServer, topic: str, url: str, **options: Any) -> StreamingPipeline:
    return events_into(url, kafka, topic, transform_on_error="dlq", **options)


@pytest.mark.parametrize("point", POINTS)
def test_a_stream_that_dies_there_loads_everything_once(
    kafka: KafkaServer, kafka_topic: str, events: str, point: str
) -> None:
    followed = into(kafka, kafka_topic, events)
    produce(kafka, kafka_topic, [{"id": n} for n in range(10)] + [b"broken"])
    with fault_points.inject(point, "crash") as fault, pytest.raises(fault_points.InjectedCrash):
        load(followed)
    assert fault.has_fired
    produce(kafka, kafka_topic, [{"id": n} for n in range(10, 13)])
    load(followed)
    assert query(events, "SELECT count(*), count(DISTINCT id) FROM events") == [(13, 13)]
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        assert len(store.list("events", limit=10)) == 1


@pytest.mark.parametrize("point", ["stream.dead_letters_sent", "stream.dead_letters"])
def test_a_dead_letter_is_in_its_topic_and_its_store_after_a_crash(
    kafka: KafkaServer, kafka_topic: str, events: str, point: str
) -> None:
    letters = kafka.create_topic("letters")
    followed = into(kafka, kafka_topic, events, dead_letter_topic=letters)
    produce(kafka, kafka_topic, [{"id": 1}, b"broken"], keys=["a", "b"])
    with fault_points.inject(point, "crash") as fault, pytest.raises(fault_points.InjectedCrash):
        load(followed)
    assert fault.has_fired
    load(followed)
    assert query(events, "SELECT count(*) FROM events") == [(1,)]
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        (kept,) = store.list("events")
    sent = kafka.consume_all(letters)
    assert [(m.value(), m.key(), dict(m.headers())["ematix-dlq-id"].decode()) for m in sent] == [
        (b"broken", b"b", kept.id)
    ] * (2 if point == "stream.dead_letters_sent" else 1)


@pytest.mark.parametrize(
    "point",
    [
        "stream.dead_letters_sent",
        "stream.dead_letters",
        "gate.checked",  # reached only when the messages of all failing rows are dead letters
        "apply.before_commit",
        pytest.param("apply.after_commit", marks=pytest.mark.long),
        "stream.target_committed",
        pytest.param("stream.committed", marks=pytest.mark.long),
    ],
)
def test_a_row_that_fails_an_expectation_is_one_dead_letter_and_not_loaded_after_a_crash(
    kafka: KafkaServer, kafka_topic: str, events: str, point: str
) -> None:
    topic = kafka.create_topic("letters")
    followed = into(
        kafka,
        kafka_topic,
        events,
        dead_letter_topic=topic,
        expectations=[ematix.expect_or_drop("even", "id % 2 = 0")],
        quarantine=ematix.DEAD_LETTERS,
    )
    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in range(5)])
    with fault_points.inject(point, "crash") as fault, pytest.raises(fault_points.InjectedCrash):
        load(followed)
    assert fault.has_fired
    produce(kafka, kafka_topic, [{"id": 6, "name": "x"}, {"id": 7, "name": "x"}])
    load(followed)
    assert query(events, "SELECT id FROM events ORDER BY id") == [(0,), (2,), (4,), (6,)]
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        kept = store.list("events", limit=10)
    assert sorted(each.position or "" for each in kept) == ["1", "3", "6"]
    sent = {dict(m.headers())["ematix-dlq-id"].decode() for m in kafka.consume_all(topic)}
    assert sent == {each.id for each in kept}


@pytest.mark.parametrize("point", ["apply.before_commit", "apply.after_commit", "replay.committed"])
def test_a_replay_that_dies_loads_no_letter_twice_and_loses_none(
    kafka: KafkaServer, kafka_topic: str, events: str, point: str
) -> None:
    """The next replay chooses other letters; one letter fails again in both."""

    def declare(lowest: int) -> StreamingPipeline:
        rule = ematix.expect_or_drop("high", f"id > {lowest}")
        return into(kafka, kafka_topic, events, expectations=[rule], quarantine=ematix.DEAD_LETTERS)

    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in (1, -2, -9, -3)], partition=0)
    load(declare(0))
    corrected = declare(-5)
    run = letter_runner(DeclaredStream(corrected.spec, corrected))
    with open_stream_dead_letters(corrected.spec, env=os.environ) as store:
        with fault_points.inject(point, "crash") as fault, pytest.raises(fault_points.InjectedCrash):
            replay_letters("events", store, LetterSelection(all=True), run, lease_seconds=0)
        assert fault.has_fired
        replay_letters("events", store, LetterSelection(first=1), run)
        replay_letters("events", store, LetterSelection(all=True), run)
        kept = {each.position: (each.status, each.attempt) for each in store.list("events")}
    assert query(events, "SELECT id FROM events ORDER BY id") == [(-3,), (-2,), (1,)]
    assert (kept["1"], kept["3"]) == (("replayed", 1), ("replayed", 1))
    assert kept["2"][0] != "replayed"


def test_of_two_targets_each_gets_the_batch_once_when_the_stream_dies_between_them(
    kafka: KafkaServer, kafka_topic: str, events: str, tmp_path: Path
) -> None:
    import sqlite3

    lite = SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        targets=[
            Target(connection=warehouse(events), table=("public", "events")),
            Target(connection=lite, table="events"),
        ],
    )
    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in range(10)])
    with fault_points.inject("stream.target_committed", "crash"), pytest.raises(fault_points.InjectedCrash):
        load(followed)
    assert query(events, "SELECT count(*) FROM events") == [(10,)]
    load(followed)
    assert query(events, "SELECT count(*) FROM events") == [(10,)]
    with sqlite3.connect(lite.path) as database:
        assert database.execute("SELECT count(*), count(DISTINCT id) FROM events").fetchall() == [(10, 10)]


@pytest.mark.parametrize(
    ("point", "committed"),
    [("stream.target_committed", 1), ("stream.target_committed", 2), ("stream.committed", 1)],
    ids=["one of three has it", "two of three have it", "all three have it"],
)
def test_rows_that_a_target_has_from_before_the_crash_are_not_refused_after_it(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, point: str, committed: int
) -> None:
    """The tables have keys: to load the batch into one of them a second time would break them."""
    import sqlite3

    files = [tmp_path / f"{name}.db" for name in "abc"]
    for file in files:
        with sqlite3.connect(file) as database:
            database.execute("CREATE TABLE events (id bigint NOT NULL PRIMARY KEY, name text)")
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        transform_on_error="dlq",
        targets=[
            Target(connection=SQLiteConnection(name=file.stem, path=str(file)), table="events")
            for file in files
        ],
    )
    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in range(10)])
    with (
        fault_points.inject(point, "crash", nth=committed) as fault,
        pytest.raises(fault_points.InjectedCrash),
    ):
        load(followed)
    assert fault.has_fired
    load(followed)
    for file in files:
        with sqlite3.connect(file) as database:
            assert database.execute("SELECT count(*) FROM events").fetchall() == [(10,)], file
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        assert store.list(followed.spec.name, limit=10) == []


def test_messages_sent_without_a_transaction_may_come_twice_and_are_never_lost(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    out = kafka.create_topic("out")
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        target=kafka_connection(kafka, "sink"),
        target_topic=out,
        transform_sql="SELECT id FROM source",
    )
    produce(kafka, kafka_topic, [{"id": n} for n in range(5)])
    with fault_points.inject("stream.sent", "crash"), pytest.raises(fault_points.InjectedCrash):
        load(followed)
    load(followed)
    sent = [json.loads(message.value())["id"] for message in kafka.consume_all(out, read_committed=True)]
    assert set(sent) == set(range(5))
    assert len(sent) == 10


CHILD = """
import sys
from ematix_flow import KafkaConnection, PostgresConnection
from ematix_flow.api.streaming import run_streaming_pipeline
bootstrap, topic, url = sys.argv[1:4]
run_streaming_pipeline(
    name="killed",
    source=KafkaConnection(name="kafka", bootstrap_servers=bootstrap), source_query=topic,
    target=PostgresConnection(name="warehouse", url=url), target_table=("public", "events"),
    idle_pause_ms=20, max_rows_per_batch=200,
)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_that_is_killed_again_and_again_loads_every_message_once(
    kafka: KafkaServer, kafka_topic: str, events: str, tmp_path: Path
) -> None:
    """Real SIGKILLs at random times, while messages keep coming."""
    script = tmp_path / "killed.py"
    script.write_text(CHILD)
    total = 0
    for round_ in range(2):
        with (tmp_path / f"err{round_}").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, str(script), kafka.bootstrap, kafka_topic, events],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        try:
            aim = total + 300
            deadline = time.monotonic() + 150
            while query(events, "SELECT count(*) FROM events")[0][0] < aim:
                produce(kafka, kafka_topic, [{"id": n} for n in range(total, total + 50)])
                total += 50
                assert process.poll() is None, (tmp_path / f"err{round_}").read_text()[-2000:]
                assert time.monotonic() < deadline, (tmp_path / f"err{round_}").read_text()[-2000:]
                time.sleep(0.05)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    followed = stream(
        "killed",
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        target=warehouse(events),
        target_table=("public", "events"),
    )
    load(followed)
    assert query(events, "SELECT count(*), count(DISTINCT id) FROM events") == [(total, total)]
