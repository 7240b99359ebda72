"""Several pipelines in the order of their dependencies; what depends on a failure is not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ematix_flow.engine.results import RunResult, unexpected
from ematix_flow.errors import FlowError, Interrupted
from ematix_flow.graph.order import downstream
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.schedule.run import RunContext, run_pipeline


@dataclass(frozen=True)
class Outcome:
    """What became of one pipeline of a DAG run."""

    pipeline: str
    status: Literal["succeeded", "skipped", "failed", "not_run"]
    result: RunResult | None = None
    error: FlowError | None = None
    reason: str | None = None


def run_dag(
    registry: Registry,
    names: Sequence[str] | None,
    context: RunContext,
    *,
    before: Callable[[str], None] = lambda name: None,
    after: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run the named pipelines (all by default), upstreams first, and go on past failures."""
    order = registry.order(None if names is None else [registry.pipeline(n).spec.name for n in names])
    edges = {n: d.spec.depends_on for n, d in registry.pipelines.items()}
    blocked: dict[str, str] = {}
    outcomes = []
    for name in order:
        before(name)
        if name in blocked:
            reason = f"{blocked[name]} failed, and {name} depends on it"
            outcome = Outcome(name, "not_run", reason=reason)
        else:
            outcome = _run_one(registry, name, context)
            if outcome.status == "failed":
                for dependent in downstream(edges, name):
                    blocked.setdefault(dependent, name)
        outcomes.append(outcome)
        after(outcome)
    return outcomes


def _run_one(registry: Registry, name: str, context: RunContext) -> Outcome:
    try:
        with use_registry(registry):  # references among post-load transforms are looked up there
            result = run_pipeline(registry.pipeline(name), context)
    except Interrupted:
        raise
    except FlowError as error:
        return Outcome(name, "failed", error=error, reason=error.what)
    except Exception as error:
        failure = unexpected(error)
        failure.__cause__ = error
        return Outcome(name, "failed", error=failure, reason=failure.what)
    return Outcome(name, result.status, result=result, error=result.failure, reason=result.reason)
