"""The tools that only read: each calls the functions behind the endpoints of `flow web`.

Leaves out of lists what an assistant seldom needs and what makes them long; the tool of the one item has it.
"""

from __future__ import annotations

from typing import Any, get_args

from ematix_flow.mcp.failures import explain_failure
from ematix_flow.mcp.lineage import MOST_STEPS, lineage_tool
from ematix_flow.mcp.tool_table import FlowTool, value_of
from ematix_flow.state.dead_letters.base import LetterStage, LetterStatus
from ematix_flow.state.runlog.records import RunStatus
from ematix_flow.web import actions, pipelines, runs, schedule, streams
from ematix_flow.web.endpoints import Call, Parameter
from ematix_flow.web.site import Site

_NAME = Parameter("name", "The name of the pipeline.")
_RUN = Parameter("run", "The id of the run, or its first characters.")
_PIPELINE = Parameter("pipeline", "Only of this pipeline or stream.")
_LIMIT = Parameter("limit", "At most so many items.", "number", lowest=1, highest=200, default=20)
_AFTER = Parameter("after", "The value of next of the answer before, to go on from there.")
_SHORTER_LIST = ("bars", "rows_per_day", "last_run", "where")
PAGE = 20


def list_pipelines(site: Site, call: Call) -> dict[str, Any]:
    items = value_of(pipelines.list_pipelines(site, call))["items"]
    wanted = call.text("state")
    if wanted is not None:
        items = [item for item in items if _last_status(item) == wanted]
    limit = call.number("limit", PAGE)
    shown = [_shorter_pipeline(item) for item in items[:limit]]
    return {"items": shown, "count": len(items), "left_out_items": len(items) - len(shown)}


def _last_status(item: dict[str, Any]) -> str:
    run = item.get("last_run")
    return str(run["status"]) if run else "never"


def _shorter_pipeline(item: dict[str, Any]) -> dict[str, Any]:
    """A pipeline without its history, but with the status and the error of its last run."""
    run = item.get("last_run")
    kept = {name: value for name, value in item.items() if name not in _SHORTER_LIST}
    names = ("run_id", "status", "started_at", "error_type", "error_message")
    return {**kept, "last_run": None if run is None else {name: run.get(name) for name in names}}


def list_runs(site: Site, call: Call) -> dict[str, Any]:
    page = value_of(runs.list_runs(site, call))
    items = [{name: value for name, value in run.items() if name != "metrics"} for run in page["items"]]
    return {**page, "items": items}


def show_run(site: Site, call: Call) -> dict[str, Any]:
    run: dict[str, Any] = value_of(runs.show_run(site, _with_id(call)))
    if site.read_only:
        del run["can"]  # it would say of each action that this server only shows
    return run


def read_log(site: Site, call: Call) -> dict[str, Any]:
    return runs.show_log(site, _with_id(call))


def _with_id(call: Call) -> Call:
    return Call({**call.arguments, "id": call.required("run")}, call.viewer)


def show_schedule(site: Site, call: Call) -> dict[str, Any]:
    shown: dict[str, Any] = value_of(schedule.show_schedule(site, call))
    only = call.text("pipeline")
    if only is None:
        return shown
    return {
        name: [each for each in items if only in (each.get("pipeline"), each.get("name"))]
        for name, items in shown.items()
    }


