"""Loads several targets from one read of the source.

All targets are staged first; then each commits in its own transaction, in the declared order. A failure
belongs to one target or to the read; `continue_on_target_failure` decides whether the others continue.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ematix_flow import fault_points
from ematix_flow.backends.base import BatchSource
from ematix_flow.backends.sql.computed_table import compute_table, drop_computed_table
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.execution import spark_tasks
from ematix_flow.engine.execution.executor import (
    ALREADY_APPLIED,
    TargetRun,
    build_load,
    open_batches,
    open_source,
)
from ematix_flow.engine.execution.progress import watch_progress
from ematix_flow.engine.execution.source_frames import common_types, filter_range, source_frame
from ematix_flow.errors import FlowError, Interrupted
from ematix_flow.observe.listener import Listener
from ematix_flow.plan.definition import Plan
from ematix_flow.plan.results import TargetResult, failed_result
from ematix_flow.plan.stages import ApplyRows, CopyRows, PrepareControlTables, TransformRows
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.ranges import restrict_to_range


def execute_targets(
    plan: Plan,
    connections: Connections,
    *,
    run_id: uuid.UUID,
    batch_key: str,
    listener: Listener,
    committed: Collection[str] = (),
) -> list[TargetResult]:
    """Load the targets, except those already ``committed``. Returns a result for each target that was tried.

    An error of the read is raised. With `continue_on_target_failure` it becomes the error of every target.
    """
    fan_out = _FanOut(plan, connections, listener, run_id, batch_key, committed)
    fan_out.execute()
    return fan_out.results()


class _FanOut:
    def __init__(
        self,
        plan: Plan,
        connections: Connections,
        listener: Listener,
        run_id: uuid.UUID,
        batch_key: str,
        committed: Collection[str],
    ) -> None:
        assert plan.shared is not None
        self.plan, self.connections, self.shared = plan, connections, plan.shared
        self.continue_on_failure = plan.pipeline.continue_on_target_failure
        self.runs = {
            target.target.label: TargetRun(
                plan,
                target,
                build_load(plan, target, run_id, batch_key, dry_run=False),
                connections,
                listener,
            )
            for target in plan.targets
            if target.target.label not in committed
        }
        self.failures: dict[str, Exception] = {}
        self.loaded: set[str] = set()

    def execute(self) -> None:
        with ExitStack() as leaving:
            for run in self.runs.values():
                leaving.callback(run.drop_staging)
            try:
                self.read_source(leaving)
            except Exception as error:
                if not self.continue_on_failure or isinstance(error, Interrupted):
                    raise
                self.failures |= {label: error for label in self.runs if label not in self.failures}
            for run in self.remaining_runs():
                with self.target_errors(run):
                    self.load_target(run)

    def read_source(self, leaving: ExitStack) -> None:
        if not self.runs:
            return
        if self.shared.method == "table":
            self.compute_rows(leaving)
        elif self.shared.method == "copy":
            self.copy_rows()
        else:
            self.transform_rows()

    # ------------------------------------------------------------------ the three ways to read once

    def compute_rows(self, leaving: ExitStack) -> None:
        """Compute the rows into a table of the database that source and targets share."""
        sink = next(iter(self.runs.values())).target
        name = self.shared.table
        assert isinstance(sink, RelationalTarget) and name is not None
        query = self.shared.query
        leaving.callback(drop_computed_table, sink, name)
        with self.time_for_all(list(self.runs.values()), "read"):
            compute_table(sink, name, restrict_to_range(query.sql, query.range, sink.dialect))

    def copy_rows(self) -> None:
        runs = self.remaining_runs()
        spark = next(iter(self.runs.values())).spark()
        source = open_batches(self.plan, self.connections)
        staged = []
        for run in runs:
            with self.target_errors(run):
                staged.append((run, run.create_staging()))
        if not staged or self.has_stopped:
            return
        wanted = common_types([run.table.columns for run, _ in staged])
        with (
            self.time_for_all([run for run, _ in staged], "copy"),
            self.connections.spark_errors(f"loading {self.plan.pipeline.name!r}"),
            source.split(self.shared.query, wanted, self.shared.tasks) as splits,
            ExitStack() as counting,
        ):
            expected = source.expected_rows(self.shared.query)
            outlets = [
                spark_tasks.TargetWriter(
                    staging,
                    run.load.plan.staged,
                    counting.enter_context(watch_progress(run.report_progress, expected)),
                    self.target_low(run),
                )
                for run, staging in staged
            ]
            outcomes = spark_tasks.copy_splits_to_all(spark, splits, outlets, self.continue_on_failure)
        for (run, _), outcome in zip(staged, outcomes, strict=True):
            if isinstance(outcome, FlowError):
                self.failures[run.load.target] = outcome
            elif outcome is not None:
                run.parts = outcome
        fault_points.point("staging.loaded")

    def transform_rows(self) -> None:
        from pyspark import StorageLevel

        runs = list(self.runs.values())
        spark = runs[0].spark()
        source, tables = open_source(self.plan, self.connections), [run.table for run in runs]
        columns, shared = self.plan.source_columns, self.shared
        with (
            self.connections.spark_errors(f"reading for {self.plan.pipeline.name!r}"),
            ExitStack() as reading,
            ExitStack() as keeping,
        ):
            with self.time_for_all(runs, "read"):
                frame = reading.enter_context(
                    source_frame(spark, source, shared.query, columns, tables, shared.tasks)
                )
                kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
                keeping.callback(kept.unpersist)
                kept.count()  # cache all rows, so that no target's job reads the source again
            # The run may be paused for days before the next target: no transaction of the source stays open.
            # Spark's own readers have none, and may need their settings if kept rows are lost.
            if isinstance(source, BatchSource):
                reading.close()
            for run in self.remaining_runs():
                stage = next(s for s in run.target_plan.stages if isinstance(s, TransformRows))
                own = None if stage.query.range == shared.query.range else stage.query.range
                with self.target_errors(run), run.time_stage("transform"), run.open_staging() as staging:
                    run.stage_frame(filter_range(kept, own), stage, staging)

    def target_low(self, run: TargetRun) -> Watermark | None:
        """The start of a target's range, if the shared read began before it."""
        stage = next(s for s in run.target_plan.stages if isinstance(s, CopyRows))
        low = stage.query.range.low if stage.query.range else None
        read = self.shared.query.range.low if self.shared.query.range else None
        return None if low == read else low

    # ------------------------------------------------------------------ each target by itself

    def load_target(self, run: TargetRun) -> None:
        try:
            for stage in run.target_plan.stages:
                if isinstance(stage, PrepareControlTables):
                    run.prepare_control_tables()
                elif isinstance(stage, ApplyRows):
                    run.apply_rows(stage.shared_sql)
            self.loaded.add(run.load.target)
        finally:
            run.drop_staging()

    @property
    def has_stopped(self) -> bool:
        return bool(self.failures) and not self.continue_on_failure

    def remaining_runs(self) -> Iterator[TargetRun]:
        """The targets that have not failed, as long as the policy lets them continue."""
        for label, run in self.runs.items():
            if self.has_stopped:
                return
            if label not in self.failures:
                yield run

    @contextmanager
    def target_errors(self, run: TargetRun) -> Iterator[None]:
        """Record an error within the block as the failure of this target."""
        try:
            yield
        except Interrupted:
            raise  # it stops every target
        except Exception as error:
            self.failures[run.load.target] = error

    @contextmanager
    def time_for_all(self, runs: Sequence[TargetRun], name: str) -> Iterator[None]:
        """Record the time of a shared step for each target."""
        for run in runs:
            run.listener.stage_started(run.load.target, name)
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        for run in runs:
            run.record_seconds(name, seconds)

    def results(self) -> list[TargetResult]:
        found = []
        for target in self.plan.targets:
            label, about = target.target.label, (target.target.label, target.target.mode, target.path.value)
            if label not in self.runs:
                found.append(TargetResult(*about, "skipped", ALREADY_APPLIED))
            elif label in self.failures:
                found.append(failed_result(*about, self.failures[label]))
            elif label in self.loaded:
                found.append(self.runs[label].result())
        return found
