"""Writes the tables of a random case into each kind of source, by clients that do not know the probe."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from psycopg import sql

from ematix_probe import source
from ematix_probe.sources.base import Source
from tests.property.probe_engines import TABLE, Engine
from tests.property.probe_oracle import Row
from tests.property.probe_tables import PARENTS, Case

Types = Mapping[str, str]
Tables = Sequence[tuple[str, Types, Sequence[Row]]]
_NUMBERS = itertools.count()
_POSTGRES = {"double": "double precision", "bytes": "bytea"}
_DUCKDB = {"bytes": "blob"}
_MYSQL = {
    "boolean": "tinyint(1)",
    "text": "longtext",
    "timestamp": "datetime(6)",
    "timestamptz": "timestamp(6) NULL",
    "bytes": "longblob",
}
_ARROW = {
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "text": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "bytes": pa.binary(),
}


def tables_of(case: Case, engine: Engine) -> Tables:
    return (
        (TABLE, case.types, engine.fit(case.rows)),
        (PARENTS, case.parent_types, engine.fit(case.parents)),
    )


# --- databases ---


def _definition(types: Types, engine: Engine, native: Mapping[str, str]) -> str:
    return ", ".join(f"{engine.quote(name)} {native.get(kind, kind)}" for name, kind in types.items())


def into_sqlite(path: Path, case: Case, engine: Engine) -> Source:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for table, types, rows in tables_of(case, engine):
            name = engine.quote(table)
            connection.execute(f"DROP TABLE IF EXISTS {name}")
            connection.execute(f"CREATE TABLE {name} ({_definition(types, engine, {})})")
            marks = ", ".join("?" * len(types))
            values = [tuple(map(_for_sqlite, row.values())) for row in rows]
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
        connection.commit()
    return source.sqlite(path)


def _for_sqlite(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, dt.date):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value


def into_postgres(connection: psycopg.Connection[Any], url: str, case: Case, engine: Engine) -> Source:
    for table, types, rows in tables_of(case, engine):
        name = engine.quote(table)
        made = f"CREATE TABLE {name} ({_definition(types, engine, _POSTGRES)})"
        connection.execute(f"DROP TABLE IF EXISTS {name}; {made}".encode())
        if rows:
            values = sql.SQL(", ").join(
                sql.SQL("({})").format(sql.SQL(", ").join(sql.Placeholder() * len(types))) for _ in rows
            )
            statement = sql.SQL("INSERT INTO {} VALUES {}").format(sql.Identifier(table), values)
            connection.execute(statement, [value for row in rows for value in row.values()])
    return source.postgres(url)


def into_mysql(connection: Any, url: str, case: Case, engine: Engine) -> Source:
    with connection.cursor() as cursor:
        for table, types, rows in tables_of(case, engine):
            name = engine.quote(table)
            cursor.execute(f"DROP TABLE IF EXISTS {name}")
            cursor.execute(f"CREATE TABLE {name} ({_definition(types, engine, _MYSQL)}) CHARSET utf8mb4")
            marks = ", ".join(["%s"] * len(types))
            values = [tuple(map(_in_utc, row.values())) for row in rows]
            cursor.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
    return source.mysql(url)


def mysql_connection(server: Any, url: str) -> Any:
    connection = server._connect(server.port, url.rpartition("/")[2].partition("?")[0])
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', autocommit = 1, NAMES utf8mb4")
    return connection


def _in_utc(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    return value


def into_duckdb(path: Path, case: Case, engine: Engine) -> Source:
    with duckdb.connect(str(path)) as connection:
        for table, types, rows in tables_of(case, engine):
            name = engine.quote(table)
            connection.execute(f"CREATE OR REPLACE TABLE {name} ({_definition(types, engine, _DUCKDB)})")
            if rows:
                connection.register("given", arrow_table(types, rows))
                connection.execute(f"INSERT INTO {name} SELECT * FROM given")
                connection.unregister("given")
    return source.duckdb(path)


# --- Arrow, and what is written from it ---


def arrow_type(plain: str) -> pa.DataType:
    if plain.startswith("numeric"):
        precision, scale = plain[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return _ARROW[plain]


def arrow_table(types: Types, rows: Sequence[Row]) -> pa.Table:
    columns = [pa.array([row[name] for row in rows], arrow_type(kind)) for name, kind in types.items()]
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in types.items()])
    return pa.Table.from_arrays(columns, schema=schema)


def _halves(rows: Sequence[Row]) -> list[Sequence[Row]]:
    middle = len(rows) // 2
    return [rows[:middle], rows[middle:]]


def into_parquet(folder: Path, case: Case, engine: Engine) -> Source:
    """Each table is a folder of two files."""
    for table, types, rows in tables_of(case, engine):
        (folder / table).mkdir(exist_ok=True)
        for number, part in enumerate(_halves(rows)):
            pq.write_table(arrow_table(types, part), folder / table / f"part-{number}.parquet")
    return source.parquet(folder)


def into_orc(folder: Path, case: Case, engine: Engine) -> Source:
    for table, types, rows in tables_of(case, engine):
        (folder / table).mkdir(exist_ok=True)
        for number, part in enumerate(_halves(rows)):
            orc.write_table(arrow_table(types, part), folder / table / f"part-{number}.orc")
    return source.orc(folder)


def into_s3(client: Any, bucket: str, access: Mapping[str, Any], case: Case, engine: Engine) -> Source:
    prefix = f"case-{next(_NUMBERS)}"
    for table, types, rows in tables_of(case, engine):
        for number, part in enumerate(_halves(rows)):
            out = pa.BufferOutputStream()
            pq.write_table(arrow_table(types, part), out)
            key = f"{prefix}/{table}/part-{number}.parquet"
            client.put_object(Bucket=bucket, Key=key, Body=out.getvalue().to_pybytes())
    return source.parquet(f"s3://{bucket}/{prefix}", **access)


def into_delta(folder: Path, case: Case, engine: Engine) -> Source:
    from deltalake import write_deltalake

    for table, types, rows in tables_of(case, engine):
        shutil.rmtree(folder / table, ignore_errors=True)
        write_deltalake(str(folder / table), arrow_table(types, rows))
    return source.delta(folder)


def into_iceberg(folder: Path, case: Case, engine: Engine) -> Source:
    """As the tables ``ns.probed`` and ``ns.parents``."""
    from pyiceberg.catalog import load_catalog

    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}",
    }
    catalog = load_catalog("probes", **properties)
    catalog.create_namespace_if_not_exists("ns")
    for name, (_, types, rows) in zip(("probed", "parents"), tables_of(case, engine), strict=True):
        with contextlib.suppress(Exception):
            catalog.drop_table(f"ns.{name}")
        data = arrow_table(types, rows)
        catalog.create_table(f"ns.{name}", data.schema).append(data)
    catalog.engine.dispose()
    return source.iceberg(catalog="probes", properties=properties)


# --- text ---


def into_csv(folder: Path, case: Case, engine: Engine) -> Source:
    """An empty value is NULL, an empty text is quoted."""
    lines = [",".join(map(_quoted, case.types))]
    lines += [",".join(map(_cell, row.values())) for row in engine.fit(case.rows)]
    path = folder / f"{TABLE}.csv"
    path.write_bytes(("\n".join(lines) + "\n").encode())
    return source.csv(path, columns=dict(case.types), delimiter=",")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, float):
        return repr(value)
    return str(value)


def into_jsonl(folder: Path, case: Case, engine: Engine) -> Source:
    lines = [json.dumps({name: _json(value) for name, value in row.items()}) for row in engine.fit(case.rows)]
    path = folder / f"{TABLE}.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return source.jsonl(path, columns=dict(case.types))


def _json(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


# --- frames ---


def into_arrow(case: Case, engine: Engine) -> Source:
    return source.frame(arrow_table(case.types, engine.fit(case.rows)), name=TABLE)


def into_stream(case: Case, engine: Engine) -> Source:
    """A stream of batches, which can be read once."""
    return source.frame(arrow_table(case.types, engine.fit(case.rows)).to_reader(5), name=TABLE)


def into_pandas(case: Case, engine: Engine) -> Source:
    """With columns of Arrow's types, which keep NULL and NaN apart."""
    import pandas as pd

    table = arrow_table(case.types, engine.fit(case.rows))
    return source.frame(table.to_pandas(types_mapper=pd.ArrowDtype), name=TABLE)


def into_polars(case: Case, engine: Engine) -> Source:
    import polars as pl

    return source.frame(pl.from_arrow(arrow_table(case.types, engine.fit(case.rows))), name=TABLE)


def into_lazy_polars(case: Case, engine: Engine) -> Source:
    import polars as pl

    frame = pl.from_arrow(arrow_table(case.types, engine.fit(case.rows)))
    assert isinstance(frame, pl.DataFrame)
    return source.frame(frame.lazy(), name=TABLE)
