"""Streams whose failing rows become dead letters of their messages: kept, loaded around, and replayed."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, ManagedTable, Target, Text, ematix, fault_points, pk
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.errors import ExpectationFailed, UsageError
from ematix_flow.graph.registry import DeclaredStream
from ematix_flow.normalize import trim
from ematix_flow.spec.connections import RabbitMQConnection, SQLiteConnection
from ematix_flow.state.dead_letters.base import DeadLetter, LetterSelection
from ematix_flow.streams.dead_letter_replay import ReplayResult, letter_runner, replay_letters
from tests.services.kafka import KafkaServer
from tests.stream_runs import events_into, kafka_connection, load, produce, query, stream

pytestmark = pytest.mark.usefixtures("spark")

POSITIVE = ematix.expect_or_drop("positive", "id > 0")
NAMED = ematix.expect_or_drop("named", lambda t: t.column("name").not_null())
OPTIONS: Mapping[str, Any] = {"transform_on_error": "dlq", "quarantine": ematix.DEAD_LETTERS}


@pytest.fixture
def events(pg_database: str) -> str:
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL, name text NOT NULL)")
    return pg_database


def letters(followed: StreamingPipeline) -> list[DeadLetter]:
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        return store.list("events", limit=20)


def replay(followed: StreamingPipeline) -> ReplayResult:
    run = letter_runner(DeclaredStream(followed.spec, followed))
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        return replay_letters("events", store, LetterSelection(stage="expectation"), run)


def rows(path: Path, sql: str = "SELECT id FROM events ORDER BY id") -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return [row[0] for row in database.execute(sql)]


@pytest.mark.parametrize("bulk", [0, 12_000])
def test_a_message_whose_row_fails_is_a_dead_letter_and_the_rest_is_loaded(
    kafka: KafkaServer, kafka_topic: str, events: str, bulk: int
) -> None:
    """``bulk`` further messages make a batch that is too large for the process itself."""
    followed = events_into(events, kafka, kafka_topic, expectations=[POSITIVE, NAMED], **OPTIONS)
    produce(kafka, kafka_topic, ({"id": n + 9, "name": "y"} for n in range(bulk)), partition=0)
    sent = [{"id": 1, "name": "a"}, {"id": -2, "name": "canary"}, b"broken", {"id": 3}, {"id": -4}]
    produce(kafka, kafka_topic, sent, keys=list("abcde"), partition=0)
    result = load(followed)
    assert (result.total_rows, result.quarantined, result.dead_letters) == (bulk + 1, 3, 4)
    assert query(events, "SELECT count(*), count(DISTINCT id) FROM events") == [(bulk + 1, bulk + 1)]
    assert query(events, "SELECT to_regclass('events__quarantine')::text") == [(None,)]
    kept = sorted(letters(followed), key=lambda letter: int(letter.position or 0))
    assert [(each.stage, each.reason, int(each.position or 0) - bulk) for each in kept if each.reason] == [
        ("expectation", "the row fails the expectation 'positive'", 1),
        ("decode", kept[1].reason, 2),
        ("expectation", "the row fails the expectation 'named'", 3),
        ("expectation", "the row fails the expectation 'positive'", 4),
    ]
    assert {(each.source, each.partition) for each in kept} == {(kafka_topic, "0")}
    assert {str(each.batch).partition(":")[0] for each in kept} == {"stream"}
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        whole = store.get("events", kept[0].id)
    assert (json.loads(whole.payload), whole.key) == ({"id": -2, "name": "canary"}, b"b")


def test_a_replay_checks_each_letter_by_the_rules_as_they_are_now(
    kafka: KafkaServer, kafka_topic: str, events: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules about a whole batch, and the share of it that may fail, say nothing about a few letters."""
    whole = ematix.expect_or_fail("enough", lambda t: t.row_count(at_least=3))

    def declare(lowest: int, place: Any = ematix.DEAD_LETTERS) -> StreamingPipeline:
        rule = ematix.expect_or_drop(
            "high", lambda t: t.expression(f"id > {lowest}", name="high", tolerate=0.6)
        )
        options = {**OPTIONS, "quarantine": place}
        return events_into(events, kafka, kafka_topic, expectations=[rule, whole], **options)

    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in (1, -2, -3, -9, 2)])
    assert load(declare(0)).dead_letters == 3
    outcome = replay(declare(0))
    assert (outcome.replayed, outcome.failed) == (0, 3)
    monkeypatch.setenv("EMATIX_SKIP_QUALITY", "1")
    with pytest.raises(UsageError, match="EMATIX_SKIP_QUALITY is set"):
        replay(declare(0))
    monkeypatch.delenv("EMATIX_SKIP_QUALITY")
    outcome = replay(declare(-3))
    assert (outcome.replayed, outcome.failed) == (1, 2)
    assert [each.attempt for each in letters(declare(0)) if each.status == "parked"] == [3, 3]
    assert query(events, "SELECT id FROM events ORDER BY 1") == [(-2,), (1,), (2,)]
    assert load(declare(0)).rows_read == 0


