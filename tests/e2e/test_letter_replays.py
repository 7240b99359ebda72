"""Replays of dead letters into several targets, of which one refuses letters or a replay died in between."""

from __future__ import annotations

import datetime as dt
import json
import os
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, ManagedTable, Target, Text, ematix, fault_points, pk
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.engine.streams.letter_loader import LetterLoader
from ematix_flow.engine.streams.sinks import BatchName
from ematix_flow.errors import PipelineLocked
from ematix_flow.graph.registry import DeclaredStream
from ematix_flow.spec.connections import SQLiteConnection
from ematix_flow.state.dead_letters.base import DeadLetter, LetterSelection
from ematix_flow.state.dead_letters.sql import SqlDeadLetterStore
from ematix_flow.state.times import utc_now
from ematix_flow.streaming import KafkaToKafkaEosPipeline
from ematix_flow.streams.dead_letter_replay import ReplayResult, letter_runner, replay_letters
from tests.services.kafka import KafkaServer
from tests.stream_runs import kafka_connection, stream

pytestmark = pytest.mark.usefixtures("spark")

EVERY = LetterSelection(all=True)
KNOWN = ematix.expect_or_fail("known", lambda t: t.foreign_key("id", references="known"))
REFUSE_2 = (
    "CREATE TRIGGER refusing BEFORE INSERT ON events WHEN new.id = 2 BEGIN SELECT raise(ABORT, 'no'); END"
)


class Orders(ManagedTable):
    __tablename__ = "events"
    id: Annotated[BigInt, pk()]
    name: Text


def sql(file: Path, *statements: str) -> list[Any]:
    with closing(sqlite3.connect(file)) as database, database:
        return [row[0] for statement in statements for row in database.execute(statement)]


