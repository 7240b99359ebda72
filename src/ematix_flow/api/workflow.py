"""``ematix.workflow`` and its triggers, and ``@ematix.transform``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from ematix_flow.api import option_checks, unused_options
from ematix_flow.errors import DeclarationError
from ematix_flow.graph.registry import DeclaredTransform, current_registry
from ematix_flow.spec.location import SourceLocation, caller_location
from ematix_flow.spec.pipelines import Catchup, ConnectionRef, TransformSpec
from ematix_flow.spec.workflows import Trigger, WorkflowSpec


def AllOf(*members: Any) -> Trigger:
    """A trigger for ``triggered_by``: fires when all members have succeeded since the workflow last ran.

    A member is a pipeline, a workflow, the name of one, or another trigger.
    """
    return _build_trigger("all", members, caller_location())


def AnyOf(*members: Any) -> Trigger:
    """A trigger for ``triggered_by``: fires when one member has succeeded since the workflow last ran.

    A member is a pipeline, a workflow, the name of one, or another trigger.
    """
    return _build_trigger("any", members, caller_location())


def _build_trigger(
    kind: Literal["all", "any"], members: Sequence[Any], where: SourceLocation | None
) -> Trigger:
    if not members:
        raise DeclarationError("a trigger needs at least one name", where=where)
    found = (
        each if isinstance(each, Trigger) else _declared_name("triggered_by", each, where) for each in members
    )
    return Trigger(kind, tuple(found))


def _declared_name(option: str, given: Any, where: SourceLocation | None) -> str:
    name = given if isinstance(given, str) else getattr(given, "name", None)
    if not isinstance(name, str):
        raise DeclarationError(f"{option}= takes names, pipelines or workflows, not {given!r}", where=where)
    return name


def workflow(
    name: str,
    jobs: Sequence[Any],
    triggered_by: Any = None,
    schedule: str | None = None,
    timezone: str | None = None,
    on_message: str | None = None,
    catchup: Catchup = "last",
) -> WorkflowSpec:
    """Declare a workflow: pipelines that run together, in the order given by their ``depends_on``.

    ``jobs`` lists the pipelines, as names or objects. ``schedule`` or ``triggered_by`` starts the workflow.
    ``triggered_by`` takes a pipeline, a workflow, a list of them, or a tree of ``AllOf`` and ``AnyOf``. A
    list is the same as ``AllOf``. ``on_message`` is refused: messages are for streams.
    """
    where = caller_location()
    option_checks.read_selector_names("name", [name], where)
    listed = [jobs] if isinstance(jobs, str) or not isinstance(jobs, Iterable) else jobs
    names = tuple(_declared_name("jobs", job, where) for job in listed)
    if not names:
        raise DeclarationError(f"workflow {name!r} has no jobs", where=where)
    if len(set(names)) != len(names):
        raise DeclarationError(f"workflow {name!r} lists a job twice", where=where)
    trigger = triggered_by
    if trigger is not None and not isinstance(trigger, Trigger):
        trigger = _build_trigger("all", trigger if isinstance(trigger, list | tuple) else [trigger], where)
    option_checks.check_schedule(schedule, timezone, where)
    if on_message is not None:
        raise DeclarationError(
            "on_message= is not supported: a workflow starts by schedule= or triggered_by=",
            where=where,
            next_step="follow messages with @ematix.streaming_pipeline and  flow consume",
        )
    if schedule is None and triggered_by is None:
        raise DeclarationError(
            f"nothing starts workflow {name!r}", where=where, next_step="give schedule= or triggered_by="
        )
    unused_options.check_catchup(catchup, schedule, where)
    spec = WorkflowSpec(name, names, trigger, schedule, timezone, catchup, where)
    current_registry().add_workflow(spec)
    return spec


def transform(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    target_connection: ConnectionRef | None = None,
    schedule: str | None = None,
) -> Any:
    """Register a function that runs after a load (see ``transforms_post=``) or by ``flow transform``.

    The function takes ``(conn)`` or ``(conn, parent)``. Pipelines name it by ``ematix.transform_ref(name)``.
    """
    where = caller_location()
    if schedule is not None:
        raise DeclarationError(
            "a transform has no schedule=: it runs after a load, or by hand",
            where=where,
            next_step="give the schedule= to a pipeline that has transforms_post=[ematix.transform_ref(…)]",
        )

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        count = len(option_checks.function_parameters(function, where))
        called = str(getattr(function, "__name__", "transform"))
        if count not in (1, 2):
            raise DeclarationError(
                f"a transform takes (conn) or (conn, parent), and {called!r} takes {count}", where=where
            )
        spec = TransformSpec(
            option_checks.name_or_default("transform", name, called, where),
            f"{function.__module__}:{getattr(function, '__qualname__', 'transform')}",
            count,
            target_connection,
            schedule,
            where,
        )
        current_registry().add_transform(DeclaredTransform(spec, function))
        return function

    return declare if function is None else declare(function)
