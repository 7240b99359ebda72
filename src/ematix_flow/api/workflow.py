"""``ematix.workflow`` and its triggers, and ``@ematix.transform``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ematix_flow.api.options import check_schedule
from ematix_flow.errors import DeclarationError
from ematix_flow.graph.registry import DeclaredTransform, current_registry
from ematix_flow.spec.location import caller_location
from ematix_flow.spec.pipelines import ConnectionRef, TransformSpec, Trigger, WorkflowSpec


def AllOf(*members: str | Trigger) -> Trigger:
    """Starts when every one of these has succeeded anew."""
    return _trigger("all", members)


def AnyOf(*members: str | Trigger) -> Trigger:
    """Starts when one of these has succeeded anew."""
    return _trigger("any", members)


def _trigger(kind: Any, members: Sequence[Any]) -> Trigger:
    if not members:
        raise DeclarationError("a trigger needs at least one name", where=caller_location())
    return Trigger(kind, tuple(m if isinstance(m, str | Trigger) else m.name for m in members))


def workflow(
    name: str,
    jobs: Sequence[Any],
    triggered_by: str | Sequence[str] | Trigger | None = None,
    schedule: str | None = None,
    timezone: str | None = None,
    on_message: str | None = None,
) -> WorkflowSpec:
    """Pipelines that run together, in the order of their own depends_on."""
    where = caller_location()
    names = tuple(job if isinstance(job, str) else job.name for job in jobs)
    if not names:
        raise DeclarationError(f"workflow {name!r} has no jobs", where=where)
    if len(set(names)) != len(names):
        raise DeclarationError(f"workflow {name!r} lists a job twice", where=where)
    if on_message is not None and (schedule is not None or triggered_by is not None):
        raise DeclarationError("on_message= goes with neither schedule= nor triggered_by=", where=where)
    if on_message is None and schedule is None and triggered_by is None:
        raise DeclarationError(
            f"nothing starts workflow {name!r}", where=where, next_step="give schedule= or triggered_by="
        )
    check_schedule(schedule, timezone, where)
    if triggered_by is None or isinstance(triggered_by, Trigger):
        trigger = triggered_by
    else:
        trigger = _trigger("all", [triggered_by] if isinstance(triggered_by, str) else triggered_by)
    spec = WorkflowSpec(name, names, trigger, schedule, timezone, on_message, where)
    current_registry().add_workflow(spec)
    return spec


def transform(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    target_connection: ConnectionRef | None = None,
    schedule: str | None = None,
) -> Any:
    """Name a function of (conn) or (conn, parent), so that transform_ref() and the CLI can run it."""
    where = caller_location()
    check_schedule(schedule, None, where)

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        count = len(inspect.signature(function).parameters)
        if count not in (1, 2):
            raise DeclarationError(
                f"a transform takes (conn) or (conn, parent), and {function.__name__!r} takes {count}",
                where=where,
            )
        spec = TransformSpec(
            name or function.__name__,
            f"{function.__module__}:{function.__qualname__}",
            count,
            target_connection,
            schedule,
            where,
        )
        current_registry().add_transform(DeclaredTransform(spec, function))
        return function

    return declare if function is None else declare(function)
