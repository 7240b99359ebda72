"""ematix-flow: a declared table, a declared pipeline, ``.sync()``. Nothing is tuned."""

from __future__ import annotations

from typing import Any

from benchmarks.contestants import Load
from benchmarks.job import Job
from benchmarks.orders import NAMES
from benchmarks.places import TABLE, Place
from ematix_flow import (
    BigInt,
    Connection,
    Date,
    DuckDBConnection,
    Integer,
    ManagedTable,
    Numeric,
    ObjectStoreLocalConnection,
    Pipeline,
    PostgresConnection,
    SQLiteConnection,
    Text,
    ematix,
    register_connection,
)


class Orders(ManagedTable):
    __tablename__ = "orders"

    o_orderkey: BigInt
    o_custkey: BigInt
    o_orderstatus: Text
    o_totalprice: Numeric[15, 2]  # type: ignore[type-arg, valid-type]
    o_orderdate: Date
    o_orderpriority: Text
    o_clerk: Text
    o_shippriority: Integer
    o_comment: Text


def prepare(job: Job) -> Load:
    from ematix_flow.backends.registry import open_backend
    from ematix_flow.schedule.context import spark_starter

    register_connection(connection("source", job.source))
    pipelines = {target: declare(f"copy_{n}", target) for n, target in enumerate(job.targets)}
    # imports what the load imports, and opens nothing
    open_backend(connection("source", job.source)).source()
    open_backend(connection("target", job.targets[0])).target()
    spark_starter()().range(1).count()

    def load(target: Place) -> dict[str, Any]:
        result = pipelines[target].sync()
        return {"path": result.path, "stages": dict(result.targets[0].seconds)}

    return load


def declare(name: str, target: Place) -> Pipeline:
    register_connection(connection(name, target))

    @ematix.pipeline(
        name=name, target=Orders, source_connection="source", target_connection=name, mode="append"
    )
    def copy_orders(conn: Any) -> str:
        return f"SELECT {', '.join(NAMES)} FROM {TABLE}"

    return copy_orders


def connection(name: str, place: Place) -> Connection:
    if place.kind == "postgres":
        return PostgresConnection(name=name, url=place.location)
    if place.kind == "sqlite":
        return SQLiteConnection(name=name, path=place.location)
    if place.kind == "duckdb":
        return DuckDBConnection(name=name, path=place.location)
    return ObjectStoreLocalConnection(name=name, path=place.location, format="parquet")
