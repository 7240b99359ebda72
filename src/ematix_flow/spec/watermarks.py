"""A watermark: a typed position in a source column, with an exact text form for storage."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from dataclasses import dataclass
from typing import Any

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.types import DataType

WatermarkValue = int | decimal.Decimal | dt.datetime | dt.date | str

_INTEGERS = ("small_int", "integer", "big_int")
_TEXTS = ("text", "string", "uuid")
ALLOWED_KINDS = (*_INTEGERS, "numeric", "date", "timestamp", "timestamp_tz", *_TEXTS)


@dataclass(frozen=True)
class Watermark:
    """The highest value of ``column`` that is in the target."""

    column: str
    type: DataType
    value: WatermarkValue

    def encode(self) -> str:
        """The exact, readable text that the target's watermark table stores."""
        if isinstance(self.value, dt.date | dt.datetime):
            return self.value.isoformat()
        return str(self.value)

    @classmethod
    def decode(cls, column: str, type_json: str, text: str) -> Watermark:
        data_type = DataType.from_json(json.loads(type_json))
        value: WatermarkValue
        if data_type.kind in _INTEGERS:
            value = int(text)
        elif data_type.kind == "numeric":
            value = decimal.Decimal(text)
        elif data_type.kind == "date":
            value = dt.date.fromisoformat(text)
        elif data_type.kind in ("timestamp", "timestamp_tz"):
            value = dt.datetime.fromisoformat(text)
        else:
            value = text
        return cls(column, data_type, value)

    def type_json(self) -> str:
        return json.dumps(self.type.to_json(), sort_keys=True)

    def to_json(self) -> dict[str, Any]:
        return {"column": self.column, "type": self.type.to_json(), "value": self.encode()}


def require_watermark_type(column: str, data_type: DataType) -> None:
    """Raise DeclarationError for a type without an exact order, such as a float or JSON."""
    if data_type.kind not in ALLOWED_KINDS:
        raise DeclarationError(
            f"watermark_column {column!r} is {data_type}; a watermark needs an exact, ordered type",
            next_step="choose an integer, numeric, date, timestamp or text column",
        )


@dataclass(frozen=True)
class SourceRange:
    """The range of an incremental run: ``low <= column <= high``. Rows at ``low`` may already be loaded."""

    column: str
    low: Watermark | None
    high: Watermark | None = None
