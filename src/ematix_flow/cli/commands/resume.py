"""``flow resume``: ends the pause of a run or of a schedule."""

from __future__ import annotations

from typing import Annotated

import typer

from ematix_flow.cli.action_work import action_desk, write_receipt
from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import ModuleOption, NameArgument, OutputOption, RunLogOption
from ematix_flow.cli.project import load_project

app = new_app()


@app.command()
def resume(
    name: NameArgument,
    schedule: Annotated[bool, typer.Option("--schedule", help="Resume the schedule.")] = False,
    module: ModuleOption = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Let a paused run or schedule go on."""
    with action_desk(load_project(module), run_log) as desk:
        receipt = desk.request("resume_schedule" if schedule else "resume", name)
        write_receipt(desk, receipt, output, f"flow status {name}  shows what is due" if schedule else None)
