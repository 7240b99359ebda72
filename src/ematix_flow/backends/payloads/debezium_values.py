"""Debezium's values in a column's terms: times as numbers, decimals as base64, JSON as text.

Debezium names the meaning of a value in the message's schema. Without a schema the column decides: numbers in
a date are days; in a timestamp they are milli-, micro- or nanoseconds by their size.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ematix_flow.backends.payloads.json_values import JsonNumber
from ematix_flow.spec.types import MAX_PRECISION, DataType

_EPOCH = dt.datetime(1970, 1, 1)
_CONNECT = "org.apache.kafka.connect.data."
_TIME = "io.debezium.time."
_DAYS = (f"{_TIME}Date", f"{_CONNECT}Date")
_TICKS = {  # microseconds as a fraction: how many units a microsecond has
    f"{_TIME}Timestamp": (1_000, 1),
    f"{_CONNECT}Timestamp": (1_000, 1),
    f"{_TIME}MicroTimestamp": (1, 1),
    f"{_TIME}NanoTimestamp": (1, 1_000),
}
DECIMAL, _VARIABLE_DECIMAL = f"{_CONNECT}Decimal", "io.debezium.data.VariableScaleDecimal"
_ZONED, _UUID = f"{_TIME}ZonedTimestamp", "io.debezium.data.Uuid"
LOGICAL_TYPES = {  # the type that means what a logical type of Avro means
    "decimal": DECIMAL,
    "date": f"{_TIME}Date",
    "uuid": _UUID,
    **{f"timestamp-{unit}": _ZONED for unit in ("millis", "micros", "nanos")},
    **{f"local-timestamp-{unit}": f"{_TIME}MicroTimestamp" for unit in ("millis", "micros", "nanos")},
}
_KINDS = {
    "boolean": "boolean",
    "int8": "small_int",
    "int16": "small_int",
    "int32": "integer",
    "int64": "big_int",
    "float": "float",
    "float32": "float",
    "double": "double",
    "float64": "double",
    "bytes": "bytes",
    "string": "text",
}
CONVERTED_KINDS = ("date", "timestamp", "timestamp_tz", "json", "jsonb")  # also of values without a schema
_MICROS, _NANOS = 10**14, 10**17  # from these sizes on, a number is in microseconds or nanoseconds


def debezium_value(value: Any, column: DataType, schema: Mapping[str, Any] | None) -> Any:
    """The value, as the rules of payload values take it."""
    if value is None:
        return None
    name = schema.get("name") if schema else None
    if name == DECIMAL and isinstance(value, str) and schema is not None:
        scale = (schema.get("parameters") or {}).get("scale")
        return _decimal(value, scale)
    if isinstance(value, dict) and set(value) == {"scale", "value"} and column.kind not in ("json", "jsonb"):
        return _decimal(value["value"], value["scale"])
    number = _as_int(value)
    if number is not None:
        if name in _DAYS or (name is None and column.kind == "date"):
            return _moment(number * 86_400_000_000)[:10]
        if name in _TICKS:
            up, down = _TICKS[str(name)]
            return _moment(number * up // down)
        if name is None and column.kind in ("timestamp", "timestamp_tz"):
            return _moment(_micros(number))
    if column.kind in ("json", "jsonb") and isinstance(value, str) and not isinstance(value, JsonNumber):
        try:
            return json.loads(value, parse_float=JsonNumber)
        except (ValueError, RecursionError):
            return value
    return value


def moment_of_number(number: int, zone: dt.timezone | None) -> dt.datetime:
    """The time of a number without a schema. Raises OverflowError if there is none."""
    return _EPOCH.replace(tzinfo=zone) + dt.timedelta(microseconds=_micros(number))


def _micros(number: int) -> int:
    """Milli-, micro- or nanoseconds, by the size of the number."""
    size = abs(number)
    return number // 1_000 if size >= _NANOS else number if size >= _MICROS else number * 1_000


def column_type(schema: Mapping[str, Any]) -> DataType:
    """The column type for a field of this schema."""
    name, kind = schema.get("name"), schema.get("type")
    if name in _DAYS:
        return DataType("date")
    if name in _TICKS:
        return DataType("timestamp")
    if name == _ZONED:
        return DataType("timestamp_tz")
    if name == "io.debezium.data.Json":
        return DataType("json")
    if name == _UUID:
        return DataType("uuid")
    if name == DECIMAL:
        found = schema.get("parameters") or {}
        try:
            scale = int(found.get("scale", 0))
            precision = int(found.get("connect.decimal.precision", MAX_PRECISION))
        except (TypeError, ValueError):
            return DataType("text")
        fits = 0 <= scale <= precision <= MAX_PRECISION
        return DataType("numeric", precision=precision, scale=scale) if fits else DataType("text")
    if name == _VARIABLE_DECIMAL:
        return DataType("text")
    return DataType(_KINDS[kind]) if isinstance(kind, str) and kind in _KINDS else DataType("json")


def _decimal(text: Any, scale: Any) -> Any:
    """An unscaled number, in JSON in base64; the text itself if it is none."""
    try:
        raw = text if isinstance(text, bytes) else base64.b64decode(text, validate=True)
        places = int(scale)
    except (binascii.Error, ValueError, TypeError):
        return text
    return Decimal(f"{int.from_bytes(raw, 'big', signed=True)}E{-places}") if raw else text


def _as_int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, JsonNumber) and value.removeprefix("-").isdigit() and len(value) < 25:
        return int(value)
    return None


def _moment(micros: int) -> Any:
    try:
        return (_EPOCH + dt.timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return f"{micros} microseconds since 1970"  # no time: the message is refused with this text
