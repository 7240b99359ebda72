"""``flow pause``: holds a run at its next safe point, or holds a schedule back."""

from __future__ import annotations

from typing import Annotated

import typer

from ematix_flow.cli.action_work import action_desk, write_receipt
from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import ModuleOption, NameArgument, OutputOption, RunLogOption
from ematix_flow.cli.project import load_project

app = new_app()


@app.command()
def pause(
    name: NameArgument,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Hold back the next runs instead of the run at work.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why, for those who see the pause.")
    ] = None,
    module: ModuleOption = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Hold the run of a pipeline or stream at its next safe point, until  flow resume.

    With --schedule the run at work goes on, and no slot starts. What was due fires by its catchup when it is
    resumed.
    """
    kind, option = ("pause_schedule", " --schedule") if schedule else ("pause", "")
    with action_desk(load_project(module), run_log) as desk:
        receipt = desk.request(kind, name, {"reason": reason})
        write_receipt(desk, receipt, output, f"flow resume {name}{option}  ends the pause")
