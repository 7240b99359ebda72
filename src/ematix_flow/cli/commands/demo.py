"""``flow demo``: writes a small project and runs it twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import EngineOption, OutputOption
from ematix_flow.cli.output import write_json

app = new_app()


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where to write the project.", show_default=True)
    ] = Path("flow-demo"),
    force: Annotated[
        bool, typer.Option("--force", help="Replace existing files, even changed ones.")
    ] = False,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Write a small project and run it twice, with changed source data in between.

    You see an append, a refresh, a skip because nothing was new, and a failure with its error. It needs no
    server and no network, and takes a minute or two.
    """
    from ematix_flow.cli.demo.runner import Demo
    from ematix_flow.cli.signals import interruptible

    # with --output json, stdout is for the result
    project = Demo(folder, force=force, engine=engine, stream=sys.stderr if output == "json" else sys.stdout)
    with interruptible():
        project.run()
    if output == "json":
        write_json(project.to_json())
    return 0 if project.went_as_planned else 1
