"""Types of columns in Parquet and ORC files: as stored, as Spark reads them, and as a query sees them.

Spark computes with fewer types than files hold. Nanoseconds, times of day, UUIDs and half floats are read in
a form that Spark has, and converted by an expression: nothing is cut, or the query fails and says where. All
types here are Arrow's. Spark reads ORC's dates and times in its own way, so they have units that Parquet does
not have: days in milliseconds, times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.spark_sql.query_tables import quote_name
from ematix_flow.backends.spark_sql.row_refusals import FILE_PATH_SQL, raise_error_sql, text_literal

if TYPE_CHECKING:
    import pyarrow as pa

_NANOSECONDS = "write it with microseconds, as pyarrow does with  coerce_timestamps='us'"


def orc_time() -> pa.DataType:
    """A time without zone in ORC."""
    import pyarrow as pa

    return pa.timestamp("s")


def orc_date() -> pa.DataType:
    import pyarrow as pa

    return pa.date64()


def query_type(stored: pa.DataType) -> pa.DataType:
    """The type that a query sees: the narrowest type of Spark that holds every value."""
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_struct(stored):
        return pa.struct([(field.name, query_type(field.type)) for field in stored])
    if t.is_map(stored):
        return pa.map_(query_type(stored.key_type), query_type(stored.item_type))
    if t.is_list(stored):
        return pa.list_(query_type(stored.value_type))
    if t.is_timestamp(stored):
        return pa.timestamp("us", stored.tz)
    if t.is_date(stored):
        return pa.date32()
    if t.is_time(stored) or stored == pa.uuid():
        return pa.string()
    simple = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
    }
    return simple.get(stored, stored)


def to_ddl(of: pa.DataType) -> str:
    """A query type in Spark's DDL. A type of only nulls is text."""
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_struct(of):
        return "STRUCT<" + ", ".join(f"{quote_name(f.name)}: {to_ddl(f.type)}" for f in of) + ">"
    if t.is_map(of):
        return f"MAP<{to_ddl(of.key_type)}, {to_ddl(of.item_type)}>"
    if t.is_list(of):
        return f"ARRAY<{to_ddl(of.value_type)}>"
    if t.is_decimal(of):
        return f"DECIMAL({of.precision},{of.scale})"
    if t.is_timestamp(of):
        return "TIMESTAMP" if of.tz else "TIMESTAMP_NTZ"
    return {
        pa.bool_(): "BOOLEAN",
        pa.int8(): "TINYINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INT",
        pa.int64(): "BIGINT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.string(): "STRING",
        pa.binary(): "BINARY",
        pa.date32(): "DATE",
        pa.null(): "STRING",
    }[of]


def storage_ddl(stored: pa.DataType) -> str:
    """The DDL with which Spark's reader reads the column as stored."""
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_struct(stored):
        return "STRUCT<" + ", ".join(f"{quote_name(f.name)}: {storage_ddl(f.type)}" for f in stored) + ">"
    if t.is_map(stored):
        return f"MAP<{storage_ddl(stored.key_type)}, {storage_ddl(stored.item_type)}>"
    if t.is_list(stored):
        return f"ARRAY<{storage_ddl(stored.value_type)}>"
    if _is_nanoseconds(stored) or t.is_time64(stored):
        return "BIGINT"
    if t.is_time32(stored) or t.is_null(stored):
        return "INT"
    if stored in (pa.uuid(), pa.float16()):
        return "BINARY"
    if stored == orc_time():
        return "TIMESTAMP"
    return to_ddl(query_type(stored))


def reads_without_cast(stored: pa.DataType, wanted: pa.DataType, *, widens: bool) -> bool:
    """Whether Spark's reader returns ``wanted`` without an expression. ``widens``: it also widens narrower
    types."""
    import pyarrow.types as t

    if t.is_struct(stored):
        there = {field.name.lower(): field.type for field in wanted}
        return all(reads_without_cast(f.type, there[f.name.lower()], widens=widens) for f in stored)
    if t.is_map(stored):
        pairs = ((stored.key_type, wanted.key_type), (stored.item_type, wanted.item_type))
        return all(reads_without_cast(one, other, widens=widens) for one, other in pairs)
    if t.is_list(stored):
        return reads_without_cast(stored.value_type, wanted.value_type, widens=widens)
    if storage_ddl(stored) != to_ddl(query_type(stored)) or t.is_null(stored) or stored == orc_date():
        return False
    return bool(query_type(stored) == wanted) or (widens and _spark_widens(stored, wanted))


