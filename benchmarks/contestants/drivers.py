"""The drivers alone, in one Python process: the shortest program that reads, converts and writes.

No staging, no ledger, no Spark: after a failure, the author of the program must repair the target.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.contestants import Load
from benchmarks.datasets import Dataset
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job

ROWS_AT_A_TIME = 50_000
Batches = Callable[[], Iterator[pa.RecordBatch]]


def prepare(job: Job) -> Load:
    target = job.targets[0].kind
    if (job.source.kind, target) == ("postgres", "mysql"):
        return _postgres_to_mysql(job)
    if (job.source.kind, target) == ("csv", "postgres"):
        return _csv_to_postgres(job)
    reading = {"postgres": from_postgres, "mysql": _from_mysql, "sqlite": _from_sqlite}[job.source.kind]
    writing = {
        "postgres": _into_postgres,
        "duckdb": _into_duckdb,
        "parquet": _into_parquet,
        "delta": _into_delta,
    }[target]
    return writing(job.dataset, reading(job.source, job.dataset))


def prepare_pipe(job: Job) -> Load:
    """The server's own binary COPY, its bytes passed on unread. Only if both tables are alike."""
    import psycopg

    name, lines = job.table, job.dataset.column_lines("postgres")

    def load(target: Endpoint) -> dict[str, Any]:
        with psycopg.connect(job.source.location) as reading, psycopg.connect(target.location) as writing:
            writing.execute(f"CREATE TABLE {name} ({lines})".encode())
            with (
                reading.cursor().copy(f"COPY {name} TO STDOUT (FORMAT binary)".encode()) as outgoing,
                writing.cursor().copy(f"COPY {name} FROM STDIN (FORMAT binary)".encode()) as incoming,
            ):
                for block in outgoing:
                    incoming.write(block)
        return {}

    return load


def mysql_connection(endpoint: Endpoint, **options: Any) -> Any:
    import pymysql

    login = endpoint.login()
    return pymysql.connect(
        host=login.host,
        port=login.port,
        user=login.user,
        password=login.password,
        database=login.database,
        charset="utf8mb4",
        **options,
    )


# ------------------------------------------------------------------ reading


