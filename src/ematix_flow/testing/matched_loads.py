"""Loads merge and scd2 targets without Spark, staged or within one database, with the planner's defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlglot import exp

from ematix_flow.backends.base import BatchTarget, LoadResult, SameDatabaseRows, SparkTarget
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.spec.pipelines import Mode
from ematix_flow.spec.tables import ColumnSpec, TableContents, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.sql import column
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load, prepare

PATHS = ("staged", "same_db")


def table_and_matching(table: TableSpec, mode: Mode, **options: Any) -> tuple[TableSpec, Matching]:
    """The table with its extra columns, and the options of merge or scd2 with all defaults."""
    keys = table.merge_keys or table.primary_key
    event = options.get("event")
    values = tuple(n for n in table.column_names if n not in keys)
    update = options.get("update", values)
    compare = tuple(n for n in values if n != event) if mode == "scd2" else update
    keeps: TableContents
    if mode == "scd2":
        keeps = "versions" if event is None else "events"
    else:
        keeps = "soft_deletes" if options.get("deletes") == "soft" else "rows"
    given = {"keys": keys, "compare": compare, "update": update, "order": event} | options
    return replace(table, keeps=keeps, merge_keys=keys), Matching(**given)


def load_matched(
    target: BatchTarget,
    table: TableSpec,
    mode: Mode,
    rows: Sequence[dict[str, Any]],
    *,
    path: str = "staged",
    load: dict[str, Any] | None = None,
    **options: Any,
) -> LoadResult:
    """One load. ``options`` are fields of `Matching`, ``load`` fields of `Load`."""
    stored, matching = table_and_matching(table, mode, **options)
    made = new_load(stored, mode, matching=matching, **(load or {}))
    if path == "staged":
        return load_rows(target, made, rows)
    if isinstance(target, SparkTarget):
        pytest.skip("never: such a target computes no rows by itself, Spark does")
    assert isinstance(target, RelationalTarget)
    source = TableSpec(
        table.schema, f"{table.name}_source", tuple(_nullable_column(c) for c in table.columns)
    )
    refill = new_load(source, "truncate", pipeline="source", max_shrink=1.0, allow_empty=True)
    load_rows(target, refill, rows)
    prepare(target, stored, matching)
    select = exp.select(*[column(n) for n in table.column_names])
    sql = target.dialect.render(select.from_(target.dialect.table(source.schema, source.name)))
    return target.apply(made, SameDatabaseRows(sql))


def load_matched_incremental(
    target: BatchTarget,
    table: TableSpec,
    mode: Mode,
    mark: str,
    rows: Sequence[dict[str, Any]],
    **options: Any,
) -> LoadResult:
    """One incremental run over a source that holds ``rows``."""
    low = target.watermark(PIPELINE, TARGET, mark)
    read = [row for row in rows if low is None or row[mark] >= low.value]
    load = {"range": SourceRange(mark, low), "batch_key": None}
    return load_matched(target, table, mode, read, load=load, **{"order": mark, **options})


def table_of(name: str, keys: dict[str, DataType], values: dict[str, DataType]) -> TableSpec:
    """A table with a primary key and nullable values."""
    columns = [ColumnSpec(k, t, primary_key=True) for k, t in keys.items()]
    columns += [ColumnSpec(v, t, nullable=True) for v, t in values.items()]
    return TableSpec("contract", name, tuple(columns))


def _nullable_column(spec: ColumnSpec) -> ColumnSpec:
    return replace(spec, primary_key=False, nullable=True)
