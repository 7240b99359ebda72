"""Runs post-load transforms: SQL, named transforms, functions and data probes, each by itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ematix_flow.engine.connections import Connections
from ematix_flow.engine.live_connection import LiveConnection
from ematix_flow.engine.planning.gates import SKIP_VARIABLE, are_checks_skipped
from ematix_flow.errors import ExpectationFailed, FlowError, PostTransformFailed
from ematix_flow.graph.registry import DeclaredPipeline, current_registry
from ematix_flow.plan.results import RunResult
from ematix_flow.plan.stages import RunPostTransform
from ematix_flow.run.probes import Note, describe_problems, report_json, run_probe
from ematix_flow.run.run_context import RunContext

PipelineRunner = Callable[[DeclaredPipeline, RunContext], RunResult]


@dataclass(frozen=True)
class ParentContext:
    """The load that ran before a two-argument transform."""

    pipeline_name: str
    run_id: str
    rows_inserted: int
    rows_updated: int
    rows_unchanged: int


def run_post_transforms(
    declared: DeclaredPipeline,
    connections: Connections,
    result: RunResult,
    context: RunContext,
    run_declared_pipeline: PipelineRunner,
    note: Note,
    reports: list[Mapping[str, Any]],
) -> list[tuple[str, str]]:
    """Return label and outcome of each step. No step runs if the load did nothing or failed.

    ``reports`` gets those of data probes among the steps.
    """
    if result.status != "succeeded":
        return []
    spec = declared.spec
    connection = LiveConnection(connections, spec.targets[0].connection)
    parent = ParentContext(
        spec.name,
        result.run_id,
        result.rows_inserted,
        result.rows_updated,
        result.rows_unchanged,
    )
    outcomes = []
    steps = (RunPostTransform(step, index) for index, step in enumerate(spec.transforms_post))
    for post in steps:
        context.listener.stage_started(spec.targets[0].label, f"then {post.step.label}")
        try:
            if post.step.kind == "probe":
                _run_probe(declared, post, note, reports)
            else:
                _run_step(declared, post, connection, parent, context, run_declared_pipeline)
            outcomes.append((post.step.label, "ok"))
        except (Exception, SystemExit, GeneratorExit) as error:
            what = error.what if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
            failed = PostTransformFailed(
                f"post-load transform {post.index + 1} of {spec.name!r} ({post.step.label}) failed: {what}",
                where=spec.where,
                state="the load before it is committed; the transforms after it did not run",
                next_step="fix it and run it by hand, or declare continue_on_failure_post=True",
            )
            if not spec.continue_on_failure_post:
                raise failed from error
            context.listener.note(failed.what)
            outcomes.append((post.step.label, failed.what))
    return outcomes


def _run_probe(
    declared: DeclaredPipeline, post: RunPostTransform, note: Note, reports: list[Mapping[str, Any]]
) -> None:
    if are_checks_skipped():
        note(f"{SKIP_VARIABLE} is set: the probe {post.step.text} does NOT run")
        return
    report = run_probe(declared.post_functions[post.index])
    reports.append(report_json(report))
    problems = describe_problems(report)
    if report.verdict in ("fail", "error"):
        raise ExpectationFailed(problems)
    if problems:
        note(f"the probe {report.probe_name!r} warns: {problems}")


def _run_step(
    declared: DeclaredPipeline,
    post: RunPostTransform,
    connection: LiveConnection,
    parent: ParentContext,
    context: RunContext,
    run_declared_pipeline: PipelineRunner,
) -> None:
    if post.step.kind == "sql":
        connection.execute(post.step.text)
        return
    if post.step.kind == "function":
        call_transform(declared.post_functions[post.index], connection, parent)
        return
    registry = current_registry()
    if post.step.text in registry.transforms:
        call_transform(registry.transforms[post.step.text].function, connection, parent)
    else:
        run_declared_pipeline(
            registry.pipeline(post.step.text), replace(context, attempt=1, retried_by_scheduler=False)
        )


def call_transform(function: Callable[..., Any], connection: LiveConnection, parent: ParentContext) -> Any:
    """Call the function with ``(conn)`` or ``(conn, parent)``, as it is declared."""
    count = len(inspect.signature(function).parameters)
    return function(*(connection, parent)[:count])
