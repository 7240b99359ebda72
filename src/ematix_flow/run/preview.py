"""Preview, dry run and validation of a pipeline. None of them changes a target."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.base import BatchSource, SparkSource
from ematix_flow.engine.connections import StartSpark
from ematix_flow.engine.execution.executor import execute_target
from ematix_flow.engine.planning.planner import build_plan
from ematix_flow.engine.planning.source_reader import source_reader
from ematix_flow.engine.planning.source_sql import source_reference
from ematix_flow.errors import DatabaseMissing, FlowError
from ematix_flow.graph.registry import DeclaredPipeline
from ematix_flow.observe.listener import Attempt, Listener
from ematix_flow.plan.definition import Plan
from ematix_flow.plan.results import RunResult
from ematix_flow.run.pipeline import open_connections
from ematix_flow.run.probes import run_pre_probes


@dataclass(frozen=True)
class Preview:
    """A plan and the first rows that its source yields."""

    plan: Plan
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.plan.to_json(),
            "sample": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
        }

    def __str__(self) -> str:
        rows = ["  ".join(str(value) for value in row) for row in (self.columns, *self.rows)]
        return "\n".join([str(self.plan), f"the first {len(self.rows)} rows of the source:", *rows])

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>{escape(c)}</th>" for c in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row) + "</tr>" for row in self.rows
        )
        return f"{self.plan._repr_html_()}<table><tr>{head}</tr>{body}</table>"


@dataclass(frozen=True)
class Validation:
    """Whether source and target accept the pipeline."""

    pipeline: str
    ok: bool
    error: FlowError | None = None
    explain: str = ""
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "ok": self.ok,
            "error": self.error.to_json() if self.error else None,
            "warnings": list(self.warnings),
        }


def preview(declared: DeclaredPipeline, spark: StartSpark, rows: int) -> Preview:
    connections = open_connections(spark)
    plan = build_plan(declared, connections)
    reference = source_reference(declared.spec)
    source = source_reader(declared.spec, connections)
    if isinstance(source, SparkSource):
        with connections.spark_errors(f"the source SQL of {declared.spec.name!r}"):
            frame = source.frame(connections.spark(), plan.source_sql).limit(rows)
            return Preview(plan, tuple(frame.columns), tuple(tuple(row) for row in frame.collect()))
    names, sample = connections.backend(reference).query(plan.source_sql, rows)
    return Preview(plan, tuple(names), tuple(sample))


def validate(declared: DeclaredPipeline, spark: StartSpark) -> Validation:
    """Run EXPLAIN at the source, then build the whole plan. Returns an error instead of raising it."""
    connections = open_connections(spark)
    try:
        plan = build_plan(declared, connections)
        source = connections.source(source_reference(declared.spec))
        explained = source.explain(plan.source_sql) if isinstance(source, BatchSource) else ""
    except FlowError as error:
        if isinstance(error, DatabaseMissing) and error.created_by is not None:
            later = f"not checked: the database that it reads is created when {error.created_by} runs"
            return Validation(declared.spec.name, True, warnings=(later,))
        return Validation(declared.spec.name, False, error)
    warnings = tuple(w for t in plan.targets for w in t.warnings)
    return Validation(declared.spec.name, True, None, explained, warnings)


def dry_run(declared: DeclaredPipeline, spark: StartSpark, listener: Listener | None = None) -> RunResult:
    """Run every stage except the commit and count the changes. Creates and records nothing."""
    run_id = uuid.uuid4()
    run_listener = (listener or Listener()).run_started(
        Attempt(declared.spec.name, str(run_id), trigger="dry_run")
    )
    try:
        result = _dry_run(declared, spark, run_id, run_listener)
    except BaseException as error:
        run_listener.run_finished(None, error)
        raise
    run_listener.run_finished(result, None)
    return result


def _dry_run(
    declared: DeclaredPipeline, spark: StartSpark, run_id: uuid.UUID, listener: Listener
) -> RunResult:
    started = time.monotonic()
    connections = open_connections(spark)
    plan = build_plan(declared, connections)
    reports = tuple(run_pre_probes(declared, listener.note))
    results = tuple(
        execute_target(
            plan,
            t,
            connections,
            run_id=run_id,
            batch_key=f"run:{run_id}",
            listener=listener,
            dry_run=True,
        )
        for t in plan.targets
    )
    seconds = time.monotonic() - started
    return RunResult(declared.spec.name, str(run_id), "succeeded", results, seconds, probes=reports)
