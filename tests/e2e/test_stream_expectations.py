"""Expectations of streams: each batch is checked before it is visible, and rows are set aside once."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, ManagedTable, Target, Text, ematix, fault_points, pk
from ematix_flow.alerters import Alerter, AlertEvent, clear_alerters, register_alerter
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.errors import ExpectationFailed, Unsupported
from ematix_flow.run.context_setup import spark_starter
from ematix_flow.run.quarantine import Quarantine
from ematix_flow.spec.connections import DeltaLocalConnection, ObjectStoreLocalConnection, SQLiteConnection
from ematix_flow.state.runlog.base import project_run_log
from tests.services.kafka import KafkaServer
from tests.stream_runs import events_into, kafka_connection, load, produce, query, stream, until

pytestmark = pytest.mark.usefixtures("spark")


class Orders(ManagedTable):
    __tablename__ = "orders"
    id: Annotated[BigInt, pk()]
    amount: BigInt | None
    note: Text


class Shop:
    """A folder of JSON lines that a stream loads into tables of SQLite files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in" / "orders").mkdir(parents=True)
        self.files = 0

    def write(self, *rows: tuple[int, int | None] | dict[str, Any]) -> None:
        self.files += 1
        lines = [
            row if isinstance(row, dict) else {"id": row[0], "amount": row[1], "note": "x"} for row in rows
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.folder / "in" / "orders" / f"{self.files}.json").write_text(text, encoding="utf-8")

    def lite(self, name: str) -> SQLiteConnection:
        return SQLiteConnection(name=name, path=str(self.folder / f"{name}.db"))

    def stream(self, expectations: Any, **options: Any) -> StreamingPipeline:
        if "targets" not in options:
            options |= {"target": self.lite("a"), "target_table": "orders"}
        return stream(
            name="orders",
            source=ObjectStoreLocalConnection(name="files", path=str(self.folder / "in"), format="json"),
            source_query="orders",
            source_columns=Orders,
            expectations=expectations,
            **options,
        )

    def ids(self, table: str = "orders", name: str = "a") -> list[int]:
        with closing(sqlite3.connect(self.folder / f"{name}.db")) as database:
            found = database.execute("SELECT name FROM sqlite_master WHERE name = ?", [table]).fetchall()
            return [row[0] for row in database.execute(f"SELECT id FROM {table} ORDER BY 1")] if found else []


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_failing_rows_of_each_batch_are_set_aside_and_the_stream_goes_on(shop: Shop) -> None:
    followed = shop.stream(
        [ematix.expect_or_drop("positive", "amount > 0"), ematix.expect("small", "id < 5")]
    )
    shop.write((1, 10), (2, -5), (3, None))
    first = load(followed)
    assert (first.total_rows, first.rows_read, first.quarantined) == (2, 3, 1)
    shop.write((4, -1), (6, 7))
    assert load(followed).quarantined == 1
    assert (shop.ids(), shop.ids("orders__quarantine")) == ([1, 3, 6], [2, 4])
    with open_run_log(project_run_log(os.environ), env=os.environ) as log:
        newest = log.list("orders", limit=1)[0]
    (target,) = newest.metrics["targets"]
    assert [(each["rule"], each["verdict"], each["failing"]) for each in target["expectations"]] == [
        ("positive", "warn", 1),
        ("small", "warn", 1),
    ]


class Listener(Alerter):
    name = "listener"

    def __init__(self) -> None:
        self.events: list[AlertEvent] = []

    def send(self, event: AlertEvent) -> None:
        self.events.append(event)


def test_a_running_stream_sends_an_alert_when_a_rule_fails_for_the_first_time(shop: Shop) -> None:
    listener = Listener()
    register_alerter(listener)
    shop.write((1, -1), (2, 2))
    try:
        running = shop.stream([ematix.expect_or_drop("positive", "amount > 0")]).start()
        until(lambda: bool(listener.events), running)
        shop.write((3, -3))
        until(lambda: shop.ids("orders__quarantine") == [1, 3], running)
        running.stop()
        running.wait(120)
    finally:
        clear_alerters()
    (event,) = listener.events
    assert (event.kind, event.error_message) == ("quality_failed", "positive: 1 of 2 rows fail")


def test_a_batch_that_fails_stops_the_stream_with_nothing_of_it_visible(shop: Shop) -> None:
    shop.write((1, 10))
    load(shop.stream([ematix.expect_or_fail("positive", "amount > 0")]))
    shop.write((2, 5), (3, -5))
    with pytest.raises(ExpectationFailed, match="positive: 1 of 2 rows fail"):
        load(shop.stream([ematix.expect_or_fail("positive", "amount > 0")]))
    assert shop.ids() == [1]
    load(shop.stream([ematix.expect_or_fail("positive", "amount > -9")]))
    assert shop.ids() == [1, 2, 3]


