"""The range of an incremental read: from the target's watermark up to where no late row can come."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace

from ematix_flow.backends.base import Backend, BatchSource, LiveTable, SourceQuery, SparkSource
from ematix_flow.engine.connections import Connections
from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec, refuse_incremental_truncate
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import SourceRange, Watermark, require_watermark_type


def source_range(
    spec: PipelineSpec, table: TableSpec, target: TargetSpec, connections: Connections, live: LiveTable | None
) -> tuple[SourceRange | None, tuple[str, ...]]:
    """The range to read, and a warning if a missing table is loaded again from the beginning."""
    name = spec.source.watermark_column
    if name is None:
        return None, ()
    refuse_incremental_truncate(target.mode, spec.where)
    if name not in table.column_names:
        raise DeclarationError(
            f"watermark_column {name!r} is not a column of {table.label}."
            f"{did_you_mean(name, table.column_names)}",
            next_step="declare the column on the table: restarts read the position from there",
        )
    column = table.column(name)
    require_watermark_type(name, column.type)
    if column.normalizers:
        raise DeclarationError(
            f"watermark_column {name!r} has normalisers; the source is filtered by its raw value",
            next_step="normalise it in the source SQL instead",
        )
    low = connections.target(target.connection).watermark(spec.name, target.label, name)
    reloaded: tuple[str, ...] = ()
    if live is None and low is not None:
        reloaded = (
            f"{table.label} does not exist, and was loaded up to {low.encode()} before: it is loaded again "
            "from the beginning of the source",
        )
        low = None
    high = None
    if spec.source.lag_seconds:
        if column.type.kind not in ("timestamp", "timestamp_tz"):
            raise DeclarationError(f"lag= holds back by time, and watermark_column {name!r} is {column.type}")
        until = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=spec.source.lag_seconds)
        high = Watermark(
            name, column.type, until if column.type.kind == "timestamp_tz" else until.replace(tzinfo=None)
        )
    return SourceRange(name, low, high), reloaded


def bound_range(
    wanted: SourceRange | None,
    table: TableSpec,
    reader: BatchSource | SparkSource,
    sql: str,
    column_map: Mapping[str, str],
) -> tuple[SourceRange | None, tuple[str, ...], bool]:
    """The range below which no open transaction can commit, warnings, and whether the source gave a bound."""
    if wanted is None or not isinstance(reader, BatchSource):
        return wanted, (), False
    query = SourceQuery(sql, range_in_source_names(wanted, column_map))
    bound = reader.safe_read_bound(query, table.column(wanted.column).type)
    if bound is None:
        return wanted, (), False
    warnings = (bound.held_back_by,) if bound.held_back_by else ()
    return replace(wanted, high=replace(bound.high, column=wanted.column)), warnings, True


def late_writers_in(spec: PipelineSpec, source: Backend) -> str | None:
    """The source connection, if its open transactions may still commit rows below the new watermark."""
    late = spec.source.incremental and source.capabilities.concurrent_writers
    return source.connection.name if late else None


def late_warning(spec: PipelineSpec, late_writers_in: str | None) -> tuple[str, ...]:
    if late_writers_in is None or spec.source.lag_seconds:
        return ()
    return (
        f"a transaction that is still open in {late_writers_in} may commit rows below the watermark; "
        "lag= holds the read back by the time that such transactions take",
    )


def range_in_source_names(
    source_range: SourceRange | None, column_map: Mapping[str, str]
) -> SourceRange | None:
    """The range with the column's name in the result of the source SQL."""
    if source_range is None or source_range.column not in column_map:
        return source_range
    name = column_map[source_range.column]
    low, high = (mark and replace(mark, column=name) for mark in (source_range.low, source_range.high))
    return SourceRange(name, low, high)
