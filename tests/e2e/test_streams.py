"""Streams from Kafka into PostgreSQL and other targets, on the real broker: what arrives, and how often."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, Lookup, ManagedTable, Target, pk
from ematix_flow.backends.kafka import offset_ranges
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.engine.streams import incoming_batch
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.errors import DeclarationError, GuaranteeRefused, SchemaMismatch, SourceFailed
from ematix_flow.spec.connections import DuckDBConnection, ObjectStoreLocalConnection, SQLiteConnection
from ematix_flow.streaming import KafkaToKafkaEosPipeline
from tests.services.kafka import KafkaServer
from tests.stream_runs import (
    events_into,
    kafka_connection,
    ledger,
    load,
    produce,
    query,
    stream,
    until,
    warehouse,
)

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def events(pg_database: str) -> str:
    """A table that another program made; returns its URL."""
    query(
        pg_database,
        "CREATE TABLE events (seq bigserial PRIMARY KEY, id bigint NOT NULL, name text, at timestamptz)",
    )
    return pg_database


def test_a_table_of_others_is_loaded_as_it_is(kafka: KafkaServer, kafka_topic: str, events: str) -> None:
    produce(kafka, kafka_topic, [{"id": n, "name": f"n{n}", "at": "2026-01-01T00:00:00Z"} for n in range(50)])
    followed = stream(
        source=kafka_connection(kafka, group_id="watched"),
        source_query=kafka_topic,
        target=warehouse(events),
        target_table=("public", "events"),
    )
    result = load(followed)
    assert (result.total_rows, result["rows_read"], result.shutdown_triggered) == (50, 50, False)
    assert query(events, "SELECT count(*), count(DISTINCT id), count(seq), min(name) FROM events") == [
        (50, 50, 50, "n0")
    ]
    columns = query(
        events,
        "SELECT column_name FROM information_schema.columns "
        "WHERE table_name = 'events' AND table_schema = 'public'",
    )
    assert {name for (name,) in columns} == {"seq", "id", "name", "at"}


def test_a_second_run_brings_what_is_new_and_nothing_twice(
    kafka: KafkaServer, kafka_topic: str, events: str
) -> None:
    followed = events_into(events, kafka, kafka_topic)
    produce(kafka, kafka_topic, [{"id": n} for n in range(10)])
    assert load(followed).total_rows == 10
    assert load(followed).total_rows == 0
    produce(kafka, kafka_topic, [{"id": n} for n in range(10, 15)])
    assert load(followed).total_rows == 5
    assert query(events, "SELECT count(*), count(DISTINCT id) FROM events") == [(15, 15)]
    assert [rows for _, rows in ledger(events)] == [10, 5]


def test_what_a_broker_knows_of_a_message_can_be_loaded(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    query(
        pg_database,
        "CREATE TABLE seen (id bigint, _key text, _topic text, _partition int, _offset bigint, "
        "_event_ts timestamptz, _headers jsonb)",
    )
    produce(
        kafka, kafka_topic, [{"id": 1}], keys=["k1"], headers=[("trace", b"t-1")], timestamp=1_700_000_000_000
    )
    load(
        stream(
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            target=warehouse(pg_database),
            target_table=("public", "seen"),
        )
    )
    moment = "extract(epoch FROM _event_ts)::bigint"
    told = f"SELECT id, _key, _topic, _partition, _offset, {moment}, _headers FROM seen"
    assert query(pg_database, told) == [(1, "k1", kafka_topic, 0, 0, 1_700_000_000, {"trace": "t-1"})]


def test_the_offsets_are_committed_to_the_consumer_group(
    kafka: KafkaServer, kafka_topic: str, events: str
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    produce(kafka, kafka_topic, [{"id": n} for n in range(7)])
    load(
        stream(
            source=kafka_connection(kafka, group_id="lag-tools"),
            source_query=kafka_topic,
            target=warehouse(events),
            target_table=("public", "events"),
        )
    )
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "lag-tools"})
    try:
        assert consumer.committed([TopicPartition(kafka_topic, 0)], timeout=20)[0].offset == 7
    finally:
        consumer.close()


def test_a_table_that_is_not_there_gets_the_columns_of_the_first_messages(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        target=warehouse(pg_database),
        target_table=("raw", "orders"),
    )
    produce(kafka, kafka_topic, [{"id": 1, "total": 9.5, "tags": ["a"], "at": "2026-01-01T00:00:00Z"}])
    load(followed)
    produce(kafka, kafka_topic, [{"id": 2, "total": 1, "unheard": True}])
    load(followed)
    rows = query(pg_database, "SELECT id, total, tags::text, at IS NULL FROM raw.orders ORDER BY id")
    assert rows == [(1, 9.5, '["a"]', False), (2, 1.0, None, True)]
    pinned = json.loads(stream_folder_for(followed.spec).columns_file().read_text())
    assert [column["name"] for column in pinned["columns"]] == ["id", "total", "tags", "at"]


def test_of_several_messages_with_one_key_the_last_is_merged(kafka: KafkaServer, pg_database: str) -> None:
    topic = kafka.create_topic("accounts", partitions=2)

    followed = stream(
        source=kafka_connection(kafka),
        source_query=topic,
        target=warehouse(pg_database),
        target_table=("crm", "account"),
        mode="merge",
        keys=["id"],
    )
    produce(kafka, topic, [{"id": n % 3, "name": f"v{n}"} for n in range(12)], partition=0)
    load(followed)
    produce(kafka, topic, [{"id": 0, "name": "newest"}], partition=0)
    load(followed)
    assert query(pg_database, "SELECT id, name FROM crm.account ORDER BY id") == [
        (0, "newest"),
        (1, "v10"),
        (2, "v11"),
    ]


def test_versions_by_event_time_do_not_depend_on_the_order_of_messages(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        target=warehouse(pg_database),
        target_table=("crm", "customer"),
        mode="scd2",
        keys=["id"],
        event_timestamp_column="at",
    )
    produce(kafka, kafka_topic, [{"id": 1, "city": "Oslo", "at": "2026-01-03T00:00:00Z"}])
    load(followed)
    produce(
        kafka,
        kafka_topic,
        [
            {"id": 1, "city": "Rome", "at": "2026-01-01T00:00:00Z"},
            {"id": 1, "city": "Bern", "at": "2026-01-02T00:00:00Z"},
        ],
    )
    load(followed)
    told = "SELECT city, valid_from::date::text, is_current FROM crm.customer ORDER BY valid_from"
    assert query(pg_database, told) == [
        ("Rome", "2026-01-01", False),
        ("Bern", "2026-01-02", False),
        ("Oslo", "2026-01-03", True),
    ]


def test_sql_makes_one_row_of_many_messages(kafka: KafkaServer, kafka_topic: str, pg_database: str) -> None:
    query(
        pg_database,
        "CREATE SCHEMA marketdata; CREATE TABLE marketdata.option_chain_snapshots "
        "(minute timestamptz NOT NULL, strikes_json jsonb NOT NULL)",
    )
    produce(
        kafka,
        kafka_topic,
        [
            {
                "ts": f"2026-01-01T10:00:{n:02d}Z",
                "strike": 4500 + n,
                "bid": 1.25,
                "ask": 1.5,
                "underlying": "SPXW",
            }
            for n in range(3)
        ],
    )
    load(
        stream(
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            target=warehouse(pg_database),
            target_table=("marketdata", "option_chain_snapshots"),
            transform_sql="""
              SELECT date_trunc('minute', ts) AS minute,
                     array_agg(named_struct('strike', strike, 'bid', bid, 'ask', ask)) AS strikes_json
              FROM source WHERE underlying = 'SPXW' GROUP BY 1
            """,
        )
    )
    [(minute, strikes)] = query(
        pg_database, "SELECT minute::text, strikes_json FROM marketdata.option_chain_snapshots"
    )
    assert minute.startswith("2026-01-01 10:00:00")
    assert sorted(strike["strike"] for strike in strikes) == [4500, 4501, 4502]


def test_a_lookup_is_joined_and_refreshed(kafka: KafkaServer, kafka_topic: str, pg_database: str) -> None:
    query(
        pg_database,
        "CREATE TABLE dim_users (user_id bigint, tier text); INSERT INTO dim_users VALUES (1, 'gold')",
    )
    target = warehouse(pg_database)
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        target=target,
        target_table=("public", "events_clean"),
        transform_sql="SELECT s.user_id, s._event_ts, u.tier FROM source s "
        "LEFT JOIN users u ON u.user_id = s.user_id",
        lookups={
            "users": Lookup(target, query="SELECT user_id, tier FROM dim_users", refresh_interval_ms=60_000)
        },
    )
    produce(kafka, kafka_topic, [{"user_id": 1}, {"user_id": 2}])
    load(followed)
    query(pg_database, "INSERT INTO dim_users VALUES (3, 'new')")
    produce(kafka, kafka_topic, [{"user_id": 3}])
    load(followed)
    assert query(pg_database, "SELECT user_id, tier FROM events_clean ORDER BY 1") == [
        (1, "gold"),
        (2, None),
        (3, "new"),
    ]


# ---------------------------------------------------------------- what cannot be loaded


def test_by_default_a_message_that_cannot_be_read_stops_the_stream_and_is_named(
    kafka: KafkaServer, kafka_topic: str, events: str
) -> None:
    produce(kafka, kafka_topic, [{"id": 1}, b"not json", {"id": 2}])
    followed = events_into(events, kafka, kafka_topic)
    with pytest.raises(SourceFailed, match=rf"{kafka_topic} partition 0 offset 1.*") as raised:
        load(followed)
    assert "dlq" in str(raised.value)
    assert query(events, "SELECT count(*) FROM events") == [(0,)]


@pytest.mark.parametrize("policy", ["drop", "dlq"])
def test_one_bad_message_does_not_keep_the_others(
    kafka: KafkaServer, kafka_topic: str, events: str, policy: str
) -> None:
    produce(kafka, kafka_topic, [{"id": 1}, b"not json", {"id": "x"}, {"name": "no id"}, {"id": 2}])
    followed = events_into(events, kafka, kafka_topic, transform_on_error=policy)
    result = load(followed)
    assert query(events, "SELECT id FROM events ORDER BY id") == [(1,), (2,)]
    assert (result.dropped, result.dead_letters) == ((3, 0) if policy == "drop" else (0, 3))
    if policy == "dlq":
        with open_stream_dead_letters(followed.spec, env=os.environ) as store:
            letters = store.list("events", limit=10)
            assert sorted(letter.position or "" for letter in letters) == ["1", "2", "3"]
            assert {letter.stage for letter in letters} == {"decode"}
            broken = next(letter for letter in letters if letter.position == "1")
            assert store.get("events", broken.id).payload == b"not json"


def test_a_row_that_the_sql_fails_on_is_found_among_the_others(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    produce(kafka, kafka_topic, [{"id": n, "text": str(n)} for n in range(40)] + [{"id": 99, "text": "many"}])
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        target=warehouse(pg_database),
        target_table=("public", "numbers"),
        transform_sql="SELECT id, CAST(text AS BIGINT) AS number FROM source",
        transform_on_error="dlq",
    )
    assert load(followed).dead_letters == 1
    assert query(pg_database, "SELECT count(*), max(number) FROM numbers") == [(40, 39)]
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        [letter] = store.list("events", limit=10)
    assert (letter.stage, letter.position) == ("transform", "40")


# ---------------------------------------------------------------- positions


def test_without_its_checkpoint_a_stream_goes_on_where_the_ledger_ends(
    kafka: KafkaServer, kafka_topic: str, events: str
) -> None:
    followed = events_into(events, kafka, kafka_topic)
    produce(kafka, kafka_topic, [{"id": n} for n in range(6)])
    load(followed)
    shutil.rmtree(stream_folder_for(followed.spec).folder)
    produce(kafka, kafka_topic, [{"id": n} for n in range(6, 9)])
    load(followed)
    assert query(events, "SELECT count(*), count(DISTINCT id) FROM events") == [(9, 9)]


def test_a_batch_that_spark_believes_undone_is_not_loaded_again(
    kafka: KafkaServer, kafka_topic: str, events: str
) -> None:
    followed = events_into(events, kafka, kafka_topic)
    produce(kafka, kafka_topic, [{"id": n} for n in range(6)])
    load(followed)
    commits = stream_folder_for(followed.spec).checkpoint("all") / "commits"
    newest = max(commits.iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1)
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    load(followed)
    assert query(events, "SELECT count(*), count(DISTINCT id) FROM events") == [(6, 6)]


@pytest.mark.parametrize("in_the_driver", [True, False])
def test_messages_that_retention_took_from_under_the_stream_are_an_error_that_says_so(
    kafka: KafkaServer,
    kafka_topic: str,
    events: str,
    in_the_driver: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not in_the_driver:
        monkeypatch.setattr(incoming_batch, "MAX_ROWS", 0)
    followed = events_into(events, kafka, kafka_topic)
    produce(kafka, kafka_topic, [{"id": n} for n in range(4)])
    load(followed)
    produce(kafka, kafka_topic, [{"id": n} for n in range(4, 10)])
    kafka.delete_records(kafka_topic, 8)
    with pytest.raises(SourceFailed, match=kafka_topic) as raised:
        load(followed)
    assert "fail_on_data_loss" in str(raised.value)
    assert query(events, "SELECT count(*) FROM events") == [(4,)]


def test_a_stream_can_begin_at_a_moment(kafka: KafkaServer, kafka_topic: str, events: str) -> None:
    produce(kafka, kafka_topic, [{"id": 1}], timestamp=1_700_000_000_000)
    produce(kafka, kafka_topic, [{"id": 2}], timestamp=1_700_000_060_000)
    load(events_into(events, kafka, kafka_topic, starting="2023-11-14T22:14:00Z"))
    assert query(events, "SELECT id FROM events") == [(2,)]


# ---------------------------------------------------------------- several targets


def test_one_stream_loads_a_table_and_files(
    kafka: KafkaServer, kafka_topic: str, events: str, tmp_path: Path
) -> None:
    import pyarrow.dataset as ds

    files = ObjectStoreLocalConnection(name="lake", path=str(tmp_path / "lake"), format="parquet")
    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in range(5)])
    load(
        stream(
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            targets=[
                Target(connection=warehouse(events), table=("public", "events")),
                Target(connection=files, prefix="events/raw", parquet_compression="zstd"),
            ],
        )
    )
    assert query(events, "SELECT count(*) FROM events") == [(5,)]
    there = ds.dataset(tmp_path / "lake" / "events" / "raw", format="parquet").to_table()
    assert sorted(there.column("id").to_pylist()) == [0, 1, 2, 3, 4]


def test_a_target_that_fails_does_not_stop_the_others_and_catches_up(
    kafka: KafkaServer, kafka_topic: str, events: str, tmp_path: Path
) -> None:
    from ematix_flow.errors import FlowError

    late = DuckDBConnection(name="late", path=str(tmp_path / "not-yet" / "late.duckdb"))
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        targets=[
            Target(connection=warehouse(events), table=("public", "events")),
            Target(connection=late, table=("main", "events")),
        ],
        source_columns=_event,
        continue_on_target_failure=True,
    )
    produce(kafka, kafka_topic, [{"id": n} for n in range(5)])
    with pytest.raises(FlowError):
        load(followed)
    assert query(events, "SELECT count(*) FROM events") == [(5,)]
    (tmp_path / "not-yet").mkdir()
    produce(kafka, kafka_topic, [{"id": n} for n in range(5, 8)])
    load(followed)
    assert query(events, "SELECT count(*), count(DISTINCT id) FROM events") == [(8, 8)]
    import duckdb

    with duckdb.connect(late.path) as database:
        assert database.execute("SELECT count(*), count(DISTINCT id) FROM events").fetchall() == [(8, 8)]


class _event(ManagedTable):
    __tablename__ = "event_payload"
    id: Annotated[BigInt, pk()]


# ---------------------------------------------------------------- into a broker


def test_kafka_to_kafka_exactly_once(kafka: KafkaServer, kafka_topic: str) -> None:
    out = kafka.create_topic("out")
    followed = KafkaToKafkaEosPipeline(
        name="events",
        source=kafka_connection(kafka),
        source_topic=kafka_topic,
        target=kafka_connection(kafka, "sink"),
        target_topic=out,
        target_message_key_column="id",
        transform_sql="SELECT id, id * 2 AS twice FROM source",
    )
    produce(kafka, kafka_topic, [{"id": n} for n in range(20)])
    load(followed)
    commits = stream_folder_for(followed.spec).checkpoint("all") / "commits"
    for commit in commits.iterdir():
        commit.unlink()
    produce(kafka, kafka_topic, [{"id": n} for n in range(20, 25)])
    load(followed)
    sent = [json.loads(message.value()) for message in kafka.consume_all(out, read_committed=True)]
    assert sorted(row["id"] for row in sent) == list(range(25))
    assert all(row["twice"] == 2 * row["id"] for row in sent)


def test_messages_of_a_partition_are_sent_on_in_order(
    kafka: KafkaServer, kafka_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_ranges, "MIN_SPLIT_OFFSETS", 10)  # a batch for several tasks
    out = kafka.create_topic("out", 1)
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        target=kafka_connection(kafka, "sink"),
        target_topic=out,
        transform_sql="SELECT id, id % 3 AS key FROM source",
        target_message_key_column="key",
    )
    produce(kafka, kafka_topic, [{"id": n} for n in range(200)], partition=0)
    load(followed)
    sent = [json.loads(message.value())["id"] for message in kafka.consume_all(out)]
    assert sent == list(range(200))


def test_a_promise_that_cannot_be_kept_is_refused(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    from ematix_flow.spec.connections import RabbitMQConnection

    with pytest.raises(GuaranteeRefused, match="exactly_once"):
        load(
            stream(
                source=kafka_connection(kafka),
                source_query=kafka_topic,
                target=RabbitMQConnection(name="mq", amqp_url="amqp://guest:guest@127.0.0.1:1/"),
                target_queue="q",
                source_columns=_event,
                delivery="exactly_once",
            )
        )


# ---------------------------------------------------------------- running


def test_a_running_stream_takes_new_messages_and_stops_between_two_batches(
    kafka: KafkaServer, kafka_topic: str, events: str
) -> None:
    followed = events_into(events, kafka, kafka_topic, idle_pause_ms=50)
    running = followed.start()
    produce(kafka, kafka_topic, [{"id": n} for n in range(5)])
    until(lambda: query(events, "SELECT count(*) FROM events") == [(5,)], running)
    produce(kafka, kafka_topic, [{"id": n} for n in range(5, 9)])
    until(lambda: query(events, "SELECT count(*) FROM events") == [(9,)], running)
    running.stop()
    result = running.wait(60)
    assert (result.shutdown_triggered, result.total_rows) == (True, 9)
    assert load(followed).total_rows == 0


def test_two_consumers_of_one_pipeline_do_not_load_at_once(
    kafka: KafkaServer, kafka_topic: str, events: str
) -> None:
    from ematix_flow.errors import PipelineLocked

    produce(kafka, kafka_topic, [{"id": 1}])
    options: dict[str, Any] = {
        "source": kafka_connection(kafka),
        "source_query": kafka_topic,
        "target": warehouse(events),
        "target_table": ("public", "events"),
    }
    running = stream(**options).start()
    try:
        until(lambda: query(events, "SELECT count(*) FROM events") == [(1,)], running)
        with pytest.raises(PipelineLocked):
            load(stream(**options))
    finally:
        running.stop()
        running.wait(60)


def test_a_topic_that_is_not_there_is_reported_before_anything_else(
    kafka: KafkaServer, kafka_topic: str, events: str
) -> None:
    with pytest.raises(SourceFailed, match=f"{kafka_topic}x"):
        load(
            stream(
                source=kafka_connection(kafka),
                source_query=f"{kafka_topic}x",
                target=warehouse(events),
                target_table=("public", "events"),
            )
        )


def test_a_column_that_the_stream_lacks_is_reported_before_the_first_message(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    class Wanted(ManagedTable):
        __tablename__ = "wanted"
        id: Annotated[BigInt, pk()]
        total: BigInt

    with pytest.raises(SchemaMismatch, match="total"):
        load(
            stream(
                source=kafka_connection(kafka),
                source_query=kafka_topic,
                target_connection=SQLiteConnection(name="lite", path=str(tmp_path / "x.db")),
                target=Wanted,
                source_columns=_event,
            )
        )


def test_truncate_is_not_for_streams() -> None:
    with pytest.raises(DeclarationError, match="truncate"):
        stream(
            source="kafka",
            source_query="t",
            target="warehouse",
            target_table=("public", "events"),
            mode="truncate",
        )
