"""Did the rows arrive? A fingerprint of a place's orders: their number and a checksum a column.

Each checksum ties a value to its row's key and does not depend on the rows' order, so that lost, doubled,
changed and swapped values all show. Every system is read as it stands, and all are hashed by one engine.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.orders import COLUMNS, KEY, NAMES
from benchmarks.places import TABLE, Place

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_FAMILIES = (  # the first that matches the beginning of a type's name
    ("integer", r"(big|small|tiny|huge)?int|int\d|integer|serial"),
    ("decimal", r"decimal|numeric"),
    ("float", r"double|float|real"),
    ("timestamp", r"timestamp|datetime"),
    ("date", r"date"),
    ("text", r"char|varchar|text|string|large_string|bpchar|character"),
)


@dataclass(frozen=True)
class Fingerprint:
    """``columns`` are checksums by name, ``types`` the type that each column has in that place."""

    rows: int
    columns: tuple[tuple[str, str], ...]
    types: tuple[tuple[str, str], ...]

    def differences(self, source: Fingerprint) -> list[str]:
        """What makes this place no copy of the source, in words."""
        if self.rows != source.rows:
            return [f"{self.rows:,} rows arrived of {source.rows:,}"]
        expected = dict(source.columns)
        return [f"{name} has other values" for name, checksum in self.columns if expected[name] != checksum]

    def retyped(self) -> list[str]:
        """Columns that hold the right values in another kind of type, in words."""
        families = {column.name: column.family for column in COLUMNS}
        return [
            f"{name} arrived as {native}" for name, native in self.types if family(native) != families[name]
        ]


def family(native: str) -> str:
    """Which kind of type a system's own type name is: integer, decimal, float, date, timestamp or text."""
    name = native.lower()
    return next((kind for kind, pattern in _FAMILIES if re.match(rf"({pattern})", name)), name)


def fingerprint(place: Place) -> Fingerprint:
    read = {"postgres": _postgres, "sqlite": _sqlite, "duckdb": _duckdb, "parquet": _parquet}
    return read[place.kind](place.location)


def _hashed(connection: duckdb.DuckDBPyConnection, relation: str, types: dict[str, str]) -> Fingerprint:
    key = f'CAST("{KEY}" AS BIGINT)'
    sums = ", ".join(f'sum(CAST(hash({key}, CAST("{c.name}" AS {c.duckdb})) AS HUGEINT))' for c in COLUMNS)
    answer = connection.execute(f"SELECT count(*), {sums} FROM {relation}").fetchone()
    assert answer is not None
    checksums = [f"{value or 0:x}" for value in answer[1:]]
    return Fingerprint(
        int(answer[0]),
        tuple(zip(NAMES, checksums, strict=True)),
        tuple((name, types.get(name, "missing")) for name in NAMES),
    )


def _hashed_text(batches: Iterator[list[list[Any]]], types: dict[str, str]) -> Fingerprint:
    """Of rows that a driver gave column by column."""
    import duckdb
    import pyarrow as pa

    schema = pa.schema([(name, pa.string()) for name in NAMES])

    def arrow() -> Iterator[pa.RecordBatch]:
        for columns in batches:
            arrays = [pa.array([None if v is None else str(v) for v in c], pa.string()) for c in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    with duckdb.connect() as connection:
        connection.register("landed", pa.RecordBatchReader.from_batches(schema, arrow()))
        return _hashed(connection, "landed", types)


def _postgres(url: str) -> Fingerprint:
    import adbc_driver_postgresql.dbapi as adbc
    import duckdb

    with adbc.connect(url) as connection, connection.cursor() as cursor, duckdb.connect() as hashing:
        cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            f" WHERE attrelid = '{TABLE}'::regclass AND attnum > 0"
        )
        types = {str(name): str(native) for name, native in cursor.fetchall()}
        cursor.execute(f"SELECT {', '.join(f'{n}::text AS {n}' for n in NAMES)} FROM {TABLE}")
        hashing.register("landed", cursor.fetch_record_batch())
        return _hashed(hashing, "landed", types)


def _sqlite(file: str) -> Fingerprint:
    connection = sqlite3.connect(file, check_same_thread=False)  # DuckDB asks from a thread of its own
    try:
        types = {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({TABLE})")}
        cursor = connection.execute(f"SELECT {', '.join(NAMES)} FROM {TABLE}")

        def batches() -> Iterator[list[list[Any]]]:
            while rows := cursor.fetchmany(50_000):
                yield [list(column) for column in zip(*rows, strict=True)]

        return _hashed_text(batches(), types)
    finally:
        connection.close()


def _duckdb(file: str) -> Fingerprint:
    import duckdb

    with duckdb.connect(file, read_only=True) as connection:
        described = connection.execute(f"DESCRIBE {TABLE}").fetchall()
        return _hashed(connection, TABLE, {str(row[0]): str(row[1]) for row in described})


def _parquet(folder: str) -> Fingerprint:
    import duckdb
    import pyarrow.dataset as ds

    rows = ds.dataset(Path(folder) / TABLE, format="parquet")
    with duckdb.connect() as connection:
        connection.register("landed", rows)
        return _hashed(connection, "landed", {f.name: str(f.type) for f in rows.schema})
