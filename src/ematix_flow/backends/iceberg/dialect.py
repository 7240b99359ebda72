"""Spark's SQL as Iceberg takes it: fewer types, and fewer changes of a table."""

from __future__ import annotations

from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.spec.types import DataType


class IcebergDialect(LakeDialect):
    """Iceberg's smallest whole number is INT."""

    def native_type(self, data_type: DataType) -> str:
        return "INT" if data_type.kind == "small_int" else super().native_type(data_type)


def can_widen(live: DataType, declared: DataType) -> bool:
    """Whether Iceberg changes the type of a column so: without touching a file."""
    if declared.kind == "numeric":
        return live.kind == "numeric" and live.scale == declared.scale
    return (live.kind, declared.kind) in (("integer", "big_int"), ("float", "double"))