def _spark_widens(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Spark's Parquet reader widens this type by itself."""
    import pyarrow as pa
    import pyarrow.types as t

    if stored in (pa.int8(), pa.int16(), pa.int32()):
        return wanted in (pa.int16(), pa.int32(), pa.int64(), pa.float64()) or _whole_digits(wanted) >= 10
    if stored == pa.int64():
        return _whole_digits(wanted) >= 20
    if t.is_decimal(stored):
        return bool(t.is_decimal(wanted))
    if stored == pa.float32():
        return bool(wanted == pa.float64())
    return bool(stored == pa.date32() and t.is_timestamp(wanted))


def _whole_digits(of: pa.DataType) -> int:
    """The digits before the point of a decimal; 0 for any other type."""
    import pyarrow.types as t

    return int(of.precision - of.scale) if t.is_decimal(of) else 0


def _is_nanoseconds(stored: pa.DataType) -> bool:
    import pyarrow.types as t

    return bool(t.is_timestamp(stored) and stored.unit == "ns")


# ------------------------------------------------------------------ expressions


def cast_sql(stored: pa.DataType, wanted: pa.DataType, value: str, column: str, depth: int = 0) -> str:
    """SQL that turns a ``value`` read by `read_as` into the wanted type; ``column`` is for its errors."""
    import pyarrow as pa
    import pyarrow.types as t

    if reads_without_cast(stored, wanted, widens=False) and query_type(stored) == wanted:
        return value
    if t.is_struct(stored):
        return _struct_sql(list(stored), list(wanted), value, column, depth)
    if t.is_map(stored):
        k, v = f"k{depth}", f"v{depth}"
        key = cast_sql(stored.key_type, wanted.key_type, k, column, depth + 1)
        item = cast_sql(stored.item_type, wanted.item_type, v, column, depth + 1)
        return f"transform_values(transform_keys({value}, ({k}, {v}) -> {key}), ({k}, {v}) -> {item})"
    if t.is_list(stored):
        each = f"x{depth}"
        item = cast_sql(stored.value_type, wanted.value_type, each, column, depth + 1)
        return f"transform({value}, {each} -> {item})"
    if t.is_null(stored):
        return f"CAST(NULL AS {to_ddl(wanted)})"
    if t.is_time(stored):
        value = _time_of_day_sql(stored, value, column)
    elif _is_nanoseconds(stored):
        value = _exact_microseconds_sql(f"timestamp_micros({value} DIV 1000)", value, column)
    elif stored == pa.uuid():
        value = f"regexp_replace(lower(hex({value})), '(.{{8}})(.{{4}})(.{{4}})(.{{4}})', '$1-$2-$3-$4-')"
    elif stored == pa.float16():
        value = _half_float_sql(value, depth)
    elif stored in (orc_date(), orc_time()):
        value = _refuse_early_time_sql(stored, value, column)
    return f"CAST({value} AS {to_ddl(wanted)})"


def _struct_sql(
    stored: Sequence[pa.Field], wanted: Sequence[pa.Field], value: str, column: str, depth: int
) -> str:
    there = {field.name.lower(): field for field in stored}
    parts = []
    for field in wanted:
        found = there.get(field.name.lower())
        inner = (
            f"CAST(NULL AS {to_ddl(field.type)})"
            if found is None
            else cast_sql(
                found.type, field.type, f"{value}.{quote_name(found.name)}", f"{column}.{field.name}", depth
            )
        )
        parts.append(f"{text_literal(field.name)}, {inner}")
    return f"CASE WHEN {value} IS NOT NULL THEN named_struct({', '.join(parts)}) END"


def _time_of_day_sql(stored: pa.DataType, value: str, column: str) -> str:
    """A time of day as text, such as ``13:05:00.25``: Spark has no type for it."""
    micros = {"s": f"{value} * 1000000L", "ms": f"{value} * 1000L", "us": value, "ns": f"{value} DIV 1000"}
    shown = f"substring(CAST(timestamp_micros({micros[stored.unit]}) AS STRING), 12)"
    return _exact_microseconds_sql(shown, value, column) if stored.unit == "ns" else shown


def _exact_microseconds_sql(shown: str, nanoseconds: str, column: str) -> str:
    """SQL: ``shown``, or an error if it would lose nanoseconds."""
    refused = raise_error_sql(
        text_literal(f"column {column!r} of "),
        FILE_PATH_SQL,
        text_literal(" holds a time with nanoseconds, which would be lost"),
        next_step=_NANOSECONDS,
    )
    return f"CASE WHEN {nanoseconds} % 1000 <> 0 THEN {refused} ELSE {shown} END"


def _refuse_early_time_sql(stored: pa.DataType, value: str, column: str) -> str:
    """SQL: refuse times that ORC readers in Java misread: days before the Gregorian calendar, early
    fractions."""
    early, what = f"{value} < '1582-10-15'", "a day before 1582-10-15"
    if stored == orc_time():
        early += f" OR ({value} < '1970-01-01' AND unix_micros({value}) % 1000000 <> 0)"
        what += " or a fraction of a second before 1970"
    refused = raise_error_sql(
        text_literal(f"column {column!r} of "),
        FILE_PATH_SQL,
        text_literal(f" holds {what}, which ORC readers read as different times"),
        next_step="write the file as Parquet, which has no such limit",
    )
    return f"CASE WHEN {early} THEN {refused} ELSE {value} END"


def _half_float_sql(value: str, depth: int) -> str:
    """SQL: a half float from its two bytes, the lower one first."""
    bits = f"h{depth}"
    number = f"CAST(conv(concat(substr(hex({value}), 3, 2), substr(hex({value}), 1, 2)), 16, 10) AS INT)"
    sign, exponent = f"IF({bits} >= 32768, -1D, 1D)", f"({bits} DIV 1024) % 32"
    return (
        f"transform(array({number}), {bits} -> CASE {exponent} "
        f"WHEN 0 THEN {sign} * ({bits} % 1024) * pow(2, -24) "
        f"WHEN 31 THEN IF({bits} % 1024 = 0, {sign} * double('Infinity'), double('NaN')) "
        f"ELSE {sign} * (1024 + {bits} % 1024) * pow(2, {exponent} - 25) END)[0]"
    )
