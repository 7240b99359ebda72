"""Mirrors the table of `tests.change_workload` until it is killed.

``python -m tests.mirror_program KIND PLACE BOOTSTRAP TOPIC``
"""

from __future__ import annotations

import sys
from typing import Any

from ematix_flow import CDC
from ematix_flow.api.streaming import run_streaming_pipeline
from ematix_flow.spec.connections import (
    DeltaLocalConnection,
    DuckDBConnection,
    KafkaConnection,
    MySQLConnection,
    PostgresConnection,
    SQLiteConnection,
)
from tests.change_workload import Orders


def target_connection(kind: str, place: str) -> Any:
    """``place`` is a URL or a path."""
    if kind == "postgres":
        return PostgresConnection(name="mirror", url=place)
    if kind == "mysql":
        return MySQLConnection(name="mirror", url=place)
    found = {"sqlite": SQLiteConnection, "duckdb": DuckDBConnection, "delta": DeltaLocalConnection}
    return found[kind](name="mirror", path=place)


def mirror_options(kind: str, place: str, bootstrap: str, topic: str) -> dict[str, Any]:
    return {
        "name": "mirror",
        "source": KafkaConnection(name="kafka", bootstrap_servers=bootstrap),
        "source_query": topic,
        "target": target_connection(kind, place),
        "target_table": Orders,
        "cdc": CDC(),
        "max_rows_per_batch": 200,
    }


if __name__ == "__main__":
    run_streaming_pipeline(**mirror_options(*sys.argv[1:5]), idle_pause_ms=50)
