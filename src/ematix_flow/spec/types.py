"""The canonical type system. A backend maps these types to its own and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import DeclarationError

if TYPE_CHECKING:
    import pyarrow as pa

KINDS = (
    "small_int",
    "integer",
    "big_int",
    "float",
    "double",
    "numeric",
    "boolean",
    "text",
    "string",
    "date",
    "timestamp",
    "timestamp_tz",
    "json",
    "jsonb",
    "uuid",
    "bytes",
)
MAX_PRECISION = 38
INTEGER_BITS = {"small_int": 16, "integer": 32, "big_int": 64}


@dataclass(frozen=True)
class DataType:
    """A canonical column type. ``length`` only for ``string``; precision and scale only for ``numeric``."""

    kind: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DeclarationError(f"unknown column type {self.kind!r}")
        if self.kind == "string":
            if not isinstance(self.length, int) or self.length <= 0:
                raise DeclarationError(f"String needs a length above 0, not {self.length!r}")
        elif self.kind == "numeric":
            p, s = self.precision, self.scale
            if not isinstance(p, int) or not isinstance(s, int) or not (p > 0 and 0 <= s <= p):
                raise DeclarationError(
                    f"Numeric needs 0 <= scale <= precision and precision > 0, not [{p!r}, {s!r}]"
                )
            if p > MAX_PRECISION:
                raise DeclarationError(f"Numeric holds at most {MAX_PRECISION} digits, not {p}")

    def __str__(self) -> str:
        if self.kind == "string":
            return f"String[{self.length}]"
        if self.kind == "numeric":
            return f"Numeric[{self.precision}, {self.scale}]"
        return _NAMES[self.kind]

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": self.kind}
        for name in ("length", "precision", "scale"):
            if getattr(self, name) is not None:
                out[name] = getattr(self, name)
        return out

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> DataType:
        return cls(**value)

    def arrow(self) -> pa.DataType:
        """The Arrow type of values of this type."""
        import pyarrow as pa

        if self.kind == "numeric":
            return pa.decimal128(self.precision, self.scale)
        return {
            "small_int": pa.int16(),
            "integer": pa.int32(),
            "big_int": pa.int64(),
            "float": pa.float32(),
            "double": pa.float64(),
            "boolean": pa.bool_(),
            "text": pa.string(),
            "string": pa.string(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us"),
            "timestamp_tz": pa.timestamp("us", tz="UTC"),
            "json": pa.string(),
            "jsonb": pa.string(),
            "uuid": pa.string(),
            "bytes": pa.binary(),
        }[self.kind]


_NAMES = {
    "small_int": "SmallInt",
    "integer": "Integer",
    "big_int": "BigInt",
    "float": "Float",
    "double": "Double",
    "boolean": "Boolean",
    "text": "Text",
    "date": "Date",
    "timestamp": "Timestamp",
    "timestamp_tz": "TimestampTZ",
    "json": "JSON",
    "jsonb": "JSONB",
    "uuid": "UUID",
    "bytes": "Bytes",
}


def from_arrow(arrow_type: pa.DataType) -> DataType:
    """The narrowest canonical type that holds every value of an Arrow type without loss.

    Raises DeclarationError when there is none; the caller knows the column's name.
    """
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_dictionary(arrow_type):
        return from_arrow(arrow_type.value_type)
    simple = {
        pa.int8(): "small_int",
        pa.uint8(): "small_int",
        pa.int16(): "small_int",
        pa.uint16(): "integer",
        pa.int32(): "integer",
        pa.uint32(): "big_int",
        pa.int64(): "big_int",
        pa.float16(): "float",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.bool_(): "boolean",
        pa.date32(): "date",
        pa.date64(): "date",
    }
    if arrow_type in simple:
        return DataType(simple[arrow_type])
    if arrow_type == pa.uint64():
        return DataType("numeric", precision=20, scale=0)
    if t.is_string(arrow_type) or t.is_large_string(arrow_type) or t.is_string_view(arrow_type):
        return DataType("text")
    if (
        t.is_binary(arrow_type)
        or t.is_large_binary(arrow_type)
        or t.is_fixed_size_binary(arrow_type)
        or t.is_binary_view(arrow_type)
    ):
        return DataType("bytes")
    if t.is_timestamp(arrow_type):
        return DataType("timestamp_tz" if arrow_type.tz else "timestamp")
    if t.is_decimal(arrow_type) and arrow_type.precision <= MAX_PRECISION and arrow_type.scale >= 0:
        return DataType("numeric", precision=arrow_type.precision, scale=arrow_type.scale)
    if t.is_nested(arrow_type):
        return DataType("json")
    if t.is_null(arrow_type):
        return DataType("text")
    raise DeclarationError(f"no column type can hold Arrow's {arrow_type}")
