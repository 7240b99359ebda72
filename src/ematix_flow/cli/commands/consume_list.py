"""``flow consume-list``: the streams that a module declares."""

from __future__ import annotations

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.commands.list import loads_text
from ematix_flow.cli.options import ModuleOption, OutputOption
from ematix_flow.cli.output import OutputColumn, write_json, write_table
from ematix_flow.cli.project import load_project
from ematix_flow.cli.terminal import say
from ematix_flow.graph.listing import stream_listing

app = new_app()


@app.command("consume-list")
def list_streams(module: ModuleOption = None, output: OutputOption = "text") -> None:
    """Show the streams that a module declares: what they follow, what they load, and how far they are."""
    specs = [declared.spec for declared in load_project(module).streams.values()]
    if output == "json":
        write_json([stream_listing(spec) for spec in specs])
        return
    if not specs:
        say("the module declares no streaming pipeline")
        return
    columns = (
        OutputColumn("stream"),
        OutputColumn("follows", wraps=True),
        OutputColumn("loads", wraps=True),
        OutputColumn("declared at", wraps=True),
    )
    rows = [
        (spec.name, ", ".join(source.label for source in spec.sources), loads_text(spec), spec.where)
        for spec in specs
    ]
    write_table(columns, rows)
