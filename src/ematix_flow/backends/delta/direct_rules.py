"""Decides whether files may be added to a Delta table as they are, without Spark.

The decision comes from lists of what is known to be harmless. Everything else needs Spark, which checks the
rows and computes what the table wants: constraints, generated columns, column mapping, deletion vectors and
features of later versions of Delta.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.lake.table_format import TableField
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema

_READER_FEATURES = frozenset({"timestampNtz"})
# What each of the others does is visible in the table's properties or columns, which are checked as well
_WRITER_FEATURES = frozenset(
    {"appendOnly", "invariants", "timestampNtz", "checkConstraints", "changeDataFeed", "generatedColumns"}
)
_NUMBERED_WRITER, _LISTED_WRITER, _NUMBERED_READER, _LISTED_READER = 4, 7, 1, 3
_OFF = "false"
_UNMAPPED = re.compile(r"[ ,;{}()\n\t=]")
# Properties that change nothing in how files are added. Those with a value are harmless only with it.
_HARMLESS: Mapping[str, str | None] = {
    "delta.appendOnly": _OFF,
    "delta.autoOptimize": _OFF,
    "delta.autoOptimize.autoCompact": _OFF,
    "delta.autoOptimize.optimizeWrite": _OFF,
    "delta.checkpoint.writeStatsAsJson": None,
    "delta.checkpoint.writeStatsAsStruct": None,
    "delta.checkpointInterval": None,
    "delta.columnMapping.mode": "none",
    "delta.dataSkippingNumIndexedCols": None,
    "delta.deletedFileRetentionDuration": None,
    "delta.enableChangeDataFeed": _OFF,
    "delta.enableDeletionVectors": _OFF,
    "delta.enableExpiredLogCleanup": None,
    "delta.enableInCommitTimestamps": _OFF,
    "delta.enableRowTracking": _OFF,
    "delta.enableTypeWidening": _OFF,
    "delta.isolationLevel": None,
    "delta.logRetentionDuration": None,
    "delta.minReaderVersion": None,
    "delta.minWriterVersion": None,
}
_HARMLESS_TO_APPENDS = ("delta.appendOnly", "delta.enableChangeDataFeed")
_HARMLESS_OF_COLUMNS = frozenset({"comment"})
_TYPES = {
    "small_int": "short",
    "integer": "integer",
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
    "timestamp": "timestamp_ntz",
    "timestamp_tz": "timestamp",
    "bytes": "binary",
}
_SPARK_TYPES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    **{name: name for name in ("float", "double", "boolean", "string", "date", "binary")},
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}


def reason_for_spark(table: DeltaTable, columns: Sequence[ColumnSpec], *, replaces: bool) -> str | None:
    """Why files with these columns cannot be added as they are; None if they can.

    ``replaces``: they replace all files of the table.
    """
    metadata = table.metadata()
    if metadata.partition_columns:
        return f"the table is partitioned by {', '.join(metadata.partition_columns)}"
    return (
        _feature_reason(table.protocol())
        or _property_reason(metadata.configuration, replaces)
        or _column_reason(json.loads(table.schema().to_json())["fields"], columns)
    )


def reason_to_create_by_spark(columns: Sequence[ColumnSpec]) -> str | None:
    """Why Spark must create a table with these columns; None if delta-rs can."""
    mapped = [column.name for column in columns if needs_mapping(column.name)]
    return f"the name of column {mapped[0]!r} needs column mapping" if mapped else None


def needs_mapping(name: str) -> bool:
    """Whether Delta keeps such a column under another name in the files."""
    return bool(_UNMAPPED.search(name))


def table_schema(columns: Sequence[ColumnSpec]) -> Schema:
    """The schema of a new table. Its columns take nulls: staging refuses those of required columns."""
    from deltalake import Field, Schema
    from deltalake.schema import PrimitiveType

    return Schema([Field(column.name, PrimitiveType(_type_name(column.type))) for column in columns])


def plain_fields(table: DeltaTable) -> list[TableField] | None:
    """The columns with Spark's types; None if the table has anything that Spark may show differently."""
    fields = json.loads(table.schema().to_json())["fields"]
    if reason_for_spark(table, (), replaces=False) is not None:
        return None
    types = [_SPARK_TYPES.get(str(f["type"]), str(f["type"]).replace(" ", "")) for f in fields]
    if not all(kind in _SPARK_TYPES.values() or kind.startswith("decimal(") for kind in types):
        return None
    return [
        TableField(field["name"], kind, field["nullable"]) for field, kind in zip(fields, types, strict=True)
    ]


def _feature_reason(protocol: Any) -> str | None:
    for what, version, numbered, listed, features, known in (
        (
            "reader",
            protocol.min_reader_version,
            _NUMBERED_READER,
            _LISTED_READER,
            protocol.reader_features,
            _READER_FEATURES,
        ),
        (
            "writer",
            protocol.min_writer_version,
            _NUMBERED_WRITER,
            _LISTED_WRITER,
            protocol.writer_features,
            _WRITER_FEATURES,
        ),
    ):
        unknown = sorted(set(features or ()) - known)
        if unknown:
            return f"the table has the {what} feature {', '.join(unknown)}"
        if version > numbered and version != listed:
            return f"the table has {what} version {version}"
    return None


def _property_reason(properties: Mapping[str, str | None], replaces: bool) -> str | None:
    for key, value in sorted(properties.items()):
        if not key.startswith("delta.") or (key in _HARMLESS_TO_APPENDS and not replaces):
            continue
        if key not in _HARMLESS or _HARMLESS[key] not in (None, str(value).lower()):
            return f"the table has the property {key} = {value}"
    return None


def _column_reason(fields: Sequence[Mapping[str, Any]], columns: Sequence[ColumnSpec]) -> str | None:
    there = {field["name"]: field for field in fields}
    for name, field in there.items():
        rules = sorted(set(field["metadata"]) - _HARMLESS_OF_COLUMNS)
        if rules:
            return f"column {name!r} has {', '.join(rules)}"
        if not field["nullable"] and all(c.name != name or c.nullable for c in columns):
            return f"column {name!r} takes no nulls, and the load may have some"
    for column in columns:
        found = there.get(column.name)
        if found is None:
            return f"the table has no column {column.name!r}"
        if found["type"] != _type_name(column.type):
            return f"column {column.name!r} is of type {found['type']}, and the load has {column.type}"
    return None


def _type_name(data_type: DataType) -> str:
    if data_type.kind == "numeric":
        return f"decimal({data_type.precision},{data_type.scale})"
    return _TYPES[data_type.kind]