def ids(files: Iterable[Path]) -> list[list[int]]:
    return [sql(file, "SELECT id FROM events ORDER BY id") for file in files]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two databases that take any rows, also twice."""
    found = [tmp_path / "a.db", tmp_path / "b.db"]
    for file in found:
        sql(file, "CREATE TABLE events (id bigint NOT NULL, name text)", "CREATE TABLE known (id bigint)")
    return found


def into(kafka: KafkaServer, topic: str, files: Sequence[Path], **options: Any) -> StreamingPipeline:
    targets = [
        Target(connection=SQLiteConnection(name=file.stem, path=str(file)), table="events") for file in files
    ]
    return stream(
        source=kafka_connection(kafka),
        source_query=topic,
        source_columns=Orders,
        targets=targets,
        **{"transform_on_error": "dlq", "continue_on_target_failure": True, **options},
    )


def add_letters(followed: StreamingPipeline, count: int, **fields: Any) -> None:
    found = [
        DeadLetter.create(
            "events", "decode", "r", payload=json.dumps({"id": n, "name": "x"}).encode(), position=str(n),
            source=followed.spec.sources[0].query, partition="0", batch="stream:1", **fields,
        )
        for n in range(1, count + 1)
    ]  # fmt: skip
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        store.add(found)


def replay(followed: StreamingPipeline, later: float = 0, **options: Any) -> ReplayResult:
    """Replay all letters. ``later`` sets the clock of the store forward by so many seconds."""
    run = letter_runner(DeclaredStream(followed.spec, followed))
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        assert isinstance(store, SqlDeadLetterStore)
        store._clock = lambda: utc_now() + dt.timedelta(seconds=later)
        return replay_letters("events", store, EVERY, run, **options)


def outcomes(followed: StreamingPipeline) -> dict[str | None, tuple[str, int]]:
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        return {each.position: (each.status, each.attempt) for each in store.list("events")}


def test_a_letter_that_one_target_refuses_is_not_loaded_again_into_the_others(
    kafka: KafkaServer, kafka_topic: str, files: list[Path]
) -> None:
    sql(files[1], REFUSE_2)
    followed = into(kafka, kafka_topic, files)
    add_letters(followed, 3)
    assert replay(followed).failed == 1
    assert ids(files) == [[1, 2, 3], [1, 3]]
    assert replay(into(kafka, kafka_topic, files, continue_on_target_failure=False)).failed == 1
    sql(files[1], "DROP TRIGGER refusing")
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        (kept,) = store.list("events", status="parked")
        run = letter_runner(DeclaredStream(followed.spec, followed))
        assert replay_letters("events", store, LetterSelection(ids=(kept.id,)), run).replayed == 1
    assert ids(files) == [[1, 2, 3], [1, 2, 3]]


def test_a_letter_that_the_second_target_refuses_after_the_first_has_it_is_not_loaded_twice(
    kafka: KafkaServer, kafka_topic: str, files: list[Path]
) -> None:
    """The targets are loaded together, and both accept the letter when they are asked before."""
    followed = into(kafka, kafka_topic, files, continue_on_target_failure=False)
    add_letters(followed, 3)
    with fault_points.inject("stream.target_committed", lambda: sql(files[1], REFUSE_2)) as fault:
        assert replay(followed).failed == 1
    assert fault.has_fired
    assert ids(files) == [[1, 2, 3], [1, 3]]
    sql(files[1], "DROP TRIGGER refusing")
    assert replay(followed).replayed == 1
    assert ids(files) == [[1, 2, 3], [1, 2, 3]]


def test_a_letter_that_fails_a_rule_of_the_second_target_stays_and_the_others_are_loaded(
    kafka: KafkaServer, kafka_topic: str, files: list[Path]
) -> None:
    for file, known in zip(files, ["(1), (2), (3), (4)", "(1), (3), (4)"], strict=True):
        sql(file, f"INSERT INTO known VALUES {known}")
    followed = into(kafka, kafka_topic, files, expectations=[KNOWN])
    add_letters(followed, 4)
    assert (replay(followed).replayed, ids(files)) == (3, [[1, 2, 3, 4], [1, 3, 4]])
    assert outcomes(followed)["2"] == ("pending", 2)
    assert replay(followed).parked == 1
    assert ids(files) == [[1, 2, 3, 4], [1, 3, 4]]


def test_a_replay_that_died_between_two_targets_does_not_block_the_next_ones(
    kafka: KafkaServer, kafka_topic: str, files: list[Path]
) -> None:
    """The second target then has a rule that one of the letters fails."""
    for file in files:
        sql(file, "INSERT INTO known VALUES (1), (2), (3)")
    followed = into(kafka, kafka_topic, files, expectations=[KNOWN], continue_on_target_failure=False)
    add_letters(followed, 3)
    with (
        fault_points.inject("stream.target_committed", "crash") as fault,
        pytest.raises(fault_points.InjectedCrash),
    ):
        replay(followed, lease_seconds=0)
    assert fault.has_fired
    assert ids(files) == [[1, 2, 3], []]
    sql(files[1], "DELETE FROM known WHERE id = 2")
    assert (replay(followed).replayed, ids(files)) == (2, [[1, 2, 3], [1, 3]])
    assert outcomes(followed) == {"1": ("replayed", 1), "2": ("pending", 2), "3": ("replayed", 1)}


@pytest.mark.parametrize("point", ["apply.after_commit", "stream.target_committed", "replay.committed"])
def test_after_a_replay_that_died_the_order_of_the_targets_may_change(
    kafka: KafkaServer, kafka_topic: str, files: list[Path], point: str
) -> None:
    followed = into(kafka, kafka_topic, files)
    add_letters(followed, 3)
    with fault_points.inject(point, "crash") as fault, pytest.raises(fault_points.InjectedCrash):
        replay(followed, lease_seconds=0)
    assert fault.has_fired
    assert replay(into(kafka, kafka_topic, files[::-1])).replayed == 3
    assert ids(files) == [[1, 2, 3], [1, 2, 3]]


def test_what_a_replay_of_an_earlier_version_loaded_is_found_in_another_order_of_targets(
    kafka: KafkaServer, kafka_topic: str, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It numbered the targets in the keys of its batches."""
    followed = into(kafka, kafka_topic, files)
    add_letters(followed, 3)
    replay_id, numbers = str(uuid.uuid4()), iter(range(2))

    def numbered(loader: LetterLoader, *_: object) -> BatchName:
        return BatchName("events", replay_id, next(numbers), None, kind="dlq")

    run = letter_runner(DeclaredStream(followed.spec, followed))
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        with monkeypatch.context() as patched:
            patched.setattr(LetterLoader, "_batch", numbered)
            with fault_points.inject("replay.committed", "crash"), pytest.raises(fault_points.InjectedCrash):
                replay_letters("events", store, EVERY, run)
        assert isinstance(store, SqlDeadLetterStore)
        keys = f"dlq:{replay_id}:0 dlq:{replay_id}:1"
        with store._transaction() as connection:
            letters = store._letters
            connection.execute(letters.update().values(loading=keys, loaded_in=None, leased_until=None))
    assert replay(into(kafka, kafka_topic, files[::-1])).replayed == 3
    assert ids(files) == [[1, 2, 3], [1, 2, 3]]


def test_a_letter_of_a_target_that_is_no_longer_declared_is_not_taken_for_replayed(
    kafka: KafkaServer, kafka_topic: str, files: list[Path]
) -> None:
    followed = into(kafka, kafka_topic, files)
    add_letters(followed, 1, target="gone:events")
    result = replay(followed)
    assert list(result.failures.values()) == ["stream 'events' no longer has the target gone:events"]
    assert ids(files) == [[], []]


def test_a_topic_that_gets_each_batch_once_gets_each_letter_once_after_a_replay_was_killed(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    """The topic remembers only its newest replay, so no other may send while that one is not recorded."""
    out = kafka.create_topic("out")
    followed = KafkaToKafkaEosPipeline(
        name="events",
        source=kafka_connection(kafka),
        source_topic=kafka_topic,
        source_columns=Orders,
        target=kafka_connection(kafka, "sink"),
        target_topic=out,
        transform_on_error="dlq",
    )
    add_letters(followed, 4)
    with fault_points.inject("replay.committed", "crash") as fault, pytest.raises(fault_points.InjectedCrash):
        replay(followed, chunk=2)
    assert fault.has_fired
    with pytest.raises(PipelineLocked, match=r"run the replay again after \d\d:\d\d:\d\d UTC"):
        replay(followed, chunk=2)
    assert replay(followed, later=600, chunk=2).replayed == 4
    sent = [json.loads(message.value())["id"] for message in kafka.consume_all(out, read_committed=True)]
    assert sorted(sent) == [1, 2, 3, 4]
