"""ematix-flow: a declared table, a declared pipeline, ``.sync()``. Nothing is tuned."""

from __future__ import annotations

from typing import Any

from benchmarks.contestants import Load
from benchmarks.contestants.flow_tables import TABLES
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job
from ematix_flow import (
    Connection,
    DeltaLocalConnection,
    DuckDBConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    Pipeline,
    PostgresConnection,
    SQLiteConnection,
    ematix,
    register_connection,
)


def prepare(job: Job) -> Load:
    register_connection(connection("source", job.source))
    pipelines = {target: declare(f"copy_{n}", target, job) for n, target in enumerate(job.targets)}
    get_ready(job)

    def load(target: Endpoint) -> dict[str, Any]:
        result = pipelines[target].sync()
        return {"path": result.path, "stages": dict(result.targets[0].seconds)}

    return load


def get_ready(job: Job) -> None:
    """Import what the load imports, and start Spark; no connection is opened."""
    from ematix_flow.backends.registry import open_backend
    from ematix_flow.run.context_setup import spark_starter
    from ematix_flow.state.runlog import sql

    assert sql  # with SQLAlchemy, when the first run is noted
    source = open_backend(connection("source", job.source))
    target = open_backend(connection("target", job.targets[0]))
    source.source()
    target.target()
    spark_starter()(sorted({*source.jar_groups, *target.jar_groups})).range(1).count()


def declare(name: str, target: Endpoint, job: Job) -> Pipeline:
    register_connection(connection(name, target))

    @ematix.pipeline(
        name=name,
        target=TABLES[job.table],
        source_connection="source",
        target_connection=name,
        mode="append",
    )
    def copy_rows(conn: Any) -> str:
        return job.dataset.query

    return copy_rows


def connection(name: str, endpoint: Endpoint) -> Connection:
    if endpoint.kind == "postgres":
        return PostgresConnection(name=name, url=endpoint.location)
    if endpoint.kind == "mysql":
        return MySQLConnection(name=name, url=endpoint.location)
    if endpoint.kind == "sqlite":
        return SQLiteConnection(name=name, path=endpoint.location)
    if endpoint.kind == "duckdb":
        return DuckDBConnection(name=name, path=endpoint.location)
    if endpoint.kind == "delta":
        return DeltaLocalConnection(name=name, path=endpoint.location)
    return ObjectStoreLocalConnection(name=name, path=endpoint.location, format=endpoint.kind)
