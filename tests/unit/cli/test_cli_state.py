"""``flow state show``: what it says of the states of streams."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ematix_flow.engine.streams.state.status import StateStatus, write_status
from ematix_flow.state.state_root import state_root
from tests.unit.cli.conftest import Flow

MODULE = """
from ematix_flow import Aggregation, KafkaConnection, SQLiteConnection, Window, ematix

@ematix.streaming_pipeline(
    source=KafkaConnection(name="kafka", bootstrap_servers="localhost:9"), source_query="clicks",
    target=SQLiteConnection(name="lite", path="lite.db"), target_table="counts",
    window=Window(kind="tumbling", duration_ms=1000, aggregations=[Aggregation(agg="count", as_="n")]),
)
def clicks(): ...
"""


def write(stream: str) -> None:
    folder = state_root(os.environ) / "streams" / stream / "checkpoints" / "all" / "windows"
    status = StateStatus(
        stream=stream,
        query="all",
        store="checkpoint",
        operator="tumbling 1000 ms",
        format=2,
        version=3_000_001,
        rows=7,
        bytes=12_345,
        watermark=1_700_000_000_000_000,
        border=None,
        next_due=2**62,
        changed_at=0,
    )
    write_status(folder, status)


def test_all_states_or_one_of_them_are_shown(flow: Flow) -> None:
    write("clicks")
    write("views")
    shown = flow("state", "show")
    assert (shown.code, "clicks" in shown.out, "views" in shown.out, "12,345" in shown.out) == (
        0,
        *[True] * 3,
    )
    assert flow("state", "show", "views", "--output", "json").json == [
        {
            "stream": "views",
            "query": "all",
            "store": "checkpoint",
            "operator": "tumbling 1000 ms",
            "format": 2,
            "version": 3_000_001,
            "rows": 7,
            "bytes": 12_345,
            "watermark": "2023-11-14T22:13:20+00:00",
            "border": None,
            "next_due": None,
            "changed_at": "1970-01-01T00:00:00+00:00",
        }
    ]


def test_an_unknown_stream_gets_a_suggestion(flow: Flow) -> None:
    write("clicks")
    refused = flow("state", "show", "clcks")
    assert refused.code == 2
    assert "Did you mean 'clicks'?" in refused.err


def test_the_streams_of_a_module_are_shown(flow: Flow, tmp_path: Path) -> None:
    (tmp_path / "declared.py").write_text(MODULE)
    write("views")
    none = flow("state", "show", "--module", "declared")
    assert (none.code, none.out, none.err.strip()) == (0, "", "no stream has a state")
    assert (
        flow("state", "show", "clicks", "--module", "declared").err.strip() == "stream 'clicks' has no state"
    )
    write("clicks")
    shown = flow("state", "show", "--module", "declared", "--output", "json")
    assert [each["stream"] for each in shown.json] == ["clicks"]
    assert "Did you mean 'clicks'?" in flow("state", "show", "click", "--module", "declared").err


def test_a_file_of_another_version_is_left_out(flow: Flow) -> None:
    write("clicks")
    path = next(state_root(os.environ).rglob("status.json"))
    path.write_text(json.dumps({"stream": "clicks"}))
    assert flow("state", "show", "--output", "json").json == []
