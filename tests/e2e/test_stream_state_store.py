"""The state of a stream in Postgres: a machine without the stream's folder continues where it stopped."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import Aggregation, StateStore, Target, Watermark, Window, fault_points
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.engine.streams.state.status import StateStatus, read_statuses
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.errors import PipelineLocked, Unsupported
from ematix_flow.graph.registry import current_registry
from ematix_flow.spec.connections import ObjectStoreLocalConnection, SQLiteConnection
from tests.e2e.test_stream_schemas import FIRST, SECOND, Registered
from tests.e2e.test_stream_windows import DAY, event, loaded
from tests.services.kafka import KafkaServer
from tests.services.registry import RegistryServer
from tests.stream_runs import kafka_connection, load, produce, query, stream, until

pytestmark = pytest.mark.usefixtures("spark")


def counts(
    kafka: KafkaServer, topic: str, file: Path, state_url: str, name: str = "events", **options: Any
) -> StreamingPipeline:
    """Rows of each user in windows of ten seconds, into a table of SQLite."""
    return stream(
        name,
        source=kafka_connection(kafka),
        source_query=topic,
        target=SQLiteConnection(name="lite", path=str(file)),
        target_table=options.pop("target_table", "counts"),
        window=Window(
            kind="tumbling",
            duration_ms=10_000,
            event_time_column="ts",
            group_by=("user_id",),
            aggregations=[
                Aggregation(agg="count", as_="n"),
                Aggregation(agg="count_distinct", column="amount", as_="kinds"),
            ],
        ),
        watermark=Watermark(lateness_ms=5_000),
        state_store=StateStore(kind="postgres", url=state_url, **options.pop("store", {})),
        max_rows_per_batch=4,
        **options,
    )


def lose_the_machine(declared: StreamingPipeline) -> None:
    shutil.rmtree(stream_folder_for(declared.spec).folder)


ROUNDS = [
    [event(1, "a", amount=1), event(2, "b", amount=2), event(4, "a", amount=3), event(14, "a", amount=4)],
    [event(8, "b", amount=5), event(17, "b", amount=6), event(26, "a", amount=7)],
    [event(27, "b"), event(41, "a"), event(58, "b")],  # without a column that earlier messages had
]


def test_a_machine_without_the_folder_continues(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, tmp_path: Path
) -> None:
    other = kafka.create_topic("uninterrupted")
    whole = counts(kafka, other, tmp_path / "whole.db", pg_database, "whole")
    resumed = counts(kafka, kafka_topic, tmp_path / "resumed.db", pg_database, "resumed")
    for messages in ROUNDS:
        produce(kafka, other, messages)
        produce(kafka, kafka_topic, messages)
        load(whole)
        load(resumed)
        lose_the_machine(resumed)
    load(resumed)
    assert loaded(tmp_path / "resumed.db") == loaded(tmp_path / "whole.db")
    assert len(loaded(tmp_path / "whole.db")) > 8


def test_a_machine_without_the_folder_begins_no_table_in_the_middle(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, tmp_path: Path
) -> None:
    followed = counts(kafka, kafka_topic, tmp_path / "lite.db", pg_database)
    produce(kafka, kafka_topic, ROUNDS[0])
    load(followed)
    lose_the_machine(followed)
    changed = counts(kafka, kafka_topic, tmp_path / "lite.db", pg_database, target_table="another")
    produce(kafka, kafka_topic, ROUNDS[1])
    with pytest.raises(Unsupported, match="lite:another is a new target of stream 'events'"):
        load(changed)


def test_the_last_batch_is_not_repeated_after_its_commit(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, tmp_path: Path
) -> None:
    """Also while the stream goes on and waits: its messages may be gone when another machine continues."""
    followed = counts(kafka, kafka_topic, tmp_path / "lite.db", pg_database)
    produce(kafka, kafka_topic, ROUNDS[0])
    running = followed.start()

    def stored_commits() -> list[str]:
        ((there,),) = query(pg_database, "SELECT to_regclass('ematix_stream_state') IS NOT NULL")
        texts = query(pg_database, "SELECT checkpoint FROM ematix_stream_state") if there else []
        return [name for (text,) in texts if text for name in json.loads(text) if name.startswith("commits/")]

    until(lambda: stored_commits() != [], running)
    running.stop()
    running.wait()


def test_a_folder_that_a_restore_replaces_is_kept(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, tmp_path: Path
) -> None:
    followed = counts(kafka, kafka_topic, tmp_path / "lite.db", pg_database)
    produce(kafka, kafka_topic, ROUNDS[0])
    load(followed)
    query(pg_database, "UPDATE ematix_stream_state SET owner = 'another machine'")
    load(followed)
    checkpoint = stream_folder_for(followed.spec).checkpoint("all")
    assert (checkpoint.with_name(".all.replaced") / "windows" / "state.duckdb").exists()


@pytest.mark.fault
@pytest.mark.parametrize(
    ("point", "nth", "keeps_folder"),
    [
        ("stream.state_committed", 2, False),  # the machine had the state, Postgres does not
        ("stream.state_mirrored", 1, True),
        ("stream.committed", 2, False),
        ("stream.state_mirrored", 3, False),  # the load of the open windows at the end of a run
        *(
            pytest.param(point, nth, keeps_folder, marks=pytest.mark.long)
            for point in (
                "stream.state_committed",
                "stream.state_mirrored",
                "stream.target_committed",
                "stream.committed",
            )
            for nth in (1, 2, 3)
            for keeps_folder in (False, True)
            if (point, nth) != ("stream.committed", 3)  # a load of open windows does not reach it
        ),
    ],
)
def test_a_process_that_dies_and_its_machine_with_it_loads_each_window_once(
    kafka: KafkaServer,
    kafka_topic: str,
    pg_database: str,
    tmp_path: Path,
    point: str,
    nth: int,
    keeps_folder: bool,
) -> None:
    declared = counts(kafka, kafka_topic, tmp_path / "lite.db", pg_database)
    produce(kafka, kafka_topic, ROUNDS[0] + ROUNDS[1])
    with fault_points.inject(point, "crash", nth=nth) as fault, pytest.raises(fault_points.InjectedCrash):
        load(declared)
    assert fault.has_fired
    if not keeps_folder:
        lose_the_machine(declared)
    produce(kafka, kafka_topic, ROUNDS[2])
    load(declared)
    newest = {row[:2]: row[2] for row in loaded(tmp_path / "lite.db")}
    assert newest == {
        (0, "a"): 2,
        (0, "b"): 2,
        (10, "a"): 1,
        (10, "b"): 1,
        (20, "a"): 1,
        (20, "b"): 1,
        (40, "a"): 1,
        (50, "b"): 1,
    }
    revisions = [(*row[:2], row[3]) for row in loaded(tmp_path / "lite.db")]
    assert len(set(revisions)) == len(revisions)
    assert query(pg_database, "SELECT count(*) FROM ematix_stream_state") == [(1,)]


def test_two_targets_that_fail_alone_have_their_own_state(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, tmp_path: Path
) -> None:
    files = [tmp_path / "one.db", tmp_path / "two.db"]
    declared = counts(kafka, kafka_topic, files[0], pg_database)
    targets = [
        Target(connection=SQLiteConnection(name=file.stem, path=str(file)), table="counts") for file in files
    ]
    options = {"targets": targets, "continue_on_target_failure": True}
    declared = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        window=declared.spec.window,
        state_store=declared.spec.state_store,
        **options,
    )
    for messages in ROUNDS[:2]:
        produce(kafka, kafka_topic, messages)
        load(declared)
        lose_the_machine(declared)
    assert loaded(files[0]) == loaded(files[1])
    assert {row[:3] for row in loaded(files[0])} >= {(0, "a", 2), (10, "a", 1), (10, "b", 1), (20, "a", 1)}
    assert query(pg_database, "SELECT count(*) FROM ematix_stream_state WHERE version IS NOT NULL") == [(2,)]


def test_a_process_that_was_replaced_stops_and_loads_nothing_more(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, tmp_path: Path
) -> None:
    declared = counts(kafka, kafka_topic, tmp_path / "lite.db", pg_database)
    produce(kafka, kafka_topic, ROUNDS[0])

    def take_over() -> None:
        query(pg_database, "UPDATE ematix_stream_state SET owner = 'another process'")

    with (
        fault_points.inject("stream.state_committed", take_over),
        pytest.raises(PipelineLocked, match="another process has taken over"),
    ):
        load(declared)
    assert query(pg_database, "SELECT version FROM ematix_stream_state") == [(None,)]
    load(declared)
    assert {row[:3] for row in loaded(tmp_path / "lite.db")} == {(0, "a", 2), (0, "b", 1), (10, "a", 1)}


def test_a_folder_that_another_machine_has_overtaken_is_replaced(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, tmp_path: Path
) -> None:
    """The first machine comes back with a state that reached no target: its batch was planned again."""
    declared = counts(kafka, kafka_topic, tmp_path / "lite.db", pg_database)
    folder = stream_folder_for(declared.spec).folder
    produce(kafka, kafka_topic, ROUNDS[0][:2])
    with (
        fault_points.inject("stream.state_committed", "crash", nth=1),
        pytest.raises(fault_points.InjectedCrash),
    ):
        load(declared)
    folder.rename(tmp_path / "first machine")
    produce(kafka, kafka_topic, ROUNDS[0][2:])
    load(declared)  # on the second machine; its first batch has four messages
    shutil.rmtree(folder)
    (tmp_path / "first machine").rename(folder)
    produce(kafka, kafka_topic, ROUNDS[1])
    load(declared)
    newest = {row[:2]: row[2] for row in loaded(tmp_path / "lite.db")}
    assert newest == {(0, "a"): 2, (0, "b"): 2, (10, "a"): 1, (10, "b"): 1, (20, "a"): 1}


def test_a_state_that_is_older_than_the_target_is_refused(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, tmp_path: Path
) -> None:
    """As after a backup of the state's database was brought back."""
    declared = counts(kafka, kafka_topic, tmp_path / "lite.db", pg_database)
    produce(kafka, kafka_topic, ROUNDS[0])
    load(declared)
    for table in ("ematix_stream_state", "ematix_stream_state_parts"):
        query(pg_database, f"CREATE TABLE old_{table} AS SELECT * FROM {table}")
    produce(kafka, kafka_topic, ROUNDS[1])
    load(declared)
    before = loaded(tmp_path / "lite.db")
    for table in ("ematix_stream_state", "ematix_stream_state_parts"):
        query(pg_database, f"DELETE FROM {table}")
        query(pg_database, f"INSERT INTO {table} SELECT * FROM old_{table}")
    lose_the_machine(declared)
    with pytest.raises(Unsupported, match="the checkpoint is older than the ledger"):
        load(declared)
    assert loaded(tmp_path / "lite.db") == before