def test_of_several_targets_none_shows_a_batch_that_one_of_them_refuses(shop: Shop) -> None:
    targets = [Target(connection=shop.lite(name), table=Orders) for name in "ab"]
    rule = ematix.expect_or_fail("known", lambda t: t.foreign_key("id", references="known"))
    for name in "ab":
        with closing(sqlite3.connect(shop.folder / f"{name}.db")) as database:
            database.execute("CREATE TABLE known (id INTEGER)")
            database.executemany(
                "INSERT INTO known VALUES (?)", [(n,) for n in range(3 if name == "a" else 2)]
            )
            database.commit()
    followed = shop.stream([rule], targets=targets)
    shop.write((1, 1), (2, 2))
    with pytest.raises(ExpectationFailed, match="known: 1 of 2 rows fail"):
        load(followed)
    assert (shop.ids(name="a"), shop.ids(name="b")) == ([], [])


def test_each_of_several_targets_sets_its_rows_aside(shop: Shop) -> None:
    targets = [Target(connection=shop.lite(name), table=Orders) for name in "ab"]
    shop.write((1, 1), (2, -2))
    load(shop.stream([ematix.expect_or_drop("positive", "amount > 0")], targets=targets))
    assert [shop.ids(name=name) for name in "ab"] == [[1], [1]]
    assert [shop.ids("orders__quarantine", name) for name in "ab"] == [[2], [2]]


def test_rows_that_sql_computes_are_checked(shop: Shop) -> None:
    shop.write((1, 1), (2, -2), (3, 3))
    followed = shop.stream(
        [ematix.expect_or_drop("positive", "total > 0")],
        transform_sql="SELECT id, sum(amount) AS total FROM source GROUP BY id",
    )
    load(followed)
    assert (shop.ids(), shop.ids("orders__quarantine")) == ([1, 3], [2])


@pytest.mark.parametrize(
    "point", ["gate.checked", "gate.quarantined", "apply.before_commit", "stream.committed"]
)
def test_a_batch_repeated_after_a_crash_sets_its_rows_aside_once(shop: Shop, point: str) -> None:
    followed = shop.stream([ematix.expect_or_drop("positive", "amount > 0")])
    shop.write((1, 10), (2, -5))
    with fault_points.inject(point, "crash") as fault, pytest.raises(fault_points.InjectedCrash):
        load(followed)
    assert fault.has_fired
    load(followed)
    assert (shop.ids(), shop.ids("orders__quarantine")) == ([1], [2])


def test_quarantined_rows_of_a_stream_are_replayed_into_its_target(shop: Shop) -> None:
    shop.write((1, 10), (2, -5), (3, -7))
    load(shop.stream([ematix.expect_or_drop("positive", "amount > 0")]))
    corrected = shop.stream([ematix.expect_or_drop("positive", "amount > -6")])
    result = Quarantine(corrected.spec, spark_starter()).replay()
    assert (result.rows_read, result.rows_quarantined) == (2, 1)
    assert (shop.ids(), shop.ids("orders__quarantine")) == ([1, 2], [3])
    shop.write((4, 1))
    load(corrected)  # the replay did not move the position of the stream
    assert shop.ids() == [1, 2, 4]


def test_messages_are_set_aside_with_their_offsets_next_to_dead_letters(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL, name text NOT NULL)")
    followed = events_into(
        pg_database,
        kafka,
        kafka_topic,
        transform_on_error="dlq",
        expectations=[
            ematix.expect_or_drop("named", lambda t: t.column("name").not_null()),
            ematix.expect_or_drop("small", "id < 100"),
        ],
    )
    produce(kafka, kafka_topic, [{"id": 1, "name": "a"}, {"id": 2}, b"broken", {"id": 300, "name": "c"}])
    result = load(followed)
    assert (result.total_rows, result.quarantined, result.dead_letters) == (1, 2, 1)
    assert query(pg_database, "SELECT id, _rule FROM events__quarantine ORDER BY 1") == [
        (2, "named"),
        (300, "small"),
    ]
    ((position,),) = query(pg_database, "SELECT DISTINCT _source_position FROM events__quarantine")
    start, _, end = position.partition(" .. ")
    assert start != end and kafka_topic in end
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        assert len(store.list("events", limit=10)) == 1


