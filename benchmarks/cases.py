"""What is compared: the cases of the benchmarks and the contestants of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FLOW = "flow"
DRIVER = "driver"
REFERENCE = "reference"
PROBE = "probe"

CONTESTANTS = {
    FLOW: "ematix-flow",
    "jdbc": "Spark JDBC, as written",
    "jdbc-tuned": "Spark JDBC, tuned",
    "jdbc-parquet": "Spark JDBC, Parquet, DuckDB",
    DRIVER: "drivers alone",
    "pipe": "COPY to COPY",
    "dlt": "dlt",
    "sling": "Sling",
    "duckdb": "DuckDB alone",
    "sql": "SQL by hand",
    "spark-merge": "Spark JDBC, staging, SQL by hand",
    "dlt-upsert": "dlt, upsert",
    "delta-rs": "delta-rs",
    "spark-delta": "Spark JDBC, MERGE INTO",
    "spark-foreachbatch": "Structured Streaming, as written",
    "flow-postgres-state": "ematix-flow, state in Postgres",
    "spark-by-hand": "Structured Streaming by hand",
    "spark-processor": "transformWithState by hand",
    "pika": "pika and psycopg",
    REFERENCE: "ematix-flow 1.0.0 of PyPI",
    PROBE: "ematix_probe",
    "probe-frame": "ematix_probe, a frame of Spark",
    "sql-spark": "Spark SQL by hand",
    "great-expectations": "Great Expectations",
    "great-expectations-unpersisted": "Great Expectations, persist=False",
    "great-expectations-pandas": "Great Expectations, pandas",
    "soda": "Soda",
    "locust": "locust",
    "locust-fast": "locust, FastHttpUser",
    "k6": "k6",
}
# Those in a separate environment: their pinned versions may conflict with the product's.
APART = {"dlt", "dlt-upsert", "duckdb", "sling", REFERENCE}
# Those in one more environment: what they pin conflicts with the other rivals.
APART_FOR_PROBES = {
    "great-expectations",
    "great-expectations-unpersisted",
    "great-expectations-pandas",
    "soda",
    "locust",
    "locust-fast",
}
_EVERYWHERE = (FLOW, "jdbc", "jdbc-tuned", DRIVER)
_DATABASES = (*_EVERYWHERE, "dlt", "sling", "duckdb")
_NO_DELTA = "its Delta extension reads tables and appends to them, and neither creates nor changes one"


@dataclass(frozen=True)
class Case:
    """One load from a source to a target, and the contestants that can do it."""

    name: str
    title: str
    source: str
    target: str
    contestants: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)  # who cannot do it -> why


@dataclass(frozen=True)
class ChangeCase:
    """A strategy that loads changes into an existing table, and the contestants that have it."""

    name: str
    title: str
    contestants: tuple[str, ...]
    strategy: str
    target: str = "postgres"
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamCase:
    """A broker whose messages are streamed, their target, and the contestants that can do it."""

    name: str
    title: str
    source: str
    target: str
    contestants: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    exactly_once: bool = False


@dataclass(frozen=True)
class StatefulCase:
    """A stream from Kafka into PostgreSQL that needs state. ``stream`` is what it computes.

    ``rows`` messages are there before; ``latency`` says whether a steady rate follows. A ``restart`` case
    measures how long a stream needs to continue with the state of these messages, one key each.
    """

    name: str
    title: str
    stream: str
    rows: int
    contestants: tuple[str, ...]
    latency: bool = False
    restart: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProbeCase:
    """A source with ten assertions about its rows, and the contestants that can check them."""

    name: str
    title: str
    source: str
    contestants: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


CASES = {
    case.name: case
    for case in (
        Case("sqlite-duckdb", "SQLite → DuckDB", "sqlite", "duckdb", (*_EVERYWHERE, "jdbc-parquet")),
        Case("postgres-postgres", "Postgres → Postgres", "postgres", "postgres", (*_DATABASES, "pipe")),
        Case("mysql-postgres", "MariaDB → Postgres", "mysql", "postgres", _DATABASES),
        Case("postgres-mysql", "Postgres → MariaDB", "postgres", "mysql", _DATABASES),
        Case("postgres-duckdb", "Postgres → DuckDB", "postgres", "duckdb", (*_DATABASES, "jdbc-parquet")),
        Case("postgres-parquet", "Postgres → Parquet", "postgres", "parquet", _EVERYWHERE),
        Case(
            "postgres-delta",
            "Postgres → Delta",
            "postgres",
            "delta",
            (*_EVERYWHERE, "dlt"),
            {"duckdb": _NO_DELTA},
        ),
        Case("csv-postgres", "CSV → Postgres", "csv", "postgres", _DATABASES),
    )
}
CHANGES = {
    case.name: case
    for case in (
        ChangeCase("merge", "merge", (FLOW, "sql", "spark-merge", "dlt", "dlt-upsert", "sling"), "merge"),
        ChangeCase("scd2", "scd2", (FLOW, "sql", "spark-merge", "dlt"), "scd2"),
        ChangeCase(
            "delta-merge",
            "merge into Delta",
            (FLOW, "delta-rs", "spark-delta", "dlt-upsert"),
            "merge",
            "delta",
            {"dlt": "its default, to delete and insert, is not there for Delta", "duckdb": _NO_DELTA},
        ),
    )
}
_STREAMING = (FLOW, "spark-foreachbatch", REFERENCE)
STREAMS = {
    case.name: case
    for case in (
        StreamCase("kafka-postgres", "Kafka → Postgres", "kafka", "postgres", _STREAMING),
        StreamCase("kafka-delta", "Kafka → Delta", "kafka", "delta", _STREAMING),
        StreamCase("kafka-kafka", "Kafka → Kafka, at least once", "kafka", "kafka", _STREAMING),
        StreamCase(
            "kafka-kafka-once",
            "Kafka → Kafka, exactly once",
            "kafka",
            "kafka",
            (FLOW,),
            {
                "spark-foreachbatch": "Spark's Kafka sink has no transactions",
                REFERENCE: "its Python package has no transactions between topics",
            },
            exactly_once=True,
        ),
        StreamCase(
            "rabbitmq-postgres",
            "RabbitMQ → Postgres",
            "rabbitmq",
            "postgres",
            (FLOW, "pika", REFERENCE),
            {"spark-foreachbatch": "there is no connector for RabbitMQ"},
        ),
    )
}
_BY_HAND = (FLOW, "spark-by-hand")
STATEFUL = {
    case.name: case
    for case in (
        StatefulCase(
            "window", "windowed count", "window", 300_000, (*_BY_HAND, "spark-processor"), latency=True
        ),
        StatefulCase("session", "sessions", "session", 300_000, _BY_HAND),
        StatefulCase("join", "join of two topics", "join", 300_000, _BY_HAND),
        StatefulCase("cdc", "change events", "cdc", 300_000, _BY_HAND, latency=True),
        StatefulCase(
            "restart",
            "restart with 1,000,000 keys",
            "window",
            1_000_000,
            (FLOW, "flow-postgres-state", "spark-by-hand"),
            restart=True,
        ),
    )
}
_GREAT_EXPECTATIONS = ("great-expectations", "great-expectations-unpersisted")
PROBES = {
    case.name: case
    for case in (
        ProbeCase("postgres", "Postgres", "postgres", (PROBE, "sql", "great-expectations", "soda")),
        ProbeCase(
            "parquet",
            "Parquet",
            "parquet",
            (PROBE, "sql", *_GREAT_EXPECTATIONS, "great-expectations-pandas", "soda"),
        ),
        ProbeCase(
            "delta",
            "Delta",
            "delta",
            (PROBE, "probe-frame", "sql", "sql-spark", *_GREAT_EXPECTATIONS, "soda"),
        ),
    )
}
# Those that send requests to one server
PROBE_LOAD = (PROBE, "locust", "locust-fast", "k6")
