"""Windows as declared: what is refused and why, and their forms in JSON, TOML and plans."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ematix_flow import Aggregation, StateStore, Watermark, Window
from ematix_flow.api.stream_toml import stream_from_text
from ematix_flow.api.stream_toml_writer import stream_to_toml
from ematix_flow.api.streaming import stream_spec
from ematix_flow.errors import DeclarationError, SchemaMismatch
from ematix_flow.plan.stream_definition import StreamPlan
from ematix_flow.plan.window_columns import window_columns
from ematix_flow.spec.connections import KafkaConnection, SQLiteConnection
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

COUNT = Aggregation(agg="count", as_="n")
SESSION = Window(kind="session", gap_ms=5, max_session_duration_ms=60, aggregations=[COUNT])
KAFKA = KafkaConnection(name="kafka", bootstrap_servers="localhost:9092")
LITE = SQLiteConnection(name="lite", path="lite.db")


def spec(**options: Any) -> StreamSpec:
    given: dict[str, Any] = {
        "source": KAFKA,
        "source_query": "clicks",
        "target": LITE,
        "target_table": "counts",
        "window": Window(kind="tumbling", duration_ms=1_000, aggregations=[COUNT]),
        **options,
    }
    return stream_spec(None, name="clicks", **given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "sliding"}, "kind='sliding' is unknown"),
        ({"duration_ms": 0}, "duration_ms= takes a whole number from 1 up, not 0"),
        ({"duration_ms": True}, "not True"),
        ({"hop_ms": 500}, "hop_ms= is for kind='hopping'"),
        ({"kind": "hopping"}, "needs hop_ms="),
        ({"kind": "hopping", "hop_ms": 1_001}, "rows between two windows would be in none"),
        ({"session_id_column": "s"}, "session_id_column= is for kind='session'"),
        ({"late_data": "keep"}, "late_data='keep' is unknown"),
        ({"late_data": "reopen"}, "needs allowed_lateness_ms="),
        ({"allowed_lateness_ms": 5}, "allowed_lateness_ms= is for late_data='reopen'"),
        ({"aggregations": []}, "a window needs aggregations="),
        ({"aggregations": COUNT}, "aggregations= takes a list"),
        ({"aggregations": ["count"]}, "takes Aggregation"),
        ({"aggregations": [COUNT, Aggregation(agg="max", column="x", as_="N")]}, "are called 'N'"),
        ({"group_by": "user_id"}, "group_by= takes a list"),
        ({"group_by": ["n"]}, "two columns of the window's result are called 'n'"),
        ({"group_by": ["revision"]}, "two columns of the window's result are called 'revision'"),
        ({"max_groups_per_window": 0}, "max_groups_per_window="),
        ({"gap_ms": 5}, "gap_ms= is for kind='session'"),
        ({"kind": "session"}, "duration_ms= is for tumbling and hopping windows"),
        ({"kind": "session", "duration_ms": 0}, "needs gap_ms="),
        ({"kind": "session", "duration_ms": 0, "gap_ms": 5}, "needs max_session_duration_ms="),
        (
            {"kind": "session", "duration_ms": 0, "gap_ms": 5, "max_session_duration_ms": 5},
            "max_session_duration_ms=5 must be longer than gap_ms=5",
        ),
        ({"event_time_column": ""}, "event_time_column= takes the name of a column"),
        ({"where": 5}, "where= is not an option for you to set"),
    ],
)
def test_a_window_that_means_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    given = {"kind": "tumbling", "duration_ms": 1_000, "aggregations": [COUNT], **options}
    with pytest.raises(DeclarationError, match=message):
        Window(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agg": "median", "as_": "m"}, "agg='median' is unknown"),
        ({"agg": "sum", "as_": "s"}, "needs column="),
        ({"agg": "count", "as_": "n", "column": "x"}, "count counts rows"),
        ({"agg": "count", "as_": " "}, "as_= takes the name of a column"),
    ],
)
def test_an_aggregate_that_means_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Aggregation(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": "tumbling"}, r"window= takes Window\(…\), not 'tumbling'"),
        (
            {"window": None, "watermark": Watermark()},
            "watermark= works with window= or join=, which are not set",
        ),
        ({"window": None, "state_store": StateStore()}, "state_store= works with window="),
        ({"mode": "merge", "keys": ["n"]}, "lacks 'window_start': several rows of the window"),
        ({"window": SESSION, "mode": "merge", "keys": ["n"]}, "lacks 'session_id'"),
        (
            {"window": SESSION, "mode": "merge", "keys": ["session_id", "window_end"]},
            "has 'window_end', which changes while a session grows",
        ),
        ({"window": SESSION, "mode": "merge", "keys": ["session_id", "n"]}, "has 'n', which changes"),
        (
            {"mode": "scd2", "keys": ["n"], "event_timestamp_column": "window_start"},
            "a window yields aggregates",
        ),
        (
            {"window": Window(kind="tumbling", duration_ms=5, late_data="dlq", aggregations=[COUNT])},
            "the stream has no dead letters",
        ),
    ],
)
def test_a_window_that_does_not_fit_its_stream_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        spec(**options)


def test_a_state_in_memory_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="a restart loses the open ones"):
        spec(state_store=StateStore(kind="in_memory"))
    for option in ({"url": "postgres://x"}, {"schema": "s"}, {"checkpoint_interval_ms": 5}):
        with pytest.raises(DeclarationError, match="has no effect with kind='checkpoint'"):
            StateStore(**option)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs url="),
        ({"url": " "}, "needs url="),
        ({"url": 5}, "needs url="),
        ({"url": "mysql://ann:hunter22@host/db"}, "not a URL of Postgres"),
        ({"url": "postgres://x", "schema": ""}, "schema= takes the name of a schema"),
        ({"url": "postgres://x", "checkpoint_interval_ms": 0}, "checkpoint_interval_ms="),
        ({"url": "postgres://x", "checkpoint_interval_ms": "1"}, "checkpoint_interval_ms="),
    ],
)
def test_a_state_store_in_postgres_that_means_nothing_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DeclarationError, match=message) as refused:
        StateStore(kind="postgres", **options)
    assert "hunter22" not in f"{refused.value} {refused.value.next_step}"


def test_the_url_of_a_state_store_is_a_secret() -> None:
    store = StateStore(kind="postgres", url="postgres://ann:hunter22@host/db?sslmode=require", schema="flow")
    declared = spec(state_store=store)
    assert "hunter22" not in f"{store!r} {declared!r} {declared.to_json()} {stream_to_toml(declared)}"
    referring = spec(state_store=StateStore(kind="postgres", url="${STATE_URL}"))
    read = stream_from_text(stream_to_toml(referring))
    assert read.state_store == referring.state_store


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"ts": "text", "x": "big_int"}, "the window reads column 'g', which the stream does not have"),
        ({"ts": "boolean", "x": "big_int", "g": "text"}, "'ts', which is Boolean and no time"),
        ({"ts": "text", "x": "text", "g": "text"}, "sum of 'x': the column is Text and no number"),
        ({"ts": "text", "x": "double", "g": "json"}, "such values are not compared"),
    ],
)
def test_columns_that_a_window_cannot_read_are_refused(columns: dict[str, Any], message: str) -> None:
    window = Window(
        kind="tumbling",
        duration_ms=5,
        event_time_column="ts",
        group_by=["g"],
        aggregations=[Aggregation(agg="sum", column="x", as_="s")],
    )
    given = [ColumnSpec(name, DataType(kind)) for name, kind in columns.items()]
    with pytest.raises(SchemaMismatch, match=message):
        window_columns(window, given, None)


FULL = Window(
    kind="hopping",
    duration_ms=60_000,
    hop_ms=5_000,
    event_time_column="ts",
    group_by=("user_id", "page"),
    late_data="reopen",
    allowed_lateness_ms=10_000,
    max_groups_per_window=500,
    window_start_column="since",
    aggregations=[COUNT, Aggregation(agg="first", column="page", as_="entry")],
)


def test_a_window_is_the_same_from_json_and_from_toml() -> None:
    declared = spec(window=FULL, watermark=Watermark(lateness_ms=5), state_store=StateStore())
    assert StreamSpec.from_json(json.loads(json.dumps(declared.to_json()))) == declared
    text = stream_to_toml(declared)
    read = stream_from_text(text)
    assert (read.window, read.watermark, read.state_store) == (FULL, Watermark(5), StateStore())


TOML = """
pipeline_name = "clicks"
source_query = "clicks"
[source]
kind = "kafka"
bootstrap_servers = "localhost:9092"
[target]
kind = "sqlite"
path = "lite.db"
table = "counts"
[{window}]
kind = "tumbling"
duration_ms = 1000
{more}
[[{window}.aggregations]]
agg = "count"
as = "n"
"""


@pytest.mark.parametrize("place", ["window", "transform.window"])
def test_a_file_declares_a_window_in_either_place(place: str) -> None:
    read = stream_from_text(TOML.format(window=place, more=""))
    assert read.window == Window(kind="tumbling", duration_ms=1_000, aggregations=[COUNT])


@pytest.mark.parametrize(
    ("more", "message", "line"),
    [("hop = 5", "hop", 14), ("hop_ms = 5", "hop_ms= is for kind='hopping'", 11)],
)
def test_an_error_in_a_file_names_its_line(more: str, message: str, line: int) -> None:
    with pytest.raises(DeclarationError, match=message) as raised:
        stream_from_text(TOML.format(window="window", more=more))
    assert raised.value.where is not None and raised.value.where.line == line


def test_a_plan_shows_the_window_its_watermark_and_its_state() -> None:
    plan = StreamPlan(spec(window=FULL, watermark=Watermark(lateness_ms=5)), None, "found later", (None,))
    text = str(plan)
    assert "window    hopping 60000 ms every 5000 ms by user_id, page" in text
    assert "event     ts, watermark 5 ms behind" in text
    assert "late rows reopen for 10000 ms" in text
    assert "state     next to the checkpoint" in text
    assert plan.to_json()["window"]["duration_ms"] == 60_000


def test_the_documented_session_with_its_state_in_postgres_is_declarable() -> None:
    declared = stream_spec(
        None,
        name="user-sessions",
        source=KafkaConnection(name="kafka_prod", bootstrap_servers="localhost:9092"),
        source_query="events",
        target=SQLiteConnection(name="lite", path="lite.db"),
        target_table="user_sessions",
        transform_sql="SELECT user_id, page, _event_ts FROM source",
        window=Window(
            kind="session",
            gap_ms=300_000,
            max_session_duration_ms=86_400_000,
            group_by=("user_id",),
            max_groups_per_window=1_000_000,
            aggregations=[
                Aggregation(agg="count", as_="events"),
                Aggregation(agg="first", column="page", as_="entry_page"),
                Aggregation(agg="last", column="page", as_="exit_page"),
            ],
        ),
        state_store=StateStore(kind="postgres", url="postgres://localhost/ematix_state"),
    )
    assert declared.state_store == StateStore(
        "postgres", "postgres://localhost/ematix_state", "public", 60_000
    )