def test_a_state_that_was_kept_on_the_machine_only_is_copied(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, tmp_path: Path
) -> None:
    mirrored = counts(kafka, kafka_topic, tmp_path / "lite.db", pg_database)
    alone = StreamingPipeline(replace(mirrored.spec, state_store=None), current_registry())
    for declared, messages in zip((alone, mirrored, mirrored), ROUNDS, strict=True):
        produce(kafka, kafka_topic, messages)
        load(declared)
    lose_the_machine(mirrored)
    load(mirrored)
    newest = {row[:2]: row[2] for row in loaded(tmp_path / "lite.db")}
    assert (newest[0, "a"], newest[0, "b"], newest[20, "b"], newest[50, "b"]) == (2, 2, 1, 1)


def test_a_source_whose_messages_are_on_the_machine_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in" / "orders").mkdir(parents=True)
    (tmp_path / "in" / "orders" / "1.json").write_text('{"ts": 1, "user_id": "a", "amount": 1}\n')
    declared = stream(
        source=ObjectStoreLocalConnection(name="files", path=str(tmp_path / "in"), format="json_lines"),
        source_query="orders",
        target=SQLiteConnection(name="lite", path=str(tmp_path / "lite.db")),
        target_table="counts",
        window=Window(
            kind="tumbling",
            duration_ms=1,
            event_time_column="ts",
            aggregations=[Aggregation(agg="count", as_="n")],
        ),
        state_store=StateStore(kind="postgres", url="postgres://ann:hunter22@127.0.0.1:9/x"),
    )
    with pytest.raises(Unsupported, match="needs a source that is read again by position") as refused:
        declared.plan()
    assert "hunter22" not in str(refused.value)


