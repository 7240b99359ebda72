"""The tools that do something. They are there only if the server was started with ``--allow-actions``.

Each requests an action as its command and its button do: it is checked first, carried out once, and kept with
who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ematix_flow.mcp.tool_table import FlowTool, value_of
from ematix_flow.web.actions import add_action
from ematix_flow.web.endpoints import Call, Handler, Parameter
from ematix_flow.web.site import Site

_NAME = Parameter("name", "The name of the pipeline or stream.")
_RUN = Parameter("run", "The id of the run, or its first characters.")
_SCHEDULE = Parameter("schedule", "true: its schedule, instead of the run at work.", "flag")
_WAITING = "list_actions  with this subject shows how it ends"
_ANSWER = "The answer is the action; list_actions shows how it ended, and the runs that it made."


def _run_now(call: Call) -> tuple[str, str, Mapping[str, Any]]:
    return "run", call.required("name"), {"with_downstream": True} if call.flag("with_downstream") else {}


def _restart(call: Call) -> tuple[str, str, Mapping[str, Any]]:
    return "restart", call.required("run"), {}


def _stop(call: Call) -> tuple[str, str, Mapping[str, Any]]:
    return "stop", call.required("run"), {}


def _pause(call: Call) -> tuple[str, str, Mapping[str, Any]]:
    reason = call.text("reason")
    kind = "pause_schedule" if call.flag("schedule") else "pause"
    return kind, call.required("name"), {} if reason is None else {"reason": reason}


def _resume(call: Call) -> tuple[str, str, Mapping[str, Any]]:
    return "resume_schedule" if call.flag("schedule") else "resume", call.required("name"), {}


def _requesting(request: Callable[[Call], tuple[str, str, Mapping[str, Any]]]) -> Handler:
    def handle(site: Site, call: Call) -> dict[str, Any]:
        kind, subject, arguments = request(call)
        body = {"kind": kind, "subject": subject, "arguments": dict(arguments)}
        answer = add_action(site, Call({}, call.viewer, body))
        action: dict[str, Any] = value_of(answer)
        is_over = action["ended_at"] is not None
        return {**action, "is_new": answer.status == 201, "next": None if is_over else _WAITING}

    return handle


def action_tools() -> tuple[FlowTool, ...]:
    return (
        FlowTool(
            "run_now",
            "Run a pipeline now",
            f"Run a pipeline now, once. Asking twice while it waits makes one run. {_ANSWER}",
            _requesting(_run_now),
            (_NAME, Parameter("with_downstream", "true: also what depends on it.", "flag")),
            ("name",),
            is_action=True,
        ),
        FlowTool(
            "restart_run",
            "Restart a failed run",
            "Run a failed or stopped run again from the step that failed; what it has loaded is not loaded "
            f"again. It must be the newest run of its pipeline. {_ANSWER}",
            _requesting(_restart),
            (_RUN,),
            ("run",),
            is_action=True,
        ),
        FlowTool(
            "stop_run",
            "Stop a run",
            "Stop a run that is at work. What it has committed stays; the rest is undone.",
            _requesting(_stop),
            (_RUN,),
            ("run",),
            is_action=True,
            is_destructive=True,
        ),
        FlowTool(
            "pause",
            "Pause a pipeline or stream",
            "Hold the run of a pipeline or stream at its next safe point until it is resumed, or hold its "
            "schedule back.",
            _requesting(_pause),
            (_NAME, _SCHEDULE, Parameter("reason", "Why, for those who see the pause.")),
            ("name",),
            is_action=True,
        ),
        FlowTool(
            "resume",
            "Resume a pipeline or stream",
            "End a pause of a run or of a schedule.",
            _requesting(_resume),
            (_NAME, _SCHEDULE),
            ("name",),
            is_action=True,
        ),
    )
