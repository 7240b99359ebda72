"""The types of a query's result: their canonical types, and how their values are exported to Arrow.

The server casts a type that Arrow lacks: to text when the text is exact, arrays and composites to JSON. A
``numeric`` without limits is read as text and has no canonical type: each value must fit the declared column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.arrow.batch_casts import row_rejection
from ematix_flow.backends.sql_servers.column_export import ColumnExport
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.types import INTEGER_BITS, MAX_PRECISION, DataType

if TYPE_CHECKING:
    import pyarrow as pa

NUMERIC = 1700
_VARCHAR, _BPCHAR, _MONEY, _OID, _RECORD = 1043, 1042, 790, 26, 2249
_PLAIN = {
    16: "boolean",
    17: "bytes",
    20: "big_int",
    21: "small_int",
    23: "integer",
    25: "text",
    700: "float",
    701: "double",
    1082: "date",
    1114: "timestamp",
    1184: "timestamp_tz",
}
_AS_TEXT = {114: "json", 3802: "jsonb", 2950: "uuid", 18: "text", 19: "text"}
_LENGTH_OFFSET = 4  # a typmod includes its own size
_JULIAN_DAY_ZERO = -2_440_588  # PostgreSQL's first day; infinity wraps around to before it
_MICROSECONDS_A_DAY = 86_400_000_000
_EPOCH_2000_DAYS = 10_957


@dataclass(frozen=True)
class ResultColumn:
    """A result column as the server describes it; ``category`` and ``type_kind`` are from pg_type."""

    name: str
    oid: int
    typmod: int
    native: str
    type_kind: str = "b"
    category: str = "U"

    @property
    def is_json(self) -> bool:
        return _AS_TEXT.get(self.oid) in ("json", "jsonb")


def column_export(column: ResultColumn, wanted: DataType | None = None) -> ColumnExport:
    """How to read a column exactly. ``wanted`` is the declared type of its target column, when known."""
    found, template = _mapping(column, wanted)
    return ColumnExport(column.name, column.native, found, template)


def _mapping(column: ResultColumn, wanted: DataType | None) -> tuple[DataType | None, str]:
    oid = column.oid
    if oid in _PLAIN:
        return DataType(_PLAIN[oid]), "{}"
    if oid in _AS_TEXT:
        return DataType(_AS_TEXT[oid]), "CAST({} AS text)"
    if oid == _VARCHAR:
        return _sized_text(column.typmod), "{}"
    if oid == _BPCHAR:  # drop the padding blanks, as PostgreSQL's own casts do
        return _sized_text(column.typmod), "CAST({} AS text)"
    if oid == _OID:
        return DataType("big_int"), "CAST({} AS bigint)"
    if oid == NUMERIC:
        limited = numeric_type(column.typmod)
        return limited, "{}" if limited else _unlimited_template("{}", wanted)
    if oid == _MONEY:
        return None, _unlimited_template("CAST({} AS numeric)", wanted)
    if column.category == "A" or column.type_kind == "c" or oid == _RECORD:
        return DataType("json"), "CAST(to_json({}) AS text)"
    if column.type_kind == "p":
        raise SourceFailed(
            f"column {column.name!r} of the source SQL is of type {column.native}, which has no values",
            next_step="leave the column out, or cast it to a type that does",
        )
    return DataType("text"), "CAST({} AS text)"


def _unlimited_template(expression: str, wanted: DataType | None) -> str:
    """An integer written as 5.00 must still fit an integer column."""
    return f"trim_scale({expression})" if wanted is not None and wanted.kind in INTEGER_BITS else expression


def _sized_text(typmod: int) -> DataType:
    length = typmod - _LENGTH_OFFSET
    return DataType("string", length=length) if length > 0 else DataType("text")


def numeric_type(typmod: int) -> DataType | None:
    """The canonical type of a numeric's type modifier; None without one, or beyond 38 digits."""
    if typmod < _LENGTH_OFFSET:
        return None
    packed = typmod - _LENGTH_OFFSET
    precision, scale = packed >> 16 & 0xFFFF, packed & 0x7FF
    return exact_numeric(precision, (scale ^ 1024) - 1024)


