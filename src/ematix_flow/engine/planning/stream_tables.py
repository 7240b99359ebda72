"""The table of a stream's target before it is compared with the live one: its columns and its keys."""

from __future__ import annotations

from dataclasses import replace

from ematix_flow.errors import SchemaMismatch, did_you_mean
from ematix_flow.spec.pipelines import PipelineSpec, SourceSpec, TargetSpec
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec
from ematix_flow.spec.tables import ColumnSpec, TableSpec


def new_table(target: StreamTargetSpec, columns: tuple[ColumnSpec, ...]) -> TableSpec:
    """A new table with the columns of the stream."""
    bare = tuple(replace(column, nullable=True, primary_key=False, normalizers=()) for column in columns)
    if target.table_name is not None:
        schema, name = target.table_name
        return TableSpec(schema, name, bare)
    return TableSpec(None, target.prefix or "rows", bare)


def with_required_keys(table: TableSpec, keys: tuple[str, ...]) -> TableSpec:
    columns = tuple(replace(c, nullable=False) if c.name in keys else c for c in table.columns)
    return replace(table, columns=columns)


def require_columns(target: StreamTargetSpec, table: TableSpec, available: set[str]) -> None:
    names = [column.name for column in table.columns]
    for column in table.columns:
        if column.name not in available and (target.table is not None or not column.nullable):
            raise SchemaMismatch(
                f"{table.label} has a column {column.name!r} that the stream does not bring."
                f"{did_you_mean(column.name, sorted(available))}",
                next_step="select it in transform_sql, or declare the column nullable in source_columns=",
            )
    for key in target.keys:
        if key not in names:
            raise SchemaMismatch(
                f"keys= names {key!r}, which is not a column of {table.label}.{did_you_mean(key, names)}"
            )
    event = target.event_timestamp_column
    if event is not None and event not in names:
        raise SchemaMismatch(
            f"event_timestamp_column= names {event!r}, which is not a column of {table.label}."
            f"{did_you_mean(event, names)}"
        )


def as_batch_pipeline(spec: StreamSpec) -> PipelineSpec:
    """The stream as a batch pipeline, for functions that expect one."""
    return PipelineSpec(spec.name, spec.name, (), SourceSpec(), on_drift=spec.on_drift, where=spec.where)


def as_batch_target(target: StreamTargetSpec, table: TableSpec) -> TargetSpec:
    """The target as a batch target."""
    return TargetSpec(
        connection=target.connection,
        table=table,
        mode=target.mode,
        prefix=target.prefix,
        keys=target.keys,
        update_columns=target.update_columns,
        compare_columns=target.compare_columns,
        event_timestamp_column=target.event_timestamp_column,
        partition_by=target.partition_by,
        files=target.files,
    )
