"""Data files read back by independent programs: DuckDB, pyarrow, the json module."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType


def folder_of(root: Path, table: TableSpec) -> Path:
    return root / table.schema / table.name if table.schema else root / table.name


def read_folder(folder: Path, format: str, table: TableSpec) -> list[dict[str, Any]]:
    """The declared columns of every row, with canonical Python values. No folder, no rows."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.rglob("*.*")) if folder.exists() else []:
        rows += _READERS[format](path, table)
    return rows


def _parquet(path: Path, table: TableSpec) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    found = pq.read_table(path, partitioning=None)
    return _columns(found.to_pylist(), table)


def _orc(path: Path, table: TableSpec) -> list[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import orc

    found = orc.read_table(path)
    for number, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            kinds = {c.name: c.type.kind for c in table.columns}
            zone = "UTC" if kinds.get(field.name, "timestamp_tz") == "timestamp_tz" else None
            micros = found.column(number).cast(pa.timestamp("us")).cast(pa.int64())
            found = found.set_column(number, field.name, micros.cast(pa.timestamp("us", zone)))
    return _columns(found.to_pylist(), table)


def _csv(path: Path, table: TableSpec) -> list[dict[str, Any]]:
    import duckdb

    with duckdb.connect() as engine:
        found = engine.execute(
            "SELECT * FROM read_csv(?, header=true, all_varchar=true, allow_quoted_nulls=false, "
            "delim=',', quote='\"', escape='\"', auto_detect=false, columns=?)",
            [str(path), dict.fromkeys(_header(path), "VARCHAR")],
        )
        names = [column[0] for column in found.description or []]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    return [_typed(row, table) for row in rows]


def _header(path: Path) -> list[str]:
    import csv

    with path.open(newline="") as file:
        return next(csv.reader(file))


def _json(path: Path, table: TableSpec) -> list[dict[str, Any]]:
    rows = [json.loads(line, parse_float=str, parse_int=str) for line in path.read_text().splitlines()]
    return [_typed(row, table) for row in rows]


_READERS = {"parquet": _parquet, "orc": _orc, "csv": _csv, "json_lines": _json}


def _columns(rows: list[dict[str, Any]], table: TableSpec) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in table.column_names} for row in rows]


def _typed(row: dict[str, Any], table: TableSpec) -> dict[str, Any]:
    return {c.name: _value(row.get(c.name), c) for c in table.columns}


def _value(text: Any, column: ColumnSpec) -> Any:
    if text is None or not isinstance(text, str):
        return text
    return _parse(text, column.type)


def _parse(text: str, data_type: DataType) -> Any:
    kind = data_type.kind
    if kind in ("small_int", "integer", "big_int"):
        return int(text)
    if kind in ("float", "double"):
        return float(text)
    if kind == "numeric":
        return Decimal(text)
    if kind == "boolean":
        return {"true": True, "false": False}[text]
    if kind == "date":
        return dt.date.fromisoformat(text)
    if kind == "timestamp":
        return dt.datetime.fromisoformat(text)
    if kind == "timestamp_tz":
        assert text.endswith("Z")
        return dt.datetime.fromisoformat(text[:-1] + "+00:00")
    if kind == "bytes":
        return base64.b64decode(text, validate=True)
    return text
