"""Shared by the tests of SQLite and DuckDB: backends on fresh files, and a copy as tasks do it."""

from __future__ import annotations

import datetime as dt
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import (
    Backend,
    BatchSource,
    BatchTarget,
    LoadResult,
    SameDatabaseRows,
    SourceQuery,
    StagedRows,
)
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.connections import DuckDBConnection, SQLiteConnection
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.testing.loads import PIPELINE, TARGET, new_load, prepare

KINDS = ("sqlite", "duckdb")
UTC = dt.timezone.utc
SMALL = TableSpec(
    "shop",
    "small",
    (
        ColumnSpec("id", DataType("big_int"), primary_key=True),
        ColumnSpec("name", DataType("text"), nullable=True),
    ),
)
EVENTS = TableSpec(
    "shop", "events", (ColumnSpec("at", DataType("timestamp")), ColumnSpec("what", DataType("text")))
)


def backend_at(kind: str, path: Path) -> Backend:
    connection = SQLiteConnection if kind == "sqlite" else DuckDBConnection
    return open_backend(connection(name=kind, path=str(path)))


def run_sql(kind: str, path: Path, *statements: str) -> list[tuple[Any, ...]]:
    """Statements on the file by the driver alone; the rows of the last."""
    if kind == "sqlite":
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            found = [connection.execute(statement).fetchall() for statement in statements]
    else:
        with duckdb.connect(str(path)) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            found = [connection.execute(statement).fetchall() for statement in statements]
    return found[-1]


def target_of(backend: Backend) -> BatchTarget:
    target = backend.target()
    assert target is not None
    return target


def source_of(backend: Backend) -> BatchSource:
    source = backend.source()
    assert isinstance(source, BatchSource)
    return source


def named(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"n{i}"} for i in range(first, last)]


def copy(
    source: Backend, sql: str, target: Backend, table: TableSpec, mode: str = "append", **changes: Any
) -> LoadResult:
    """The copy path in this process: what travels to a task is pickled."""
    prepare(target_of(target), table)
    load = new_load(table, mode, **changes)
    staging = target_of(target).create_staging(load, table.arrow_schema())
    wanted = {c.name: c.type for c in table.columns}
    try:
        with source_of(source).split(SourceQuery(sql, load.plan.range), wanted, 4) as splits:
            parts = []
            for number, one in enumerate(splits):
                split, place = pickle.loads(pickle.dumps((one, staging)))
                parts.append(
                    place.write(f"part{number}", (cast_batch(batch, table) for batch in split.read()))
                )
        return target_of(target).apply(load, StagedRows(staging, tuple(parts)))
    finally:
        target_of(target).drop_staging(staging)


def copy_new(source: Backend, sql: str, target: Backend, table: TableSpec, column: str) -> LoadResult:
    """One incremental run."""
    low = target_of(target).watermark(PIPELINE, TARGET, column)
    return copy(source, sql, target, table, range=SourceRange(column, low), batch_key=None)


def compute(backend: Backend, sql: str, table: TableSpec, mode: str = "append", **changes: Any) -> LoadResult:
    """The same_db path."""
    prepare(target_of(backend), table)
    return target_of(backend).apply(new_load(table, mode, **changes), SameDatabaseRows(sql))


def read_sql(backend: Backend, sql: str, wanted: dict[str, DataType] | None = None) -> list[dict[str, Any]]:
    with source_of(backend).split(SourceQuery(sql), wanted or {}, 1) as splits:
        return [row for one in splits for batch in one.read() for row in batch.to_pylist()]
