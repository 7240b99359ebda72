"""Decides whether files may be added to an Iceberg table as they are, without Spark.

The decision comes from lists of what is known to be harmless. Everything else needs Spark: partitions, sort
orders, row lineage, and properties that change how or where files are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.lake.table_format import TableField
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import NestedField

FORMAT_VERSIONS = (1, 2)
# Names that Iceberg or a catalog gives a meaning to. Other properties are a user's notes
_WITH_MEANING = ("write.", "commit.", "encryption.", "format", "schema.", "lock.", "gc.", "io", "engine.")
_HARMLESS: Mapping[str, str | None] = {  # those with a value are harmless only with it
    "commit.manifest-merge.enabled": None,
    "commit.manifest.min-count-to-merge": None,
    "commit.manifest.target-size-bytes": None,
    "commit.retry.max-wait-ms": None,
    "commit.retry.min-wait-ms": None,
    "commit.retry.num-retries": None,
    "commit.retry.total-timeout-ms": None,
    "commit.status-check.num-retries": None,
    "gc.enabled": None,
    "schema.name-mapping.default": None,  # our files have the ids themselves
    "write.delete.distribution-mode": None,
    "write.delete.isolation-level": None,
    "write.delete.mode": None,
    "write.distribution-mode": None,
    "write.format.default": "parquet",
    "write.merge.distribution-mode": None,
    "write.merge.isolation-level": None,
    "write.merge.mode": None,
    "write.metadata.compression-codec": "none",
    "write.metadata.delete-after-commit.enabled": None,
    "write.metadata.previous-versions-max": None,
    "write.object-storage.enabled": "false",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.page-row-limit": None,
    "write.parquet.page-size-bytes": None,
    "write.parquet.row-group-size-bytes": None,
    "write.spark.fanout.enabled": None,
    "write.summary.partition-limit": None,
    "write.target-file-size-bytes": None,
    "write.update.distribution-mode": None,
    "write.update.isolation-level": None,
    "write.update.mode": None,
    "write.wap.enabled": "false",
}
NEW_TABLE_PROPERTIES = {"write.parquet.compression-codec": "zstd"}  # as Spark
_TYPES = {
    "small_int": "int",
    "integer": "int",
    "big_int": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "text": "string",
    "string": "string",
    "json": "string",
    "jsonb": "string",
    "uuid": "string",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_tz": "timestamptz",
    "bytes": "binary",
}
_SPARK_TYPES = {
    "int": "int",
    "long": "bigint",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    **{name: name for name in ("float", "double", "boolean", "string", "date", "binary")},
}


def reason_for_spark(metadata: TableMetadata, columns: Sequence[ColumnSpec]) -> str | None:
    """Why files with these columns cannot be added as they are; None if they can."""
    if any(spec.fields for spec in metadata.partition_specs):
        return "the table is partitioned, or was"
    if metadata.sort_order().fields:
        return "the table has a sort order"
    return _property_reason(metadata.properties) or _column_reason(metadata.schema(), columns)


def plain_fields(metadata: TableMetadata) -> list[TableField] | None:
    """The columns with Spark's types; None if the table has anything that Spark may show differently."""
    fields = metadata.schema().fields
    types = [_spark_type(str(field.field_type)) for field in fields]
    if None in types:
        return None
    return [
        TableField(field.name, str(kind), not field.required)
        for field, kind in zip(fields, types, strict=True)
    ]


def table_schema(columns: Sequence[ColumnSpec]) -> Schema:
    """The schema of a new table."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    return Schema(
        *(
            NestedField(number, column.name, _type_name(column.type), required=not column.nullable)
            for number, column in enumerate(columns, 1)
        )
    )


def file_schema(schema: Schema, columns: Sequence[ColumnSpec]) -> pa.Schema:
    """The schema of Parquet files with these columns of the table: with its ids, types and NOT NULL."""
    import pyarrow as pa

    fields = {field.name: field for field in schema.fields}
    return pa.schema([_file_field(fields[column.name], column.type) for column in columns])


def _file_field(field: NestedField, data_type: DataType) -> pa.Field:
    import pyarrow as pa

    kind = pa.int32() if data_type.kind == "small_int" else data_type.arrow()
    ids = {"PARQUET:field_id": str(field.field_id)}
    return pa.field(field.name, kind, nullable=not field.required, metadata=ids)


def _property_reason(properties: Mapping[str, str]) -> str | None:
    for key, value in sorted(properties.items()):
        if not key.startswith(_WITH_MEANING):
            continue
        if key not in _HARMLESS or _HARMLESS[key] not in (None, str(value).lower()):
            return f"the table has the property {key} = {value}"
    return None


def _column_reason(schema: Schema, columns: Sequence[ColumnSpec]) -> str | None:
    there = {field.name: field for field in schema.fields}
    for field in schema.fields:
        if field.required and all(c.name != field.name or c.nullable for c in columns):
            return f"column {field.name!r} takes no nulls, and the load may have some"
    for column in columns:
        found = there.get(column.name)
        if found is None:
            return f"the table has no column {column.name!r}"
        if str(found.field_type) != _type_name(column.type):
            return f"column {column.name!r} is of type {found.field_type}, and the load has {column.type}"
    return None


def _type_name(data_type: DataType) -> str:
    if data_type.kind == "numeric":
        return f"decimal({data_type.precision}, {data_type.scale})"
    return _TYPES[data_type.kind]


def _spark_type(name: str) -> str | None:
    return name.replace(" ", "") if name.startswith("decimal(") else _SPARK_TYPES.get(name)