def test_a_batch_of_which_too_many_rows_fail_stops_the_stream_without_a_dead_letter(
    kafka: KafkaServer, kafka_topic: str, events: str
) -> None:
    rule = ematix.expect_or_drop("high", lambda t: t.expression("id > 0", tolerate=0.5))
    followed = events_into(events, kafka, kafka_topic, expectations=[rule], **OPTIONS)
    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in (1, -2, -3)])
    with pytest.raises(ExpectationFailed, match="high: 2 of 3 rows fail"):
        load(followed)
    assert (letters(followed), query(events, "SELECT * FROM events")) == ([], [])


def test_a_row_that_passes_only_after_its_message_was_kept_is_not_loaded_too(
    kafka: KafkaServer, kafka_topic: str, events: str
) -> None:
    """The table that the rule asks gets the row between the two checks of the batch."""
    query(events, "CREATE TABLE known (id bigint)")
    query(events, "INSERT INTO known VALUES (1)")
    rule = ematix.expect_or_drop("known", lambda t: t.foreign_key("id", references="known"))
    followed = events_into(events, kafka, kafka_topic, expectations=[rule], **OPTIONS)
    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in (1, 2)])

    def insert() -> None:
        query(events, "INSERT INTO known VALUES (2)")

    with fault_points.inject("stream.dead_letters", insert) as fault:
        load(followed)
    assert fault.has_fired
    assert query(events, "SELECT id FROM events") == [(1,)]
    assert [each.position for each in letters(followed)] == ["1"]
    assert replay(followed).replayed == 1
    assert query(events, "SELECT id FROM events ORDER BY 1") == [(1,), (2,)]


@pytest.mark.parametrize("bulk", [0, 12_000])
@pytest.mark.parametrize("replays_first", [False, True])
def test_a_letter_of_a_batch_that_died_is_not_loaded_with_it_by_a_corrected_rule(
    kafka: KafkaServer, kafka_topic: str, events: str, bulk: int, replays_first: bool
) -> None:
    """Not even if it is replayed before the batch comes again. It counts for its rule."""

    def declare(lowest: int) -> StreamingPipeline:
        rule = ematix.expect_or_drop(r"""it's "\d+" = high""", f"id > {lowest}")
        return events_into(events, kafka, kafka_topic, expectations=[rule], **OPTIONS)

    produce(kafka, kafka_topic, ({"id": n + 9, "name": "y"} for n in range(bulk)), partition=0)
    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in (1, -2, -9)], partition=0)
    with (
        fault_points.inject("stream.dead_letters", "crash") as fault,
        pytest.raises(fault_points.InjectedCrash),
    ):
        load(declare(0))
    assert fault.has_fired
    if replays_first:
        assert replay(declare(-5)).replayed == 1
    assert load(declare(-5)).quarantined == 2
    assert query(events, "SELECT count(*) FROM events WHERE id = -2") == [(int(replays_first),)]
    replay(declare(-5))
    assert query(events, "SELECT id FROM events WHERE id < 9 ORDER BY id") == [(-2,), (1,)]
    assert query(events, "SELECT count(*) FROM events") == [(bulk + 2,)]
    assert len(letters(declare(-5))) == 2
    produce(kafka, kafka_topic, [{"id": -3, "name": "x"}], partition=0)
    load(declare(-5))
    assert query(events, "SELECT count(*) FROM events") == [(bulk + 3,)]


@pytest.mark.parametrize("keeps_letters", [True, False])
def test_a_letter_that_fails_a_rule_that_stops_a_load_stays_and_the_others_are_loaded(
    kafka: KafkaServer, kafka_topic: str, events: str, keeps_letters: bool
) -> None:
    options: Mapping[str, Any] = OPTIONS if keeps_letters else {"transform_on_error": "dlq"}
    never = ematix.expect_or_fail("never", "id <> -5")
    followed = events_into(events, kafka, kafka_topic, expectations=[never, NAMED], **options)
    found = [
        DeadLetter.create(
            "events", "expectation", "r", payload=json.dumps({"id": n, "name": "x"}).encode(),
            source=kafka_topic, partition="0", position=str(n), batch="stream:1",
        )
        for n in (1, -5, 2, 3)
    ]  # fmt: skip
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        store.add(found)
    for _ in range(3):
        replay(followed)
    assert query(events, "SELECT id FROM events ORDER BY id") == [(1,), (2,), (3,)]
    kept = {
        each.position: (each.status, "'never'" in each.reason or "never:" in each.reason)
        for each in letters(followed)
    }
    assert kept == {
        "1": ("replayed", False), "-5": ("parked", True), "2": ("replayed", False), "3": ("replayed", False)
    }  # fmt: skip


def test_a_row_that_the_table_refuses_is_found_among_rows_that_fail_a_rule(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL CHECK (id <> 7), name text)")
    followed = events_into(pg_database, kafka, kafka_topic, expectations=[POSITIVE], **OPTIONS)
    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in (-1, 2, 7, -8, 9)])
    assert load(followed).dead_letters == 3
    assert query(pg_database, "SELECT id FROM events ORDER BY 1") == [(2,), (9,)]
    stages = {each.position: each.stage for each in letters(followed)}
    assert stages == {"0": "expectation", "2": "write", "3": "expectation"}


