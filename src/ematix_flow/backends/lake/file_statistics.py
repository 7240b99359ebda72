"""Statistics of a Parquet file as Delta's log holds them: its rows, and the nulls and bounds of its columns.

Bounds may be wider than the values, never narrower: readers skip a file by them. A column without bounds is
never skipped.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

INDEXED_COLUMNS = 32  # of a table, as Delta's own default
_TEXT_LENGTH = 32  # characters of a bound
_HIGHEST_CHARACTER = "\U0010ffff"


def nan_columns(rows: pa.Table) -> set[str]:
    """The columns with a NaN. A footer leaves it out of the bounds, and Spark sorts it above every number."""
    import pyarrow.compute as pc
    import pyarrow.types as t

    floats = [field.name for field in rows.schema if t.is_floating(field.type)]
    return {name for name in floats if pc.any(pc.is_nan(rows.column(name))).as_py()}


def file_statistics(path: Path, without_bounds: Collection[str] = ()) -> tuple[int, str]:
    """The number of rows of a file of flat columns, and its statistics as JSON."""
    import orjson
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    found: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for number, name in enumerate(footer.schema.to_arrow_schema().names[:INDEXED_COLUMNS]):
        chunks = [group.column(number).statistics for group in groups]
        if not all(chunk is not None and chunk.has_null_count for chunk in chunks):
            continue
        found["nullCount"][name] = sum(chunk.null_count for chunk in chunks)
        filled = [chunk for chunk in chunks if chunk.num_values]
        if name in without_bounds or not filled or not all(chunk.has_min_max for chunk in filled):
            continue
        try:
            low = _lower_bound(min(chunk.min for chunk in filled))
            high = _upper_bound(max(chunk.max for chunk in filled))
        except (ValueError, OverflowError):  # a time that Python cannot hold
            continue
        if low is not None and high is not None:
            found["minValues"][name], found["maxValues"][name] = low, high
    return footer.num_rows, orjson.dumps(found).decode()


def _lower_bound(value: Any) -> Any:
    """The value or a lower one as JSON; None for a type without bounds."""
    if isinstance(value, str):
        return value[:_TEXT_LENGTH]
    if isinstance(value, dt.datetime):
        return _milliseconds(value)
    return _exact_bound(value)


def _upper_bound(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) <= _TEXT_LENGTH:
            return value
        rest = value[_TEXT_LENGTH]
        return None if rest == _HIGHEST_CHARACTER else value[:_TEXT_LENGTH] + _HIGHEST_CHARACTER
    if isinstance(value, dt.datetime):
        is_whole = value.microsecond % 1_000 == 0
        return _milliseconds(value if is_whole else value + dt.timedelta(milliseconds=1))
    return _exact_bound(value)


def _exact_bound(value: Any) -> Any:
    import orjson

    if isinstance(value, Decimal):
        return orjson.Fragment(f"{value:f}".encode())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dt.date):
        return value.isoformat()
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _milliseconds(value: dt.datetime) -> str:
    """The time, cut to milliseconds; with Z if it is an instant."""
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if value.tzinfo is None else f"{text}Z"