def test_a_message_that_is_refused_does_not_hide_a_rule_that_fails(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    """While the bad message is looked for, parts of the batch are tried, to which no rule applies."""
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL CHECK (id <> 7), name text NOT NULL)")
    followed = events_into(
        pg_database,
        kafka,
        kafka_topic,
        transform_on_error="dlq",
        expectations=[ematix.expect_or_fail("rows", lambda t: t.row_count(at_least=3))],
    )
    produce(kafka, kafka_topic, [{"id": n, "name": "x"} for n in (1, 2, 7, 8)])
    result = load(followed)
    assert (result.total_rows, result.dead_letters) == (3, 1)
    produce(kafka, kafka_topic, [{"id": 9, "name": "x"}])
    with pytest.raises(ExpectationFailed, match="rows"):
        load(followed)
    assert query(pg_database, "SELECT id FROM events ORDER BY 1") == [(1,), (2,), (8,)]


def test_expectations_for_a_broker_are_refused(kafka: KafkaServer, kafka_topic: str) -> None:
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        source_columns=Orders,
        target=kafka_connection(kafka, name="out"),
        target_topic=kafka_topic,
        expectations=[ematix.expect("positive", "amount > 0")],
    )
    with pytest.raises(Exception, match="what is sent to a broker cannot be taken back"):
        load(followed)


def versions(url: str) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows of the table and of its quarantine table."""
    loaded = query(url, "SELECT id, name FROM events ORDER BY 1")
    return loaded, query(url, "SELECT id, name FROM events__quarantine ORDER BY 1, 2")


@pytest.mark.parametrize("bulk", [0, 12_000])
@pytest.mark.parametrize("batches", ["one batch", pytest.param("a batch each", marks=pytest.mark.long)])
def test_a_merge_loads_the_last_row_of_a_key_that_passes_however_the_batches_fall(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, bulk: int, batches: str
) -> None:
    """``bulk`` further messages make a batch that is too large for the process itself."""
    query(pg_database, "CREATE TABLE events (id bigint PRIMARY KEY, name text NOT NULL)")
    followed = events_into(
        pg_database,
        kafka,
        kafka_topic,
        mode="merge",
        keys=["id"],
        expectations=[
            ematix.expect_or_drop("good", "name NOT LIKE 'bad%'"),
            ematix.expect("short", "length(name) < 4"),
        ],
    )
    sent = [
        (1, "v1"), (1, "bad"),  # the last one fails
        (2, "x"),
        (3, "bad1"), (3, "bad2"),  # none passes
        (4, "bad"), (4, "ok"),  # the one that fails is outdated
        (5, "old"), (5, "longer"), (5, "bad1"), (5, "bad2"),
    ]  # fmt: skip
    rows = [{"id": id, "name": name} for id, name in sent]
    produce(kafka, kafka_topic, ({"id": -n, "name": "y"} for n in range(1, bulk + 1)), partition=0)
    for part in [rows] if batches == "one batch" else [[row] for row in rows]:
        produce(kafka, kafka_topic, part, partition=0)
        result = load(followed)
    loaded, aside = versions(pg_database)
    assert [row for row in loaded if row[0] > 0] == [(1, "v1"), (2, "x"), (4, "ok"), (5, "longer")]
    assert len(loaded) == bulk + 4
    assert aside == [(1, "bad"), (3, "bad2"), (5, "bad2")]
    if batches == "one batch":
        assert (result.rows_read, result.total_rows, result.quarantined) == (bulk + 11, bulk + 4, 3)
        with open_run_log(project_run_log(os.environ), env=os.environ) as log:
            (target,) = log.list("events", limit=1)[0].metrics["targets"]
        found = {each["rule"]: each["failing"] for each in target["expectations"]}
        assert found == {"good": 3, "short": 1}


def test_a_lake_that_cannot_load_an_older_message_of_a_failing_key_is_refused(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "source": kafka_connection(kafka),
        "source_query": kafka_topic,
        "source_columns": Orders,
        "target": DeltaLocalConnection(name="lake", path=str(tmp_path / "lake")),
        "target_table": ("s", "orders"),
        "keys": ["id"],
    }
    rule = ematix.expect_or_drop("positive", "amount > 0")
    stream(mode="append", expectations=[rule], **{**options, "keys": None}).plan()
    stream(mode="merge", expectations=[ematix.expect("positive", "amount > 0")], **options).plan()
    with pytest.raises(Unsupported, match="sets no rows aside from a stream of messages that it merges"):
        stream(mode="merge", expectations=[rule], **options).plan()
