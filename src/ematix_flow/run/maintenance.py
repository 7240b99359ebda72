"""Maintains the lake tables that pipelines load: each table once, even if several pipelines load it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.maintenance import MaintainableTarget, MaintenanceOptions, MaintenanceReport
from ematix_flow.engine.connections import Connections, StartSpark
from ematix_flow.errors import FlowError, UsageError
from ematix_flow.graph.registry import DeclaredPipeline
from ematix_flow.plan.matching_options import resolve_matching
from ematix_flow.plan.results import unexpected_error
from ematix_flow.run.pipeline import open_connections
from ematix_flow.run.recording import NO_ENGINE, engine_name, record_command
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec
from ematix_flow.state.runlog.records import RunStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class MaintenanceOutcome:
    """The outcome for one target.

    No tables and no error: there is no table yet, or it was already maintained.
    """

    pipeline: str
    target: str
    tables: tuple[MaintenanceReport, ...] = ()
    reason: str | None = None
    error: FlowError | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "target": self.target,
            "tables": [table.to_json() for table in self.tables],
            "reason": self.reason,
            "error": self.error.to_json() if self.error else None,
        }


def require_lakes(pipelines: Sequence[DeclaredPipeline], spark: StartSpark) -> None:
    """Raise UsageError if one of the pipelines loads no lake table."""
    connections = open_connections(spark)
    for declared in pipelines:
        if not _lake_targets(declared.spec, connections):
            into = ", ".join(
                f"{t.label} ({connections.backend(t.connection).kind})" for t in declared.spec.targets
            )
            raise UsageError(
                f"pipeline {declared.spec.name!r} loads no lake table, only {into}",
                next_step="name a pipeline that loads Delta Lake or Iceberg, or give --all",
            )


def maintain_pipelines(
    pipelines: Sequence[DeclaredPipeline],
    spark: StartSpark,
    options: MaintenanceOptions,
    *,
    run_log: str | None = None,
    before: Callable[[str], None] = lambda target: None,
) -> Iterator[MaintenanceOutcome]:
    """Maintain the targets one after the other and continue after failures.

    ``before`` is called with the label of each target. Changes are recorded in the run log; dry runs are not.
    """
    engine = NO_ENGINE

    def start(jar_groups: Sequence[str]) -> SparkSession:
        nonlocal engine
        session = spark(jar_groups)
        engine = engine_name(session)
        return session

    connections = open_connections(start)
    done: set[tuple[str, str]] = set()
    found = [
        (declared.spec, target)
        for declared in pipelines
        for target in _targets_to_maintain(declared.spec, connections)
    ]
    for spec, target in found:
        if isinstance(target, MaintenanceOutcome):
            yield target
            continue
        before(target.label)
        if options.dry_run:
            yield _maintain_target(spec, target, connections, options, done)
            continue
        with record_command(spec.name, target.label, "maintain", run_log, spec.where) as recording:
            outcome = _maintain_target(spec, target, connections, options, done)
            status: RunStatus = "failed" if outcome.error else "succeeded" if outcome.tables else "skipped"
            recording.finish(status, outcome.error, engine=engine, metrics=outcome.to_json())
        yield outcome


def _targets_to_maintain(
    spec: PipelineSpec, connections: Connections
) -> list[TargetSpec | MaintenanceOutcome]:
    """Return the lake targets. All are opened before Spark starts, so that it has the jars of all of them."""
    try:
        return [*_lake_targets(spec, connections)]
    except FlowError as error:
        return [
            MaintenanceOutcome(
                spec.name, ", ".join(t.label for t in spec.targets), error=error.with_location(spec.where)
            )
        ]


def _lake_targets(spec: PipelineSpec, connections: Connections) -> list[TargetSpec]:
    return [
        t for t in spec.targets if isinstance(connections.backend(t.connection).target(), MaintainableTarget)
    ]


def _maintain_target(
    spec: PipelineSpec,
    target: TargetSpec,
    connections: Connections,
    options: MaintenanceOptions,
    done: set[tuple[str, str]],
) -> MaintenanceOutcome:
    assert target.table is not None
    key = (connections.backend(target.connection).identity(), target.table.label)
    if key in done:
        return MaintenanceOutcome(spec.name, target.label, reason="done for the pipeline before")
    done.add(key)
    try:
        table, _ = resolve_matching(spec, target, target.table)
        sink = connections.target(target.connection)
        assert isinstance(sink, MaintainableTarget)
        tables = tuple(sink.maintain(table, options))
    except FlowError as error:
        return MaintenanceOutcome(spec.name, target.label, error=error.with_location(spec.where))
    except Exception as error:
        failure = unexpected_error(error)
        failure.__cause__ = error
        return MaintenanceOutcome(spec.name, target.label, error=failure)
    return MaintenanceOutcome(spec.name, target.label, tables, None if tables else "there is no table yet")


def table_label(target: str, table: MaintenanceReport) -> str:
    """Return the table's name with the connection in front, as in a target's label."""
    return f"{target.partition(':')[0]}:{table.table}"
