"""The executor: carries out the stages of a target's plan.

It makes no decisions: the plan says what to do, and the target knows how to commit. `several_targets` loads
more than one target from one read.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ematix_flow import fault_points
from ematix_flow.backends.base import (
    BatchSource,
    Load,
    LoadResult,
    LoadRows,
    SameDatabaseRows,
    SparkSource,
    StagedPart,
    StagedRows,
    Staging,
    TablePlan,
)
from ematix_flow.backends.incremental_loads import made_no_progress
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.execution import spark_tasks
from ematix_flow.engine.execution.progress import watch_progress
from ematix_flow.engine.execution.source_frames import source_frame
from ematix_flow.engine.planning.source_reader import source_reader
from ematix_flow.errors import SourceFailed
from ematix_flow.observe.listener import START_SPARK, Listener, Progress
from ematix_flow.plan.definition import Plan
from ematix_flow.plan.results import TargetResult
from ematix_flow.plan.stages import CopyRows, PrepareControlTables, Stage, TargetPlan, TransformRows
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ALREADY_APPLIED = "the ledger already holds this batch"


def execute_target(
    plan: Plan,
    target_plan: TargetPlan,
    connections: Connections,
    *,
    run_id: uuid.UUID,
    batch_key: str,
    listener: Listener,
    dry_run: bool = False,
) -> TargetResult:
    """Carry out one target's stages. After a failure the target is unchanged and staging is dropped."""
    load = build_load(plan, target_plan, run_id, batch_key, dry_run)
    run = TargetRun(plan, target_plan, load, connections, listener)
    try:
        for stage in target_plan.stages:
            run.run_stage(stage)
    finally:
        run.drop_staging()
    return run.result()


class TargetRun:
    """The run of one target: its staging and progress, and one method for each stage."""

    def __init__(
        self, plan: Plan, target_plan: TargetPlan, load: Load, connections: Connections, listener: Listener
    ) -> None:
        self.plan, self.target_plan, self.load = plan, target_plan, load
        self.connections, self.listener = connections, listener
        self.target = connections.target(target_plan.target.connection).with_files(target_plan.target.files)
        self.staging: Staging | None = None
        self.parts: tuple[StagedPart, ...] = ()
        self.applied = LoadResult()
        self.seconds: dict[str, float] = {}

    @property
    def table(self) -> TableSpec:
        return self.target_plan.table

    def run_stage(self, stage: Stage) -> None:
        if isinstance(stage, PrepareControlTables):
            self.prepare_control_tables()
        elif isinstance(stage, CopyRows):
            self.copy_rows(stage)
        elif isinstance(stage, TransformRows):
            self.transform_rows(stage)
        else:
            self.apply_rows(stage.sql)

    def prepare_control_tables(self) -> None:
        if not self.load.dry_run:
            with self.time_stage("prepare"):
                self.target.change_table(self.table, TablePlan())

    def copy_rows(self, stage: CopyRows) -> None:
        spark = self.spark()
        source = open_batches(self.plan, self.connections)
        wanted, staged = {c.name: c.type for c in self.table.columns}, self.load.plan.staged
        with (
            self.time_stage("copy"),
            self.open_staging() as staging,
            source.split(stage.query, wanted, stage.tasks) as splits,
            watch_progress(self.report_progress, source.expected_rows(stage.query)) as folder,
        ):
            self.parts = spark_tasks.copy_splits(spark, splits, staging, staged, folder)

    def transform_rows(self, stage: TransformRows) -> None:
        spark, source = self.spark(), open_source(self.plan, self.connections)
        with (
            self.time_stage("transform"),
            self.open_staging() as staging,
            source_frame(spark, source, stage.query, stage.columns, [self.table], stage.tasks) as frame,
        ):
            self.stage_frame(frame, stage, staging)

    def stage_frame(self, frame: DataFrame, stage: TransformRows, staging: Staging) -> None:
        if stage.projection is not None:
            frame.createOrReplaceTempView(stage.view)
            frame = frame.sparkSession.sql(stage.projection)
        if stage.repartition_by:
            columns = [f"`{name.replace('`', '``')}`" for name in stage.repartition_by]
            frame = frame.repartition(stage.max_parts or stage.tasks, *columns)
        elif stage.max_parts is not None:
            frame = frame.coalesce(stage.max_parts)
        with watch_progress(self.report_progress) as folder:
            self.parts = spark_tasks.stage_frame(frame, staging, self.load.plan.staged, folder)

    def apply_rows(self, sql: str | None) -> None:
        """``sql`` returns the rows if the database computes them itself."""
        if sql is not None:
            rows: LoadRows = SameDatabaseRows(sql)
        else:
            assert self.staging is not None
            rows = StagedRows(self.staging, self.parts)
        with self.time_stage("apply"):
            self.applied = self.target.apply(self.load, rows)

    # ------------------------------------------------------------------

    def spark(self) -> SparkSession:
        with self.time_stage(START_SPARK):
            return self.connections.spark()

    def report_progress(self, progress: Progress) -> None:
        self.listener.progress(self.load.target, progress)

    def create_staging(self) -> Staging:
        staging = self.target.create_staging(self.load, self.load.plan.staged.arrow_schema())
        self.staging = staging
        fault_points.point("staging.created")
        return staging

    @contextmanager
    def open_staging(self) -> Iterator[Staging]:
        staging = self.create_staging()
        with self.connections.spark_errors(f"loading {self.load.target}"):
            yield staging
        fault_points.point("staging.loaded")

    def drop_staging(self) -> None:
        if self.staging is not None:
            staging, self.staging = self.staging, None
            self.target.drop_staging(staging)
            fault_points.point("staging.dropped")

    @contextmanager
    def time_stage(self, name: str) -> Iterator[None]:
        self.listener.stage_started(self.load.target, name)
        started = time.monotonic()
        yield
        self.record_seconds(name, time.monotonic() - started)

    def record_seconds(self, name: str, seconds: float) -> None:
        self.seconds[name] = seconds
        self.listener.stage_finished(self.load.target, name, seconds)

    def result(self) -> TargetResult:
        return _build_result(self.target_plan, self.applied, self.seconds)


