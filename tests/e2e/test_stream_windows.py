"""Windows over event time: from Kafka and files into tables, over lateness, restarts and crashes."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import Aggregation, Watermark, Window, fault_points
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.errors import FlowError, LoadError, Unsupported
from ematix_flow.spec.connections import ObjectStoreLocalConnection, SQLiteConnection
from tests.services.kafka import KafkaServer
from tests.stream_runs import kafka_connection, load, produce, query, stream, until, warehouse

pytestmark = pytest.mark.usefixtures("spark")
DAY = dt.datetime(2026, 5, 1, tzinfo=dt.timezone.utc)


def event(second: float, user: str | None, **more: Any) -> dict[str, Any]:
    return {"ts": (DAY + dt.timedelta(seconds=second)).isoformat(), "user_id": user, **more}


def test_windows_are_loaded_when_the_watermark_has_passed_them(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    """In one batch, in order: the windows before the newest event are loaded, and no row is late."""
    every = [event(n * 10, "ab"[n % 2], amount=n, note="x" if n % 3 else "") for n in range(30)]
    produce(kafka, kafka_topic, every)
    windowed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        target=warehouse(pg_database),
        target_table=("public", "per_minute"),
        mode="merge",
        keys=("user_id", "window_start"),
        window=Window(
            kind="tumbling",
            duration_ms=60_000,
            event_time_column="ts",
            group_by=("user_id",),
            aggregations=[
                Aggregation(agg="count", as_="n"),
                Aggregation(agg="sum", column="amount", as_="total"),
                Aggregation(agg="avg", column="amount", as_="mean"),
                Aggregation(agg="min", column="amount", as_="least"),
                Aggregation(agg="max", column="amount", as_="most"),
                Aggregation(agg="first", column="amount", as_="entry"),
                Aggregation(agg="last", column="amount", as_="exit"),
                Aggregation(agg="count_col", column="amount", as_="filled"),
                Aggregation(agg="count_distinct", column="amount", as_="kinds"),
                Aggregation(agg="count_distinct", column="note", as_="notes"),
            ],
        ),
    )
    load(windowed)
    rows = query(
        pg_database,
        "SELECT extract(epoch FROM window_start - '2026-05-01Z')::int / 60, user_id, n, total, mean, least, "
        "most, entry, exit, filled, kinds, notes, revision FROM per_minute ORDER BY 1, 2",
    )
    assert rows == [
        (minute, user, 3, sum(own), sum(own) / 3, own[0], own[-1], own[0], own[-1], 3, 3, 2, 0)
        for minute in range(5)
        for user, own in (
            ("a", [6 * minute, 6 * minute + 2, 6 * minute + 4]),
            ("b", [6 * minute + 1, 6 * minute + 3, 6 * minute + 5]),
        )
    ]
    produce(kafka, kafka_topic, [event(295, "a", amount=1_000), event(400, "b", amount=1)])
    result = load(windowed)
    assert query(pg_database, "SELECT n, total, revision FROM per_minute WHERE total > 1000") == [
        (4, 1078, 1)
    ]
    assert result.total_rows == 2


def test_the_broker_s_time_is_the_event_time_unless_another_column_is_named(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    start = int(DAY.timestamp() * 1000)
    for second, user in ((1, 7), (2, 7), (3, 8), (61, 7)):
        produce(kafka, kafka_topic, [{"user_id": user}], timestamp=start + second * 1000)
    load(
        stream(
            name="events-per-min",
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            target=warehouse(pg_database),
            target_table=("public", "events_per_min"),
            transform_sql="SELECT user_id, _event_ts FROM source",
            window=Window(
                kind="tumbling",
                duration_ms=60_000,
                group_by=("user_id",),
                max_groups_per_window=1_000_000,
                aggregations=[Aggregation(agg="count", as_="n")],
            ),
        )
    )
    rows = query(pg_database, "SELECT window_start, window_end, user_id, n FROM events_per_min ORDER BY 1, 3")
    minute = dt.timedelta(minutes=1)
    assert rows == [
        (DAY, DAY + minute, 7, 2),
        (DAY, DAY + minute, 8, 1),
        (DAY + minute, DAY + 2 * minute, 7, 1),
    ]


def counts(kafka: KafkaServer, topic: str, file: Path, **options: Any) -> StreamingPipeline:
    """Rows of each user in windows of ten seconds, into a table of SQLite."""
    window = {"kind": "tumbling", "duration_ms": 10_000, **options.pop("window", {})}
    return stream(
        source=kafka_connection(kafka),
        source_query=topic,
        target=SQLiteConnection(name="lite", path=str(file)),
        target_table="counts",
        window=Window(
            event_time_column="ts",
            group_by=("user_id",),
            aggregations=[Aggregation(agg="count", as_="n")],
            **window,
        ),
        **options,
    )


def loaded(file: Path) -> list[tuple[Any, ...]]:
    """The window's second of the day, the user, the count and the revision of each row."""
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("SELECT window_start, user_id, n, revision FROM counts").fetchall()
    found = [(dt.datetime.fromisoformat(start), *rest) for start, *rest in rows]
    return sorted(((start - DAY).total_seconds(), *rest) for start, *rest in found)


