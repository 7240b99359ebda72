"""``flow runs``: shows the runs in the run log, and deletes old ones."""

from __future__ import annotations

import datetime as dt
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.expectation_tables import expectations_text, probes_text
from ematix_flow.cli.ledger_table import write_ledgers
from ematix_flow.cli.local_time import format_duration, format_local_time, local_zone_name, parse_since
from ematix_flow.cli.options import ModuleOption, OutputOption, RunLogOption
from ematix_flow.cli.output import (
    OutputColumn,
    format_count,
    status_column,
    write_json,
    write_table,
    write_text,
)
from ematix_flow.cli.project import load_project, read_run_log
from ematix_flow.cli.run_steps import progress_text, write_post_steps
from ematix_flow.cli.terminal import say, write
from ematix_flow.cli.timeline import write_timeline
from ematix_flow.spec.durations import parse_duration
from ematix_flow.state.runlog.records import RunStatus
from ematix_flow.state.runlog.shown_runs import listed_run, shown_run
from ematix_probe.redaction import mask

if TYPE_CHECKING:
    from ematix_flow.run.run_ledger import TargetLedger
    from ematix_flow.state.runlog.records import RunRecord

_HELP = "Show the runs in the run log, or delete old ones. Without a command: the newest."
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
    status: Annotated[RunStatus | None, typer.Option("--status", help="Only runs with this status.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="Only runs started since: 90m, 2h, 7d or 2026-01-31."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most N, newest first.")] = 20,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Show recent runs, newest first."""
    start = None if since is None else parse_since(since, dt.datetime.now(dt.timezone.utc))
    with read_run_log(run_log) as log:
        records = log.list(pipeline, status, limit, start)
        place = log.location
    if output == "json":
        write_json([listed_run(record).to_json() for record in records])
        return
    if not records:
        say(f"no matching run in {place}")
        return
    columns = (
        OutputColumn("run"),
        OutputColumn("pipeline"),
        status_column(),
        OutputColumn(f"started ({local_zone_name()})"),
        OutputColumn("took", right=True),
        OutputColumn("read", right=True),
        OutputColumn("inserted", right=True),
        OutputColumn("updated", right=True),
        OutputColumn("deleted", right=True),
        OutputColumn("by"),
        OutputColumn("error", wraps=True),
    )
    write_table(columns, [_run_row(record) for record in records])
    say("flow runs show RUN  shows the details of a run")


@app.command("show")
def show_run(
    run_id: Annotated[str, typer.Argument(metavar="RUN", hidden=True)],
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Also ask the targets what they committed for the run.")
    ] = False,
    module: ModuleOption = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Show everything that is known about one run. The first characters of its id are enough."""
    with read_run_log(run_log) as log:
        record = shown_run(log.get(run_id))
    ledgers = _read_ledgers(record, module) if ledger else None
    if output == "json":
        found = {} if ledgers is None else {"ledger": [each.to_json() for each in ledgers]}
        write_json({**record.to_json(), **found})
        return
    facts = {
        "run": record.run_id,
        "pipeline": record.pipeline,
        "target": record.target,
        "mode": record.mode,
        "path": record.path,
        "status": record.status,
        "started": f"{format_local_time(record.started_at)} {local_zone_name()}, "
        f"{record.trigger}, attempt {record.attempt}",
        "took": format_duration(record.duration),
        "progress": progress_text(record.metrics) if record.status == "running" else None,
        "restart of": record.metrics.get("restart_of"),
        "slot": f"{format_local_time(record.slot)} {local_zone_name()}" if record.slot else None,
        "rows": _row_counts_text(record),
        "source from": record.source_from,
        "source to": record.source_to,
        "engine": record.engine,
        "code": record.code_version,
        "process": f"{record.pid} on {record.host}",
        "error": _error_text(record),
        "declared at": record.error_where,
    }
    wide = max(len(label) for label in facts) + 2
    shown = {
        label: mask(str(value)).replace("\n", "\n" + " " * wide) for label, value in facts.items() if value
    }
    write_text("\n".join(f"{label:<{wide}}{value}" for label, value in shown.items()))
    if record.metrics:
        write_text("")
        write_timeline(record.metrics)
        if record.metrics.get("post"):
            write_text("")
            write_post_steps(record.metrics)
        for text in (
            expectations_text(record.metrics.get("targets") or (), stream=sys.stdout),
            probes_text(record.metrics.get("probes") or ()),
        ):
            if text:
                write("\n" + text, sys.stdout)
    if ledgers is not None:
        write_text("")
        write_ledgers(ledgers)
    say(f"flow logs {record.run_id[:8]}  shows its log")


def _read_ledgers(record: RunRecord, module: str | None) -> list[TargetLedger]:
    from ematix_flow.run.run_ledger import read_run_ledger

    return read_run_ledger(load_project(module), record)


@app.command("purge")
def purge_runs(
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="DURATION", help="Delete runs that started longer ago: 90d, 36h."
        ),
    ],
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=1, help="Keep the newest N runs of each pipeline.")
    ] = 1,
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", "-p", metavar="NAME", help="Only runs of this pipeline.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Delete at most N runs.")
    ] = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Delete old runs with their logs, and old slots.

    Runs that have not ended stay, and of each pipeline the newest runs, its newest success and its newest
    slot. [run_log] keep = "90d" in .ematix-flow.toml does the same after each run.
    """
    from ematix_flow.backends.state_stores.run_logs import open_slots
    from ematix_flow.cli.slot_runners import slots_url

    age = parse_duration("--older-than", older_than)
    with read_run_log(run_log, read_only=False) as log:
        before = dt.datetime.now(dt.timezone.utc) - age
        purged = log.purge(before, keep=keep, pipeline=pipeline, most=most)
        place = log.location
    with open_slots(slots_url(run_log), env=os.environ) as store:
        slots = 0 if most is not None else store.purge(before, pipeline)
    if output == "json":
        write_json({"run_log": place, "runs": purged, "slots": slots})
        return
    runs = "1 run" if purged == 1 else f"{purged:,} runs"
    also = f" and {slots:,} slots" if slots else ""
    say(f"deleted {runs}{also} in {place} from before {format_local_time(before)} {local_zone_name()}")
    newest = "the newest run" if keep == 1 else f"the newest {keep:,} runs"
    say(f"kept of each pipeline at any age: {newest}, success and slot, and runs that have not ended")


def _run_row(record: RunRecord) -> tuple[object, ...]:
    return (
        record.run_id[:8],
        record.pipeline,
        record.status,
        format_local_time(record.started_at),
        format_duration(record.duration),
        format_count(record.rows.read),
        format_count(record.rows.inserted),
        format_count(record.rows.updated),
        format_count(record.rows.deleted),
        record.trigger if record.attempt == 1 else f"{record.trigger}, attempt {record.attempt}",
        (record.error_message or "").split("\n")[0],
    )


def _error_text(record: RunRecord) -> str | None:
    """The error of a run. A run that another process closed has only a reason."""
    parts = [part for part in (record.error_type, record.error_message) if part]
    return ": ".join(parts) or None


def _row_counts_text(record: RunRecord) -> str:
    counts = {
        "read": record.rows.read,
        "inserted": record.rows.inserted,
        "updated": record.rows.updated,
        "deleted": record.rows.deleted,
    }
    letters = record.metrics.get("stream", {}).get("dead_letters")
    if letters:
        counts["dead letter" if letters == 1 else "dead letters"] = letters
    return ", ".join(f"{number:,} {what}" for what, number in counts.items() if number is not None)