def exact_numeric(precision: int, scale: int) -> DataType | None:
    """The canonical type of ``numeric(precision, scale)``, also for scales below 0 or above the precision."""
    digits = max(precision - scale, 0) + max(scale, 0) if scale <= precision else scale
    return DataType("numeric", precision=digits, scale=max(scale, 0)) if digits <= MAX_PRECISION else None


def to_plain_batch(batch: pa.RecordBatch, exports: Sequence[ColumnExport], offset: int) -> pa.RecordBatch:
    """The driver's batch in plain Arrow types; RowRejected for a value that Arrow cannot hold."""
    import pyarrow as pa

    arrays = [_to_plain_array(batch.column(i), item, offset) for i, item in enumerate(exports)]
    return pa.RecordBatch.from_arrays(arrays, names=[item.name for item in exports])


def _to_plain_array(array: pa.Array, item: ColumnExport, offset: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.types as t

    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if t.is_timestamp(array.type):
        _require_finite(array, pa.int64(), _JULIAN_DAY_ZERO * _MICROSECONDS_A_DAY, item, offset)
    elif t.is_date32(array.type):
        _require_finite(array, pa.int32(), _JULIAN_DAY_ZERO, item, offset)
    elif item.type is not None and item.type.kind == "numeric":
        return _to_decimals(array, item, offset)
    return array


def _to_decimals(array: pa.Array, item: ColumnExport, offset: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    assert item.type is not None
    try:
        return array.cast(item.type.arrow())
    except pa.ArrowInvalid:
        endless = pc.match_substring_regex(array, pattern="(?i)nan|inf")
        index = pc.index(endless, True).as_py()
        if index < 0:
            raise
        why = "is not a finite number; only Float and Double columns accept it"
        raise row_rejection(item.name, offset + index, array[index].as_py(), why) from None


def _require_finite(array: pa.Array, raw: pa.DataType, first: int, item: ColumnExport, offset: int) -> None:
    """Refuse infinity and years beyond Arrow's range, which wrap around to before PostgreSQL's first day."""
    import pyarrow as pa
    import pyarrow.compute as pc

    counts = array.cast(raw)
    low = pc.min(counts).as_py()
    if low is None or low >= first:
        return
    index = pc.index(pc.less(counts, pa.scalar(first, raw)), True).as_py()
    why = f"is a {item.native} that other systems cannot store"
    raise row_rejection(item.name, offset + index, _infinity_text(counts[index].as_py(), raw.bit_width), why)


def _infinity_text(count: int, bits: int) -> str:
    since_2000 = count - (_EPOCH_2000_DAYS * (_MICROSECONDS_A_DAY if bits == 64 else 1))
    limit = 1 << (bits - 1)
    value = (since_2000 + limit) % (2 * limit) - limit
    return {limit - 1: "infinity", -limit: "-infinity"}.get(value, "a time after the year 294246")


# completes the columns of a described result from pg_type
RESULT_TYPES_SQL = """
SELECT d.place, format_type(d.oid, d.typmod), t.typtype::text, t.typcategory::text
FROM unnest(%(oids)s::oid[], %(typmods)s::int4[]) WITH ORDINALITY AS d(oid, typmod, place)
JOIN pg_catalog.pg_type AS t ON t.oid = d.oid
"""


def result_columns(
    described: Sequence[tuple[str, int, int]], known: Mapping[int, tuple[str, str, str]]
) -> tuple[ResultColumn, ...]:
    """``described`` is name, OID and typmod; ``known`` is the result of RESULT_TYPES_SQL by position."""
    return tuple(
        ResultColumn(name, oid, typmod, *known[place])
        for place, (name, oid, typmod) in enumerate(described, start=1)
    )
