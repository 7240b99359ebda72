"""Values that every backend must store unchanged: the limits of each canonical type, and hostile names."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

_UTC = dt.timezone.utc

TYPES: dict[str, tuple[DataType, tuple[Any, ...]]] = {
    "a_small_int": (DataType("small_int"), (-32768, 0, 32767)),
    "an_integer": (DataType("integer"), (-(2**31), 0, 2**31 - 1)),
    "a_big_int": (DataType("big_int"), (-(2**63), 0, 2**63 - 1)),
    "a_float": (DataType("float"), (-1.5, 0.0, 3.25)),
    "a_double": (DataType("double"), (-1e300, 0.1, 5e-324)),
    "a_numeric": (
        DataType("numeric", precision=38, scale=10),
        (Decimal("-9.1111111111"), Decimal("0E-10"), Decimal("1234567890123456789012345678.0123456789")),
    ),
    "a_boolean": (DataType("boolean"), (True, False, True)),
    "a_text": (DataType("text"), ("", "naïve ☃ 漢字 \U0001f600", "a'b\"c\\d\te\nf")),
    "a_string": (DataType("string", length=20), ("x", "ÄÖÜ", "twenty characters!!!")),
    "a_date": (DataType("date"), (dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31))),
    "a_timestamp": (
        DataType("timestamp"),
        (
            dt.datetime(1, 1, 1),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
            dt.datetime(2026, 3, 29, 2, 30, 0, 1),
        ),
    ),
    "a_timestamp_tz": (
        DataType("timestamp_tz"),
        (
            dt.datetime(1900, 1, 1, tzinfo=_UTC),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999, _UTC),
            dt.datetime(2026, 10, 25, 0, 30, 0, 1, _UTC),
        ),
    ),
    "a_json": (DataType("json"), ('{"a": [1, 2, null]}', "[]", '"text"')),
    "a_jsonb": (DataType("jsonb"), ('{"a": 1}', "[]", "null")),
    "a_uuid": (
        DataType("uuid"),
        (
            "00000000-0000-0000-0000-000000000000",
            "12345678-1234-5678-1234-567812345678",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
        ),
    ),
    "some_bytes": (DataType("bytes"), (b"", b"\x00\xff\x10", bytes(range(256)))),
}

HOSTILE_NAMES = (
    "select",
    "Mixed Case",
    'quote"inside',
    "back`tick",
    "semi;colon",
    "per%cent",
    "emoji \U0001f600",
    "dollar$1",
    "colon:name",
    "x" * 63,
)


def every_type(name: str = "every_type", schema: str | None = "contract") -> TableSpec:
    """A key and, nullable, one column of each canonical type."""
    columns = [ColumnSpec("id", DataType("big_int"), primary_key=True)]
    columns += [ColumnSpec(column, data_type, nullable=True) for column, (data_type, _) in TYPES.items()]
    return TableSpec(schema, name, tuple(columns))


def row_per_type(row: Mapping[str, Any], values: Mapping[str, Any], first_id: int) -> list[dict[str, Any]]:
    """A copy of the row for each type, with another value in the column of that type only."""
    return [{**row, name: values[name], "id": first_id + i} for i, name in enumerate(TYPES)]


def every_value() -> list[dict[str, Any]]:
    """Three rows with the limits of each type, and one row of nulls."""
    rows: list[dict[str, Any]] = [
        {"id": i, **{column: values[i] for column, (_, values) in TYPES.items()}} for i in range(3)
    ]
    rows.append({"id": 3, **dict.fromkeys(TYPES)})
    return rows
