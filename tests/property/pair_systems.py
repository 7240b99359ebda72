"""Sources that are filled, and targets that are read, by other clients than the product."""

from __future__ import annotations

import base64
import csv
import datetime as dt
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pymysql
from psycopg.types.json import Json, Jsonb
from pyarrow import csv as arrow_csv
from pyarrow import orc

from ematix_flow import (
    DeltaLocalConnection,
    DuckDBConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
)
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from tests.property.pair_values import UTC, Domain, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_NUMBERS = ("nan", "inf", "-inf")
_COMMON = {"small_int": "SMALLINT", "integer": "INTEGER", "big_int": "BIGINT", "double": "DOUBLE PRECISION"}
_COMMON |= {"float": "REAL", "boolean": "BOOLEAN", "text": "TEXT", "date": "DATE", "timestamp": "TIMESTAMP"}
_COMMON |= {"timestamp_tz": "TIMESTAMPTZ", "json": "JSON", "jsonb": "JSONB", "uuid": "UUID", "bytes": "BYTEA"}


@dataclass
class System:
    """``connection`` is how a pipeline knows it."""

    connection: Connection
    write: Callable[[TableSpec, Sequence[Row]], None]
    read: Callable[[TableSpec], list[Row]]
    as_source: Domain = field(default_factory=Domain)
    as_target: Domain = field(default_factory=Domain)

    @property
    def name(self) -> str:
        return self.connection.name or ""


def _double_quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _definitions(table: TableSpec, quote: Callable[[str], str], types: Mapping[str, str]) -> str:
    return ", ".join(
        f"{quote(c.name)} {_type_name(c.type, types)}{'' if c.nullable else ' NOT NULL'}"
        for c in table.columns
    )


def _type_name(data_type: DataType, types: Mapping[str, str]) -> str:
    if data_type.kind == "numeric" and "numeric" not in types:
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if data_type.kind == "string" and "string" not in types:
        return f"VARCHAR({data_type.length})"
    return {**_COMMON, **types}[data_type.kind]


def _named(table: TableSpec, rows: Sequence[Sequence[Any]], of: Callable[[Any, DataType], Any]) -> list[Row]:
    return [{c.name: of(value, c.type) for c, value in zip(table.columns, row, strict=True)} for row in rows]


# ------------------------------------------------------------------ servers


def postgres_system(url: str) -> System:
    def write(table: TableSpec, rows: Sequence[Row]) -> None:
        marks = ", ".join(["%s"] * len(table.columns))
        with psycopg.connect(url, autocommit=True) as connection:
            created = f"CREATE TABLE {table.name} ({_definitions(table, _double_quoted, {})})"
            connection.execute(created.encode())
            for row in rows:
                values = [_for_postgres(row[c.name], c.type) for c in table.columns]
                connection.execute(f"INSERT INTO {table.name} VALUES ({marks})".encode(), values)

    def read(table: TableSpec) -> list[Row]:
        """Times as text: the client has no type for some of them."""
        chosen = ", ".join(
            f"{_double_quoted(c.name)}::text" if "json" in c.type.kind else _double_quoted(c.name)
            for c in table.columns
        )
        with psycopg.connect(url) as connection:
            connection.execute("SET timezone = 'UTC'")
            found = connection.execute(f"SELECT {chosen} FROM {table.name}".encode()).fetchall()
        return _named(table, found, lambda value, _: value)

    return System(
        PostgresConnection(name="postgres", url=url),
        write,
        read,
        Domain(tells_case_apart=True),
        Domain(tells_case_apart=True),
    )


def _for_postgres(value: Any, data_type: DataType) -> Any:
    if value is None or "json" not in data_type.kind:
        return value
    return (Jsonb if data_type.kind == "jsonb" else Json)(json.loads(value))


