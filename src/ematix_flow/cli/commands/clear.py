"""``flow clear``: what was given up or skipped waits for another run."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.group import new_app
from ematix_flow.cli.moments import local, parse_since, zone_name
from ematix_flow.cli.options import (
    AllOption,
    ExcludeOption,
    ModuleOption,
    NamesArgument,
    OutputOption,
    RunLogOption,
    SelectOption,
)
from ematix_flow.cli.output import Column, status_column, write_json, write_table
from ematix_flow.cli.project import chosen_pipelines, load_project
from ematix_flow.cli.slots import slots_url
from ematix_flow.cli.terminal import say

if TYPE_CHECKING:
    from ematix_flow.state.slots import SlotRecord

app = new_app()


@app.command()
def clear(
    names: NamesArgument = None,
    everything: AllOption = False,
    select: SelectOption = None,
    exclude: ExcludeOption = None,
    module: ModuleOption = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="WHEN",
            help="All slots that fired since: 90m, 2h, 7d or 2026-01-31. Without it: the last of each.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be cleared.")] = False,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Let slots that were given up or skipped run again, as if they never had failed.

    The next  flow run-due  or the scheduler runs them. What is done already is not done twice.
    """
    from ematix_flow.backends.run_logs import open_slots
    from ematix_flow.schedule.clearing import clearable, older, reopen

    registry = load_project(module)
    chosen = chosen_pipelines(registry, names, everything=everything, select=select, exclude=exclude)
    start = None if since is None else parse_since(since, dt.datetime.now(dt.timezone.utc))
    with open_slots(slots_url(run_log), env=os.environ) as store:
        found = clearable(store, chosen, start)
        others = older(store, chosen, found) if start is None and output == "text" else []
        now = store.now()
        cleared = found if dry_run else reopen(store, registry, found)
    if output == "json":
        write_json([_json(record, dry_run) for record in cleared])
        return
    if cleared:
        _show(cleared, dry_run)
    elif start is not None:
        say("nothing to clear: no slot of these is given up or skipped")
    else:
        say("nothing to clear: the last slot of none of these is given up or skipped")
    if others:
        age = now - others[0].slot.at + dt.timedelta(minutes=5)  # until it is typed
        hours = math.ceil(age / dt.timedelta(hours=1))
        were = "was" if len(others) == 1 else "were"
        say(f"{_slots(len(others), 'older ')} {were} given up or skipped too: add  --since {hours}h")


def _show(cleared: Sequence[SlotRecord], dry_run: bool) -> None:
    columns = (
        Column("pipeline"),
        Column(f"slot ({zone_name()})"),
        status_column("was"),
        Column("why", wraps=True),
    )
    rows = [(r.slot.pipeline, local(r.slot.at), r.status.replace("_", " "), r.reason) for r in cleared]
    write_table(columns, rows)
    if dry_run:
        say(f"dry run: {_slots(len(cleared))} would run again; nothing was changed")
    else:
        say(f"{_slots(len(cleared))} will run again:  flow run-due  now, or the scheduler at its next look")


def _slots(number: int, which: str = "") -> str:
    return f"1 {which}slot" if number == 1 else f"{number:,} {which}slots"


def _json(record: SlotRecord, dry_run: bool) -> dict[str, Any]:
    return {
        "pipeline": record.slot.pipeline,
        "slot": record.slot.at.isoformat(),
        "was": record.status,
        "reason": record.reason,
        "cleared": not dry_run,
    }
