"""The contestants. Each is a function that gets ready for a job and returns a function that loads.

Each runs in a fresh process (``python -m benchmarks.contestants NAME JOB``), so that none profits from
the caches of another.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.endpoint import Endpoint
from benchmarks.job import Job

Load = Callable[[Endpoint], dict[str, Any]]
"""Loads all rows into a target and returns details of the load after the commit."""

_COPY = {
    "flow": "benchmarks.contestants.flow:prepare",
    "jdbc": "benchmarks.contestants.spark_jdbc:prepare_as_written",
    "jdbc-tuned": "benchmarks.contestants.spark_jdbc:prepare_tuned",
    "jdbc-parquet": "benchmarks.contestants.spark_jdbc:prepare_through_parquet",
    "driver": "benchmarks.contestants.drivers:prepare",
    "pipe": "benchmarks.contestants.drivers:prepare_pipe",
    "dlt": "benchmarks.contestants.dlt_loads:prepare",
    "sling": "benchmarks.contestants.sling_loads:prepare",
    "duckdb": "benchmarks.contestants.duckdb_alone:prepare",
}
_MERGE = {
    "flow": "benchmarks.contestants.flow_changes:prepare",
    "sql": "benchmarks.contestants.sql_changes:prepare",
    "spark-merge": "benchmarks.contestants.spark_changes:prepare",
    "dlt": "benchmarks.contestants.dlt_loads:prepare_changes",
    "dlt-upsert": "benchmarks.contestants.dlt_loads:prepare_upsert",
    "sling": "benchmarks.contestants.sling_loads:prepare_merge",
}
_DELTA_MERGE = {
    "flow": _MERGE["flow"],
    "delta-rs": "benchmarks.contestants.delta_changes:prepare",
    "spark-delta": "benchmarks.contestants.spark_changes:prepare_delta",
    "dlt-upsert": _MERGE["dlt-upsert"],
}
_STREAMS = {
    "flow": "benchmarks.contestants.flow_streams:prepare",
    "spark-foreachbatch": "benchmarks.contestants.spark_streams:prepare",
    "pika": "benchmarks.contestants.pika_stream:prepare",
    "reference": "benchmarks.contestants.reference_stream:prepare",
}
_STATEFUL = {
    "flow": "benchmarks.contestants.flow_stateful:prepare",
    "flow-postgres-state": "benchmarks.contestants.flow_stateful:prepare",
    "spark-by-hand": "benchmarks.contestants.spark_stateful:prepare",
    "spark-processor": "benchmarks.contestants.spark_stateful_processor:prepare",
}
_GREAT_EXPECTATIONS = "benchmarks.contestants.probe_great_expectations"
_PROBES = {
    "probe": "benchmarks.contestants.probe_ematix:prepare",
    "probe-frame": "benchmarks.contestants.probe_ematix:prepare_frame",
    "sql": "benchmarks.contestants.probe_sql:prepare",
    "sql-spark": "benchmarks.contestants.probe_sql:prepare_spark",
    "great-expectations": f"{_GREAT_EXPECTATIONS}:prepare",
    "great-expectations-unpersisted": f"{_GREAT_EXPECTATIONS}:prepare_unpersisted",
    "great-expectations-pandas": f"{_GREAT_EXPECTATIONS}:prepare_pandas",
    "soda": "benchmarks.contestants.probe_soda:prepare",
}
_PROBE_LOADS = "benchmarks.contestants.probe_loads"
_PROBE_LOAD = {
    "probe": f"{_PROBE_LOADS}:prepare",
    "locust": f"{_PROBE_LOADS}:prepare_locust",
    "locust-fast": f"{_PROBE_LOADS}:prepare_locust_fast",
    "k6": f"{_PROBE_LOADS}:prepare_k6",
}
HOMES = {
    "copy": _COPY,
    "merge": _MERGE,
    "scd2": {name: _MERGE[name] for name in ("flow", "sql", "spark-merge", "dlt")},
    "delta-merge": _DELTA_MERGE,
    "streams": _STREAMS,
    "stateful": _STATEFUL,
    "probes": _PROBES,
    "probe-load": _PROBE_LOAD,
}


def prepare(name: str, job: Job) -> Load:
    """Start what the contestant needs; importing it is part of its start."""
    module, _, function = HOMES[job.options.get("case", "copy")][name].partition(":")
    load: Load = getattr(import_module(module), function)(job)
    return load
