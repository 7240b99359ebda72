"""Loads a target as the executor does, but in one process and without Spark."""

from __future__ import annotations

import datetime as dt
import pickle
import uuid
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import BatchTarget, Load, LoadPlan, LoadResult, StagedRows, TablePlan
from ematix_flow.spec.pipelines import Mode
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.strategies.matching import Matching

PIPELINE, TARGET = "contract", "contract:target"
_PLAN_FIELDS = {field.name for field in fields(LoadPlan)}


def new_load(table: TableSpec, mode: Mode = "append", **changes: Any) -> Load:
    """A load with a new run id and batch key. ``changes`` are fields of `Load` or `LoadPlan`."""
    run_id = uuid.uuid4()
    options = {name: changes.pop(name) for name in _PLAN_FIELDS & changes.keys()}
    values: dict[str, Any] = {
        "pipeline": PIPELINE,
        "target": TARGET,
        "run_id": run_id,
        "loaded_at": dt.datetime.now(dt.timezone.utc),
        "batch_key": f"run:{run_id}",
    }
    return Load(plan=LoadPlan(table, mode, **options), **{**values, **changes})


def prepare(target: BatchTarget, table: TableSpec, matching: Matching | None = None) -> None:
    """Create the control tables and the table."""
    target.change_table(table, target.plan_table(table, target.inspect(table), matching))


def load_rows(
    target: BatchTarget,
    load: Load,
    rows: Sequence[dict[str, Any]],
    *,
    parts: int = 1,
    drop: bool = True,
    change: bool = True,
) -> LoadResult:
    """Stage the rows in ``parts`` parts and apply them. The staging handle is pickled, as for a task.

    Without ``change`` the load's own transaction changes the table.
    """
    import pyarrow as pa

    if change:
        prepare(target, load.table, load.plan.matching if load.plan.matching.keys else None)
    else:
        target.change_table(load.table, TablePlan())
    staging = target.create_staging(load, load.plan.staged.arrow_schema())
    in_task = pickle.loads(pickle.dumps(staging))
    staged = []
    for number in range(parts):
        share = list(rows[number::parts])
        has_more = load.plan.stages_older or load.plan.names_messages
        given = load.plan.staged if has_more else load.table
        batch = pa.RecordBatch.from_pylist(share, schema=_nullable_table(given))
        staged.append(
            in_task.write(f"part{number}", iter([cast_batch(batch, load.plan.staged)] if share else []))
        )
    try:
        return target.apply(load, StagedRows(staging, tuple(staged)))
    finally:
        if drop:
            target.drop_staging(staging)


def load_incremental(
    target: BatchTarget, table: TableSpec, column: str, rows: Sequence[dict[str, Any]]
) -> LoadResult:
    """One incremental run over a source that holds ``rows``: read from the watermark on, then apply."""
    low = target.watermark(PIPELINE, TARGET, column)
    read = [row for row in rows if low is None or row[column] >= low.value]
    load = new_load(table, range=SourceRange(column, low), batch_key=None)
    return load_rows(target, load, read)


def _nullable_table(table: TableSpec) -> Any:
    import pyarrow as pa

    return pa.schema([pa.field(c.name, c.type.arrow(), True) for c in table.columns])