def test_the_plan_and_the_command_say_where_the_state_is(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, tmp_path: Path
) -> None:
    declared = counts(kafka, kafka_topic, tmp_path / "lite.db", pg_database)
    assert "state     next to the checkpoint, and both in Postgres, schema public" in str(declared.plan())
    produce(kafka, kafka_topic, ROUNDS[0])
    load(declared)
    (there,) = read_statuses(stream_folder_for(declared.spec).folder)
    ((stored,),) = query(pg_database, "SELECT status FROM ematix_stream_state")
    assert StateStatus.from_text(stored) == there
    assert (there.store, there.rows, there.stream) == ("postgres", 3, "events")
    assert there.watermark == (DAY + dt.timedelta(seconds=9)).timestamp() * 1e6


def test_a_state_in_memory_survives_a_newer_schema_of_the_registry(
    kafka: KafkaServer, kafka_topic: str, registry: RegistryServer, tmp_path: Path
) -> None:
    registered = Registered(kafka, kafka_topic, registry)
    with pytest.warns(UserWarning, match="in memory"):
        declared = registered.into(
            SQLiteConnection(name="lite", path=str(tmp_path / "lite.db")),
            "counts",
            on_drift="evolve",
            window=Window(
                kind="tumbling",
                duration_ms=3_600_000,
                group_by=("name",),
                aggregations=[Aggregation(agg="count_distinct", column="name", as_="n")],
            ),
            state_store=StateStore(kind="in_memory"),
        )

    def has_rows(rows: int) -> bool:
        return [status.rows for status in read_statuses(stream_folder_for(declared.spec).folder)] == [rows]

    registered.send(FIRST, {"id": 1, "name": "a"})
    running = declared.start()
    try:
        until(lambda: has_rows(1), running)
        registered.send(SECOND, {"id": 2, "name": "b", "tier": "gold", "size": 9})
        until(lambda: has_rows(2), running)
    finally:
        running.stop()
    running.wait(60)
    assert list(read_statuses(stream_folder_for(declared.spec).folder)) == []


