"""Joins of two topics into tables: all kinds, lateness, restarts, crashes, quiet sources, other payloads."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Mapping
from typing import Any

import pytest

from ematix_flow import (
    Aggregation,
    BigInt,
    Integer,
    Join,
    Source,
    Text,
    Watermark,
    Window,
    ematix,
    fault_points,
)
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.errors import FlowError, LoadError, Unsupported
from tests.services.kafka import KafkaServer
from tests.stream_runs import kafka_connection, load, produce, query, stream, until, warehouse

pytestmark = pytest.mark.usefixtures("spark")
DAY = dt.datetime(2026, 5, 1, tzinfo=dt.timezone.utc)


@ematix.table
class Orders:
    order_id: BigInt
    lines: Integer
    note: Text | None


def at(second: float) -> str:
    return (DAY + dt.timedelta(seconds=second)).isoformat()


def order(second: float, key: int | None, **more: Any) -> dict[str, Any]:
    return {"ts": at(second), "order_id": key, "amount": 1.5, **more}


def payment(second: float, key: int | None, method: str = "card") -> dict[str, Any]:
    return {"ts": at(second), "order": key, "method": method}


class Topics:
    """Two new topics, the database that they are joined into, and the stream that does it."""

    def __init__(self, kafka: KafkaServer, url: str) -> None:
        self.kafka, self.url = kafka, url
        self.orders, self.payments = kafka.create_topic("orders"), kafka.create_topic("payments")

    def send(self, orders: list[Any] | None = None, payments: list[Any] | None = None) -> None:
        produce(self.kafka, self.orders, orders or [])
        produce(self.kafka, self.payments, payments or [])

    @property
    def sources(self) -> list[Source]:
        return [Source(kafka_connection(self.kafka), topic) for topic in (self.orders, self.payments)]

    def stream(self, join: Mapping[str, Any] | None = None, **options: Any) -> StreamingPipeline:
        declared = {
            "left_source": self.orders,
            "right_source": self.payments,
            "left_keys": ("order_id",),
            "right_keys": ("order",),
            "time_window_ms": 10_000,
            "event_time_column": "ts",
            **(join or {}),
        }
        given: dict[str, Any] = {
            "sources": self.sources,
            "target": warehouse(self.url),
            "target_table": ("public", "paid"),
            "join": Join(**declared),
            **options,
        }
        return stream("paid-orders", **given)

    def rows(self) -> list[tuple[Any, ...]]:
        """Order, its second; payment's order, its second."""
        second = "extract(epoch FROM {}::timestamptz - '2026-05-01Z')::int"
        left, right = second.format("left_ts"), second.format("right_ts")
        found = query(self.url, f"SELECT left_order_id, {left}, right_order, {right} FROM paid")
        return sorted(found, key=lambda row: [(value is None, value or 0) for value in row])

    def count(self) -> int:
        ((there,),) = query(self.url, "SELECT to_regclass('public.paid') IS NOT NULL")
        return len(self.rows()) if there else 0


@pytest.fixture
def topics(kafka: KafkaServer, pg_database: str) -> Topics:
    return Topics(kafka, pg_database)


@pytest.mark.parametrize(
    "kind",
    [
        "inner",
        "full_outer",
        pytest.param("left_outer", marks=pytest.mark.long),
        pytest.param("right_outer", marks=pytest.mark.long),
    ],
)
def test_rows_are_joined_once_over_two_runs(topics: Topics, kind: str) -> None:
    """Much newer rows in the same batch make nothing late, and null keys never match."""
    followed = topics.stream({"kind": kind})
    topics.send(
        [order(0, 1), order(5, 2), order(6, None), order(100, 9)],
        [payment(3, 1), payment(20, 2), payment(7, None), payment(100, 8)],
    )
    load(followed)
    alone_left, alone_right = kind in ("left_outer", "full_outer"), kind in ("right_outer", "full_outer")
    pairs = [(1, 0, 1, 3)]
    left = [(2, 5, None, None), (None, 6, None, None)] if alone_left else []
    right = [(None, None, 2, 20), (None, None, None, 7)] if alone_right else []
    assert set(topics.rows()) == {*pairs, *left, *right}
    # the end of the run has not loaded the rows at 100 alone: they find their partners now, and only once
    topics.send([order(105, 8), order(200, 5)], [payment(95, 9), payment(200, 6), payment(201, 6)])
    load(followed)
    pairs += [(8, 105, 8, 100), (9, 100, 9, 95)]
    assert sorted(topics.rows(), key=str) == sorted([*pairs, *left, *right], key=str)


