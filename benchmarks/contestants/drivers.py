"""The drivers alone, in one Python process: the shortest program that reads, converts and writes Arrow.

No staging, no ledger, no Spark: what is lost when it fails half way is the writer's own business.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.contestants import Load
from benchmarks.job import Job
from benchmarks.orders import COLUMNS, NAMES
from benchmarks.places import TABLE, Place

ARROW = {"integer": pa.int64(), "decimal": pa.decimal128(15, 2), "date": pa.date32(), "text": pa.string()}
SCHEMA = pa.schema([(c.name, pa.int32() if c.duckdb == "INTEGER" else ARROW[c.family]) for c in COLUMNS])
QUERY = f"SELECT {', '.join(NAMES)} FROM {TABLE}"
ROWS_AT_A_TIME = 50_000


def prepare(job: Job) -> Load:
    ways = {"duckdb": _sqlite_to_duckdb, "postgres": _postgres_to_postgres, "parquet": _postgres_to_parquet}
    return ways[job.targets[0].kind](job.source)


def prepare_pipe(job: Job) -> Load:
    """The server's own binary COPY, its bytes passed on unread. Only where both tables are alike."""
    import psycopg

    lines = ", ".join(f"{c.name} {c.postgres} NOT NULL" for c in COLUMNS)

    def load(target: Place) -> dict[str, Any]:
        with psycopg.connect(job.source.location) as reading, psycopg.connect(target.location) as writing:
            writing.execute(f"CREATE TABLE {TABLE} ({lines})".encode())
            with (
                reading.cursor().copy(f"COPY {TABLE} TO STDOUT (FORMAT binary)".encode()) as outgoing,
                writing.cursor().copy(f"COPY {TABLE} FROM STDIN (FORMAT binary)".encode()) as incoming,
            ):
                for block in outgoing:
                    incoming.write(block)
        return {}

    return load


def _sqlite_to_duckdb(source: Place) -> Load:
    import duckdb

    pa.array([0])  # the first one imports pandas, if it is there

    def load(target: Place) -> dict[str, Any]:
        lines = ", ".join(f"{c.name} {c.duckdb} NOT NULL" for c in COLUMNS)
        reading = sqlite3.connect(source.location)
        with duckdb.connect(target.location) as writing:
            writing.execute("BEGIN")
            writing.execute(f"CREATE TABLE {TABLE} ({lines})")
            cursor = reading.execute(QUERY)
            while rows := cursor.fetchmany(ROWS_AT_A_TIME):
                columns = [pa.array(column) for column in zip(*rows, strict=True)]
                arrays = [c.cast(field.type) for c, field in zip(columns, SCHEMA, strict=True)]
                writing.register("batch", pa.Table.from_arrays(arrays, schema=SCHEMA))
                writing.execute(f"INSERT INTO {TABLE} SELECT * FROM batch")
                writing.unregister("batch")
            writing.execute("COMMIT")
        reading.close()
        return {}

    return load


def _postgres_to_postgres(source: Place) -> Load:
    import adbc_driver_postgresql.dbapi as adbc

    def load(target: Place) -> dict[str, Any]:
        with adbc.connect(target.location) as writing, writing.cursor() as sink:
            reader = pa.RecordBatchReader.from_batches(SCHEMA, _batches(source))
            sink.adbc_ingest(TABLE, reader, mode="create")
            writing.commit()
        return {}

    return load


def _postgres_to_parquet(source: Place) -> Load:
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow.parquet as pq

    assert adbc.connect  # imported while getting ready

    def load(target: Place) -> dict[str, Any]:
        folder = Path(target.location) / TABLE
        folder.mkdir()
        hidden = folder / ".orders.parquet"
        with pq.ParquetWriter(hidden, SCHEMA) as writer:
            for batch in _batches(source):
                writer.write_batch(batch)
        os.replace(hidden, folder / "orders.parquet")
        return {}

    return load


def _batches(source: Place) -> Iterator[pa.RecordBatch]:
    """PostgreSQL's rows as they arrive; the driver gives numeric as text."""
    import adbc_driver_postgresql.dbapi as adbc

    with adbc.connect(source.location) as reading, reading.cursor() as cursor:
        cursor.execute(QUERY)
        for batch in cursor.fetch_record_batch():
            arrays = [
                (column.storage if isinstance(column, pa.ExtensionArray) else column).cast(field.type)
                for column, field in zip(batch.columns, SCHEMA, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