CHILD = """
import json, sys
from pathlib import Path
from tests.e2e.test_stream_state_store import counts
from tests.stream_runs import load
from types import SimpleNamespace
bootstrap, topic, file, url = sys.argv[1:5]
load(counts(SimpleNamespace(bootstrap=bootstrap), topic, Path(file), url))
"""


@pytest.mark.fault
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_process_that_is_killed_with_its_machine_again_and_again_loads_each_window_once(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, tmp_path: Path
) -> None:
    declared = counts(kafka, kafka_topic, tmp_path / "lite.db", pg_database)
    points = ["state_committed", "state_mirrored", "target_committed", "state_mirrored:3", "committed"]
    expected: dict[tuple[int, str], int] = {}
    for round_, point in enumerate(points):
        messages = [event(round_ * 20 + second, "ab"[second % 2], amount=second) for second in range(8)]
        produce(kafka, kafka_topic, messages)
        expected |= {(round_ * 20, "a"): 4, (round_ * 20, "b"): 4}
        name, _, nth = point.partition(":")
        killed = subprocess.run(
            [
                sys.executable,
                "-c",
                CHILD,
                kafka.bootstrap,
                kafka_topic,
                str(tmp_path / "lite.db"),
                pg_database,
            ],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
                "EMATIX_FLOW_FAULT": f"stream.{name}=kill:{nth or 1}",
            },
            capture_output=True,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
        lose_the_machine(declared)
    load(declared)
    rows = loaded(tmp_path / "lite.db")
    assert {row[:2]: row[2] for row in rows} == expected
    assert len({(*row[:2], row[3]) for row in rows}) == len(rows)
