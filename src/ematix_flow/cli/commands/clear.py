"""``flow clear``: makes slots due again that were given up or skipped."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.local_time import format_local_time, local_zone_name, parse_since
from ematix_flow.cli.options import (
    AllOption,
    ExcludeOption,
    ModuleOption,
    NamesArgument,
    OutputOption,
    RunLogOption,
    SelectOption,
)
from ematix_flow.cli.output import OutputColumn, status_column, write_json, write_table
from ematix_flow.cli.project import load_project, read_run_log, resolve_pipelines
from ematix_flow.cli.slot_runners import slots_url
from ematix_flow.cli.terminal import say

if TYPE_CHECKING:
    from ematix_flow.state.slots.base import SlotRecord

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
            help="Clear all slots since then: 90m, 2h, 7d or 2026-01-31. Without it: the last slot of each.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be cleared.")] = False,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Make slots that were given up or skipped due again, as if they had never failed.

    The next  flow run-due  or the scheduler runs them. A slot that was loaded is not loaded again.
    """
    from ematix_flow.backends.state_stores.run_logs import open_actions, open_slots
    from ematix_flow.schedule.clearing import clear_slots, clearable_slots, older_clearable_slots

    registry = load_project(module)
    chosen = resolve_pipelines(registry, names, everything=everything, select=select, exclude=exclude)
    start = None if since is None else parse_since(since, dt.datetime.now(dt.timezone.utc))
    with open_slots(slots_url(run_log), env=os.environ) as store:
        found = clearable_slots(store, chosen, start)
        others = older_clearable_slots(store, chosen, found) if start is None and output == "text" else []
        now = store.now()
        cleared = found
        if found and not dry_run:
            with (
                read_run_log(run_log, read_only=False) as log,
                open_actions(slots_url(run_log), env=os.environ) as actions,
            ):
                cleared = clear_slots(store, registry, found, log, actions)
    if output == "json":
        write_json([_as_json(record, dry_run) for record in cleared])
        return
    if cleared:
        _show_cleared(cleared, dry_run)
    elif start is not None:
        say("nothing to clear: none of these pipelines has a slot that was given up or skipped")
    else:
        say("nothing to clear: none of these pipelines has a last slot that was given up or skipped")
    if others:
        age = now - others[0].slot.fire_time + dt.timedelta(minutes=5)  # time to type the command
        hours = math.ceil(age / dt.timedelta(hours=1))
        were = "was" if len(others) == 1 else "were"
        say(
            f"{_slot_count_text(len(others), 'older ')} {were} given up or skipped too: add  --since {hours}h"
        )


def _show_cleared(cleared: Sequence[SlotRecord], dry_run: bool) -> None:
    columns = (
        OutputColumn("pipeline"),
        OutputColumn(f"slot ({local_zone_name()})"),
        status_column("was"),
        OutputColumn("why", wraps=True),
    )
    rows = [
        (r.slot.pipeline, format_local_time(r.slot.fire_time), r.status.replace("_", " "), r.reason)
        for r in cleared
    ]
    write_table(columns, rows)
    if dry_run:
        say(f"dry run: {_slot_count_text(len(cleared))} would run again; nothing was changed")
    else:
        say(
            f"{_slot_count_text(len(cleared))} will run again:  flow run-due  now, or "
            "the scheduler at its next poll"
        )


def _slot_count_text(number: int, which: str = "") -> str:
    return f"1 {which}slot" if number == 1 else f"{number:,} {which}slots"


def _as_json(record: SlotRecord, dry_run: bool) -> dict[str, Any]:
    return {
        "pipeline": record.slot.pipeline,
        "slot": record.slot.fire_time.isoformat(),
        "was": record.status,
        "reason": record.reason,
        "cleared": not dry_run,
    }