def reading_tools(module: str) -> tuple[FlowTool, ...]:
    """The tools of a server for this module, in the order in which an assistant sees them."""
    plans = pipelines.PlanCache(module)
    return (
        FlowTool(
            "list_pipelines",
            "List pipelines",
            "List the pipelines with their targets, their schedule, their next fire and how their last run "
            "ended; failing ones first. Begin here to find names. show_pipeline has more about one.",
            list_pipelines,
            (
                Parameter(
                    "select",
                    "A selector as of flow status --select: a name or orders_*, tag:nightly, workflow:w, "
                    "source:x, target:y; +name+ adds up- and downstream.",
                ),
                Parameter("search", "Only pipelines whose name, target, tags or description have this text."),
                Parameter(
                    "state",
                    "Only pipelines whose last run has this status; never: it has not run.",
                    values=(*get_args(RunStatus), "never"),
                ),
                _LIMIT,
            ),
        ),
        FlowTool(
            "show_pipeline",
            "Show a pipeline",
            "Show one pipeline: source, targets, schedule, up- and downstream pipelines, its last 30 runs, "
            "freshness, rows per day, and whether it is paused.",
            pipelines.show_pipeline,
            (_NAME,),
            ("name",),
        ),
        FlowTool(
            "plan_pipeline",
            "Plan a pipeline",
            "Say what a run of a pipeline would do now, as flow plan does: range of the source, path, table "
            "changes, SQL, guarantees. It changes nothing. It connects to source and target, and may take "
            "some seconds.",
            pipelines.show_plan(plans),
            (_NAME,),
            ("name",),
        ),
        FlowTool(
            "list_runs",
            "List runs",
            "List runs of pipelines and streams, newest first. A page may be short or empty and still have a "
            "next one: pass next as after. show_run has more about one, explain_failure says why one failed.",
            list_runs,
            (
                _PIPELINE,
                Parameter("status", "Only with this status.", values=get_args(RunStatus)),
                Parameter("since", "Only runs that started then or later, as 2026-01-31T12:00:00Z.", "time"),
                Parameter("until", "Only runs that started earlier.", "time"),
                Parameter("text", "Only runs whose error has this text."),
                Parameter("trigger", "Only runs that this started: cli, schedule, web, mcp, …"),
                _LIMIT,
                _AFTER,
            ),
        ),
        FlowTool(
            "show_run",
            "Show a run",
            "Show one run: rows, stages with their times, targets, progress, tuning, its plan, its error, "
            "the runs before and after it, and the attempts at the same slot.",
            show_run,
            (_RUN,),
            ("run",),
        ),
        FlowTool(
            "explain_failure",
            "Explain a failure",
            "Explain why a run failed: its error in parts (what, where, state, next), what has changed "
            "since the last run that succeeded, what ran before it, the end of its log, and the next steps. "
            "Without run, the newest failed run of the pipeline; without both, the newest failed run of all.",
            explain_failure,
            (_RUN, Parameter("pipeline", "The pipeline or stream whose newest failed run is meant.")),
        ),
        FlowTool(
            "read_log",
            "Read the log of a run",
            "Read the last lines that a run has logged.",
            read_log,
            (
                _RUN,
                Parameter("tail", "How many lines.", "number", lowest=1, highest=2_000, default=400),
            ),
            ("run",),
        ),
        FlowTool(
            "list_streams",
            "List streams",
            "List the streaming pipelines: sources, targets, their newest run, its newest sample of rows and "
            "lag, and how many dead letters wait.",
            streams.list_streams,
        ),
        FlowTool(
            "list_dead_letters",
            "List dead letters",
            "List messages that streams could not load, oldest first, with the reason and how many there are."
            " Payloads are not shown: flow dlq show prints one.",
            streams.list_letters,
            (
                _PIPELINE,
                Parameter("status", "Only with this status.", values=get_args(LetterStatus)),
                Parameter("stage", "Only letters that failed in this stage.", values=get_args(LetterStage)),
                Parameter("reason", "Only letters whose reason has this text."),
                _LIMIT,
                _AFTER,
            ),
        ),
        FlowTool(
            "show_schedule",
            "Show the schedule",
            "Show past slots and how they ended, next fires, missed slots and paused schedules; from 48 "
            "hours ago to 48 hours ahead if not told otherwise.",
            show_schedule,
            (
                Parameter("pipeline", "Only of this pipeline."),
                Parameter("from", "The beginning, as 2026-01-31T12:00:00Z.", "time"),
                Parameter("to", "The end.", "time"),
            ),
        ),
        FlowTool(
            "lineage",
            "Show lineage",
            "Show what a pipeline, stream, workflow or table is made of and what depends on it: the graph "
            "around it, with the state of each node as of its newest run.",
            lineage_tool(),
            (
                Parameter("name", "A name, as orders, or the label of a table, as warehouse:shop.orders."),
                Parameter("direction", "Which way to go.", values=("upstream", "downstream", "both")),
                Parameter("steps", "How far.", "number", lowest=1, highest=MOST_STEPS, default=MOST_STEPS),
            ),
            ("name",),
        ),
        FlowTool(
            "list_actions",
            "List actions",
            "List what people and programs asked to be done with runs and schedules, newest first: who, "
            "when, how it ended, and the runs that it made.",
            actions.list_actions,
            (
                Parameter("subject", "Only on this pipeline, stream or run."),
                Parameter("unfinished", "Only actions that have not ended.", "flag"),
                _LIMIT,
                _AFTER,
            ),
        ),
    )
