"""``flow restart``: runs a failed run again from the step that failed."""

from __future__ import annotations

from typing import Annotated

import typer

from ematix_flow.cli.action_work import action_desk, carry_out_here, write_action
from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import EngineOption, ModuleOption, OutputOption, RunLogOption
from ematix_flow.cli.project import load_project

app = new_app()


@app.command()
def restart(
    run_id: Annotated[str, typer.Argument(metavar="RUN", hidden=True)],
    module: ModuleOption = None,
    run_log: RunLogOption = None,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Run a failed or stopped run again from the step that failed.

    Targets that it has loaded and transforms that have run are not done again. It must be the newest run of
    its pipeline. The first characters of its id are enough.
    """
    registry = load_project(module)
    with action_desk(registry, run_log) as desk:
        receipt = desk.request("restart", run_id)
        code = carry_out_here(desk, receipt.action, engine)
        write_action(desk.actions.get(receipt.action.action_id), output, desk.actions.now())
    return code
