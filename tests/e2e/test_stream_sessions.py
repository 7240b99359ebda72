"""Sessions: from Kafka into tables, over late rows, restarts and crashes."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import pytest

from ematix_flow import Aggregation, Watermark, Window, fault_points
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.errors import LoadError, Unsupported
from tests.e2e.test_stream_windows import DAY, event
from tests.services.kafka import KafkaServer
from tests.stream_runs import kafka_connection, load, produce, query, stream, warehouse

pytestmark = pytest.mark.usefixtures("spark")

MERGE: dict[str, Any] = {"mode": "merge", "keys": ("session_id",)}


def visits(kafka: KafkaServer, topic: str, url: str, **options: Any) -> StreamingPipeline:
    """Visits that end after ten seconds without a page."""
    window = {"gap_ms": 10_000, "max_session_duration_ms": 60_000, **options.pop("window", {})}
    return stream(
        source=kafka_connection(kafka),
        source_query=topic,
        target=warehouse(url),
        target_table=("public", "visits"),
        window=Window(
            kind="session",
            event_time_column="ts",
            group_by=("user_id",),
            aggregations=[
                Aggregation(agg="count", as_="pages"),
                Aggregation(agg="first", column="page", as_="entry"),
                Aggregation(agg="last", column="page", as_="exit"),
            ],
            **window,
        ),
        **options,
    )


def loaded(url: str) -> list[tuple[Any, ...]]:
    """Start and end in seconds of the day, user, aggregates and revision of each session."""
    rows = query(
        url,
        "SELECT window_start, window_end, user_id, pages, entry, exit, revision FROM visits "
        "WHERE merged_into IS NULL ORDER BY user_id, window_start, revision",
    )
    return [(_second(start), _second(end), *rest) for start, end, *rest in rows]


def _second(moment: dt.datetime) -> float:
    return (moment - DAY).total_seconds()


def test_sessions_grow_join_and_keep_their_id(kafka: KafkaServer, kafka_topic: str, pg_database: str) -> None:
    followed = visits(kafka, kafka_topic, pg_database, watermark=Watermark(lateness_ms=60_000), **MERGE)
    pages = [event(0, "a", page="home"), event(5, "a", page="shop"), event(24, "a", page="pay")]
    produce(kafka, kafka_topic, [*pages, event(3, "b", page="help")])
    load(followed)  # the open sessions are loaded at its end
    assert loaded(pg_database) == [
        (0, 15, "a", 2, "home", "shop", 0),
        (24, 34, "a", 1, "pay", "pay", 0),
        (3, 13, "b", 1, "help", "help", 0),
    ]
    (first, second) = query(
        pg_database, "SELECT session_id FROM visits WHERE user_id = 'a' ORDER BY window_start"
    )
    produce(kafka, kafka_topic, [event(14.5, "a", page="cart"), event(100, "c", page="home")])
    result = load(followed)
    assert result.late == 0
    assert loaded(pg_database)[0] == (0, 34, "a", 4, "home", "pay", 1)
    assert query(
        pg_database, "SELECT session_id, pages, merged_into FROM visits WHERE user_id = 'a' ORDER BY pages"
    ) == [(first[0], 4, None), (second[0], None, first[0])]


@pytest.mark.parametrize("late_data", ["drop", "dlq", "reopen"])
def test_a_row_of_a_session_that_has_ended_is_late(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, late_data: str
) -> None:
    """Also one that could begin a session: 9 belongs to the session of 0, which has ended."""
    window: dict[str, Any] = {"late_data": late_data}
    if late_data == "reopen":
        window["allowed_lateness_ms"] = 60_000
    followed = visits(kafka, kafka_topic, pg_database, window=window, transform_on_error="dlq")
    produce(kafka, kafka_topic, [event(0, "a", page="home"), event(11, "b", page="home")])
    load(followed)
    produce(
        kafka, kafka_topic, [event(9, "a", page="late"), event(12, "a", page="new"), event(9, "c", page="x")]
    )
    result = load(followed)
    rows = [row for row in loaded(pg_database) if row[2] == "a"]
    first = (0, 10, "a", 1, "home", "home", 0)
    if late_data == "reopen":
        assert (result.late, rows) == (0, [first, (0, 22, "a", 3, "home", "new", 1)])
    else:
        assert (result.late, rows) == (1, [first, (12, 22, "a", 1, "new", "new", 0)])
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        letters = [store.get("events", each.id) for each in store.list("events", limit=10)]
    assert [(letter.stage, b"late" in letter.payload) for letter in letters] == (
        [("late_data", True)] if late_data == "dlq" else []
    )


@pytest.mark.parametrize(("point", "nth"), [("stream.state_committed", 1), ("stream.target_committed", 1)])
@pytest.mark.fault
def test_a_stream_that_dies_loads_each_session_once(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, point: str, nth: int
) -> None:
    followed = visits(kafka, kafka_topic, pg_database)
    produce(kafka, kafka_topic, [event(n, "a", page=str(n)) for n in (0, 5, 30, 33)])
    with fault_points.inject(point, "crash", nth) as fault, pytest.raises(fault_points.InjectedCrash):
        load(followed)
    assert fault.has_fired
    produce(kafka, kafka_topic, [event(n, "a", page=str(n)) for n in (38, 90)])
    load(followed)
    assert loaded(pg_database) == [
        (0, 15, "a", 2, "0", "5", 0),
        (30, 48, "a", 3, "30", "38", 0),
        (90, 100, "a", 1, "90", "90", 0),
    ]


def test_a_session_that_never_pauses_is_cut(kafka: KafkaServer, kafka_topic: str, pg_database: str) -> None:
    produce(kafka, kafka_topic, [event(n * 9, "a", page=str(n)) for n in range(12)])
    followed = visits(kafka, kafka_topic, pg_database, watermark=Watermark(lateness_ms=1_000), **MERGE)
    load(followed)
    assert [row[:4] for row in loaded(pg_database)] == [(0, 64, "a", 7), (63, 109, "a", 5)]
    produce(kafka, kafka_topic, [event(n * 9, "a", page=str(n)) for n in range(12, 16)])
    load(followed)
    assert [row[:4] for row in loaded(pg_database)] == [
        (0, 64, "a", 7),
        (63, 127, "a", 7),
        (126, 145, "a", 2),
    ]


def test_a_changed_gap_and_too_many_sessions_are_refused(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    produce(kafka, kafka_topic, [event(0, user, page="x") for user in "abcd"])
    with pytest.raises(LoadError, match="4 open sessions, and max_groups_per_window is 3"):
        load(visits(kafka, kafka_topic, pg_database, window={"max_groups_per_window": 3}))
    load(visits(kafka, kafka_topic, pg_database))
    produce(kafka, kafka_topic, [event(1, "a", page="y")])
    with pytest.raises(Unsupported, match=r"gap_ms was \d+ and is 5000"):
        load(visits(kafka, kafka_topic, pg_database, window={"gap_ms": 5_000}))
