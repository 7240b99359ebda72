"""Whether the rows arrived: a table's fingerprint is the number of rows and a checksum of each column.

Each checksum ties a value to its row's key and does not depend on the rows' order, so that lost, doubled,
changed and swapped values all show. One engine hashes the rows of every system.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.datasets import DATA, Dataset
from benchmarks.endpoint import Endpoint

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_FAMILIES = (  # the first that matches the beginning of a type's name
    ("integer", r"(big|small|tiny|huge)?int|int\d|integer|serial"),
    ("decimal", r"decimal|numeric"),
    ("float", r"double|float|real"),
    ("timestamp", r"timestamp|datetime"),
    ("date", r"date"),
    ("text", r"char|varchar|(tiny|medium|long)?text|string|large_string|bpchar|character"),
)


@dataclass(frozen=True)
class Fingerprint:
    """``columns`` are checksums by name, ``types`` the type that each column has in that endpoint."""

    rows: int
    columns: tuple[tuple[str, str], ...]
    types: tuple[tuple[str, str], ...]

    def differences(self, source: Fingerprint) -> list[str]:
        """Why this endpoint is not a copy of the source, as text."""
        if self.rows != source.rows:
            return [f"{self.rows:,} rows arrived of {source.rows:,}"]
        expected = dict(source.columns)
        return [f"{name} has other values" for name, checksum in self.columns if expected[name] != checksum]

    def retyped(self, dataset: Dataset) -> list[str]:
        """Columns that hold the right values in another kind of type, as text."""
        families = {column.name: column.family for column in dataset.columns}
        return [
            f"{name} arrived as {native}" for name, native in self.types if family(native) != families[name]
        ]


def family(native: str) -> str:
    """Which kind of type a system's own type name is: integer, decimal, float, date, timestamp or text."""
    name = native.lower()
    return next((kind for kind, pattern in _FAMILIES if re.match(rf"({pattern})", name)), name)


def fingerprint(endpoint: Endpoint, dataset: Dataset) -> Fingerprint:
    read = {
        "postgres": _postgres,
        "mysql": _mysql,
        "sqlite": _sqlite,
        "duckdb": _duckdb,
        "parquet": _parquet,
        "csv": _csv,
        "delta": _delta,
    }
    return read[endpoint.kind](endpoint, dataset)


def _hashed(
    connection: duckdb.DuckDBPyConnection, relation: str, types: dict[str, str], dataset: Dataset
) -> Fingerprint:
    keys = ", ".join(f'CAST("{name}" AS BIGINT)' for name in dataset.key)
    sums = ", ".join(
        f'sum(CAST(hash({keys}, CAST("{c.name}" AS {c.duckdb})) AS HUGEINT))' for c in dataset.columns
    )
    answer = connection.execute(f"SELECT count(*), {sums} FROM {relation}").fetchone()
    assert answer is not None
    checksums = [f"{value or 0:x}" for value in answer[1:]]
    return Fingerprint(
        int(answer[0]),
        tuple(zip(dataset.names, checksums, strict=True)),
        tuple((name, types.get(name, "missing")) for name in dataset.names),
    )


def _hashed_text(batches: Iterator[list[list[Any]]], types: dict[str, str], dataset: Dataset) -> Fingerprint:
    """Of rows that a driver gave column by column."""
    import duckdb
    import pyarrow as pa

    schema = pa.schema([(name, pa.string()) for name in dataset.names])

    def arrow() -> Iterator[pa.RecordBatch]:
        for columns in batches:
            arrays = [pa.array([None if v is None else str(v) for v in c], pa.string()) for c in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    with duckdb.connect() as connection:
        connection.register("landed", pa.RecordBatchReader.from_batches(schema, arrow()))
        return _hashed(connection, "landed", types, dataset)


def _postgres(endpoint: Endpoint, dataset: Dataset) -> Fingerprint:
    import adbc_driver_postgresql.dbapi as adbc
    import duckdb

    with (
        adbc.connect(endpoint.location) as connection,
        connection.cursor() as cursor,
        duckdb.connect() as hashing,
    ):
        cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            f" WHERE attrelid = '{dataset.name}'::regclass AND attnum > 0"
        )
        types = {str(name): str(native) for name, native in cursor.fetchall()}
        cursor.execute(f"SELECT {', '.join(f'{n}::text AS {n}' for n in dataset.names)} FROM {dataset.name}")
        hashing.register("landed", cursor.fetch_record_batch())
        return _hashed(hashing, "landed", types, dataset)