@pytest.mark.parametrize("late_data", ["drop", "dlq", "reopen"])
def test_late_rows_are_dropped_stored_or_change_their_window(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, late_data: str
) -> None:
    hostile = {"a.b": 1, "window_start": "x"}  # columns that the window does not read
    window: dict[str, Any] = {"late_data": late_data}
    if late_data == "reopen":
        window["allowed_lateness_ms"] = 20_000
    followed = counts(kafka, kafka_topic, tmp_path / "lite.db", window=window, transform_on_error="dlq")
    produce(kafka, kafka_topic, [event(1, "a", **hostile), event(12, "a"), event(25, "b")])
    load(followed)
    before = [(0.0, "a", 1, 0), (10.0, "a", 1, 0), (20.0, "b", 1, 0)]
    assert loaded(tmp_path / "lite.db") == before
    produce(kafka, kafka_topic, [event(3, "a"), event(3, "a", **hostile), event(26, "b")])
    result = load(followed)
    late = [] if late_data != "reopen" else [(0.0, "a", 3, 1)]
    assert loaded(tmp_path / "lite.db") == sorted([*before, (20.0, "b", 2, 1), *late])
    assert result.late == (0 if late_data == "reopen" else 2)
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        letters = [store.get("events", each.id) for each in store.list("events", limit=10)]
    assert [(letter.stage, b"00:00:03" in letter.payload) for letter in letters] == (
        [("late_data", True)] * 2 if late_data == "dlq" else []
    )


def test_a_window_that_was_removed_is_not_opened_again_by_a_longer_lateness(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    produce(kafka, kafka_topic, [event(1, "a"), event(25, "b")])
    load(counts(kafka, kafka_topic, tmp_path / "lite.db"))
    produce(kafka, kafka_topic, [event(3, "a"), event(26, "b")])
    longer = {"late_data": "reopen", "allowed_lateness_ms": 60_000}
    result = load(counts(kafka, kafka_topic, tmp_path / "lite.db", window=longer))
    assert (result.late, loaded(tmp_path / "lite.db")[0]) == (1, (0.0, "a", 1, 0))


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("stream.state_committed", 1),
        ("stream.staged", 1),
        ("stream.target_committed", 1),
        ("stream.committed", 1),
        ("stream.state_committed", 2),  # the load of the open windows at the end of a run
        ("stream.target_committed", 2),
    ],
)
@pytest.mark.fault
def test_a_stream_that_dies_loads_each_window_once(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, point: str, nth: int
) -> None:
    followed = counts(kafka, kafka_topic, tmp_path / "lite.db")
    produce(kafka, kafka_topic, [event(n, "a") for n in range(25)])
    with fault_points.inject(point, "crash", nth) as fault, pytest.raises(fault_points.InjectedCrash):
        load(followed)
    assert fault.has_fired
    produce(kafka, kafka_topic, [event(n, "a") for n in range(25, 32)])
    load(followed)
    flushed = [(20.0, "a", 5, 0)] if nth == 2 else []  # before the crash this window had five rows
    last = [(20.0, "a", 10, len(flushed)), (30.0, "a", 2, 0)]
    assert loaded(tmp_path / "lite.db") == [(0.0, "a", 10, 0), (10.0, "a", 10, 0), *flushed, *last]


