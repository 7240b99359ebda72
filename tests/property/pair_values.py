"""Random tables: columns of every type with hostile names, and values at the edges of what systems hold."""

from __future__ import annotations

import datetime as dt
import json
import random
import string
import struct
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import INTEGER_BITS, DataType
from tests.property.hostile_names import fitting

UTC = dt.timezone.utc
KEY = "row number"
EXACT = Context(prec=60)  # the default one rounds to 28 digits
Row = dict[str, Any]

_SHORT_TEXTS = ("", " ", "a ", " a", "'", '"', "\\", "\\N", "\\\\n", "a\nb", "a\r\nb", "a\rb", "a\tb", "a,b")
_SHORT_TEXTS += ("é", "e\u0301", "日本", "\U0001f600", "\U0001f1e9\U0001f1ea", "NULL", "null", "\x01", "\x7f")
_SHORT_TEXTS += ("\ufeffx", "\u2028", "\ufffd", "%s", "{}", "[]", "#", "--", "${x}")
# what a reader of text takes for something else, all of one column alike
_LOOKALIKES = (
    ("007", "1", "-0", "+1", "1.50", "1e5", "12345678901234567890"),
    ("1.0", "2.00", "3"),
    ("true", "false", "TRUE"),
    ("2026-01-01", "2026-02-30"),
    ("2026-01-01 00:00:00", "2026-01-01T00:00:00Z"),
    ("NaN", "Infinity", "1.5"),
    ('{"a": 1}', "[1]", '"x"'),
    ("",),
    (_SHORT_TEXTS[0], "x" * 5_000),
)
_DOUBLES = (0.0, -0.0, 0.1, -1.5, 5e-324, 1.7976931348623157e308, 1e15, 123456789.123456789, 2.0**53)
_DOUBLES += (float("inf"), float("-inf"), float("nan"))
_FLOATS = (0.0, -0.0, 0.5, -1.5, 3.4028234663852886e38, 1.1754943508222875e-38, float(2**24))
_FLOATS += (float("inf"), float("-inf"), float("nan"), struct.unpack("f", struct.pack("f", 0.1))[0])
_DOCUMENTS = ("{}", "[]", '{"a": 1}', '[1, 2.5, "x", null]', '"x"', "1", '{"é": {"b": [true]}}', "null")
_DOCUMENTS += ('{"a": "\\"\\\\\\n"}', '{"\U0001f600": ""}', "true", "12345678901234567")
_TIMES = (
    dt.datetime(1970, 1, 1, 0, 0, 1),
    dt.datetime(2026, 3, 29, 2, 30),  # an hour that summer time leaves out
    dt.datetime(2026, 10, 25, 2, 30, 0, 1),
    dt.datetime(2037, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(2000, 2, 29, 12, 0, 0, 123_456),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(1969, 12, 31, 23, 59, 59),
    dt.datetime(1900, 1, 1),
    dt.datetime(1883, 11, 18, 12, 3, 57, 1),
    dt.datetime(1582, 10, 4, 1, 2, 3),
    dt.datetime(1582, 10, 15),
    dt.datetime(1, 1, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
)
_DAYS = tuple(
    dt.date(*day) for day in ((1970, 1, 1), (1, 1, 1), (1582, 10, 4), (1582, 10, 15), (1899, 12, 31))
)
_DAYS += (dt.date(9999, 12, 31), dt.date(2024, 2, 29))


@dataclass(frozen=True)
class Domain:
    """What a system cannot store, or what the test cannot write into a source there."""

    floats_missing: tuple[str, ...] = ()
    never: tuple[str, ...] = ()  # names, or characters of names
    kinds_missing: tuple[str, ...] = ()
    texts_missing: tuple[str, ...] = ()
    zoned: tuple[int, int] = (1, 9999)  # the years of its times with a zone
    first_day: dt.date = dt.date.min
    last_year: int = 9999
    places: int = 38  # of decimals
    splits_old_seconds: bool = True  # whether times before 1970 have fractions of seconds
    tells_case_apart: bool = False  # whether two columns may be called a and A

    def __or__(self, other: Domain) -> Domain:
        """What one of the two cannot store."""
        return Domain(
            (*self.floats_missing, *other.floats_missing),
            (*self.never, *other.never),
            (*self.kinds_missing, *other.kinds_missing),
            (*self.texts_missing, *other.texts_missing),
            (max(self.zoned[0], other.zoned[0]), min(self.zoned[1], other.zoned[1])),
            max(self.first_day, other.first_day),
            min(self.last_year, other.last_year),
            min(self.places, other.places),
            self.splits_old_seconds and other.splits_old_seconds,
            self.tells_case_apart and other.tells_case_apart,
        )

    def holds_time(self, value: dt.datetime) -> bool:
        fits = value.date() >= self.first_day and value.year <= self.last_year
        return fits and (self.splits_old_seconds or value.year >= 1970 or not value.microsecond)


def all_types() -> list[DataType]:
    kinds = ("small_int", "integer", "big_int", "float", "double", "boolean", "text", "text", "date")
    kinds += ("timestamp", "timestamp_tz", "json", "jsonb", "uuid", "bytes")
    numbers = [DataType("numeric", precision=p, scale=s) for p, s in ((38, 0), (38, 10), (10, 2), (5, 5))]
    numbers += [DataType("numeric", precision=38, scale=38), DataType("numeric", precision=1, scale=0)]
    return [*map(DataType, kinds), *numbers, DataType("string", length=12)]


def random_table(chosen: random.Random, name: str, domain: Domain) -> tuple[TableSpec, list[Row]]:
    """A column of every type that the domain has, some of them twice, and a dozen rows."""
    types = [t for t in all_types() if t.kind not in domain.kinds_missing]
    types = [t for t in types if (t.scale or 0) <= domain.places]
    types += chosen.choices(types, k=4)
    chosen.shuffle(types)
    names = chosen.sample(fitting(domain.never, folds_case=not domain.tells_case_apart), len(types))
    if domain.tells_case_apart:
        names[:3] = ["twin", "Twin", "TWIN"]
    columns = [ColumnSpec(n, t, nullable=chosen.random() < 0.7) for n, t in zip(names, types, strict=True)]
    columns.insert(chosen.randrange(len(columns)), ColumnSpec(KEY, DataType("integer")))
    values = {c.name: _random_values(chosen, c, domain) for c in columns}
    rows = [{n: values[n][number] for n in values} for number in range(12)]
    return TableSpec(None, name, tuple(columns)), rows


def _random_values(chosen: random.Random, column: ColumnSpec, domain: Domain) -> list[Any]:
    if column.name == KEY:
        return list(range(12))
    edges = _edges(chosen, column.type, domain)
    found = [chosen.choice(edges) for _ in range(12)]
    nulls = chosen.choice((0.0, 0.15, 1.0)) if column.nullable else 0.0
    return [None if chosen.random() < nulls else value for value in found]


def _edges(chosen: random.Random, data_type: DataType, domain: Domain) -> list[Any]:
    """Values at the limits of a type, and some between them."""
    kind = data_type.kind
    if kind in INTEGER_BITS:
        limit = 1 << (INTEGER_BITS[kind] - 1)
        return [0, -1, limit - 1, -limit, chosen.randrange(-limit, limit)]
    if kind == "numeric":
        most = 10 ** (data_type.precision or 1) - 1
        digits = (0, 1, -1, most, -most, chosen.randint(-most, most))
        return [Decimal(number).scaleb(-(data_type.scale or 0), EXACT) for number in digits]
    if kind in ("double", "float"):
        found = [*_DOUBLES, chosen.uniform(-1e6, 1e6)] if kind == "double" else _FLOATS
        return [d for d in found if repr(d) not in domain.floats_missing]
    if kind == "boolean":
        return [True, False]
    if kind in ("text", "string"):
        printed = "".join(chosen.choices(string.printable[:95], k=9))
        texts = chosen.choice((*_LOOKALIKES, (*_SHORT_TEXTS, printed), (*_SHORT_TEXTS, printed)))
        found = [t[: data_type.length] for t in texts if t not in domain.texts_missing]
        return found or ["x"]
    if kind == "date":
        return [day for day in _DAYS if day >= domain.first_day]
    if kind == "timestamp":
        return [t for t in _TIMES if domain.holds_time(t)]
    if kind == "timestamp_tz":
        first, last = domain.zoned
        return [t.replace(tzinfo=UTC) for t in _TIMES if domain.holds_time(t) and first <= t.year <= last]
    if kind in ("json", "jsonb"):
        return list(_DOCUMENTS)
    if kind == "uuid":
        return [str(uuid.UUID(int=0)), str(uuid.UUID(int=chosen.getrandbits(128)))]
    return [b"", b"\x00\xff", bytes(range(256)), chosen.randbytes(7)]


def comparable(value: Any, data_type: DataType) -> Any:
    """A value as it is compared: JSON by its meaning, floats by their digits, so that NaN equals itself."""
    kind = data_type.kind
    if value is None:
        return None
    if kind in ("json", "jsonb"):
        return json.dumps(json.loads(value) if isinstance(value, str) else value, sort_keys=True)
    if kind == "double":
        return repr(float(value))
    if kind == "float":
        return struct.pack("f", value).hex() if value == value else "nan"
    if kind == "numeric":
        return Decimal(value).quantize(Decimal(1).scaleb(-(data_type.scale or 0)), context=EXACT)
    if kind == "uuid":
        return str(uuid.UUID(str(value)))
    if kind == "timestamp_tz":
        return value.astimezone(UTC)
    return bytes(value) if kind == "bytes" else value


def by_key(table: TableSpec, rows: Collection[Row]) -> dict[Any, Row]:
    """Rows as they are compared; two rows with one key are an error."""
    found = {row[KEY]: {c.name: comparable(row[c.name], c.type) for c in table.columns} for row in rows}
    assert len(found) == len(rows), "a row arrived twice"
    return found
