"""``flow preview``: shows the plan and the first rows of the source."""

from __future__ import annotations

from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import EngineOption, ModuleOption, NameArgument, OutputOption
from ematix_flow.cli.output import OutputColumn, write_json, write_table, write_text
from ematix_flow.cli.project import load_project
from ematix_flow.cli.terminal import say

app = new_app()


@app.command()
def preview(
    name: NameArgument,
    module: ModuleOption = None,
    rows: Annotated[int, typer.Option("--rows", "-n", min=0, help="How many rows to show.")] = 10,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show all SQL in full.")] = False,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> None:
    """Show the plan and the first rows of the source, before normalisers. Changes nothing."""
    from ematix_flow.run.context_setup import spark_starter
    from ematix_flow.run.preview import preview as look

    found = look(load_project(module).pipeline(name), spark_starter(engine), rows)
    if output == "json":
        write_json(found.to_json())
        return
    write_text(found.plan.to_text(verbose=verbose))
    write_text("")
    write_table([OutputColumn(column, wraps=True) for column in found.columns], found.rows)
    say(f"\nthe first {len(found.rows)} rows of the source, as they come" if found.rows else "\n(no rows)")
