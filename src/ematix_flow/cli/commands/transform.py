"""``flow transform``: lists named transforms, and runs one by hand."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import ModuleOption, OutputOption, RunLogOption
from ematix_flow.cli.output import OutputColumn, write_json, write_table, write_text
from ematix_flow.cli.project import load_project
from ematix_flow.cli.step_progress import show_steps
from ematix_flow.cli.terminal import say

app = new_app("List named transforms, or run one by hand.")


@app.command("list")
def list_transforms(module: ModuleOption = None, output: OutputOption = "text") -> None:
    """Show the transforms that a module declares with @ematix.transform."""
    from ematix_flow.spec.pipelines import connection_label

    specs = [declared.spec for declared in load_project(module).transforms.values()]
    rows = [
        (
            spec.name,
            connection_label(spec.target_connection) if spec.target_connection else "default",
            spec.schedule,
            str(spec.where) if spec.where else None,
        )
        for spec in specs
    ]
    names = ("name", "connection", "schedule", "where")
    if output == "json":
        write_json([dict(zip(names, row, strict=True)) for row in rows])
    elif rows:
        write_table([OutputColumn(name) for name in names], rows)
    else:
        say("the module declares no transform")


@app.command("run")
def run_transform(
    name: Annotated[str, typer.Argument(metavar="NAME", hidden=True)],
    module: ModuleOption = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> None:
    """Run one transform now, on its connection."""
    from ematix_flow.errors import FlowError, LoadError, UnknownName, did_you_mean
    from ematix_flow.run.connect import connect
    from ematix_flow.run.post_transforms import ParentContext, call_transform
    from ematix_flow.run.recording import record_command
    from ematix_flow.spec.pipelines import connection_label

    transforms = load_project(module).transforms
    if name not in transforms:
        raise UnknownName(
            f"no transform is named {name!r}.{did_you_mean(name, transforms)}",
            next_step="flow transform list",
        )
    spec = transforms[name].spec
    by_hand = ParentContext(pipeline_name="", run_id="", rows_inserted=0, rows_updated=0, rows_unchanged=0)
    connection, started = spec.target_connection or "default", time.monotonic()
    with (
        show_steps() as at,
        record_command(name, connection_label(connection), "transform", run_log, spec.where) as recording,
    ):
        at(name)
        try:
            result = call_transform(transforms[name].function, connect(connection), by_hand)
        except FlowError as error:
            raise error.with_location(spec.where) from error
        except (Exception, SystemExit, GeneratorExit) as error:
            raise LoadError(
                f"transform {name!r} raised {type(error).__name__}: {error}",
                where=spec.where,
                state="each of its statements that had finished is committed",
            ) from error
        recording.finish("succeeded", metrics={"result": result})
    seconds = time.monotonic() - started
    if output == "json":
        write_json({"transform": name, "seconds": round(seconds, 3), "result": result})
    else:
        write_text(f"{name} ran in {seconds:.1f} s" + ("" if result is None else f": {result}"))
