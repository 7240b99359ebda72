"""Shared by the PostgreSQL contract tests: a backend on a fresh database, and loads without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
import pyarrow as pa

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import Load, LoadResult, SameDatabaseRows, SourceQuery, StagedPart, StagedRows
from ematix_flow.backends.postgres.backend import PostgresBackend
from ematix_flow.spec.connections import PostgresConnection
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.testing import loads

PIPELINE, TARGET = "load orders", "wh:shop.orders"


def backend_of(url: str, **fields: Any) -> PostgresBackend:
    return PostgresBackend(PostgresConnection(name="wh", url=url, **fields))


def sql(url: str, statement: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        cursor = connection.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def orders(
    *, keyed: bool = True, name: str = "orders", unique: tuple[tuple[str, ...], ...] = ()
) -> TableSpec:
    return TableSpec(
        "shop",
        name,
        (
            ColumnSpec("id", DataType("big_int"), primary_key=keyed),
            ColumnSpec("amount", DataType("numeric", precision=12, scale=2), nullable=True),
            ColumnSpec("seen", DataType("timestamp_tz"), nullable=True),
        ),
        unique=unique,
    )


def new_load(table: TableSpec, mode: str = "append", **fields: Any) -> Load:
    return loads.new_load(table, mode, **{"pipeline": PIPELINE, "target": TARGET, **fields})


def prepare(backend: PostgresBackend, table: TableSpec) -> None:
    target = backend.target()
    target.change_table(table, target.plan_table(table, target.inspect(table)))


def staged(
    backend: PostgresBackend, load: Load, rows: Iterable[Mapping[str, Any]], part: str = "p0"
) -> StagedRows:
    """The rows in staging, written by a handle that was pickled as for a task."""
    schema = load.table.arrow_schema()
    staging = backend.target().create_staging(load, schema)
    batch = pa.RecordBatch.from_pylist(list(rows), schema=schema)
    written = pickle.loads(pickle.dumps(staging)).write(part, [cast_batch(batch, load.table)])
    return StagedRows(staging, (written,))


def load_rows(
    backend: PostgresBackend,
    table: TableSpec,
    rows: Iterable[Mapping[str, Any]],
    mode: str = "append",
    **fields: Any,
) -> LoadResult:
    """One whole load: table, staging, apply, drop."""
    prepare(backend, table)
    load = new_load(table, mode, **fields)
    there = staged(backend, load, rows)
    try:
        return backend.target().apply(load, there)
    finally:
        backend.target().drop_staging(there.staging)


def load_same_database(
    backend: PostgresBackend, table: TableSpec, select: str, mode: str = "append", **fields: Any
) -> LoadResult:
    prepare(backend, table)
    return backend.target().apply(new_load(table, mode, **fields), SameDatabaseRows(select))


def read_all(
    backend: PostgresBackend,
    select: str,
    *,
    wanted: Mapping[str, DataType] | None = None,
    parallelism: int = 1,
    source_range: SourceRange | None = None,
) -> list[dict[str, Any]]:
    with backend.source().split(SourceQuery(select, source_range), wanted or {}, parallelism) as splits:
        copies = pickle.loads(pickle.dumps(list(splits)))
        return [row for split in copies for batch in split.read() for row in batch.to_pylist()]


def copy_table(
    source: PostgresBackend, select: str, target: PostgresBackend, table: TableSpec, parallelism: int = 1
) -> LoadResult:
    """What the copy path does, task by task, in this process."""
    prepare(target, table)
    load = new_load(table)
    wanted = {c.name: c.type for c in table.columns}
    staging = target.target().create_staging(load, table.arrow_schema())
    parts: list[StagedPart] = []
    with source.source().split(SourceQuery(select), wanted, parallelism) as splits:
        for number, split in enumerate(splits):
            task, place = pickle.loads(pickle.dumps((split, staging)))
            parts.append(place.write(f"{number}", (cast_batch(batch, table) for batch in task.read())))
    applied = target.target().apply(load, StagedRows(staging, tuple(parts)))
    target.target().drop_staging(staging)
    return applied
