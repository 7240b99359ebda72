"""``flow status``: how each pipeline and workflow stands."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.cli.group import new_app
from ematix_flow.cli.moments import local, took, until, zone_name
from ematix_flow.cli.options import (
    ExcludeOption,
    ModuleOption,
    NamesArgument,
    OutputOption,
    RunLogOption,
    SelectOption,
)
from ematix_flow.cli.output import Column, status_column, write_json, write_table, write_text
from ematix_flow.cli.project import load_project, narrowed, read_run_log
from ematix_flow.cli.slots import slots_url
from ematix_flow.cli.starts import fired_by, starts_of
from ematix_flow.cli.terminal import say

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry
    from ematix_flow.schedule.standings import Standing, WorkflowStanding

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
    """Show how pipelines and workflows stand: last run, outcome, retries, what is next, and what is wrong."""
    from ematix_flow.backends.run_logs import open_slots
    from ematix_flow.schedule.standings import standings, workflow_standings

    registry = load_project(module)
    only = narrowed(registry, names, select, exclude)
    with (
        read_run_log(run_log) as log,
        open_slots(slots_url(run_log), env=os.environ, kept=True, looking=True) as store,
    ):
        now = store.now()
        pipelines = standings(registry, only, store, log, now)
        workflows = workflow_standings(registry, only, store, log, now)
    if output == "json":
        write_json([*(each.to_json() for each in pipelines), *(each.to_json() for each in workflows)])
        return
    if not pipelines:
        say(_nothing_to_show(len(registry.streams)))
        return
    _write_pipelines(pipelines, registry, now)
    if workflows:
        write_text("")
        _write_workflows(workflows, now)
    if told := _told_backlog(pipelines):
        write_text("")
        write_text(told)


def _nothing_to_show(streams: int) -> str:
    if not streams:
        return "the module declares no pipeline"
    declared = "one streaming pipeline" if streams == 1 else f"{streams} streaming pipelines"
    return (
        f"the module declares {declared} and no batch pipeline: "
        "flow consume-list  shows what is declared,  flow runs list  what became of it"
    )


def _write_pipelines(standings: Sequence[Standing], registry: Registry, now: dt.datetime) -> None:
    columns = (
        Column("name"),
        Column("schedule"),
        Column(f"last run ({zone_name()})"),
        status_column("outcome"),
        Column("retry"),
        Column(f"next ({zone_name()})"),
        Column("depends on", wraps=True),
        Column("why", wraps=True),
    )
    rows = [
        (
            each.spec.name,
            fired_by(each.spec, registry),
            local(each.last.started_at) if each.last else "",
            each.last.status if each.last else "never",
            _retry(each, now),
            _next(each.due, now),
            ", ".join(each.spec.depends_on),
            each.why,
        )
        for each in standings
    ]
    silent = 0 if any(row[-1] for row in rows) else 1
    write_table(columns[: len(columns) - silent], [row[: len(row) - silent] for row in rows])


def _write_workflows(standings: Sequence[WorkflowStanding], now: dt.datetime) -> None:
    columns = (
        Column("workflow"),
        Column("starts", wraps=True),
        Column(f"last fired ({zone_name()})"),
        status_column("outcome"),
        Column(f"next ({zone_name()})"),
        Column("waits for", wraps=True),
    )
    rows = [
        (
            each.spec.name,
            starts_of(each.spec),
            local(each.slot.slot.at) if each.slot else "",
            each.outcome,
            _next(each.due, now),
            each.why,
        )
        for each in standings
    ]
    write_table(columns, rows)


def _retry(standing: Standing, now: dt.datetime) -> str:
    """How often the slot at hand has failed of how often it may, and when it is tried again."""
    slot, allowed = standing.slot, standing.spec.retry.max_attempts
    if slot is None:
        return f"0/{allowed}" if allowed > 1 else ""
    if slot.status == "gave_up":
        return "gave up"
    if slot.status == "skipped":
        return "skipped"
    if slot.status == "claimed":
        return f"{slot.failures}/{allowed}, running"
    when = f"again {until(slot.not_before, now)}" if slot.not_before > now else "due"
    if slot.reason and not slot.failures:
        when = "waits"  # for an upstream, a lock or a place to run
    return f"{slot.failures}/{allowed}, {when}"


def _told_backlog(standings: Sequence[Standing]) -> str:
    """How many slots are due and wait, and which is the most behind; empty when none waits."""
    behind = [each for each in standings if each.backlog.slots]
    if not behind:
        return ""
    number = sum(each.backlog.slots for each in behind)
    worst = max(behind, key=lambda each: each.backlog.seconds)
    age = took(dt.timedelta(seconds=worst.backlog.seconds))
    oldest = f"{worst.spec.name} of {local(worst.backlog.oldest)} {zone_name()}"
    if number == 1:
        return f"backlog: 1 slot is due and waits: {oldest}, {age} behind"
    return f"backlog: {number:,} slots are due and wait; the oldest is {oldest}, {age} behind"


def _next(due: dt.datetime | None, now: dt.datetime) -> str:
    return f"{local(due)[:16]}, {until(due, now)}" if due else ""