def test_each_source_has_its_own_columns_types_and_formats(topics: Topics) -> None:
    """Small numbers keep their types, and columns of one name come from both sides."""

    names = {"left_source": f"kafka:{topics.orders}", "event_time_column": "_event_ts"}
    join = {**names, "right_keys": ("order_id",), "left_column_prefix": "", "right_column_prefix": "p_"}
    kafka = topics.kafka
    followed = topics.stream(
        join,
        sources=[
            Source(kafka_connection(kafka, "again"), topics.payments),
            Source(kafka_connection(kafka), topics.orders, columns=Orders),
        ],
        transform_sql="SELECT order_id, lines, p_method, p__topic, p__event_ts IS NOT NULL AS at FROM source",
    )
    topics.send([{"order_id": 7, "lines": 3, "more": 1}], [{"order_id": 7, "method": "card"}])
    load(followed)
    assert query(topics.url, "SELECT order_id, lines, p_method, p__topic, at FROM paid") == [
        (7, 3, "card", topics.payments, True)
    ]
    types = query(topics.url, "SELECT data_type FROM information_schema.columns WHERE column_name = 'lines'")
    assert types == [("integer",)]


@pytest.mark.parametrize("late_data", ["drop", "dlq", "reopen"])
def test_late_rows_are_counted_stored_or_joined(topics: Topics, late_data: str) -> None:
    join: dict[str, Any] = {"late_data": late_data, "kind": "left_outer"}
    if late_data == "reopen":
        join["allowed_lateness_ms"] = 60_000
    followed = topics.stream(join, transform_on_error="dlq")
    topics.send([order(0, 1), order(50, 2)], [payment(50, 2)])
    load(followed)
    topics.send([order(1, 3)], [payment(2, 1), payment(51, 2)])
    result = load(followed)
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        letters = [store.get("paid-orders", each.id) for each in store.list("paid-orders", limit=10)]
    pairs = {(2, 50, 2, 50), (2, 50, 2, 51)}
    if late_data == "drop":  # a late row of the kept side is loaded all the same
        assert set(topics.rows()) == {*pairs, (1, 0, None, None), (3, 1, None, None)}
    elif late_data == "dlq":
        assert set(topics.rows()) == {*pairs, (1, 0, None, None)}
        assert {letter.stage for letter in letters} == {"late_data"}
        assert sorted(b'"order_id":3' in letter.payload for letter in letters) == [False, True]
    else:
        assert set(topics.rows()) == {*pairs, (1, 0, 1, 2)}
    assert (result.late, len(letters)) == {"drop": (2, 0), "dlq": (2, 2), "reopen": (0, 0)}[late_data]


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("stream.state_committed", 1),
        ("stream.staged", 1),
        ("stream.target_committed", 1),
        ("stream.committed", 1),
    ],
)
@pytest.mark.fault
def test_a_stream_that_dies_loads_each_pair_once(topics: Topics, point: str, nth: int) -> None:
    followed = topics.stream({"kind": "full_outer"})
    topics.send([order(n, n) for n in range(30)], [payment(n, n) for n in range(0, 30, 2)])
    with fault_points.inject(point, "crash", nth) as fault, pytest.raises(fault_points.InjectedCrash):
        load(followed)
    assert fault.has_fired
    topics.send([order(100, 100)], [payment(29, 29), payment(100, 101)])
    load(followed)
    pairs = [(n, n, n, n) for n in sorted({*range(0, 30, 2), 29})]
    alone = [(n, n, None, None) for n in range(1, 29, 2)]
    assert topics.rows() == sorted([*pairs, *alone], key=lambda row: row[0])


