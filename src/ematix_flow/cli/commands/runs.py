"""``flow runs``: what the run log holds, and for how long."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING, Annotated

import typer

from ematix_flow.cli.group import new_app
from ematix_flow.cli.moments import local, parse_since, took, zone_name
from ematix_flow.cli.options import OutputOption, RunLogOption
from ematix_flow.cli.output import Column, count, status_column, write_json, write_table, write_text
from ematix_flow.cli.project import read_run_log
from ematix_flow.cli.terminal import say
from ematix_flow.cli.timeline import write_timeline
from ematix_flow.spec.durations import parse_duration
from ematix_flow.state.records import RunStatus

if TYPE_CHECKING:
    from ematix_flow.state.records import RunRecord

_HELP = "Show the runs in the run log, or forget old ones. Without a command: the newest."
app = new_app(_HELP)


@app.callback(invoke_without_command=True, help=_HELP)
def runs(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        list_runs()


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
        "slot": f"{local(record.slot)} {zone_name()}" if record.slot else None,
        "rows": _rows(record),
        "source from": record.source_from,
        "source to": record.source_to,
        "engine": record.engine,
        "code": record.code_version,
        "process": f"{record.pid} on {record.host}",
        "error": _error(record),
        "declared at": record.error_where,
    }
    wide = max(len(label) for label in facts) + 2
    shown = {label: str(value).replace("\n", "\n" + " " * wide) for label, value in facts.items() if value}
    write_text("\n".join(f"{label:<{wide}}{value}" for label, value in shown.items()))
    if record.metrics:
        write_text("")
        write_timeline(record.metrics)
    say(f"flow logs {record.run_id[:8]}  shows what it said")


@app.command("purge")
def purge_runs(
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="DURATION", help="Forget runs that began longer ago: 90d, 36h."),
    ],
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=1, help="The newest of each pipeline that stay.")
    ] = 1,
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", "-p", metavar="NAME", help="Only runs of this pipeline.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="At most so many now.")
    ] = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Forget old runs, what they said, and old slots.

    What is still needed stays: runs that have not ended, and of each pipeline the newest runs, its newest
    success and its newest slot. [run_log] keep = "90d" in .ematix-flow.toml does the same bit by bit.
    """
    from ematix_flow.backends.run_logs import open_slots
    from ematix_flow.cli.slots import slots_url

    age = parse_duration("--older-than", older_than)
    with read_run_log(run_log, looking=False) as log:
        before = dt.datetime.now(dt.timezone.utc) - age
        purged = log.purge(before, keep=keep, pipeline=pipeline, most=most)
        place = log.location
    with open_slots(slots_url(run_log), env=os.environ) as store:
        slots = 0 if most is not None else store.purge(before, pipeline)
    if output == "json":
        write_json({"run_log": place, "runs": purged, "slots": slots})
        return
    runs = "1 run" if purged == 1 else f"{purged:,} runs"
    told = f" and {slots:,} slots" if slots else ""
    say(f"forgot {runs}{told} in {place} from before {local(before)} {zone_name()}")
    newest = "the newest run" if keep == 1 else f"the newest {keep:,} runs"
    say(f"kept, however old: of each pipeline {newest}, success and slot, and what has not ended")


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
        record.trigger if record.attempt == 1 else f"{record.trigger}, attempt {record.attempt}",
        (record.error_message or "").split("\n")[0],
    )


def _error(record: RunRecord) -> str | None:
    """A run that someone else settled has a reason and no error."""
    told = [part for part in (record.error_type, record.error_message) if part]
    return ": ".join(told) or None


def _rows(record: RunRecord) -> str:
    counts = {
        "read": record.rows_read,
        "inserted": record.rows_inserted,
        "updated": record.rows_updated,
        "deleted": record.rows_deleted,
    }
    return ", ".join(f"{number:,} {what}" for what, number in counts.items() if number is not None)
