"""The columns that a window yields, from the columns that it reads."""

from __future__ import annotations

from collections.abc import Sequence

from ematix_flow.errors import SchemaMismatch, did_you_mean
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.windows import MERGED_INTO, REVISION, Aggregation, Window

INTEGERS = ("small_int", "integer", "big_int")
FLOATS = ("float", "double")
_NUMBERS = (*INTEGERS, *FLOATS, "numeric")
_SESSION_ID_LENGTH = 32  # hexadecimal digits
UNCOMPARABLE = ("json", "jsonb")
NOT_TIMES = ("boolean", "bytes", "uuid", *UNCOMPARABLE)


def window_columns(
    window: Window, columns: Sequence[ColumnSpec], where: SourceLocation | None
) -> tuple[ColumnSpec, ...]:
    """The columns of the result. Raises SchemaMismatch if a column is missing or has an unsuitable type."""
    types = {column.name: column.type for column in columns}
    for name in window.input_columns:
        if name not in types:
            raise SchemaMismatch(
                f"the window reads column {name!r}, which the stream does not have."
                f"{did_you_mean(name, list(types))}",
                where=where,
                next_step="select it in transform_sql, or correct the name in Window(…)",
            )
    if types[window.event_time_column].kind in NOT_TIMES:
        raise SchemaMismatch(
            f"event_time_column= names {window.event_time_column!r}, which is {_name(types, window)} and no "
            "time",
            where=where,
            next_step="name a timestamp, a date, a text in ISO format, or a number of the Unix epoch",
        )
    for name in window.group_by:
        _require_comparable(f"group_by= names {name!r}", types[name], where)
    groups = [ColumnSpec(name, types[name], nullable=True) for name in window.group_by]
    aggregates = [
        ColumnSpec(each.as_, aggregate_type(each, types, where), nullable=True)
        for each in window.aggregations
    ]
    moment, text = DataType("timestamp_tz"), DataType("string", length=_SESSION_ID_LENGTH)
    times = (ColumnSpec(window.window_start_column, moment), ColumnSpec(window.window_end_column, moment))
    revision = ColumnSpec(REVISION, DataType("integer"))
    if window.is_session:
        session = ColumnSpec(window.session_id_column, text)
        return (*times, session, *groups, *aggregates, revision, ColumnSpec(MERGED_INTO, text, nullable=True))
    return (*times, *groups, *aggregates, revision)


def aggregate_type(
    each: Aggregation, types: dict[str, DataType], where: SourceLocation | None = None
) -> DataType:
    """The type of an aggregate's result."""
    if each.column is None or each.agg in ("count_col", "count_distinct"):
        return DataType("big_int")
    read = types[each.column]
    if each.agg in ("sum", "avg"):
        if read.kind not in _NUMBERS:
            raise SchemaMismatch(
                f"{each.agg} of {each.column!r}: the column is {read} and no number",
                where=where,
                next_step="CAST it in transform_sql",
            )
        if each.agg == "avg" or read.kind in FLOATS:
            return DataType("double")
        if read.kind == "numeric":
            return DataType("numeric", precision=38, scale=read.scale)
        return DataType("big_int")
    _require_comparable(f"{each.agg} of {each.column!r}", read, where)
    return read


def _require_comparable(what: str, data_type: DataType, where: SourceLocation | None) -> None:
    if data_type.kind in UNCOMPARABLE:
        raise SchemaMismatch(
            f"{what}: the column is {data_type}, and such values are not compared",
            where=where,
            next_step="select a part of it in transform_sql",
        )


def _name(types: dict[str, DataType], window: Window) -> str:
    return str(types[window.event_time_column])
