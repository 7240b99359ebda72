"""Spark SQL for Iceberg, which has fewer types and fewer table changes."""

from __future__ import annotations

from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.spec.types import DataType


class IcebergDialect(LakeDialect):
    """The dialect of Iceberg: its smallest whole number is INT."""

    def native_type(self, data_type: DataType) -> str:
        return "INT" if data_type.kind == "small_int" else super().native_type(data_type)


def can_widen(live: DataType, declared: DataType) -> bool:
    """Whether Iceberg can change the column's type like this without rewriting files."""
    if declared.kind == "numeric":
        return live.kind == "numeric" and live.scale == declared.scale
    return (live.kind, declared.kind) in (("integer", "big_int"), ("float", "double"))
