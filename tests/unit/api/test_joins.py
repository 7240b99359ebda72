"""Joins as declared: what is refused and why, and their forms in JSON, TOML and plans."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ematix_flow import Aggregation, BigInt, Join, Source, StateStore, Watermark, Window, ematix
from ematix_flow.api.stream_toml import stream_from_text
from ematix_flow.api.stream_toml_writer import stream_to_toml
from ematix_flow.api.streaming import run_streaming_pipeline, stream_spec
from ematix_flow.errors import DeclarationError, SchemaMismatch
from ematix_flow.plan.join_columns import join_columns
from ematix_flow.plan.stream_definition import StreamPlan
from ematix_flow.spec.connections import KafkaConnection, SQLiteConnection
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

KAFKA = KafkaConnection(name="kafka", bootstrap_servers="localhost:9092")
OTHER = KafkaConnection(name="other", bootstrap_servers="localhost:9093")
LITE = SQLiteConnection(name="lite", path="lite.db")
SOURCES = [Source(KAFKA, "orders"), Source(KAFKA, "payments")]


@ematix.table
class OrderColumns:
    order_id: BigInt


def join(**options: Any) -> Join:
    names = {"left_source": "orders", "right_source": "payments"}
    keys = {"left_keys": ("order_id",), "right_keys": ("order_id",)}
    return Join(**{**names, **keys, **options})


def spec(**options: Any) -> StreamSpec:
    given: dict[str, Any] = {
        "sources": SOURCES,
        "target": LITE,
        "target_table": "paid",
        "join": join(time_window_ms=1_000),
        **options,
    }
    return stream_spec(None, name="paid", **given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "outer"}, "kind='outer' is unknown"),
        ({"kind": ["inner"]}, "is unknown"),
        ({"left_source": ""}, "left_source= takes the name of a source, not ''"),
        ({"right_source": "orders"}, "are both 'orders': a join needs two sources"),
        ({"left_keys": "order_id"}, "left_keys= takes a list of columns, not 'order_id'"),
        ({"left_keys": ()}, "left_keys= takes a list of columns"),
        ({"right_keys": (5,)}, "right_keys= takes names of columns, not 5"),
        ({"left_keys": ("a", "b")}, "left_keys= has 2 columns and right_keys= has 1"),
        ({"left_keys": ("a", "a"), "right_keys": ("a", "b")}, "names a column twice"),
        ({"time_window_ms": -1}, "time_window_ms= takes a whole number from 0 up, not -1"),
        ({"time_window_ms": True}, "not True"),
        ({"min_delta_ms": 5, "max_delta_ms": 4}, "the least time between two rows is 5 ms"),
        ({"min_delta_ms": 1.5}, "min_delta_ms= takes a whole number"),
        ({"late_data": "keep"}, "late_data='keep' is unknown"),
        ({"late_data": "reopen"}, "needs allowed_lateness_ms="),
        ({"allowed_lateness_ms": 5}, "allowed_lateness_ms= is for late_data='reopen'"),
        ({"event_time_column": ""}, "event_time_column= takes the name of a column"),
        ({"left_column_prefix": None}, "left_column_prefix= takes a text"),
        ({"max_state_rows": 0}, "max_state_rows= takes a whole number from 1 up"),
        ({"where": 5}, "where= is not an option for you to set"),
    ],
)
def test_a_join_that_means_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        join(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"join": "orders"}, r"join= takes Join\(…\), not 'orders'"),
        ({"sources": SOURCES[:1]}, "join= needs two sources, and the stream has 1"),
        ({"sources": [*SOURCES, Source(KAFKA, "refunds")]}, "needs two sources, and the stream has 3"),
        (
            {"join": join(left_source="order")},
            "names a source 'order', which is not there. Did you mean 'orders'",
        ),
        ({"sources": [Source(KAFKA, "orders"), Source(OTHER, "orders")]}, "two sources are called 'orders'"),
        ({"join": join(right_source="kafka:orders")}, "are the same source"),
        (
            {"source_columns": OrderColumns},
            "source_columns= is for streams whose sources have the same columns",
        ),
        (
            {"window": Window(kind="tumbling", duration_ms=5, aggregations=[Aggregation("count", "n")])},
            "join= does not go together with window=",
        ),
        ({"join": join(late_data="dlq")}, "the stream has no dead letters"),
        (
            {"mode": "scd2", "keys": ["left_order_id"], "event_timestamp_column": "left__event_ts"},
            "a joined row has two",
        ),
        (
            {"join": None, "sources": [Source(KAFKA, "orders", columns=OrderColumns)]},
            "columns= of source 'orders' is for join=, which is not set",
        ),
        ({"join": None, "watermark": Watermark()}, "watermark= works with window= or join="),
    ],
)
def test_a_join_that_does_not_fit_its_stream_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        spec(**options)


def test_a_call_refuses_it_too() -> None:
    with pytest.raises(DeclarationError, match="join= needs two sources"):
        run_streaming_pipeline(
            name="paid", source=KAFKA, source_query="orders", target=LITE, target_table="paid", join=join()
        )


def test_sources_are_named_by_their_query_or_by_their_connection_too() -> None:
    assert spec().joined_sources == (0, 1)
    assert spec(join=join(left_source="payments", right_source="kafka:orders")).joined_sources == (1, 0)
    same = [Source(KAFKA, "orders"), Source(OTHER, "orders")]
    both = join(left_source="other:orders", right_source="kafka:orders")
    assert spec(sources=same, join=both).joined_sources == (1, 0)


def test_a_state_in_memory_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="a restart loses those that wait for a partner"):
        spec(state_store=StateStore(kind="in_memory"))


def columns(**kinds: str) -> list[ColumnSpec]:
    return [ColumnSpec(name, DataType(kind)) for name, kind in kinds.items()]


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ({"ts": "text"}, {}, "the join reads column 'order_id' of orders, which has no such column"),
        ({"order_id": "text"}, {}, "the join reads column 'ts' of orders"),
        ({"ts": "boolean", "order_id": "text"}, {}, "'ts', which is Boolean in orders and no time"),
        (
            {"ts": "text", "order_id": "text"},
            {"order_id": "big_int"},
            "order_id is Text and payments.order_id is BigInt",
        ),
        ({"ts": "text", "order_id": "json"}, {"order_id": "json"}, "the join cannot compare them"),
        (
            {"ts": "text", "order_id": "text", "right_ts": "text"},
            {"order_id": "text"},
            "are called 'right_ts'",
        ),
    ],
)
def test_columns_that_cannot_be_joined_are_refused(
    left: dict[str, str], right: dict[str, str], message: str
) -> None:
    declared = join(event_time_column="ts", left_column_prefix="")
    sides = (columns(**left), columns(**{"ts": "timestamp_tz", "order_id": "text", **right}))
    with pytest.raises(SchemaMismatch, match=message):
        join_columns(declared, sides, None)


def test_the_result_has_all_columns_of_both_sides_and_all_can_be_null() -> None:
    sides = (
        columns(ts="timestamp_tz", order_id="integer"),
        columns(order_id="big_int", ts="text", x="float"),
    )
    found = join_columns(join(event_time_column="ts"), sides, None)
    assert [(c.name, c.type.kind, c.nullable) for c in found] == [
        ("left_ts", "timestamp_tz", True),
        ("left_order_id", "integer", True),
        ("right_order_id", "big_int", True),
        ("right_ts", "text", True),
        ("right_x", "float", True),
    ]


FULL = join(
    kind="left_outer",
    min_delta_ms=-60_000,
    max_delta_ms=300_000,
    event_time_column="ts",
    late_data="reopen",
    allowed_lateness_ms=10_000,
    left_column_prefix="o_",
    max_state_rows=500,
)


def test_json_and_toml_are_the_stream() -> None:
    declared = spec(
        sources=[Source(KAFKA, "orders", columns=OrderColumns), Source(KAFKA, "payments")],
        join=FULL,
        watermark=Watermark(lateness_ms=5_000, source_idleness_ms=60_000),
    )
    assert StreamSpec.from_json(json.loads(json.dumps(declared.to_json()))) == declared
    written = stream_from_text(stream_to_toml(declared))
    assert (written.join, written.watermark) == (declared.join, declared.watermark)
    assert [each.columns and each.columns.columns for each in written.sources] == [
        each.columns and each.columns.columns for each in declared.sources
    ]


def test_a_plan_shows_the_join_its_watermark_and_its_state() -> None:
    plan = StreamPlan(spec(join=FULL, transform_sql="SELECT 1 AS one FROM source"), None, "", (None, None))
    text = str(plan)
    assert "left_outer orders.order_id = payments.order_id, -60000 to 300000 ms" in text
    assert "late rows reopen for 10000 ms" in text and "next to the checkpoint" in text
    assert text.index("  join ") < text.index("  SQL ")
    assert plan.to_json()["join"]["max_delta_ms"] == 300_000
    assert plan.to_json()["state_store"] == "checkpoint"


TOML = """
pipeline_name = "paid"

