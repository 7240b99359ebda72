"""Several targets from one read of the source.

All are staged first, then each commits in its own transaction, in the order declared. A failure belongs
to one target or to the read; what it means for the others is the pipeline's `continue_on_target_failure`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ematix_flow import faults
from ematix_flow.backends.base import BatchSource
from ematix_flow.backends.computed_table import compute_table, drop_computed
from ematix_flow.backends.relational import RelationalTarget
from ematix_flow.engine import tasks
from ematix_flow.engine.execute import ALREADY_APPLIED, TargetRun, load_of, source_of
from ematix_flow.engine.frames import agreed_types, ranged, source_frame
from ematix_flow.engine.progress import watch
from ematix_flow.engine.results import TargetResult, failed
from ematix_flow.errors import FlowError
from ematix_flow.observe.listener import Listener
from ematix_flow.plan.definition import ApplyRows, CopyRows, Plan, PrepareTable, TransformRows
from ematix_flow.plan.world import World
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.ranges import restrict


def execute_targets(
    plan: Plan,
    world: World,
    *,
    run_id: uuid.UUID,
    batch_key: str,
    listener: Listener,
    committed: Collection[str] = (),
) -> list[TargetResult]:
    """A result for each target that was tried. Those that are ``committed`` already are left alone.

    An error of the read is raised, unless the pipeline goes on: then it is every target's.
    """
    fan_out = _FanOut(plan, world, listener, run_id, batch_key, committed)
    fan_out.execute()
    return fan_out.results()


class _FanOut:
    def __init__(
        self,
        plan: Plan,
        world: World,
        listener: Listener,
        run_id: uuid.UUID,
        batch_key: str,
        committed: Collection[str],
    ) -> None:
        assert plan.shared is not None
        self.plan, self.world, self.shared = plan, world, plan.shared
        self.go_on = plan.pipeline.continue_on_target_failure
        self.runs = {
            target.target.label: TargetRun(
                plan, target, load_of(plan, target, run_id, batch_key, dry_run=False), world, listener
            )
            for target in plan.targets
            if target.target.label not in committed
        }
        self.failures: dict[str, Exception] = {}
        self.done: set[str] = set()

    def execute(self) -> None:
        with ExitStack() as leaving:
            for run in self.runs.values():
                leaving.callback(run.drop_staging)
            try:
                self.read(leaving)
            except Exception as error:
                if not self.go_on:
                    raise
                self.failures |= {label: error for label in self.runs if label not in self.failures}
            for run in self.remaining():
                with self.alone(run):
                    self.load(run)

    def read(self, leaving: ExitStack) -> None:
        if not self.runs:
            return
        if self.shared.how == "table":
            self.compute(leaving)
        elif self.shared.how == "copy":
            self.copy()
        else:
            self.transform()

    # ------------------------------------------------------------------ the three ways to read once

    def compute(self, leaving: ExitStack) -> None:
        """Source and targets are one database: whichever target's session computes, all see the table."""
        sink = next(iter(self.runs.values())).target
        name = self.shared.table
        assert isinstance(sink, RelationalTarget) and name is not None
        query = self.shared.query
        leaving.callback(drop_computed, sink, name)
        with self.timed(list(self.runs.values()), "read"):
            compute_table(sink, name, restrict(query.sql, query.range, sink.dialect))

    def copy(self) -> None:
        runs = self.remaining()
        spark = next(iter(self.runs.values())).spark()
        source = source_of(self.plan, self.world)
        assert isinstance(source, BatchSource)
        staged = []
        for run in runs:
            with self.alone(run):
                staged.append((run, run.create_staging()))
        if not staged or self.is_over:
            return
        wanted = agreed_types([run.table.columns for run, _ in staged])
        with (
            self.timed([run for run, _ in staged], "copy"),
            self.world.spark_errors(f"loading {self.plan.pipeline.name!r}"),
            source.split(self.shared.query, wanted, self.shared.tasks) as splits,
            ExitStack() as counting,
        ):
            expected = source.expected_rows(self.shared.query)
            outlets = [
                tasks.Outlet(
                    staging,
                    run.table,
                    counting.enter_context(watch(run.count, expected)),
                    self.own_low(run),
                )
                for run, staging in staged
            ]
            told = tasks.copy_to_all(spark, splits, outlets, self.go_on)
        for (run, _), outcome in zip(staged, told, strict=True):
            if isinstance(outcome, FlowError):
                self.failures[run.load.target] = outcome
            elif outcome is not None:
                run.parts = outcome
        faults.point("staging.loaded")

    def transform(self) -> None:
        from pyspark import StorageLevel

        runs = list(self.runs.values())
        spark = runs[0].spark()
        source, tables = source_of(self.plan, self.world), [run.table for run in runs]
        columns, shared = self.plan.source_columns, self.shared
        with (
            self.world.spark_errors(f"reading for {self.plan.pipeline.name!r}"),
            source_frame(spark, source, shared.query, columns, tables, shared.tasks) as frame,
        ):
            kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
            try:
                with self.timed(runs, "read"):
                    kept.count()  # all of it, once: no target's job reads the source again
                for run in self.remaining():
                    stage = next(s for s in run.target_plan.stages if isinstance(s, TransformRows))
                    own = None if stage.query.range == shared.query.range else stage.query.range
                    with self.alone(run), run.timed("transform"), run.staged() as staging:
                        run.stage_frame(ranged(kept, own), stage, staging)
            finally:
                kept.unpersist()

    def own_low(self, run: TargetRun) -> Watermark | None:
        """Where a target goes on, when the read began before that."""
        stage = next(s for s in run.target_plan.stages if isinstance(s, CopyRows))
        low = stage.query.range.low if stage.query.range else None
        read = self.shared.query.range.low if self.shared.query.range else None
        return None if low == read else low

    # ------------------------------------------------------------------ each target by itself

    def load(self, run: TargetRun) -> None:
        try:
            for stage in run.target_plan.stages:
                if isinstance(stage, PrepareTable):
                    run.prepare(stage)
                elif isinstance(stage, ApplyRows):
                    run.apply(stage.shared_sql)
            self.done.add(run.load.target)
        finally:
            run.drop_staging()

    @property
    def is_over(self) -> bool:
        return bool(self.failures) and not self.go_on

    def remaining(self) -> Iterator[TargetRun]:
        """The targets that have not failed, one after the other, as long as the policy lets them."""
        for label, run in self.runs.items():
            if self.is_over:
                return
            if label not in self.failures:
                yield run

    @contextmanager
    def alone(self, run: TargetRun) -> Iterator[None]:
        """Whatever fails within the block fails this target."""
        try:
            yield
        except Exception as error:
            self.failures[run.load.target] = error

    @contextmanager
    def timed(self, runs: Sequence[TargetRun], name: str) -> Iterator[None]:
        """What is done once for all takes its time for each."""
        for run in runs:
            run.listener.stage_started(run.load.target, name)
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        for run in runs:
            run.took(name, seconds)

    def results(self) -> list[TargetResult]:
        found = []
        for target in self.plan.targets:
            label, about = target.target.label, (target.target.label, target.target.mode, target.path.value)
            if label not in self.runs:
                found.append(TargetResult(*about, "skipped", ALREADY_APPLIED))
            elif label in self.failures:
                found.append(failed(*about, self.failures[label]))
            elif label in self.done:
                found.append(self.runs[label].result())
        return found
