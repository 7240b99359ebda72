"""Runs several pipelines in the order of their dependencies; none runs whose upstream failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

from ematix_flow.errors import FlowError, Interrupted, PipelineLocked, RunStopped
from ematix_flow.graph.dependency_order import upstreams_within
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.observe.observer import RunEnd
from ematix_flow.plan.results import RunResult, unexpected_error
from ematix_flow.run.last_runs import record_skipped_run
from ematix_flow.run.pipeline import run_declared_pipeline
from ematix_flow.run.run_context import RunContext
from ematix_flow.run.worker_pool import WorkerPool, pipeline_jar_groups, with_jar_groups

# what an upstream did, if pipelines that depend on it do not run
_VERBS = {"failed": "failed", "locked": "is locked", "cancelled": "was stopped"}
_NONE: Mapping[str, PipelineOutcome] = MappingProxyType({})


@dataclass(frozen=True)
class PipelineOutcome:
    """The outcome of one pipeline in a DAG run."""

    pipeline: str
    status: Literal["succeeded", "skipped", "locked", "failed", "not_run", "cancelled"]
    result: RunResult | None = None
    error: FlowError | None = None
    reason: str | None = None
    because_of: str | None = None  # of one that did not run: the pipeline that failed first

    @property
    def attempts(self) -> int:
        """The number of attempts; 0 if the pipeline did not run."""
        outcome = self.result or self.error
        return outcome.attempts if outcome is not None else 0


def run_dag(
    registry: Registry,
    names: Sequence[str] | None,
    context: RunContext,
    *,
    before: Callable[[str], None] = lambda name: None,
    after: Callable[[PipelineOutcome], None] = lambda outcome: None,
    workers: int = 1,
    known: Mapping[str, PipelineOutcome] = _NONE,
) -> list[PipelineOutcome]:
    """Run the named pipelines (all by default), upstreams first, and continue after failures.

    With several ``workers``, independent branches run in parallel. A pipeline whose upstream failed does
    not run and is recorded as skipped. Pipelines with a ``known`` outcome are not run again.
    """
    order = registry.dependency_order(
        None if names is None else [registry.pipeline(n).spec.name for n in names]
    )
    upstreams = upstreams_within({n: d.spec.depends_on for n, d in registry.pipelines.items()}, set(order))
    shared = with_jar_groups(context, pipeline_jar_groups(registry, order)) if workers > 1 else context
    team: WorkerPool[PipelineOutcome] = WorkerPool(workers)
    outcomes: dict[str, PipelineOutcome] = {}
    failed: dict[str, str] = {}  # by pipeline that failed or did not run: the pipeline that failed first

    def note(outcome: PipelineOutcome) -> None:
        outcomes[outcome.pipeline] = outcome
        if outcome.because_of is not None or outcome.status in _VERBS:
            failed[outcome.pipeline] = outcome.because_of or outcome.pipeline

    def over(outcome: PipelineOutcome) -> None:
        note(outcome)
        after(outcome)

    for outcome in known.values():
        note(outcome)
    waiting = [name for name in order if name not in known]
    while waiting or team.is_busy:
        for name in [each for each in waiting if all(above in outcomes for above in upstreams[each])]:
            culprit = next((failed[above] for above in upstreams[name] if above in failed), None)
            if culprit is None and not team.has_room:
                continue
            waiting.remove(name)
            before(name)
            if culprit is not None:
                reason = f"{culprit} {_VERBS[outcomes[culprit].status]}, and {name} depends on it"
                spec = registry.pipeline(name).spec
                skipped = record_skipped_run(context.run_log, spec, reason, context.trigger)
                context.observers.run_finished(skipped, RunEnd())
                over(PipelineOutcome(name, "not_run", reason=reason, because_of=culprit))
            else:
                team.start_worker(partial(_run_pipeline, registry, name, shared))
        if team.is_busy:
            over(team.wait_for_next())
    return [outcomes[name] for name in order]


def _run_pipeline(registry: Registry, name: str, context: RunContext) -> PipelineOutcome:
    return pipeline_outcome(registry, name, lambda: run_declared_pipeline(registry.pipeline(name), context))


def pipeline_outcome(registry: Registry, name: str, run: Callable[[], RunResult]) -> PipelineOutcome:
    """Run one pipeline by ``run`` and return the outcome. Only an interrupt is raised."""
    try:
        with use_registry(registry):  # post-load transforms look up references there
            result = run()
    except RunStopped as stopped:
        return PipelineOutcome(name, "cancelled", error=stopped, reason=stopped.what)
    except Interrupted:
        raise
    except PipelineLocked as error:
        return PipelineOutcome(name, "locked", error=error, reason=error.what)
    except FlowError as error:
        return PipelineOutcome(name, "failed", error=error, reason=error.what)
    except Exception as error:
        failure = unexpected_error(error)
        failure.__cause__ = error
        return PipelineOutcome(name, "failed", error=failure, reason=failure.what)
    return PipelineOutcome(name, result.status, result=result, error=result.failure, reason=result.reason)