[[sources]]
connection = "kafka"
query = "orders"

[sources.columns]
order_id = "BigInt"

[[sources]]
connection = "kafka"
query = "payments"

[target]
kind = "sqlite"
path = "lite.db"
table = "paid"

"""
JOIN = """
left_source = "orders"
right_source = "payments"
left_keys = ["order_id"]
right_keys = ["order_id"]
"""


def test_both_places_of_a_file_declare_a_join() -> None:
    for place in ("[join]", "[transform.join]"):
        found = stream_from_text(f'{TOML}{place}\nkind = "stream_stream_join"{JOIN}time_window_ms = 5')
        assert found.join == join(time_window_ms=5)
        assert found.sources[0].columns is not None and found.sources[0].columns.columns[0].name == "order_id"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"[join]{JOIN}[transform.join]{JOIN}", "the join is given twice"),
        ("[join]\nkind = 'inner'", r"\[join\]: it needs left_source ="),
        (f"[join]{JOIN}time_window = 5", "there is no key 'time_window'. Did you mean 'time_window_ms'"),
        (f"[transform.join]{JOIN}kind = 'outer'", "kind='outer' is unknown"),
    ],
)
def test_a_file_that_declares_no_join_is_refused_at_its_line(text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message) as caught:
        stream_from_text(TOML + text)
    assert caught.value.where is not None and caught.value.where.line > 18
