"""``flow status``: how each pipeline stands."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.group import new_app
from ematix_flow.cli.moments import local, until, zone_name
from ematix_flow.cli.options import ModuleOption, OutputOption, RunLogOption
from ematix_flow.cli.output import Column, count, status_column, write_json, write_table
from ematix_flow.cli.project import load_project, read_run_log
from ematix_flow.cli.terminal import say
from ematix_flow.spec.schedules import Schedule

if TYPE_CHECKING:
    from ematix_flow.spec.pipelines import PipelineSpec
    from ematix_flow.state.records import RunRecord
    from ematix_flow.state.runlog import RunLog

app = new_app()

_LOOKED_BACK = 50


@dataclass(frozen=True)
class Standing:
    """One pipeline: its last run, the failures since the last success, and when it is due."""

    spec: PipelineSpec
    last: RunRecord | None
    failures: int
    due: dt.datetime | None

    def to_json(self) -> dict[str, Any]:
        last = self.last
        return {
            "pipeline": self.spec.name,
            "schedule": self.spec.schedule,
            "timezone": self.spec.timezone,
            "depends_on": list(self.spec.depends_on),
            "last_run": last.to_json() if last else None,
            "failures_since_success": self.failures,
            "attempts_allowed": self.spec.retry.max_attempts,
            "next_due": self.due.isoformat() if self.due else None,
        }


@app.command()
def status(module: ModuleOption = None, run_log: RunLogOption = None, output: OutputOption = "text") -> None:
    """Show each pipeline's last run, its failures since, and when it is due next."""
    registry = load_project(module)
    now = dt.datetime.now(dt.timezone.utc)
    with read_run_log(run_log) as log:
        standings = [_standing(d.spec, log, now) for d in registry.pipelines.values()]
    if output == "json":
        write_json([standing.to_json() for standing in standings])
        return
    if not standings:
        say(_nothing_to_show(len(registry.streams)))
        return
    columns = (
        Column("pipeline"),
        status_column("last outcome"),
        Column(f"last run ({zone_name()})"),
        Column("rows", right=True),
        Column("failures", right=True),
        Column("next due", wraps=True),
        Column("depends on", wraps=True),
    )
    write_table(columns, [_row(standing, now) for standing in standings])


def _nothing_to_show(streams: int) -> str:
    if not streams:
        return "the module declares no pipeline"
    declared = "one streaming pipeline" if streams == 1 else f"{streams} streaming pipelines"
    return (
        f"the module declares {declared} and no batch pipeline: "
        "flow consume-list  shows what is declared,  flow runs list  what became of it"
    )


def next_due(spec: PipelineSpec, now: dt.datetime) -> dt.datetime | None:
    """The next moment its schedule names, in its own time zone; None when it is run by hand."""
    if spec.schedule is None:
        return None
    return Schedule(spec.schedule, spec.timezone or "UTC").next(now)


def _standing(spec: PipelineSpec, log: RunLog, now: dt.datetime) -> Standing:
    records = log.list(spec.name, limit=_LOOKED_BACK)
    failures = 0
    for record in records:
        if record.status in ("succeeded", "skipped"):
            break
        failures += record.status in ("failed", "interrupted")
    return Standing(spec, records[0] if records else None, failures, next_due(spec, now))


def _row(standing: Standing, now: dt.datetime) -> tuple[object, ...]:
    last, due = standing.last, standing.due
    return (
        standing.spec.name,
        last.status if last else "never",
        local(last.started_at) if last else "",
        count(last.rows_inserted) if last else "",
        standing.failures or "",
        f"{local(due)[:16]}, {until(due, now)}" if due else "by hand",
        ", ".join(standing.spec.depends_on),
    )
