"""Driving a target through random histories as the executor does, and reading its tables back."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from ematix_flow import fault_points
from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import Load, LoadResult, StagedRows, TablePlan
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.spec.tables import BATCH_ID, LOADED_AT, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.strategies.sql import column, table_as
from ematix_flow.testing.loads import TARGET, new_load
from tests.property.strategy_histories import Polling, Scenario
from tests.property.strategy_model import Append, ByEventTime, Model, Row, plain


@dataclass
class Database:
    """One target for many examples; each has its own pipeline and leaves no table behind."""

    target: RelationalTarget
    numbers: Iterator[int] = field(default_factory=itertools.count)
    planned: TableSpec | None = None  # what the example's table is known to be like

    def __post_init__(self) -> None:
        self.target.change_table(_ANY, TablePlan())  # ledger and watermarks

    # -------------------------------------------------------------- examples

    def check(self, scenario: Scenario) -> None:
        """After each batch the whole table equals the model's."""
        model = scenario.model()
        with self._example(scenario.wide) as pipeline:
            for number, batch in enumerate(scenario.batches):
                if batch.wide:
                    model.spec, model.matching = scenario.wide, scenario.wide_matching
                load = new_load(
                    model.spec,
                    scenario.mode,
                    pipeline=pipeline,
                    matching=model.matching,
                    loaded_at=batch.now,
                    batch_key=f"slot:{number}",
                    max_shrink=1.0,
                    allow_empty=True,
                )
                applied = self._run(load, list(batch.rows), batch.crash_at)
                model.load(list(batch.rows), batch.now)
                if isinstance(model, ByEventTime) and applied is not None:
                    unchanged = len(batch.rows) - model.brought - model.outranked
                    counted = (applied.rows.read, applied.rows.unchanged, applied.rows.outranked)
                    assert counted == (len(batch.rows), unchanged, model.outranked), f"batch {number}"
                self.compare(model, f"after batch {number}")
                if batch.repeat == "batch":
                    assert self._apply(_another(load), list(batch.rows)).duplicate
                elif batch.repeat == "run":
                    self._apply(replace(_another(load), batch_key=f"again:{number}"), list(batch.rows))
                    model.load(list(batch.rows), batch.now)
                if batch.repeat:
                    self.compare(model, f"after batch {number} came again")

    def poll(self, polling: Polling) -> None:
        """A growing source, read from the watermark."""
        model, source, low = polling.model(), list[Row](), None
        with self._example(polling.table) as pipeline:
            for number, growth in enumerate(polling.growths):
                source += growth.rows
                for crash_at in (growth.crash_at, None) if growth.crash_at else (None,):
                    mark = self.target.watermark(pipeline, TARGET, polling.column)
                    assert (mark.value if mark else None) == low
                    read = [row for row in source if low is None or row[polling.column] >= low]
                    load = new_load(
                        polling.table,
                        polling.mode,
                        pipeline=pipeline,
                        matching=polling.matching,
                        loaded_at=growth.now,
                        batch_key=None,
                        range=SourceRange(polling.column, mark),
                    )
                    if crash_at is not None and not self._crash(load, read, crash_at):
                        continue
                    if crash_at is None:
                        self._apply(load, read)
                    if isinstance(model, Append):
                        model.load_from(read, polling.column, low)
                    else:
                        model.load(read, growth.now)
                    low = max([low] * (low is not None) + [row[polling.column] for row in read], default=None)
                self.compare(model, f"after read {number}")

    # -------------------------------------------------------------- loads

    def _run(self, load: Load, rows: list[Row], crash_at: str | None) -> LoadResult | None:
        """Load once, or twice after a crash. Returns the counts, unless the crashed load had committed."""
        committed = crash_at is not None and self._crash(load, rows, crash_at)
        applied = self._apply(_another(load) if crash_at else load, rows)
        assert applied.duplicate == committed
        return None if committed else applied

    def _crash(self, load: Load, rows: list[Row], point: str) -> bool:
        """Whether the load had committed. A load that has nothing to do may not come as far as the point."""
        try:
            with fault_points.inject(point, "crash"):
                self._apply(load, rows)
        except fault_points.InjectedCrash:
            return point == "apply.after_commit"
        return True

    def _apply(self, load: Load, rows: list[Row]) -> LoadResult:
        target, table = self.target, load.table
        plan = TablePlan()
        if table != self.planned:
            plan = target.plan_table(table, target.inspect(table))
            assert not plan.differences
        staging = target.create_staging(load, table.arrow_schema())
        batches = []
        if rows:
            batch = pa.RecordBatch.from_pylist(rows, schema=table.arrow_schema())
            batches = [cast_batch(batch, table)]
        try:
            part = staging.write("part0", iter(batches))
            changed = replace(load, plan=replace(load.plan, table_plan=plan))
            applied = target.apply(changed, StagedRows(staging, (part,)))
            self.planned = table
            return applied
        finally:
            target.drop_staging(staging)

    # -------------------------------------------------------------- tables

    @contextmanager
    def _example(self, table: TableSpec) -> Iterator[str]:
        self.planned = None
        try:
            yield f"example {next(self.numbers)}"
        finally:
            for made in (table, table.companion()):
                if made is not None:
                    self.drop(made)

    def drop(self, table: TableSpec) -> None:
        name = self.target.dialect.table(table.schema, table.name)
        self.target.run_sql(f"DROP TABLE IF EXISTS {self.target.dialect.render(name)}")

    def compare(self, model: Model, when: str) -> None:
        expected = model.table()
        columns = [c for c in model.spec.with_load_columns().columns if c.name not in (LOADED_AT, BATCH_ID)]
        dialect = self.target.dialect
        # JSON as text: a driver may take its null for SQL's
        chosen = [
            exp.cast(column(c.name, "t"), "TEXT")
            if c.type.kind == "jsonb"
            else dialect.as_fetchable(column(c.name, "t"), c.type)
            for c in columns
        ]
        name = table_as(dialect.table(model.spec.schema, model.spec.name), "t")
        with self.target.read_session() as session:
            if self.target.read_live_table(session, model.spec) is None:
                assert not expected, when
                return
            found = session.fetch(dialect.render(exp.select(*chosen).from_(name)))
        shown = [
            {c.name: _shown(dialect.to_python(v, c.type), c) for c, v in zip(columns, row, strict=True)}
            for row in found
        ]
        wanted = [{c.name: _shown(row.get(c.name), c) for c in columns} for row in expected]
        assert sorted(shown, key=repr) == sorted(wanted, key=repr), when


_ANY = TableSpec("prop", "t", (ColumnSpec("id", DataType("integer")),))


def _another(load: Load) -> Load:
    return replace(load, run_id=new_load(load.table).run_id)


def _shown(value: Any, spec: ColumnSpec) -> Any:
    """In one form, so that rows can be sorted and compared."""
    if spec.type.kind == "jsonb" and value is not None:
        return json.dumps(json.loads(value))
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.timezone.utc)
    if isinstance(value, float):
        return plain(value + 0.0)
    return value
