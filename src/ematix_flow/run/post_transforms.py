"""Runs post-load transforms: SQL, named transforms, functions and data probes, each by itself."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ematix_flow import fault_points
from ematix_flow.backends.base import LedgerEntry
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.live_connection import LiveConnection
from ematix_flow.engine.planning.gates import SKIP_VARIABLE, are_checks_skipped
from ematix_flow.errors import ExpectationFailed, FlowError, Interrupted, PostTransformFailed, RunStopped
from ematix_flow.graph.registry import DeclaredPipeline, current_registry
from ematix_flow.observe.listener import PostStepEnd, post_stage
from ematix_flow.plan.results import RunResult
from ematix_flow.plan.stages import RunPostTransform
from ematix_flow.run.probes import Note, describe_problems, report_json, run_probe
from ematix_flow.run.recovery import committed_rows
from ematix_flow.run.run_context import RunContext
from ematix_flow.spec.pipelines import PipelineSpec

PipelineRunner = Callable[[DeclaredPipeline, RunContext], RunResult]


@dataclass(frozen=True)
class ParentContext:
    """The load that ran before a two-argument transform."""

    pipeline_name: str
    run_id: str
    rows_inserted: int
    rows_updated: int
    rows_unchanged: int


def parent_context(spec: PipelineSpec, result: RunResult, before: Mapping[str, LedgerEntry]) -> ParentContext:
    """Return the load of a run. ``before`` are the ledger entries of what a restarted run had loaded."""
    rows = result.rows
    for target in spec.targets:
        if target.label in before:
            rows += committed_rows(target, before[target.label])
    first = before.get(spec.targets[0].label)
    return ParentContext(
        spec.name,
        first.run_id if first is not None else result.run_id,
        rows.inserted or 0,
        rows.updated or 0,
        rows.unchanged or 0,
    )


def run_post_transforms(
    declared: DeclaredPipeline,
    connections: Connections,
    result: RunResult,
    parent: ParentContext,
    context: RunContext,
    run_declared_pipeline: PipelineRunner,
    note: Note,
    reports: list[Mapping[str, Any]],
) -> list[tuple[str, str]]:
    """Return label and outcome of each step. No step runs if the load did nothing or failed.

    ``reports`` gets those of data probes among the steps. Steps that a restarted run ended well are not run.
    """
    if result.status != "succeeded":
        return []
    spec = declared.spec
    connection = LiveConnection(connections, spec.targets[0].connection)
    done_before = [step["label"] for step in context.restart.post_steps] if context.restart else []
    first, listener = spec.targets[0].label, context.listener
    outcomes = []
    steps = (RunPostTransform(step, index) for index, step in enumerate(spec.transforms_post))
    for post in steps:
        if post.step.label in done_before:
            done_before.remove(post.step.label)
            outcomes.append((post.step.label, "done by the restarted run"))
            continue
        listener.stage_started(first, post_stage(post.step.label))
        started = time.monotonic()
        try:
            if post.step.kind == "probe":
                _run_probe(declared, post, note, reports)
            else:
                _run_step(declared, post, connection, parent, context, run_declared_pipeline)
        except (Exception, SystemExit, GeneratorExit) as error:
            if isinstance(error, Interrupted) and not isinstance(error, RunStopped):
                raise  # by Ctrl-C; a run that was stopped on request is a step that failed
            what = error.what if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
            seconds = time.monotonic() - started
            listener.post_step_finished(PostStepEnd(post.step.label, first, seconds, what))
            failed = PostTransformFailed(
                f"post-load transform {post.index + 1} of {spec.name!r} ({post.step.label}) failed: {what}",
                where=spec.where,
                state="the load before it is committed; the transforms after it did not run",
                next_step=f"fix it; flow restart {result.run_id[:8]}  goes on with it. Or declare "
                "continue_on_failure_post=True",
            )
            if not spec.continue_on_failure_post:
                raise failed from error
            listener.note(failed.what)
            outcomes.append((post.step.label, failed.what))
        else:
            seconds = time.monotonic() - started
            listener.post_step_finished(PostStepEnd(post.step.label, first, seconds))
            fault_points.point("post.recorded")
            outcomes.append((post.step.label, "ok"))
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
            registry.pipeline(post.step.text),
            replace(context, attempt=1, retried_by_scheduler=False, restart=None),
        )


def call_transform(function: Callable[..., Any], connection: LiveConnection, parent: ParentContext) -> Any:
    """Call the function with ``(conn)`` or ``(conn, parent)``, as it is declared."""
    count = len(inspect.signature(function).parameters)
    return function(*(connection, parent)[:count])