def test_a_row_without_an_event_time_is_refused_or_becomes_a_dead_letter(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    rows = [event(1, "a"), {"ts": "yesterday", "user_id": "a"}, event(12, "a"), event(13, None)]
    produce(kafka, kafka_topic, rows)
    with pytest.raises(FlowError, match="column 'ts' holds no event time: yesterday"):
        load(counts(kafka, kafka_topic, tmp_path / "lite.db"))
    followed = counts(
        *(kafka, kafka_topic, tmp_path / "lite.db"),
        transform_on_error="dlq",
        mode="merge",
        keys=["user_id", "window_start"],  # which cannot be null
    )
    result = load(followed)
    assert (result.dead_letters, result.late) == (2, 0)
    assert loaded(tmp_path / "lite.db") == [(0.0, "a", 1, 0), (10.0, "a", 1, 0)]


@pytest.mark.parametrize(
    ("first", "options"),
    [
        ({"user_id": "a", "amount": 5, "ts": "2026-05-01T00:00:01Z"}, {}),
        ({"amount": "many"}, {"transform_on_error": "drop"}),
    ],
    ids=["filtered", "unreadable"],
)
def test_a_batch_of_which_no_row_is_left_is_loaded(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, first: dict[str, Any], options: dict[str, Any]
) -> None:
    followed = counts(
        kafka,
        kafka_topic,
        tmp_path / "lite.db",
        transform_sql="SELECT user_id, ts, CAST(amount AS INT) AS amount FROM source WHERE amount > 100",
        mode="merge",
        keys=["user_id", "window_start"],
        **options,
    )
    produce(kafka, kafka_topic, [{"user_id": "a", "amount": 200, "ts": "2026-05-01T00:00:00Z"}])
    load(followed)
    produce(kafka, kafka_topic, [first])
    load(followed)
    produce(kafka, kafka_topic, [{"user_id": "a", "amount": 300, "ts": "2026-05-01T00:00:02Z"}])
    load(followed)
    assert [row[1:] for row in loaded(tmp_path / "lite.db")] == [("a", 2, 1)]


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_files_of_which_no_row_is_left_or_that_are_gone_are_passed(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "in" / "orders"
    folder.mkdir(parents=True)

    def write(number: int, amount: Any, at: str) -> None:
        text = json.dumps({"user_id": "a", "amount": amount, "ts": at})
        (folder / f"{number}.json").write_text(text + "\n")

    lengths: dict[str, Any] = {"gap_ms": 60_000, "max_session_duration_ms": 600_000}
    window = Window(
        kind=kind,  # type: ignore[arg-type]
        event_time_column="ts",
        group_by=("user_id",),
        aggregations=[Aggregation(agg="count", as_="n")],
        **(lengths if kind == "session" else {"duration_ms": 60_000}),
    )
    followed = partial(
        stream,
        source=ObjectStoreLocalConnection(name="files", path=str(tmp_path / "in"), format="json_lines"),
        source_query="orders",
        target=SQLiteConnection(name="lite", path=str(tmp_path / "lite.db")),
        target_table="counts",
        transform_sql="SELECT user_id, ts FROM source WHERE amount > 100",
        window=window,
    )
    write(1, 5, "2026-05-01T00:00:00Z")
    load(followed())
    write(2, 500, "soon")
    with pytest.raises(FlowError, match="no event time"):
        load(followed())
    (folder / "2.json").unlink()
    load(followed(fail_on_data_loss=False))
    write(3, 500, "2026-05-01T00:00:05Z")
    load(followed(fail_on_data_loss=False))
    with closing(sqlite3.connect(tmp_path / "lite.db")) as database:
        assert database.execute("SELECT user_id, n FROM counts").fetchall() == [("a", 1)]


def test_a_state_is_not_continued_with_another_window_or_without_its_checkpoint(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    followed = counts(kafka, kafka_topic, tmp_path / "lite.db")
    produce(kafka, kafka_topic, [event(1, "a"), event(12, "a")])
    load(followed)
    changed = counts(kafka, kafka_topic, tmp_path / "lite.db", window={"duration_ms": 5_000})
    with pytest.raises(Unsupported, match="duration_ms was 10000 and is 5000"):
        load(changed)
    shutil.rmtree(stream_folder_for(followed.spec).checkpoint("all"))
    with pytest.raises(Unsupported, match="the windows that were open would miss their first rows"):
        load(followed)


def test_windows_are_sent_to_a_topic(kafka: KafkaServer, kafka_topic: str) -> None:
    counted = kafka.create_topic("counted")
    produce(kafka, kafka_topic, [event(1, "a"), event(2, "a"), event(12, "b")])
    load(
        stream(
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            target=kafka_connection(kafka),
            target_topic=counted,
            delivery="exactly_once",
            window=Window(
                kind="tumbling",
                duration_ms=10_000,
                event_time_column="ts",
                group_by=("user_id",),
                aggregations=[Aggregation(agg="count", as_="n")],
            ),
        )
    )
    sent = [json.loads(message.value()) for message in kafka.consume_all(counted)]
    assert [(row["user_id"], row["n"], row["revision"]) for row in sent] == [("a", 2, 0), ("b", 1, 0)]


def test_too_many_groups_stop_the_stream(kafka: KafkaServer, kafka_topic: str, tmp_path: Path) -> None:
    produce(kafka, kafka_topic, [event(1, user) for user in "abcd"])
    followed = counts(kafka, kafka_topic, tmp_path / "lite.db", window={"max_groups_per_window": 3})
    with pytest.raises(LoadError, match="a window has 4 groups, and max_groups_per_window is 3"):
        load(followed)
    followed = counts(kafka, kafka_topic, tmp_path / "lite.db", window={"max_groups_per_window": 4})
    load(followed)
    assert len(loaded(tmp_path / "lite.db")) == 4


def test_the_clock_closes_windows_when_no_rows_come(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "lite.db"
    idle = Watermark(source_idleness_ms=200)
    followed = counts(kafka, kafka_topic, file, watermark=idle, window={"duration_ms": 500})
    produce(kafka, kafka_topic, [event(0.1, "a"), event(0.6, "a")])
    running = followed.start()
    until(lambda: file.exists() and _rows(file) == 2, running)
    running.stop()
    running.wait()
    assert loaded(file) == [(0.0, "a", 1, 0), (0.5, "a", 1, 0)]


def _rows(file: Path) -> int:
    with closing(sqlite3.connect(file)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'counts'").fetchall():
            return 0
        return int(database.execute("SELECT count(*) FROM counts").fetchone()[0])