def _mysql(endpoint: Endpoint, dataset: Dataset) -> Fingerprint:
    """By the server's own client: rows of text, which DuckDB reads faster than any driver in Python."""
    import duckdb

    login = endpoint.login()
    client = ["mariadb", "--no-defaults", f"--host={login.host}", f"--port={login.port}"]
    client += [f"--user={login.user}", "--batch", "--skip-column-names", "--quick", login.database]
    env = {**os.environ, "MYSQL_PWD": login.password}

    def ask(sql: str, output: Any) -> bytes:
        done = subprocess.run([*client, f"--execute={sql}"], stdout=output, env=env, check=True)
        return bytes(done.stdout or b"")

    described = ask(f"DESCRIBE {dataset.name}", subprocess.PIPE).decode().splitlines()
    types = {line.split("\t")[0]: line.split("\t")[1] for line in described}
    with tempfile.NamedTemporaryFile(dir=DATA, suffix=".tsv") as text, duckdb.connect() as hashing:
        ask(dataset.query, text)
        columns = ", ".join(f"'{name}': 'VARCHAR'" for name in dataset.names)
        options = f"delim = '\t', quote = '', escape = '', header = false, columns = {{{columns}}}"
        return _hashed(hashing, f"read_csv('{text.name}', {options})", types, dataset)


def _sqlite(endpoint: Endpoint, dataset: Dataset) -> Fingerprint:
    connection = sqlite3.connect(endpoint.location, check_same_thread=False)  # DuckDB reads in another thread
    try:
        types = {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({dataset.name})")}
        cursor = connection.execute(dataset.query)

        def batches() -> Iterator[list[list[Any]]]:
            while rows := cursor.fetchmany(50_000):
                yield [list(column) for column in zip(*rows, strict=True)]

        return _hashed_text(batches(), types, dataset)
    finally:
        connection.close()


def _duckdb(endpoint: Endpoint, dataset: Dataset) -> Fingerprint:
    import duckdb

    with duckdb.connect(endpoint.location, read_only=True) as connection:
        described = connection.execute(f"DESCRIBE {dataset.name}").fetchall()
        types = {str(row[0]): str(row[1]) for row in described}
        return _hashed(connection, dataset.name, types, dataset)


def _parquet(endpoint: Endpoint, dataset: Dataset) -> Fingerprint:
    import duckdb
    import pyarrow.dataset as ds

    rows = ds.dataset(Path(endpoint.location) / dataset.name, format="parquet")
    with duckdb.connect() as connection:
        connection.register("landed", rows)
        return _hashed(connection, "landed", {f.name: str(f.type) for f in rows.schema}, dataset)


def _csv(endpoint: Endpoint, dataset: Dataset) -> Fingerprint:
    """As text: the reader chooses the types."""
    import duckdb

    file = Path(endpoint.location) / dataset.name / f"{dataset.name}.csv"
    columns = ", ".join(f"'{name}': 'VARCHAR'" for name in dataset.names)
    with duckdb.connect() as connection:
        rows = f"read_csv('{file}', header = true, columns = {{{columns}}})"
        return _hashed(connection, rows, dict.fromkeys(dataset.names, "text"), dataset)


def _delta(endpoint: Endpoint, dataset: Dataset) -> Fingerprint:
    """By delta-rs, which also applies deletion vectors."""
    import duckdb
    import pyarrow as pa
    from deltalake import DeltaTable

    opened = DeltaTable(Path(endpoint.location) / dataset.name)
    rows = pa.RecordBatchReader.from_stream(opened.scan(columns=list(dataset.names)))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("landed", rows)
        return _hashed(connection, "landed", {f.name: str(f.type) for f in rows.schema}, dataset)
