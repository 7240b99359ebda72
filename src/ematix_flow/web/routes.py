"""The table of all endpoints."""

from __future__ import annotations

from typing import get_args

from ematix_flow.state.dead_letters.base import LetterStage, LetterStatus
from ematix_flow.state.runlog.records import RunStatus
from ematix_flow.web import actions, connections, pipelines, runs, schedule, sessions, streams
from ematix_flow.web.endpoints import AFTER, LIMIT, Endpoint, Parameter
from ematix_flow.web.graph import GraphEndpoint

_NAME = Parameter("name", "The name.")
_ID = Parameter("id", "The id, or its first characters.")
_PIPELINE = Parameter("pipeline", "Only of this pipeline or stream.")
_RUN_STATUS = Parameter("status", "Only with this status.", values=get_args(RunStatus))
_LETTER_STATUS = Parameter("status", "Only with this status.", values=get_args(LetterStatus))
_STAGE = Parameter("stage", "Only letters that failed in this stage.", values=get_args(LetterStage))
_STORE_AWAY = (503,)


def endpoints(module: str) -> tuple[Endpoint, ...]:
    """The endpoints of a server for this module, in the order of the document."""
    plans = pipelines.PlanCache(module)
    return (
        *sessions.ENDPOINTS,
        Endpoint(
            "GET",
            "/pipelines",
            "All pipelines with their state, failing first.",
            "Pipelines",
            pipelines.list_pipelines,
            (
                Parameter("select", "A selector, as of flow status --select."),
                Parameter("search", "Only pipelines whose name, target, tags or description have this text."),
            ),
            refusals=(400, *_STORE_AWAY),
        ),
        Endpoint(
            "GET",
            "/pipelines/{name}",
            "One pipeline.",
            "PipelineDetails",
            pipelines.show_pipeline,
            (_NAME,),
            refusals=(404, *_STORE_AWAY),
        ),
        Endpoint(
            "GET",
            "/pipelines/{name}/plan",
            "What a run would do now, as flow plan says it.",
            "Plan",
            pipelines.show_plan(plans),
            (_NAME,),
            refusals=(404, 503),
            is_slow=True,
            subject=pipelines.planned_pipeline,
        ),
        Endpoint(
            "GET",
            "/graph",
            "Pipelines, streams, workflows and tables, and what connects them.",
            "Graph",
            GraphEndpoint(),
            refusals=_STORE_AWAY,
        ),
        Endpoint(
            "GET",
            "/runs",
            "Runs, newest first. A page may be short or empty and still have a next one.",
            "Runs",
            runs.list_runs,
            (
                _PIPELINE,
                _RUN_STATUS,
                Parameter("since", "Only runs that started then or later.", "time"),
                Parameter("until", "Only runs that started earlier.", "time"),
                Parameter("text", "Only runs whose error has this text."),
                Parameter("trigger", "Only runs that this started, as cli or schedule."),
                LIMIT,
                AFTER,
            ),
            refusals=(400, *_STORE_AWAY),
        ),
        Endpoint(
            "GET",
            "/runs/{id}",
            "One run, what ran before and after it, and what can be done with it.",
            "RunDetails",
            runs.show_run,
            (_ID,),
            refusals=(404, *_STORE_AWAY),
        ),
        Endpoint(
            "GET",
            "/runs/{id}/around",
            "The runs before and after a run: of its pipeline, and of those up- and downstream.",
            "RunsAround",
            runs.show_around,
            (_ID,),
            refusals=(404, *_STORE_AWAY),
        ),
        Endpoint(
            "GET",
            "/runs/{id}/ledger",
            "What the targets committed for a run, as flow runs show --ledger reads it from them now.",
            "RunLedger",
            runs.show_ledger,
            (_ID,),
            refusals=(404, 503),
            is_slow=True,
            subject=runs.ledger_run,
        ),
        Endpoint(
            "GET",
            "/runs/{id}/log",
            "The last lines that a run has logged.",
            "RunLines",
            runs.show_log,
            (_ID, Parameter("tail", "How many lines.", "number", lowest=1, highest=10_000, default=400)),
            refusals=(400, 404, *_STORE_AWAY),
        ),
        Endpoint(
            "GET",
            "/streams",
            "All streams with their newest run.",
            "Streams",
            streams.list_streams,
            refusals=_STORE_AWAY,
        ),
        Endpoint(
            "GET",
            "/streams/{name}/samples",
            "What a stream did over a span of time.",
            "Samples",
            streams.list_samples,
            (_NAME, Parameter("span", "How far back: 10m, 1h, 7d.")),
            refusals=(400, 404, *_STORE_AWAY),
        ),
        Endpoint(
            "GET",
            "/dead-letters",
            "Dead letters, oldest first, and how many there are.",
            "Letters",
            streams.list_letters,
            (
                _PIPELINE,
                _LETTER_STATUS,
                _STAGE,
                Parameter("reason", "Only letters whose reason has this text."),
                LIMIT,
                AFTER,
            ),
            refusals=(400, *_STORE_AWAY),
        ),
        Endpoint(
            "GET",
            "/dead-letters/{id}",
            "One dead letter with its payload.",
            "LetterDetails",
            streams.show_letter,
            (
                _ID,
                Parameter("bytes", "How much of the payload.", "number", highest=1_000_000, default=4096),
            ),
            refusals=(400, 404, *_STORE_AWAY),
        ),
        Endpoint(
            "GET",
            "/schedule",
            "Past slots, next fires, missed slots and paused schedules.",
            "Schedule",
            schedule.show_schedule,
            (
                Parameter("from", "The beginning; 48 hours ago by default.", "time"),
                Parameter("to", "The end; in 48 hours by default.", "time"),
            ),
            refusals=(400, *_STORE_AWAY),
        ),
        Endpoint(
            "GET",
            "/workflows",
            "All workflows, and what their triggers wait for.",
            "Workflows",
            pipelines.list_workflows,
            refusals=_STORE_AWAY,
        ),
        Endpoint(
            "GET",
            "/connections",
            "All connections, with masked secrets.",
            "Connections",
            connections.list_connections,
            refusals=_STORE_AWAY,
        ),
        Endpoint(
            "POST",
            "/connections/{name}/check",
            "Open a connection and say what answers.",
            "ConnectionCheck",
            connections.check_connection,
            (_NAME,),
            role="operator",
            refusals=(404, 503),
            is_slow=True,
        ),
        Endpoint(
            "GET",
            "/actions",
            "Actions, newest first.",
            "Actions",
            actions.list_actions,
            (
                Parameter("subject", "Only on this pipeline, stream or run."),
                Parameter("unfinished", "Only actions that have not ended.", "flag"),
                LIMIT,
                AFTER,
            ),
            refusals=(400, *_STORE_AWAY),
        ),
        Endpoint(
            "POST",
            "/actions",
            "Ask for an action. 200: the same one has not ended yet, and is returned.",
            "Action",
            actions.add_action,
            body="ActionRequest",
            role="operator",
            refusals=(400, 404, 409, 413, *_STORE_AWAY),
            answers=(200, 201),
        ),
        Endpoint(
            "GET",
            "/actions/{id}",
            "One action.",
            "Action",
            actions.show_action,
            (_ID,),
            refusals=(404, *_STORE_AWAY),
        ),
    )
