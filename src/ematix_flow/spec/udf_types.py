"""The types of Python functions in SQL, by the names of Arrow: ``"Float64"``, ``"List(Utf8)"``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

_SPARK_NAMES = {
    "Int8": "tinyint",
    "Int16": "smallint",
    "Int32": "int",
    "Int64": "bigint",
    "UInt8": "smallint",
    "UInt16": "int",
    "UInt32": "bigint",
    "UInt64": "decimal(20,0)",
    "Float32": "float",
    "Float64": "double",
    "Boolean": "boolean",
    "Utf8": "string",
    "Binary": "binary",
    "Date": "date",
    "Timestamp": "timestamp",
    "TimestampNtz": "timestamp_ntz",
}
_ALIASES = {"bool": "Boolean", "string": "Utf8", "largeutf8": "Utf8", "date32": "Date"}
_NAMES = {name.lower(): name for name in _SPARK_NAMES} | _ALIASES
_DECIMAL = re.compile(r"decimal(?:128)?\(\s*(\d+)\s*,\s*(\d+)\s*\)", re.IGNORECASE)
_LIST = re.compile(r"list\((.+)\)", re.IGNORECASE | re.DOTALL)
_MAX_DIGITS = 38


@dataclass(frozen=True)
class UdfType:
    """The type of an argument or a result. ``name`` is written in one way only, as in ``"Float64"``."""

    name: str
    precision: int | None = None  # of a Decimal
    scale: int | None = None
    item: UdfType | None = None  # of a List

    def __str__(self) -> str:
        if self.item is not None:
            return f"List({self.item})"
        return self.name if self.precision is None else f"Decimal({self.precision}, {self.scale})"

    @property
    def is_small_integer(self) -> bool:
        """Whether it is an integer that fits into 64 bits with a sign."""
        return _SPARK_NAMES.get(self.name) in ("tinyint", "smallint", "int", "bigint")

    @property
    def spark(self) -> str:
        """The type in Spark's SQL."""
        if self.item is not None:
            return f"array<{self.item.spark}>"
        if self.precision is not None:
            return f"decimal({self.precision},{self.scale})"
        return _SPARK_NAMES[self.name]

    def arrow(self) -> pa.DataType:
        """The type of the arrays that the function takes and returns."""
        import pyarrow as pa

        if self.item is not None:
            return pa.list_(self.item.arrow())
        if self.precision is not None:
            return pa.decimal128(self.precision, self.scale)
        special = {
            "Boolean": pa.bool_(),
            "Utf8": pa.string(),
            "Date": pa.date32(),
            "Timestamp": pa.timestamp("us", tz="UTC"),
            "TimestampNtz": pa.timestamp("us"),
        }
        return special[self.name] if self.name in special else pa.type_for_alias(self.name.lower())

    def spark_arrow(self) -> pa.DataType:
        """The type of the arrays that Spark takes as a result: it has no unsigned integers."""
        import pyarrow as pa

        if self.item is not None:
            return pa.list_(self.item.spark_arrow())
        unsigned = {
            "UInt8": pa.int16(),
            "UInt16": pa.int32(),
            "UInt32": pa.int64(),
            "UInt64": pa.decimal128(20, 0),
        }
        return unsigned[self.name] if self.name in unsigned else self.arrow()


def parse_udf_type(text: object) -> UdfType:
    """Read a type name; upper and lower case are the same. Raises DeclarationError for an unknown one."""
    if not isinstance(text, str):
        raise DeclarationError(f'a type is a name such as "Float64", not {text!r}')
    given = text.strip()
    if given.lower() in _NAMES:
        return UdfType(_NAMES[given.lower()])
    decimal = _DECIMAL.fullmatch(given)
    if decimal:
        precision, scale = int(decimal[1]), int(decimal[2])
        if not (0 < precision <= _MAX_DIGITS and scale <= precision):
            raise DeclarationError(
                f"{given}: a Decimal has 1 to {_MAX_DIGITS} digits, and no more of them after the point"
            )
        return UdfType("Decimal", precision, scale)
    of_list = _LIST.fullmatch(given)
    if of_list:
        return UdfType("List", item=parse_udf_type(of_list[1]))
    known = [*_SPARK_NAMES, "Decimal(38, 10)", "List(Float64)"]
    raise DeclarationError(
        f"unknown type {text!r}.{did_you_mean(given, known)}",
        next_step=f"the types are {', '.join(known)}",
    )
