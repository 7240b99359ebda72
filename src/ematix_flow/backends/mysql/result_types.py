"""The types of a query's result: their canonical types, and how their text becomes Arrow.

All values are sent as text, which is exact except for ``FLOAT`` (the server converts it to a double) and
``BIT`` (to a number). ``DECIMAL`` beyond 38 digits is read as text and has no canonical type: each value must
fit the declared column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pymysql.constants import FIELD_TYPE, FLAG

from ematix_flow.backends.arrow.batch_casts import row_rejection
from ematix_flow.backends.mysql.wire_protocol import ResultField
from ematix_flow.backends.sql_servers.column_export import ColumnExport
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.types import MAX_PRECISION, DataType

if TYPE_CHECKING:
    import pyarrow as pa

_BINARY = 63  # the character set of bytes
_BYTES_A_CHARACTER = 4  # utf8mb4, in which all text is sent
_LONGEST_STRING = 16_383
_NUMBER = "{} + 0"
_UNSIGNED_BIG = DataType("numeric", precision=20, scale=0)
_INTEGERS = {
    FIELD_TYPE.TINY: ("TINYINT", "small_int", "small_int"),
    FIELD_TYPE.SHORT: ("SMALLINT", "small_int", "integer"),
    FIELD_TYPE.INT24: ("MEDIUMINT", "integer", "integer"),
    FIELD_TYPE.LONG: ("INT", "integer", "big_int"),
    FIELD_TYPE.YEAR: ("YEAR", "small_int", "small_int"),
}
_PLAIN = {
    FIELD_TYPE.DOUBLE: ("DOUBLE", "double"),
    FIELD_TYPE.DATE: ("DATE", "date"),
    FIELD_TYPE.NEWDATE: ("DATE", "date"),
    FIELD_TYPE.DATETIME: ("DATETIME", "timestamp"),
    FIELD_TYPE.TIMESTAMP: ("TIMESTAMP", "timestamp_tz"),
    FIELD_TYPE.TIME: ("TIME", "text"),
    FIELD_TYPE.NULL: ("NULL", "text"),
    FIELD_TYPE.JSON: ("JSON", "json"),
    FIELD_TYPE.ENUM: ("ENUM", "text"),
    FIELD_TYPE.SET: ("SET", "text"),
}
_TEXTS = (FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING)
_BLOBS = (FIELD_TYPE.TINY_BLOB, FIELD_TYPE.MEDIUM_BLOB, FIELD_TYPE.LONG_BLOB, FIELD_TYPE.BLOB)
_ZERO_DATE = "is not a valid date; make it NULL in the source SQL with NULLIF"


def column_export(field: ResultField) -> ColumnExport:
    """How to read a column exactly."""
    native, found, template = _mapping(field)
    return ColumnExport(field.name, native, found, template)


def _mapping(field: ResultField) -> tuple[str, DataType | None, str]:
    code, unsigned = field.type_code, bool(field.flags & FLAG.UNSIGNED)
    if code in _INTEGERS:
        native, signed_kind, unsigned_kind = _INTEGERS[code]
        suffix = " UNSIGNED" if unsigned and code != FIELD_TYPE.YEAR else ""
        return native + suffix, DataType(unsigned_kind if unsigned else signed_kind), "{}"
    if code == FIELD_TYPE.LONGLONG:
        if unsigned:
            return "BIGINT UNSIGNED", _UNSIGNED_BIG, "{}"
        return "BIGINT", DataType("big_int"), "{}"
    if code in (FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL):
        return _decimal(field, unsigned)
    if code == FIELD_TYPE.FLOAT:
        return "FLOAT", DataType("float"), "{} * 1e0"
    if code == FIELD_TYPE.BIT:
        return f"BIT({field.length})", _bits(field.length), _NUMBER
    if field.flags & (FLAG.ENUM | FLAG.SET):
        return ("ENUM" if field.flags & FLAG.ENUM else "SET"), DataType("text"), "{}"
    if code in _PLAIN:
        native, kind = _PLAIN[code]
        return native, DataType(kind), "{}"
    if code in _BLOBS:
        return ("BLOB", DataType("bytes"), "{}") if field.charset == _BINARY else ("TEXT", _TEXT, "{}")
    if code in _TEXTS:
        if field.charset == _BINARY:
            return f"VARBINARY({field.length})", DataType("bytes"), "{}"
        return _sized_text(field.length // _BYTES_A_CHARACTER)
    raise SourceFailed(
        f"column {field.name!r} of the source SQL is of a type that no column holds (MySQL's number {code})",
        next_step="convert it in the source SQL, as with ST_AsText(…), or leave it out",
    )


_TEXT = DataType("text")


def _sized_text(length: int) -> tuple[str, DataType, str]:
    if 0 < length <= _LONGEST_STRING:
        return f"VARCHAR({length})", DataType("string", length=length), "{}"
    return "TEXT", _TEXT, "{}"


def _decimal(field: ResultField, unsigned: bool) -> tuple[str, DataType | None, str]:
    """The described length includes the point and the sign."""
    precision = max(field.length - (1 if field.scale else 0) - (0 if unsigned else 1), field.scale, 1)
    native = f"DECIMAL({precision},{field.scale})"
    if precision > MAX_PRECISION:
        return native, None, "{}"
    return native, DataType("numeric", precision=precision, scale=field.scale), "{}"


def _bits(length: int) -> DataType:
    if length == 1:
        return DataType("boolean")
    for bits, kind in ((15, "small_int"), (31, "integer"), (63, "big_int")):
        if length <= bits:
            return DataType(kind)
    return _UNSIGNED_BIG


def decode_batch(columns: Sequence[pa.Array], exports: Sequence[ColumnExport], offset: int) -> pa.RecordBatch:
    """The texts of the wire as typed columns; RowRejected for a value that Arrow cannot hold."""
    import pyarrow as pa

    arrays = [_decode_column(column, item, offset) for column, item in zip(columns, exports, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[item.name for item in exports])


def _decode_column(column: pa.Array, item: ColumnExport, offset: int) -> pa.Array:
    import pyarrow as pa

    kind = item.type.kind if item.type else "text"
    if kind == "bytes":
        return column
    try:
        text = column.cast(pa.string())
        return text if kind in ("text", "string", "json") else _parse_text(text, item)
    except pa.ArrowInvalid as error:
        raise _decode_error(column, item, offset, error) from error


def _parse_text(text: pa.Array, item: ColumnExport) -> pa.Array:
    import pyarrow as pa

    assert item.type is not None
    kind = item.type.kind
    if kind == "boolean":
        return text.cast(pa.int8()).cast(pa.bool_())
    if kind == "float":
        return text.cast(pa.float64()).cast(pa.float32())
    if kind == "timestamp_tz":
        return text.cast(pa.timestamp("us")).cast(pa.int64()).cast(item.type.arrow())
    return text.cast(item.type.arrow())


def _decode_error(column: pa.Array, item: ColumnExport, offset: int, error: Exception) -> Exception:
    """Find the first value that does not parse. The batch is bounded, so this loop is too."""
    import pyarrow as pa

    for index in range(len(column)):
        one = column.slice(index, 1)
        try:
            text = one.cast(pa.string())
            if item.type is not None and item.type.kind not in ("text", "string", "json"):
                _parse_text(text, item)
        except pa.ArrowInvalid:
            value = one[0].as_py()
            shown = value.decode(errors="replace") if isinstance(value, bytes) else value
            is_time = item.type is not None and item.type.kind in ("date", "timestamp", "timestamp_tz")
            why = _ZERO_DATE if is_time else f"is not of type {item.native}"
            return row_rejection(item.name, offset + index, shown, why)
    return error