def from_postgres(source: Endpoint, dataset: Dataset, condition: str = "true") -> Batches:
    """PostgreSQL's rows as they arrive; the driver gives numeric as text."""
    import adbc_driver_postgresql.dbapi as adbc

    schema = dataset.arrow_schema()

    def batches() -> Iterator[pa.RecordBatch]:
        with adbc.connect(source.location) as reading, reading.cursor() as cursor:
            cursor.execute(f"{dataset.query} WHERE {condition}")
            for batch in cursor.fetch_record_batch():
                arrays = [
                    (column.storage if isinstance(column, pa.ExtensionArray) else column).cast(field.type)
                    for column, field in zip(batch.columns, schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return batches


def _from_mysql(source: Endpoint, dataset: Dataset) -> Batches:
    """Rows as Python values, in pieces: the driver has no other interface."""
    from pymysql.cursors import SSCursor

    schema = dataset.arrow_schema()
    pa.array([0])  # the first one imports pandas, if it is installed

    def batches() -> Iterator[pa.RecordBatch]:
        reading = mysql_connection(source, cursorclass=SSCursor)
        with reading.cursor() as cursor:
            cursor.execute(dataset.query)
            while rows := cursor.fetchmany(ROWS_AT_A_TIME):
                columns = zip(*rows, strict=True)
                arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        reading.close()

    return batches


def _from_sqlite(source: Endpoint, dataset: Dataset) -> Batches:
    schema = dataset.arrow_schema()
    pa.array([0])

    def batches() -> Iterator[pa.RecordBatch]:
        reading = sqlite3.connect(source.location)
        cursor = reading.execute(dataset.query)
        while rows := cursor.fetchmany(ROWS_AT_A_TIME):
            columns = [pa.array(column) for column in zip(*rows, strict=True)]
            arrays = [c.cast(field.type) for c, field in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        reading.close()

    return batches


# ------------------------------------------------------------------ writing


def _into_postgres(dataset: Dataset, batches: Batches) -> Load:
    import adbc_driver_postgresql.dbapi as adbc

    def load(target: Endpoint) -> dict[str, Any]:
        with adbc.connect(target.location) as writing, writing.cursor() as sink:
            reader = pa.RecordBatchReader.from_batches(dataset.arrow_schema(), batches())
            sink.adbc_ingest(dataset.name, reader, mode="create")
            writing.commit()
        return {}

    return load


def _into_duckdb(dataset: Dataset, batches: Batches) -> Load:
    import duckdb

    def load(target: Endpoint) -> dict[str, Any]:
        with duckdb.connect(target.location) as writing:
            writing.execute("BEGIN")
            writing.execute(f"CREATE TABLE {dataset.name} ({dataset.column_lines('duckdb')})")
            for batch in batches():
                writing.register("batch", pa.Table.from_batches([batch]))
                writing.execute(f"INSERT INTO {dataset.name} SELECT * FROM batch")
                writing.unregister("batch")
            writing.execute("COMMIT")
        return {}

    return load


def _into_parquet(dataset: Dataset, batches: Batches) -> Load:
    import pyarrow.parquet as pq

    def load(target: Endpoint) -> dict[str, Any]:
        folder = Path(target.location) / dataset.name
        folder.mkdir()
        hidden = folder / f".{dataset.name}.parquet"
        with pq.ParquetWriter(hidden, dataset.arrow_schema()) as writer:
            for batch in batches():
                writer.write_batch(batch)
        os.replace(hidden, folder / f"{dataset.name}.parquet")
        return {}

    return load


def _into_delta(dataset: Dataset, batches: Batches) -> Load:
    from deltalake import write_deltalake

    def load(target: Endpoint) -> dict[str, Any]:
        reader = pa.RecordBatchReader.from_batches(dataset.arrow_schema(), batches())
        write_deltalake(Path(target.location) / dataset.name, reader)
        return {}

    return load


def _csv_to_postgres(job: Job) -> Load:
    """PostgreSQL's COPY reads the file directly."""
    import psycopg

    dataset = job.dataset
    file = Path(job.source.location) / dataset.name / f"{dataset.name}.csv"
    copied = f"COPY {dataset.name} FROM STDIN (FORMAT csv, HEADER)".encode()

    def load(target: Endpoint) -> dict[str, Any]:
        with psycopg.connect(target.location) as writing, file.open("rb") as outgoing:
            writing.execute(f"CREATE TABLE {dataset.name} ({dataset.column_lines('postgres')})".encode())
            with writing.cursor().copy(copied) as incoming:
                while block := outgoing.read(1 << 20):
                    incoming.write(block)
        return {}

    return load


def _postgres_to_mysql(job: Job) -> Load:
    """MariaDB's LOAD DATA reads the text of PostgreSQL's COPY without a conversion."""
    import psycopg

    dataset = job.dataset

    def pump(file: str) -> None:
        copied = f"COPY ({dataset.query}) TO STDOUT".encode()
        with (
            psycopg.connect(job.source.location) as reading,
            reading.cursor().copy(copied) as outgoing,
            open(file, "wb") as incoming,
        ):
            for block in outgoing:
                incoming.write(block)

    def load(target: Endpoint) -> dict[str, Any]:
        file = f"{job.marks}.{target.login().database}.pipe"
        os.mkfifo(file)
        pumping = threading.Thread(target=pump, args=(file,), daemon=True)
        pumping.start()
        writing = mysql_connection(target, local_infile=True)
        with writing.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {dataset.name} ({dataset.column_lines('mysql')})")
            cursor.execute(
                f"LOAD DATA LOCAL INFILE %s INTO TABLE {dataset.name} CHARACTER SET utf8mb4", (file,)
            )
        writing.commit()
        writing.close()
        pumping.join()
        os.unlink(file)
        return {}

    return load
