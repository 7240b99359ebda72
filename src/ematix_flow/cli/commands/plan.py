"""``flow plan``: what a run would do."""

from __future__ import annotations

from typing import Annotated

import typer

from ematix_flow.cli.failures import show
from ematix_flow.cli.group import new_app
from ematix_flow.cli.options import AllOption, EngineOption, ModuleOption, NamesArgument, OutputOption
from ematix_flow.cli.output import write_json, write_text
from ematix_flow.cli.project import chosen_pipelines, load_project
from ematix_flow.errors import FlowError

app = new_app()

CHANGES_PENDING = 3


@app.command()
def plan(
    names: NamesArgument = None,
    everything: AllOption = False,
    module: ModuleOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 3 when a table would be created or changed.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="All SQL, in full.")] = False,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Show what a run would do: source, path, guarantee, table changes, stages. Changes nothing."""
    from ematix_flow.plan.explain import plan_to_text
    from ematix_flow.schedule.context import spark_starter
    from ematix_flow.schedule.run import plan_pipeline

    registry = load_project(module)
    chosen = chosen_pipelines(registry, names or [], everything=everything)
    spark = spark_starter(engine)
    plans, errors = [], []
    for name in chosen:
        try:
            plans.append(plan_pipeline(registry.pipeline(name), spark))
        except FlowError as error:
            if len(chosen) == 1:
                raise
            errors.append((name, error))
    if output == "json":
        failed = [{"pipeline": name, "error": problem.to_json()} for name, problem in errors]
        write_json([*(p.to_json() for p in plans), *failed])
    else:
        write_text("\n\n".join(plan_to_text(p, verbose=verbose) for p in plans))
        for name, problem in errors:
            show(problem, name)
    if errors:
        return 1
    return CHANGES_PENDING if check and any(p.has_changes for p in plans) else 0