class Orders(ManagedTable):
    __tablename__ = "events"
    id: Annotated[BigInt, pk()]
    name: Text


def queue_into_file(rabbitmq: Any, queue: str, file: Path, rule: Any = POSITIVE) -> StreamingPipeline:
    """A queue into a SQLite file that also keeps the dead letters."""
    lite = SQLiteConnection(name="lite", path=str(file))
    return stream(
        source=RabbitMQConnection(name="rabbit", amqp_url=rabbitmq.url()),
        source_query=queue,
        source_columns=Orders,
        target=lite,
        target_table="events",
        dead_letter_connection=lite,
        expectations=[rule],
        **OPTIONS,
    )


@pytest.mark.parametrize("point", ["stream.dead_letters", "stream.target_committed"])
def test_messages_of_a_queue_are_kept_once_in_the_file_that_is_loaded(
    rabbitmq: Any, rabbitmq_queue: str, tmp_path: Path, point: str
) -> None:
    """They have no position at the broker, and two of them are equal: each is a letter."""
    file = tmp_path / "lite.db"
    sent = [{"id": 1, "name": "a"}, {"id": -2, "name": "b"}, {"id": -2, "name": "b"}, {"id": -3, "name": "c"}]
    rabbitmq.publish(rabbitmq_queue, [json.dumps(each).encode() for each in sent])
    followed = queue_into_file(rabbitmq, rabbitmq_queue, file)
    with fault_points.inject(point, "crash") as fault, pytest.raises(fault_points.InjectedCrash):
        load(followed)
    assert fault.has_fired
    load(followed)
    assert rows(file) == [1]
    assert [each.reason for each in letters(followed)] == ["the row fails the expectation 'positive'"] * 3
    assert rabbitmq.count(rabbitmq_queue) == 0
    corrected = queue_into_file(rabbitmq, rabbitmq_queue, file, ematix.expect_or_drop("positive", "id <> -3"))
    outcome = replay(corrected)
    assert (outcome.replayed, outcome.failed) == (2, 1)
    assert rows(file) == [-2, -2, 1]


def test_a_message_after_the_loss_of_the_spool_is_not_taken_for_an_older_letter(
    rabbitmq: Any, rabbitmq_queue: str, tmp_path: Path
) -> None:
    """The spool counts its segments from 1 again."""
    followed = queue_into_file(rabbitmq, rabbitmq_queue, tmp_path / "lite.db")
    for number in (-2, -3):
        rabbitmq.publish(rabbitmq_queue, [json.dumps({"id": number, "name": "a"}).encode()])
        load(followed)
        shutil.rmtree(stream_folder_for(followed.spec).folder)
    assert len(letters(followed)) == 2
    assert rabbitmq.count(rabbitmq_queue) == 0


def test_each_target_that_moves_by_itself_has_its_own_dead_letters(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    files = {name: tmp_path / f"{name}.db" for name in "ab"}
    for name, known in (("a", [1, 2]), ("b", [1])):
        with closing(sqlite3.connect(files[name])) as database:
            database.execute("CREATE TABLE known (id INTEGER)")
            database.executemany("INSERT INTO known VALUES (?)", [(n,) for n in known])
            database.commit()
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        source_columns=Orders,
        targets=[
            Target(connection=SQLiteConnection(name=name, path=str(file)), table="events")
            for name, file in files.items()
        ],
        continue_on_target_failure=True,
        expectations=[ematix.expect_or_drop("known", lambda t: t.foreign_key("id", references="known"))],
        **OPTIONS,
    )
    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in (1, 2, 3)])
    load(followed)
    assert [rows(file) for file in files.values()] == [[1, 2], [1]]
    kept = sorted((each.target or "", each.position) for each in letters(followed))
    a, b = (target.label for target in followed.spec.targets)
    assert kept == [(a, "2"), (b, "1"), (b, "2")]
    with closing(sqlite3.connect(files["b"])) as database:
        database.execute("INSERT INTO known VALUES (2)")
        database.commit()
    outcome = replay(followed)
    assert (outcome.replayed, outcome.failed) == (1, 2)
    assert [rows(file) for file in files.values()] == [[1, 2], [1, 2]]


class Trimmed(ManagedTable):
    __tablename__ = "events"
    id: Annotated[BigInt, pk()]
    name: Annotated[Text, trim()]


def test_rows_with_normalizers_are_checked_as_they_are_loaded(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        source_columns=Orders,
        target=SQLiteConnection(name="lite", path=str(tmp_path / "lite.db")),
        target_table=Trimmed,
        expectations=[ematix.expect_or_drop("short", "length(name) < 3")],
        **OPTIONS,
    )
    produce(kafka, kafka_topic, [{"id": 1, "name": "  a  "}, {"id": 2, "name": "long"}])
    assert (load(followed).total_rows, [each.position for each in letters(followed)]) == (1, ["1"])
