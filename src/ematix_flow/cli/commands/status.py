"""``flow status``: shows the state of each pipeline and workflow."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.local_time import format_duration, format_local_time, format_time_until, local_zone_name
from ematix_flow.cli.options import (
    ExcludeOption,
    ModuleOption,
    NamesArgument,
    OutputOption,
    RunLogOption,
    SelectOption,
)
from ematix_flow.cli.output import OutputColumn, status_column, write_json, write_table, write_text
from ematix_flow.cli.project import load_project, read_run_log, resolve_pipeline_filter
from ematix_flow.cli.slot_runners import slots_url
from ematix_flow.cli.terminal import say
from ematix_flow.graph.trigger_text import pipeline_trigger_text, workflow_trigger_text

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry
    from ematix_flow.schedule.status import PipelineStatus, WorkflowStatus

app = new_app()


@app.command()
def status(
    names: NamesArgument = None,
    select: SelectOption = None,
    exclude: ExcludeOption = None,
    module: ModuleOption = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Show the state of pipelines and workflows: last run, outcome, retries, next run, and what is wrong."""
    from ematix_flow.backends.state_stores.run_logs import open_actions, open_slots
    from ematix_flow.schedule.status import pipeline_statuses, workflow_statuses

    registry = load_project(module)
    only = resolve_pipeline_filter(registry, names, select, exclude)
    with (
        read_run_log(run_log) as log,
        open_slots(slots_url(run_log), env=os.environ, keep_open=True, read_only=True) as store,
    ):
        now = store.now()
        with open_actions(slots_url(run_log), env=os.environ, read_only=True) as actions:
            holds = actions.holds()
        pipelines = pipeline_statuses(registry, only, store, log, now, holds)
        workflows = workflow_statuses(registry, only, store, log, now)
    if output == "json":
        write_json([*(each.to_json() for each in pipelines), *(each.to_json() for each in workflows)])
        return
    if not pipelines:
        say(_nothing_declared_text(len(registry.streams)))
        return
    _write_pipelines(pipelines, registry, now)
    if workflows:
        write_text("")
        _write_workflows(workflows, now)
    if backlog := _backlog_text(pipelines):
        write_text("")
        write_text(backlog)


def _nothing_declared_text(streams: int) -> str:
    if not streams:
        return "the module declares no pipeline"
    declared = "one streaming pipeline" if streams == 1 else f"{streams} streaming pipelines"
    return (
        f"the module declares {declared} and no batch pipeline: "
        "flow consume-list  shows them,  flow runs list  shows their runs"
    )


def _write_pipelines(standings: Sequence[PipelineStatus], registry: Registry, now: dt.datetime) -> None:
    columns = (
        OutputColumn("name"),
        OutputColumn("schedule"),
        OutputColumn(f"last run ({local_zone_name()})"),
        status_column("outcome"),
        OutputColumn("retry"),
        OutputColumn(f"next ({local_zone_name()})"),
        OutputColumn("depends on", wraps=True),
        OutputColumn("why", wraps=True),
    )
    rows = [
        (
            each.spec.name,
            pipeline_trigger_text(each.spec, registry),
            format_local_time(each.last_run.started_at) if each.last_run else "",
            each.last_run.status if each.last_run else "never",
            _retry_text(each, now),
            _next_fire_text(each.next_due, now),
            ", ".join(each.spec.depends_on),
            each.why,
        )
        for each in standings
    ]
    silent = 0 if any(row[-1] for row in rows) else 1
    write_table(columns[: len(columns) - silent], [row[: len(row) - silent] for row in rows])


def _write_workflows(standings: Sequence[WorkflowStatus], now: dt.datetime) -> None:
    columns = (
        OutputColumn("workflow"),
        OutputColumn("starts", wraps=True),
        OutputColumn(f"last fired ({local_zone_name()})"),
        status_column("outcome"),
        OutputColumn(f"next ({local_zone_name()})"),
        OutputColumn("waits for", wraps=True),
    )
    rows = [
        (
            each.spec.name,
            workflow_trigger_text(each.spec),
            format_local_time(each.slot.slot.fire_time) if each.slot else "",
            each.outcome,
            _next_fire_text(each.next_due, now),
            each.why,
        )
        for each in standings
    ]
    write_table(columns, rows)


def _retry_text(standing: PipelineStatus, now: dt.datetime) -> str:
    """How often the current slot has failed, how many attempts it has, and when the next one is."""
    slot, allowed = standing.slot, standing.spec.retry.max_attempts
    if slot is None:
        return f"0/{allowed}" if allowed > 1 else ""
    if slot.status == "gave_up":
        return "gave up"
    if slot.status == "skipped":
        return "skipped"
    if slot.status == "claimed":
        return f"{slot.failures}/{allowed}, running"
    when = f"again {format_time_until(slot.not_before, now)}" if slot.not_before > now else "due"
    if slot.reason and not slot.failures:
        when = "waits"  # for an upstream, a lock or a free executor
    return f"{slot.failures}/{allowed}, {when}"


def _backlog_text(standings: Sequence[PipelineStatus]) -> str:
    """How many due slots wait, and which is the oldest; empty when none waits."""
    behind = [each for each in standings if each.backlog.due_slots]
    if not behind:
        return ""
    number = sum(each.backlog.due_slots for each in behind)
    worst = max(behind, key=lambda each: each.backlog.behind_seconds)
    age = format_duration(dt.timedelta(seconds=worst.backlog.behind_seconds))
    oldest = f"{worst.spec.name} of {format_local_time(worst.backlog.oldest_due)} {local_zone_name()}"
    if number == 1:
        return f"backlog: 1 slot is due and waits: {oldest}, {age} behind"
    return f"backlog: {number:,} slots are due and wait; the oldest is {oldest}, {age} behind"


def _next_fire_text(due: dt.datetime | None, now: dt.datetime) -> str:
    return f"{format_local_time(due)[:16]}, {format_time_until(due, now)}" if due else ""
