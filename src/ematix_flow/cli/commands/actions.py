"""``flow actions``: what people asked to be done, and how it ended."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ematix_flow.cli.action_work import write_action
from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.local_time import format_local_time, local_zone_name
from ematix_flow.cli.options import OutputOption, RunLogOption
from ematix_flow.cli.output import OutputColumn, status_column, write_json, write_table
from ematix_flow.cli.slot_runners import slots_url
from ematix_flow.cli.terminal import say

app = new_app("Show what people asked to be done with runs and schedules, and how it ended.")


@app.command("list")
def list_actions(
    subject: Annotated[
        str | None,
        typer.Option("--of", metavar="NAME", help="Only actions on this pipeline, stream or run id."),
    ] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Only actions that have not ended.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most N, newest first.")] = 20,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Show actions, newest first: who asked for what, when, and the outcome."""
    from ematix_flow.backends.state_stores.run_logs import open_actions
    from ematix_flow.schedule.actions.untaken_actions import action_json, describe_wait

    with open_actions(slots_url(run_log), env=os.environ, read_only=True) as actions:
        found = actions.list(limit=limit, subject=subject, unfinished=unfinished)
        now = actions.now()
    if output == "json":
        write_json([action_json(action, now) for action in found])
        return
    if not found:
        say("no such action" if subject or unfinished else "nobody has requested an action yet")
        return
    columns = (
        OutputColumn("action"),
        OutputColumn("what"),
        OutputColumn("of"),
        status_column(),
        OutputColumn(f"requested ({local_zone_name()})"),
        OutputColumn("by"),
        OutputColumn("outcome", wraps=True),
    )
    rows = [
        (
            action.action_id[:8],
            action.kind.replace("_", " "),
            action.short_subject,
            action.status,
            format_local_time(action.requested_at),
            f"{action.requested_by}, {action.via}",
            action.outcome or describe_wait(action, now),
        )
        for action in found
    ]
    write_table(columns, rows)
    say("flow actions show ACTION  shows the details of an action")


@app.command("show")
def show_action(
    action_id: Annotated[str, typer.Argument(metavar="ACTION", hidden=True)],
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Show everything that is known about one action. The first characters of its id are enough."""
    from ematix_flow.backends.state_stores.run_logs import open_actions

    with open_actions(slots_url(run_log), env=os.environ, read_only=True) as actions:
        write_action(actions.get(action_id), output, actions.now())
