"""What users import to type columns: ``from ematix_flow.types import BigInt, String``."""

from __future__ import annotations

from ematix_flow.api.types import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    Column,
    ColumnType,
    Date,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
)

__all__ = [
    "JSON",
    "JSONB",
    "UUID",
    "BigInt",
    "Boolean",
    "Bytes",
    "Column",
    "ColumnType",
    "Date",
    "Double",
    "Float",
    "Integer",
    "Numeric",
    "SmallInt",
    "String",
    "Text",
    "Timestamp",
    "TimestampTZ",
]
