"""``flow runs``: what the run log holds."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

import typer

from ematix_flow.cli.group import new_app
from ematix_flow.cli.moments import local, parse_since, took, zone_name
from ematix_flow.cli.options import OutputOption, RunLogOption
from ematix_flow.cli.output import Column, count, status_column, write_json, write_table, write_text
from ematix_flow.cli.project import read_run_log
from ematix_flow.cli.terminal import say
from ematix_flow.state.records import RunStatus

if TYPE_CHECKING:
    from ematix_flow.state.records import RunRecord

app = new_app("Show the runs in the run log.")


@app.command("list")
def list_runs(
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", "-p", metavar="NAME", help="Only runs of this pipeline.")
    ] = None,
    status: Annotated[RunStatus | None, typer.Option("--status", help="Only runs that ended so.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="Only runs started since: 90m, 2h, 7d or 2026-01-31."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, newest first.")] = 20,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Show recent runs, newest first."""
    start = None if since is None else parse_since(since, dt.datetime.now(dt.timezone.utc))
    with read_run_log(run_log) as log:
        records = log.list(pipeline, status, limit, start)
        place = log.location
    if output == "json":
        write_json([record.to_json() for record in records])
        return
    if not records:
        say(f"no such run in {place}")
        return
    columns = (
        Column("run"),
        Column("pipeline"),
        status_column(),
        Column(f"started ({zone_name()})"),
        Column("took", right=True),
        Column("read", right=True),
        Column("inserted", right=True),
        Column("updated", right=True),
        Column("deleted", right=True),
        Column("by"),
        Column("error", wraps=True),
    )
    write_table(columns, [_row(record) for record in records])
    say("flow runs show RUN  says more of one")


@app.command("show")
def show_run(
    run_id: Annotated[str, typer.Argument(metavar="RUN", hidden=True)],
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Show all that is known of one run. The first letters of its id are enough."""
    with read_run_log(run_log) as log:
        record = log.get(run_id)
    if output == "json":
        write_json(record.to_json())
        return
    facts = {
        "run": record.run_id,
        "pipeline": record.pipeline,
        "target": record.target,
        "mode": record.mode,
        "path": record.path,
        "status": record.status,
        "started": f"{local(record.started_at)} {zone_name()}, {record.trigger}, attempt {record.attempt}",
        "took": took(record.duration),
        "slot": local(record.slot),
        "rows": _rows(record),
        "source from": record.source_from,
        "source to": record.source_to,
        "error": f"{record.error_type}: {record.error_message}" if record.error_type else None,
        "process": f"{record.pid} on {record.host}",
    }
    write_text("\n".join(f"{label:<13}{value}" for label, value in facts.items() if value))
    stages = [
        (target.get("target"), stage, f"{seconds:.2f}")
        for target in record.metrics.get("targets", ())
        for stage, seconds in target.get("seconds", {}).items()
    ]
    if stages:
        write_text("")
        write_table((Column("target"), Column("stage"), Column("seconds", right=True)), stages)


def _row(record: RunRecord) -> tuple[object, ...]:
    return (
        record.run_id[:8],
        record.pipeline,
        record.status,
        local(record.started_at),
        took(record.duration),
        count(record.rows_read),
        count(record.rows_inserted),
        count(record.rows_updated),
        count(record.rows_deleted),
        record.trigger,
        (record.error_message or "").split("\n")[0],
    )


def _rows(record: RunRecord) -> str:
    counts = {
        "read": record.rows_read,
        "inserted": record.rows_inserted,
        "updated": record.rows_updated,
        "deleted": record.rows_deleted,
    }
    return ", ".join(f"{number:,} {what}" for what, number in counts.items() if number is not None)
