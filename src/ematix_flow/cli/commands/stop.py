"""``flow stop``: asks a run to stop, or ends the wait of a slot for its next attempt."""

from __future__ import annotations

from typing import Annotated

import typer

from ematix_flow.cli.action_work import action_desk, write_receipt
from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import ModuleOption, OutputOption, RunLogOption
from ematix_flow.cli.project import load_project

app = new_app()


@app.command()
def stop(
    subject: Annotated[str, typer.Argument(metavar="RUN|NAME", hidden=True)],
    module: ModuleOption = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Ask a run to stop, on any machine. It rolls back what it has not committed.

    RUN is its id, of which the first characters are enough; NAME is its pipeline or stream. A slot that waits
    for its next attempt is given up: no further attempt starts.
    """
    with action_desk(load_project(module), run_log) as desk:
        receipt = desk.request("stop", subject)
        short = receipt.action.short_subject
        if receipt.action.status == "failed":
            write_receipt(desk, receipt, output, f"flow status {short}  shows its state")
            raise typer.Exit(1)
        if receipt.action.status == "done":
            shows = f"flow runs show {short}  shows the last attempt"
            write_receipt(desk, receipt, output, shows if receipt.action.run_ids else f"flow status {short}")
            return
        write_receipt(
            desk,
            receipt,
            output,
            f"flow runs show {short}  shows when it has",
            f"run {short} is asked to stop",
        )
