"""Values on their way between Spark and the state: event times and timestamps are microseconds there."""

from __future__ import annotations

from ematix_flow.backends.spark_sql.row_refusals import raise_error_sql, text_literal
from ematix_flow.engine.spark.column_types import to_spark
from ematix_flow.engine.streams.batch_frames import quote
from ematix_flow.plan.window_columns import FLOATS, INTEGERS
from ematix_flow.spec.types import DataType

_STATE_TYPES = {
    "small_int": "SMALLINT",
    "integer": "INTEGER",
    "big_int": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "BIGINT",
    "timestamp_tz": "BIGINT",
    "bytes": "BLOB",
}


def state_type(data_type: DataType) -> str:
    """The type of the state's column for values of this type."""
    if data_type.kind == "numeric":
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    return _STATE_TYPES.get(data_type.kind, "VARCHAR")


def to_state(column: str, data_type: DataType) -> str:
    """Spark SQL: the value of a column as the state keeps it."""
    if data_type.kind == "timestamp_tz":
        return f"unix_micros({quote(column)})"
    if data_type.kind == "timestamp":
        return f"unix_micros(CAST({quote(column)} AS TIMESTAMP))"
    return quote(column)


def from_state(column: str, data_type: DataType) -> str:
    """Spark SQL: a value of the state as the target gets it."""
    if data_type.kind == "timestamp_tz":
        return f"timestamp_micros({column})"
    if data_type.kind == "timestamp":
        return f"CAST(timestamp_micros({column}) AS TIMESTAMP_NTZ)"
    return f"CAST({column} AS {to_spark(data_type)})"


def spark_state_type(data_type: DataType) -> str:
    """The type in Spark of a value that the state has written."""
    return "bigint" if data_type.kind in ("timestamp", "timestamp_tz") else to_spark(data_type)


def event_micros(column: str, data_type: DataType, shown_as: str | None = None) -> str:
    """Spark SQL: the event time in microseconds since 1970. Fails for a value that is no time.

    ``shown_as`` is the name of the column in errors.
    """
    message = f"column {(shown_as or column)!r} holds no event time: "
    shown = f"coalesce(CAST({quote(column)} AS STRING), 'null')"
    refused = raise_error_sql(
        text_literal(message),
        shown,
        next_step="filter such rows in transform_sql; a stream of messages can also set transform_on_error=",
    )
    return f"coalesce({_micros(column, data_type)}, CAST({refused} AS BIGINT))"


def required(column: str) -> str:
    """Spark SQL: the value of a column, which fails if it is null."""
    refused = raise_error_sql(
        text_literal(f"column {column!r} is null, and it is a key of the target"),
        next_step="filter such rows in transform_sql; a stream of messages can also set transform_on_error=",
    )
    return f"coalesce({quote(column)}, {refused})"


def _micros(column: str, data_type: DataType) -> str:
    if data_type.kind in ("timestamp", "timestamp_tz"):
        return to_state(column, data_type)
    if data_type.kind == "date":
        return f"unix_micros(CAST({quote(column)} AS TIMESTAMP))"
    if data_type.kind in (*INTEGERS, *FLOATS, "numeric"):
        return _epoch_micros(quote(column), data_type)
    return f"unix_micros(try_cast({quote(column)} AS TIMESTAMP))"


def _epoch_micros(value: str, data_type: DataType) -> str:
    """Seconds, milliseconds, microseconds or nanoseconds, by the size of the number."""
    if data_type.kind in INTEGERS:
        exact = f"CAST({value} AS DECIMAL(38,0))"
    else:
        exact = f"try_cast({value} AS DECIMAL(38,9))"
    factors = f"""CASE WHEN abs({exact}) < 1e11 THEN {exact} * 1000000
        WHEN abs({exact}) < 1e14 THEN {exact} * 1000
        WHEN abs({exact}) < 1e17 THEN {exact} ELSE {exact} / 1000 END"""
    return f"try_cast(floor({factors}) AS BIGINT)"