def open_source(plan: Plan, connections: Connections) -> BatchSource | SparkSource:
    return source_reader(plan.pipeline, connections)


def open_batches(plan: Plan, connections: Connections) -> BatchSource:
    """The source of a plan that copies rows without Spark's readers."""
    source = open_source(plan, connections)
    batches = source.as_batches(plan.source_sql) if isinstance(source, SparkSource) else source
    if batches is None:
        raise SourceFailed(
            f"the files of {plan.source_connection} have changed since this run was planned",
            next_step="run it again",
        )
    return batches


def build_load(plan: Plan, target_plan: TargetPlan, run_id: uuid.UUID, batch_key: str, dry_run: bool) -> Load:
    return Load(
        pipeline=plan.pipeline.name,
        target=target_plan.target.label,
        plan=target_plan.load,
        run_id=run_id,
        loaded_at=dt.datetime.now(dt.timezone.utc),
        batch_key=None if target_plan.load.range is not None else batch_key,
        dry_run=dry_run,
    )


def _build_result(plan: TargetPlan, applied: LoadResult, seconds: dict[str, float]) -> TargetResult:
    reason = None
    if applied.duplicate:
        reason = ALREADY_APPLIED
    elif made_no_progress(plan.range, applied):
        reason = "nothing new since the last run"
    low = plan.range.low if plan.range else None
    return TargetResult(
        target=plan.target.label,
        mode=plan.target.mode,
        path=plan.path.value,
        status="skipped" if reason else "succeeded",
        reason=reason,
        rows=applied.rows,
        source_from=low.encode() if low else None,
        source_to=applied.watermark.encode() if applied.watermark else None,
        seconds=tuple(seconds.items()),
        expectations=applied.expectations,
    )
