"""The columns of a stream: those of its messages, and those that ``transform_sql`` computes from them.

`planning.stream_targets` plans how each target stores them.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ematix_flow.backends.base import LiveTable
from ematix_flow.backends.payloads.base import META_COLUMNS, PayloadSpec
from ematix_flow.backends.sql.scd2_conversion import VERSION_COLUMNS
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.sql_dialects import is_translated, to_spark_sql
from ematix_flow.engine.planning.sql_functions import register_functions, rewrite_calls
from ematix_flow.engine.planning.stream_drift import LOAD_COLUMNS
from ematix_flow.engine.spark.column_types import columns_of_frame, schema_ddl
from ematix_flow.errors import CannotConnect, SchemaMismatch, SourceFailed
from ematix_flow.plan.stream_capabilities import STREAM_VIEW
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DECLARED, REGISTERED = "declared by source_columns=", "by the schema registry"
_SUGGESTION = re.compile(r"Did you mean one of the following\? \[([^\]]+)\]")


def known_columns(
    spec: StreamSpec,
    connections: Connections,
    payloads: Sequence[PayloadSpec | None],
    pinned: tuple[ColumnSpec, ...] | None,
) -> tuple[tuple[ColumnSpec, ...] | None, str]:
    """The columns of a payload and where they come from; None if they must be inferred from messages."""
    from ematix_flow.backends.payloads.codecs import describe_subject

    if spec.columns is not None:
        return spec.columns.columns, DECLARED
    formats = {payload.format for payload in payloads if payload is not None}
    if formats == {"raw_bytes"} and (spec.transform_sql or len(spec.targets) > 1):
        return (
            ColumnSpec("value", DataType("bytes"), nullable=True),
        ), "payload_format raw_bytes: one column"
    if len(spec.sources) == 1 and payloads[0] is not None and spec.cdc is None:
        described = describe_subject(payloads[0])
        if described is not None:
            # a message of an older schema may lack fields of the newest
            return tuple(replace(c, nullable=True) for c in described), REGISTERED
    if spec.transform_sql is None and spec.window is None and None not in payloads:
        found = [
            _target_columns(spec, target, connections) for target in _reachable_targets(spec, connections)
        ]
        if found and all(columns is not None for columns in found):
            merged: dict[str, ColumnSpec] = {}
            for columns in found:
                for column in columns or ():
                    merged.setdefault(column.name, column)
            if len(found) > 1:  # each target checks its own constraints
                merged = {n: replace(c, nullable=True, primary_key=False) for n, c in merged.items()}
            return tuple(merged.values()), "those of the target"
    if pinned is not None:
        return pinned, "found in the first messages, and kept since"
    return None, "found in the first messages"


def known_source_columns(
    spec: StreamSpec,
    payloads: Sequence[PayloadSpec | None],
    pinned: Sequence[tuple[ColumnSpec, ...] | None],
) -> tuple[tuple[tuple[ColumnSpec, ...] | None, ...], str]:
    """The columns of each source of a join and where they come from; None if messages must tell them.

    Columns that the stream has used before come before those of a registry, because its state has them.
    """
    from ematix_flow.backends.payloads.codecs import describe_subject

    found: list[tuple[ColumnSpec, ...] | None] = []
    said: list[str] = []
    for source, payload, kept in zip(spec.sources, payloads, pinned, strict=True):
        described = None
        if payload is not None and kept is None and source.columns is None:
            described = describe_subject(payload)
        if source.columns is not None:
            found.append(source.columns.columns)
            said.append(f"{source.query} declared by columns=")
        elif kept is not None:
            found.append(kept)
            said.append(f"{source.query} as at the first start")
        elif described is not None:
            found.append(tuple(replace(c, nullable=True) for c in described))
            said.append(f"{source.query} {REGISTERED}")
        else:
            found.append(None)
            said.append(f"{source.query} found in the first messages")
    return tuple(found), "; ".join(said)


def with_joined_meta_columns(
    spec: StreamSpec, number: int, columns: tuple[ColumnSpec, ...]
) -> tuple[ColumnSpec, ...]:
    """The columns of a source of a join, and the metadata columns of its messages that are used."""
    from ematix_flow.backends.payloads.codecs import meta_columns

    join = spec.join
    assert join is not None
    side = spec.joined_sources.index(number)
    read, prefix = {join.event_time_column, *join.keys[side]}, join.prefixes[side]
    there = {column.name for column in columns}
    tables = {column.name for target in spec.targets if target.table for column in target.table.columns}
    wanted = [
        name
        for name in META_COLUMNS
        if name not in there
        and (
            name in read
            or f"{prefix}{name}" in tables
            or re.search(rf"(?<!\w){re.escape(prefix)}{name}(?!\w)", spec.transform_sql or "")
        )
    ]
    return (*columns, *meta_columns(wanted, numeric_positions=True))


def _reachable_targets(spec: StreamSpec, connections: Connections) -> list[StreamTargetSpec]:
    """The targets that can be reached. All must be, unless targets may fail alone."""
    if not spec.continue_on_target_failure:
        return list(spec.targets)
    there: list[StreamTargetSpec] = []
    for target in spec.targets:
        try:
            connections.backend(target.connection).check()
        except CannotConnect:  # its own load reports this and retries
            continue
        there.append(target)
    return there


def with_meta_columns(
    spec: StreamSpec, columns: tuple[ColumnSpec, ...], numeric_positions: bool
) -> tuple[ColumnSpec, ...]:
    """The columns, and the metadata columns of messages that the SQL or a declared table names."""
    from ematix_flow.backends.payloads.codecs import meta_columns

    there = {column.name for column in columns}
    tables = {column.name for target in spec.targets if target.table for column in target.table.columns}
    if spec.window is not None and spec.transform_sql is None:
        tables = set(spec.window.input_columns)
    wanted = [
        name
        for name in META_COLUMNS
        if name not in there
        and (name in tables or re.search(rf"(?<!\w){name}(?!\w)", spec.transform_sql or ""))
    ]
    return (*columns, *meta_columns(wanted, numeric_positions=numeric_positions))


def _target_columns(
    spec: StreamSpec, target: StreamTargetSpec, connections: Connections
) -> tuple[ColumnSpec, ...] | None:
    if target.table is not None:
        if spec.cdc is not None and spec.cdc.adds_columns:
            live = connections.target(target.connection).inspect(target.table)
            return with_added_columns(target.table, live, target.mode).columns
        return target.table.columns
    if target.is_broker or target.table_name is None:
        return None
    adopted = existing_table(target, connections)
    return adopted.columns if adopted is not None else None


def existing_table(target: StreamTargetSpec, connections: Connections) -> TableSpec | None:
    """An existing table as it is loaded: without load columns and columns that the database fills."""
    assert target.table_name is not None
    schema, name = target.table_name
    sink = connections.target(target.connection)
    stub = TableSpec(schema, name, (ColumnSpec(f"_{uuid.uuid4().hex}", DataType("text"), nullable=True),))
    live = sink.inspect(stub)
    if live is None:
        return None
    if target.mode == "merge" and set(VERSION_COLUMNS) <= {column.name for column in live.columns}:
        raise SchemaMismatch(
            f"{target.destination} has versions of rows (mode='scd2'), which mode='merge' would overwrite",
            state=f"{target.destination} is unchanged",
            next_step="load another table, or declare mode='scd2'",
        )
    known = tuple(column for column in live.columns if column.name not in _managed_columns(live, target.mode))
    if not known:
        raise SchemaMismatch(f"{target.destination} has no column that a stream could fill", where=None)
    strict = sink.inspect(TableSpec(schema, name, live.columns))
    needed = {c.name for c in (strict.columns if strict else ()) if not c.nullable}
    filled = {c.name for c in known if c.nullable and c.name in needed and c.name not in target.keys}
    columns = tuple(
        replace(column, nullable=column.name not in needed) for column in known if column.name not in filled
    )
    names = {column.name for column in live.columns}
    stamped = not isinstance(sink, RelationalTarget) or names.issuperset(LOAD_COLUMNS)
    unique = tuple(group for group in live.unique if set(group) <= {c.name for c in columns})
    return TableSpec(schema, name, columns, unique=unique, stamped=stamped)


def with_added_columns(
    table: TableSpec, live: LiveTable | None, mode: str, available: Collection[str] | None = None
) -> TableSpec:
    """The table with the columns of the live one that it does not declare: it got them for new fields."""
    if live is None:
        return table
    left_out = {*table.column_names, *_managed_columns(live, mode)}
    added = [
        ColumnSpec(column.name, column.type, nullable=True)
        for column in live.columns
        if column.name not in left_out and (available is None or column.name in available)
    ]
    return replace(table, columns=(*table.columns, *added))


def _managed_columns(live: LiveTable, mode: str) -> set[str]:
    from ematix_flow.spec.tables import DELETED_AT, IS_CURRENT, ROW_HASH, VALID_FROM, VALID_TO

    ours = {*LOAD_COLUMNS, DELETED_AT}
    if mode == "scd2":
        ours |= {VALID_FROM, VALID_TO, IS_CURRENT, ROW_HASH}
    return ours & {column.name for column in live.columns}


# ------------------------------------------------------------------ by transform_sql


def computed_columns(
    spec: StreamSpec, connections: Connections, columns: tuple[ColumnSpec, ...], lookups: Mapping[str, str]
) -> tuple[ColumnSpec, ...]:
    try:
        with connections.spark_errors(f"transform_sql of {spec.name!r}"):
            found = columns_of_frame(
                run_transform_sql_on_no_rows(spec, connections.spark(), columns, lookups)
            )
    except SourceFailed as error:  # the error for SQL that Spark cannot parse or resolve
        raise SchemaMismatch(
            error.what, next_step=suggest_sql_fix(error.what, spec.dialect)
        ) from error.__cause__
    seen: set[str] = set()
    for column in found:
        if column.name in seen:
            raise SchemaMismatch(
                f"transform_sql of {spec.name!r} yields column {column.name!r} twice",
                next_step="give one of them another name with AS",
            )
        seen.add(column.name)
    return tuple(ColumnSpec(c.name, c.type or DataType("text"), nullable=True) for c in found)


def suggest_sql_fix(said: str, dialect: str | None = None) -> str:
    """The next step for ``transform_sql`` that Spark refuses, with Spark's suggestion if it has one."""
    suggested = _SUGGESTION.search(said)
    if suggested:
        return f"correct transform_sql: Spark suggests {suggested[1]}"
    if "TABLE_OR_VIEW_NOT_FOUND" in said:
        return f"correct transform_sql: the stream is called {STREAM_VIEW} in it, and lookups by their names"
    if "DATATYPE_MISMATCH.BINARY_OP" in said and "| 0)" in said:  # the cast of sql_functions
        return "correct transform_sql: the function declares an integer there; CAST the argument to one"
    if "UNRESOLVED_ROUTINE" in said and is_translated(dialect):
        return (
            f"correct transform_sql: this function has no translation from {dialect}; use one that Spark has"
        )
    return "correct transform_sql"


def run_transform_sql_on_no_rows(
    spec: StreamSpec, spark: SparkSession, columns: tuple[ColumnSpec, ...], lookups: Mapping[str, str]
) -> DataFrame:
    """Run ``transform_sql`` over no rows, for its columns, in a session without other views."""
    ddl = schema_ddl(TableSpec(None, STREAM_VIEW, columns))
    return run_transform_sql(spec, spark.newSession().createDataFrame([], ddl), lookups)


def run_transform_sql(spec: StreamSpec, frame: DataFrame, lookups: Mapping[str, str]) -> DataFrame:
    """Run ``transform_sql`` over a frame. The frame's session must not be used for other views.

    ``lookups`` are global views by their names in the SQL.
    """
    assert spec.transform_sql is not None
    spark = frame.sparkSession
    frame.createOrReplaceTempView(STREAM_VIEW)
    for name, view in lookups.items():
        spark.table(f"global_temp.{view}").createOrReplaceTempView(name)
    register_functions(spark, spec.functions)
    return spark.sql(rewrite_calls(to_spark_sql(spec.transform_sql, spec.dialect), spec.functions))