def test_a_quiet_source_does_not_hold_rows_back(topics: Topics) -> None:
    """The clock ends the wait for partners; a source without a message is waited for before the start."""
    followed = topics.stream(
        {"kind": "left_outer", "time_window_ms": 100}, watermark=Watermark(source_idleness_ms=300)
    )
    topics.send([order(0, 1)])
    running = followed.start()
    topics.send(payments=[payment(0.05, 1), payment(0.05, 7)])
    until(lambda: topics.count() == 1, running)
    topics.send([order(0.1, 2)])
    until(lambda: topics.count() == 2, running)
    running.stop()
    running.wait()
    assert topics.rows() == [(1, 0, 1, 0), (2, 0, None, None)]


def test_a_source_without_messages_needs_declared_columns_in_a_bounded_run(topics: Topics) -> None:
    topics.send([order(0, 1)])
    followed = topics.stream({"kind": "left_outer"})
    with pytest.raises(FlowError, match="has no message that can be read"):
        load(followed)
    topics.send([order(50, 2)], [payment(50, 2)])
    load(followed)
    assert topics.rows() == [(1, 0, None, None), (2, 50, 2, 50)]


def test_rows_that_cannot_be_joined_are_refused_or_become_dead_letters(topics: Topics) -> None:
    topics.send([order(0, 1), {"ts": "yesterday", "order_id": 2, "amount": 1.5}], [payment(1, 1), b"{"])
    with pytest.raises(FlowError, match=r"column 'ts' holds no event time: yesterday|cannot be read"):
        load(topics.stream())
    result = load(topics.stream(transform_on_error="dlq"))
    assert (result.dead_letters, result.late) == (2, 0)
    assert topics.rows() == [(1, 0, 1, 1)]


def test_too_many_waiting_rows_stop_the_stream(topics: Topics) -> None:
    topics.send([order(n, n) for n in range(5)], [payment(0, 0)])
    with pytest.raises(LoadError, match="6 rows wait for a partner, and max_state_rows is 5"):
        load(topics.stream({"max_state_rows": 5}))
    load(topics.stream({"max_state_rows": 6}))
    assert topics.rows() == [(0, 0, 0, 0)]


def test_a_state_is_not_continued_with_another_join_or_without_its_checkpoint(topics: Topics) -> None:
    topics.send([order(0, 1)], [payment(0, 1)])
    load(topics.stream())
    for changed, said in (
        ({"kind": "full_outer"}, "join was inner and is full_outer"),
        ({"time_window_ms": 5}, "max_delta_ms was"),
    ):
        with pytest.raises(Unsupported, match=said):
            load(topics.stream(changed))
    followed = topics.stream()
    shutil.rmtree(stream_folder_for(followed.spec).checkpoint("all"))
    with pytest.raises(Unsupported, match="the rows that wait for a partner would be lost"):
        load(followed)


# ------------------------------------------------------------------ windows over two topics


def test_windows_over_two_topics_wait_for_the_slower_one_unless_it_is_idle(topics: Topics) -> None:
    """Without ``source_idleness_ms`` the watermark stays where the quiet topic has stopped."""
    window = Window(
        kind="tumbling",
        duration_ms=10_000,
        event_time_column="ts",
        aggregations=[Aggregation(agg="count", as_="n")],
    )

    def counted() -> list[tuple[Any, ...]]:
        ((there,),) = query(topics.url, "SELECT to_regclass('public.counts') IS NOT NULL")
        second = "extract(epoch FROM window_start - '2026-05-01Z')::int"
        return query(topics.url, f"SELECT {second}, n FROM counts ORDER BY 1") if there else []

    def followed(**watermark: Any) -> StreamingPipeline:
        return stream(
            sources=topics.sources,
            target=warehouse(topics.url),
            target_table=("public", "counts"),
            window=window,
            watermark=Watermark(**watermark),
        )

    topics.send([order(1, 1), order(25, 1)], [payment(2, 1)])
    running = followed().start()
    until(lambda: running.result().iterations > 0, running)
    topics.send([order(45, 1)])
    until(lambda: running.result().iterations > 1, running)
    assert counted() == []  # the payments are at second 2
    running.stop()
    running.wait()
    running = followed(source_idleness_ms=500).start()
    until(lambda: len(counted()) >= 2, running)
    running.stop()
    running.wait()
    assert counted()[:2] == [(0, 2), (20, 1)]
