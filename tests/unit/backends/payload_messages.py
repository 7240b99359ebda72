"""Columns and messages for tests of payloads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ematix_flow.backends.messages.base import message_schema
from ematix_flow.backends.payloads.base import DecodedBatch
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType


def column(name: str, kind: str, *, nullable: bool = True, **more: int) -> ColumnSpec:
    return ColumnSpec(name, DataType(kind, **more), nullable=nullable)


def numeric(name: str, precision: int = 10, scale: int = 2) -> ColumnSpec:
    return column(name, "numeric", precision=precision, scale=scale)


ALL_KINDS = (
    column("small", "small_int"),
    column("int", "integer"),
    column("big", "big_int"),
    column("single", "float"),
    column("double", "double"),
    numeric("num"),
    column("flag", "boolean"),
    column("text", "text"),
    column("short", "string", length=10),
    column("day", "date"),
    column("clock", "timestamp"),
    column("moment", "timestamp_tz"),
    column("doc", "json"),
    column("docb", "jsonb"),
    column("uid", "uuid"),
    column("raw", "bytes"),
)


def messages(values: Sequence[bytes | None], **others: Sequence[Any]) -> pa.RecordBatch:
    """A batch of messages with these payloads; the other columns are null unless given."""
    schema = message_schema()
    given = {"value": list(values), **others}
    arrays = [pa.array(given.get(f.name, [None] * len(values)), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def covers(decoded: DecodedBatch, count: int) -> None:
    """Every message is exactly one of taken, bad and empty, and the rows are those taken, in order."""
    taken = decoded.indexes.to_pylist()
    bad = [each.index for each in decoded.bad]
    assert decoded.rows.num_rows == len(taken)
    assert taken == sorted(taken) and bad == sorted(bad)
    both = [*taken, *bad]
    assert len(set(both)) == len(both) and set(both) <= set(range(count))
    assert len(both) + decoded.empty_count == count
    decoded.rows.validate(full=True)
    assert all(isinstance(each.reason, str) and each.reason for each in decoded.bad)


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.timezone.utc)  # type: ignore[misc,arg-type]
