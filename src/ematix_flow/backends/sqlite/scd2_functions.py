"""SQL functions that scd2 needs and SQLite lacks: `row_hash`, and a time shifted by an interval."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from functools import lru_cache
from typing import Any

from sqlglot import exp

from ematix_flow.backends.sqlite.values import parse_value, to_stored
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_hash import Columns, row_hash

_HASH, _SHIFTED = "EMATIX_FLOW_ROW_HASH", "EMATIX_FLOW_SHIFTED"
_MOMENT = DataType("timestamp_tz")


def register(connection: sqlite3.Connection) -> None:
    connection.create_function(_HASH, -1, _row_hash, deterministic=True)
    connection.create_function(_SHIFTED, 2, _shift, deterministic=True)


def row_hash_call(columns: Columns) -> exp.Expr:
    shape = json.dumps([[name, data_type.to_json()] for name, data_type, _ in columns])
    values = [value.copy() for _, _, value in columns]
    return exp.Anonymous(this=_HASH, expressions=[exp.Literal.string(shape), *values])


def shifted_call(moment: exp.Expr, seconds: float) -> exp.Expr:
    microseconds = exp.Literal.number(str(round(seconds * 1_000_000)))
    return exp.Anonymous(this=_SHIFTED, expressions=[moment, microseconds])


def _row_hash(shape: str, *values: Any) -> bytes:
    types = _types(shape)
    found = {name: parse_value(value, types[name]) for name, value in zip(types, values, strict=True)}
    return row_hash(found, types)


@lru_cache(maxsize=64)
def _types(shape: str) -> dict[str, DataType]:
    return {name: DataType.from_json(data_type) for name, data_type in json.loads(shape)}


def _shift(moment: str | None, microseconds: int) -> Any:
    if moment is None:
        return None
    return to_stored(parse_value(moment, _MOMENT) + dt.timedelta(microseconds=microseconds), _MOMENT)
