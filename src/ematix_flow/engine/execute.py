"""The executor: walks a plan's stages, target by target.

It holds no policy. What to do stands in the plan; how a target commits is the target's own.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ematix_flow import faults
from ematix_flow.backends.base import (
    Applied,
    BatchSource,
    Load,
    SameDatabaseRows,
    SparkSource,
    StagedPart,
    StagedRows,
    Staging,
    TablePlan,
    Target,
)
from ematix_flow.engine import tasks
from ematix_flow.engine.frames import ranged, source_table_of
from ematix_flow.engine.progress import watch
from ematix_flow.engine.results import TargetResult
from ematix_flow.observe.listener import Listener
from ematix_flow.plan.definition import ApplyRows, CopyRows, Plan, PrepareTable, TargetPlan, TransformRows
from ematix_flow.plan.source_sql import source_reference
from ematix_flow.plan.spark_types import schema_ddl
from ematix_flow.plan.world import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ALREADY_APPLIED = "the ledger already holds this batch"


@dataclass
class _Progress:
    """What one target's execution has done so far."""

    staging: Staging | None = None
    parts: tuple[StagedPart, ...] = ()
    applied: Applied = field(default_factory=Applied)
    seconds: dict[str, float] = field(default_factory=dict)


def execute_target(
    plan: Plan,
    target_plan: TargetPlan,
    world: World,
    *,
    run_id: uuid.UUID,
    batch_key: str,
    listener: Listener,
    dry_run: bool = False,
) -> TargetResult:
    """Carry out one target's stages. On any failure the target is as it was, and staging is gone."""
    target = world.target(target_plan.target.connection)
    load = _load(plan, target_plan, run_id, batch_key, dry_run)
    progress = _Progress()
    runner = _Runner(plan, target_plan, target, load, world, listener, progress)
    try:
        for stage in target_plan.stages:
            runner.run(stage)
    finally:
        if progress.staging is not None:
            target.drop_staging(progress.staging)
            faults.point("staging.dropped")
    return _result(target_plan, progress)


class _Runner:
    """One method a stage."""

    def __init__(
        self,
        plan: Plan,
        target_plan: TargetPlan,
        target: Target,
        load: Load,
        world: World,
        listener: Listener,
        progress: _Progress,
    ) -> None:
        self.plan, self.target_plan, self.target, self.load = plan, target_plan, target, load
        self.world, self.listener, self.progress = world, listener, progress

    def run(self, stage: PrepareTable | CopyRows | TransformRows | ApplyRows) -> None:
        if isinstance(stage, PrepareTable):
            if not self.load.dry_run:
                with self.timed("prepare"):
                    self.target.change_table(self.target_plan.table, TablePlan())
                self.load = replace(self.load, changes=stage.changes)
        elif isinstance(stage, CopyRows):
            self.copy(stage)
        elif isinstance(stage, TransformRows):
            self.transform(stage)
        else:
            with self.timed("apply"):
                self.apply(stage)

    def copy(self, stage: CopyRows) -> None:
        spark = self.spark()
        source = self.world.source(source_reference(self.plan.pipeline))
        assert isinstance(source, BatchSource)
        table = self.target_plan.table
        wanted = {c.name: c.type for c in table.columns}
        with (
            self.timed("copy"),
            self.staged() as staging,
            source.split(stage.query, wanted, stage.tasks) as splits,
            watch(self.count) as folder,
        ):
            self.progress.parts = tasks.copy_splits(spark, splits, staging, table, folder)

    def transform(self, stage: TransformRows) -> None:
        spark = self.spark()
        source = self.world.source(source_reference(self.plan.pipeline))
        table = self.target_plan.table
        with self.timed("transform"), self.staged() as staging, watch(self.count) as folder:
            if isinstance(source, SparkSource):
                frame = ranged(source.frame(spark, stage.query.sql), stage.query.range)
                self.stage_frame(frame, stage, staging, folder)
                return
            read_as = source_table_of(stage.columns, table)
            wanted = {c.name: c.type for c in read_as.columns}
            with source.split(stage.query, wanted, stage.tasks) as splits:
                frame = tasks.read_splits(spark, splits, schema_ddl(read_as), read_as)
                self.stage_frame(frame, stage, staging, folder)

    def stage_frame(self, frame: DataFrame, stage: TransformRows, staging: Staging, folder: str) -> None:
        if stage.projection is not None:
            frame.createOrReplaceTempView(stage.view)
            frame = frame.sparkSession.sql(stage.projection)
        if stage.single_part:
            frame = frame.coalesce(1)
        self.progress.parts = tasks.stage_frame(frame, staging, self.target_plan.table, folder)

    def apply(self, stage: ApplyRows) -> None:
        if stage.sql is not None:
            rows: SameDatabaseRows | StagedRows = SameDatabaseRows(stage.sql)
        else:
            assert self.progress.staging is not None
            rows = StagedRows(self.progress.staging, self.progress.parts)
        self.progress.applied = self.target.apply(self.load, rows)

    # ------------------------------------------------------------------

    def spark(self) -> SparkSession:
        with self.timed("start Spark"):
            return self.world.spark()

    def count(self, rows: int) -> None:
        self.listener.rows(self.load.target, rows)

    @contextmanager
    def staged(self) -> Iterator[Staging]:
        staging = self.target.create_staging(self.load, self.target_plan.table.arrow_schema())
        self.progress.staging = staging
        faults.point("staging.created")
        with self.world.spark_errors(f"loading {self.load.target}"):
            yield staging
        faults.point("staging.loaded")

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        self.listener.stage_started(self.load.target, name)
        started = time.monotonic()
        yield
        self.progress.seconds[name] = seconds = time.monotonic() - started
        self.listener.stage_finished(self.load.target, name, seconds)


def _load(plan: Plan, target_plan: TargetPlan, run_id: uuid.UUID, batch_key: str, dry_run: bool) -> Load:
    target = target_plan.target
    return Load(
        pipeline=plan.pipeline.name,
        target=target.label,
        table=target_plan.table,
        mode=target.mode,
        run_id=run_id,
        loaded_at=dt.datetime.now(dt.timezone.utc),
        batch_key=None if target_plan.range is not None else batch_key,
        range=target_plan.range,
        max_shrink=target.max_shrink,
        allow_empty=target.allow_empty,
        files=target.files,
        partition_by=target.partition_by,
        dry_run=dry_run,
    )


def _result(plan: TargetPlan, progress: _Progress) -> TargetResult:
    applied = progress.applied
    reason = None
    if applied.duplicate:
        reason = ALREADY_APPLIED
    elif plan.range is not None and not applied.rows_inserted:
        reason = "nothing new since the last run"
    low = plan.range.low if plan.range else None
    return TargetResult(
        target=plan.target.label,
        mode=plan.target.mode,
        path=plan.path.value,
        status="skipped" if reason else "succeeded",
        reason=reason,
        rows_read=applied.rows_in,
        rows_inserted=applied.rows_inserted,
        rows_updated=applied.rows_updated,
        rows_deleted=applied.rows_deleted,
        rows_unchanged=applied.rows_unchanged,
        source_from=low.encode() if low else None,
        source_to=applied.watermark.encode() if applied.watermark else None,
        seconds=tuple(progress.seconds.items()),
    )