def mysql_system(url: str, name: str) -> System:
    parts = urlsplit(url)
    types = {"double": "DOUBLE", "float": "FLOAT", "boolean": "TINYINT(1)", "text": "LONGTEXT"}
    types |= {"timestamp": "DATETIME(6)", "timestamp_tz": "TIMESTAMP(6) NULL", "jsonb": "JSON"}
    types |= {"uuid": "CHAR(36)", "bytes": "LONGBLOB"}

    def connected() -> Any:
        return closing(
            pymysql.connect(
                host=parts.hostname,
                port=parts.port or 3306,
                user=unquote(parts.username or ""),
                password=unquote(parts.password or ""),
                database=unquote(parts.path[1:]),
                charset="utf8mb4",
                init_command="SET time_zone = '+00:00'",
                autocommit=True,
            )
        )

    def quoted(text: str) -> str:
        return "`" + text.replace("`", "``") + "`"

    def write(table: TableSpec, rows: Sequence[Row]) -> None:
        columns = _definitions(table, quoted, types).replace(" NULL NOT NULL", " NOT NULL")
        marks = ", ".join(["%s"] * len(table.columns))
        with connected() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {table.name} ({columns}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
            for row in rows:
                values = [_without_zone(row[c.name]) for c in table.columns]
                cursor.execute(f"INSERT INTO {table.name} VALUES ({marks})", values)

    def read(table: TableSpec) -> list[Row]:
        """A FLOAT is shown with six digits, as a double with all of them."""
        chosen = ", ".join(
            quoted(c.name) + (" * 1e0" if c.type.kind == "float" else "") for c in table.columns
        )
        with connected() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {chosen} FROM {table.name}")
            return _named(table, cursor.fetchall(), _from_mysql)

    never = ("\U0001f600", "  ", "İ")
    floats = (*NO_NUMBERS, "-0.0") if name == "mariadb" else NO_NUMBERS
    target = Domain(floats, never, places=38 if name == "mariadb" else 30)
    source = replace(target, zoned=(1970, 2037))
    return System(MySQLConnection(name=name, url=url), write, read, source, target)


def _without_zone(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


def _from_mysql(value: Any, data_type: DataType) -> Any:
    if value is None:
        return None
    if data_type.kind == "boolean":
        return bool(value)
    return value.replace(tzinfo=UTC) if data_type.kind == "timestamp_tz" else value


# ------------------------------------------------------------------ databases in a file


def sqlite_system(path: Path, name: str) -> System:
    texts = ("numeric", "string", "date", "timestamp", "timestamp_tz", "json", "jsonb", "uuid")
    types = {**dict.fromkeys(texts, "TEXT"), "bytes": "BLOB", "double": "REAL"}

    def write(table: TableSpec, rows: Sequence[Row]) -> None:
        marks = ", ".join("?" * len(table.columns))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"CREATE TABLE {table.name} ({_definitions(table, _double_quoted, types)})")
            for row in rows:
                values = [_as_text(row[n]) for n in table.column_names]
                connection.execute(f"INSERT INTO {table.name} VALUES ({marks})", values)
            connection.commit()

    def read(table: TableSpec) -> list[Row]:
        chosen = ", ".join(map(_double_quoted, table.column_names))
        with closing(sqlite3.connect(path)) as connection:
            found = connection.execute(f"SELECT {chosen} FROM {table.name}").fetchall()
        return _named(table, found, _from_text)

    domain = Domain(("nan", "-0.0"), ("true",))  # it stores a whole number of a float as an integer
    return System(SQLiteConnection(name=name, path=str(path)), write, read, domain, domain)


def _as_text(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, dt.date):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else value


def _from_text(value: Any, data_type: DataType) -> Any:
    kind = data_type.kind
    if value is None:
        return None
    if kind == "numeric":
        return Decimal(str(value))
    if kind == "boolean":
        return str(value).lower() in ("1", "true")
    if kind == "date":
        return dt.date.fromisoformat(value)
    if kind in ("timestamp", "timestamp_tz"):
        return dt.datetime.fromisoformat(value.replace("Z", "+00:00"))
    if kind in ("small_int", "integer", "big_int"):
        return int(value)
    if kind == "bytes" and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    return float(value) if kind in ("double", "float") else value


def duckdb_system(path: Path, name: str) -> System:
    types = {"jsonb": "JSON", "bytes": "BLOB"}

    def write(table: TableSpec, rows: Sequence[Row]) -> None:
        with duckdb.connect(str(path)) as connection:
            connection.execute(f"CREATE TABLE {table.name} ({_definitions(table, _double_quoted, types)})")
            connection.register("given", arrow_table(table, rows))
            connection.execute(f"INSERT INTO {table.name} SELECT * FROM given")

    def read(table: TableSpec) -> list[Row]:
        chosen = ", ".join(
            f"CAST({_double_quoted(c.name)} AS VARCHAR)"
            if c.type.kind in ("uuid", "json", "jsonb")
            else _double_quoted(c.name)
            for c in table.columns
        )
        with duckdb.connect(str(path), read_only=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            found = connection.sql(f"SELECT {chosen} FROM {table.name}").to_arrow_table()
        rows: list[Row] = found.rename_columns(list(table.column_names)).to_pylist()
        return rows

    return System(DuckDBConnection(name=name, path=str(path)), write, read)


# ------------------------------------------------------------------ lakes and files


def arrow_table(table: TableSpec, rows: Sequence[Row]) -> pa.Table:
    nullable = pa.schema([field.with_nullable(True) for field in table.arrow_schema()])
    return pa.Table.from_pylist(list(rows), schema=nullable)


def delta_system(folder: Path, spark: SparkSession, name: str) -> System:
    def write(table: TableSpec, rows: Sequence[Row]) -> None:
        from deltalake import write_deltalake

        write_deltalake(str(folder / table.name), arrow_table(table, rows))

    def read(table: TableSpec) -> list[Row]:
        """By Spark, the one reader of columns whose names are mapped."""
        found = spark.read.format("delta").load(str(folder / table.name)).toArrow()
        rows: list[Row] = found.select(list(table.column_names)).to_pylist()
        return rows

    source = Domain(never=(*" ,;{}()\n\t=", "İ"))  # delta-rs writes no mapped names
    connection = DeltaLocalConnection(name=name, path=str(folder))
    return System(connection, write, read, source, Domain(never=("İ",)))


def _files(folder: Path, name: str, format: str) -> Connection:
    return ObjectStoreLocalConnection(name=name, path=str(folder), format=format)


def parquet_system(folder: Path, name: str) -> System:
    def write(table: TableSpec, rows: Sequence[Row]) -> None:
        (folder / table.name).mkdir(parents=True)
        pq.write_table(arrow_table(table, rows), folder / table.name / "one.parquet")

    def read(table: TableSpec) -> list[Row]:
        found = ds.dataset(folder / table.name, format="parquet").to_table(columns=list(table.column_names))
        rows: list[Row] = found.to_pylist()
        return rows

    target = Domain(tells_case_apart=True)
    return System(_files(folder, name, "parquet"), write, read, Domain(), target)


def orc_system(folder: Path, name: str) -> System:
    def write(table: TableSpec, rows: Sequence[Row]) -> None:
        (folder / table.name).mkdir(parents=True)
        orc.write_table(arrow_table(table, rows), folder / table.name / "one.orc")

    def read(table: TableSpec) -> list[Row]:
        """ORC's times with a zone are in files of ours times without: those of UTC."""
        found: list[Row] = []
        for path in sorted((folder / table.name).glob("part-*.orc")):
            for row in orc.read_table(path).to_pylist():
                found.append({c.name: _in_utc(row[c.name], c.type) for c in table.columns})
        return found

    # this reader counts nanoseconds in 64 bits, from 1677 to 2262
    domain = Domain(
        zoned=(1678, 2261), first_day=dt.date(1678, 1, 1), last_year=2261, splits_old_seconds=False
    )
    target = Domain(
        never=("`",),
        zoned=(1678, 2261),
        first_day=dt.date(1678, 1, 1),
        last_year=2261,
        splits_old_seconds=False,
    )
    return System(_files(folder, name, "orc"), write, read, domain, target)


def _in_utc(value: Any, data_type: DataType) -> Any:
    if value is None or data_type.kind not in ("timestamp", "timestamp_tz"):
        return value
    found = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
    return found.replace(tzinfo=UTC) if data_type.kind == "timestamp_tz" else found


def csv_system(folder: Path, name: str) -> System:
    def write(table: TableSpec, rows: Sequence[Row]) -> None:
        (folder / table.name).mkdir(parents=True)
        with (folder / table.name / "one.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(table.column_names)
            for row in rows:  # an empty cell is null, an empty text is in quotes
                file.write(",".join(_cell(row[n]) for n in table.column_names) + "\n")

    def read(table: TableSpec) -> list[Row]:
        rows: list[Row] = []
        for path in sorted((folder / table.name).glob("*.csv*")):
            found = arrow_csv.read_csv(
                path,
                parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(table.with_load_columns().column_names, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
            rows += found.to_pylist()
        return [{c.name: _from_text(row[c.name], c.type) for c in table.columns} for row in rows]

    source = Domain(kinds_missing=("bytes",))
    return System(_files(folder, name, "csv"), write, read, source)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
    return str(_as_text(value))


def json_system(folder: Path, name: str) -> System:
    def write(table: TableSpec, rows: Sequence[Row]) -> None:
        (folder / table.name).mkdir(parents=True)
        lines = [json.dumps({k: _as_text(v) for k, v in row.items()}) for row in rows]
        (folder / table.name / "one.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def read(table: TableSpec) -> list[Row]:
        rows: list[Row] = []
        for path in sorted((folder / table.name).glob("part-*")):
            lines = path.read_text(encoding="utf-8").split("\n")
            rows += [json.loads(line, parse_float=str) for line in lines if line]
        return [{c.name: _from_text(row[c.name], c.type) for c in table.columns} for row in rows]

    source = Domain(NO_NUMBERS, kinds_missing=("bytes",))  # JSON has no such numbers
    return System(_files(folder, name, "json_lines"), write, read, source)
