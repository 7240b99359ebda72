"""``flow plan``: shows what a run would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.error_report import show_error
from ematix_flow.cli.options import (
    AllOption,
    EngineOption,
    ExcludeOption,
    ModuleOption,
    NamesArgument,
    OutputOption,
    SelectOption,
)
from ematix_flow.cli.output import write_json, write_text
from ematix_flow.cli.project import load_project, resolve_pipelines
from ematix_flow.errors import DatabaseMissing, FlowError
from ematix_flow.graph.dependency_order import parallel_levels, upstreams_within

app = new_app()

CHANGES_PENDING = 3


@app.command()
def plan(
    names: NamesArgument = None,
    everything: AllOption = False,
    select: SelectOption = None,
    exclude: ExcludeOption = None,
    module: ModuleOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 3 when a table would be created or changed.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show all SQL in full.")] = False,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Show what a run would do: source, path, guarantee, table changes, stages. Changes nothing."""
    from ematix_flow.run.context_setup import spark_starter
    from ematix_flow.run.pipeline import plan_pipeline

    registry = load_project(module)
    chosen = resolve_pipelines(registry, names, everything=everything, select=select, exclude=exclude)
    spark = spark_starter(engine)
    upstreams = upstreams_within(
        {name: d.spec.depends_on for name, d in registry.pipelines.items()}, set(chosen)
    )
    steps = {name: number for number, each in enumerate(parallel_levels(upstreams), 1) for name in each}
    plans, errors, later = [], [], {}
    for name in chosen:
        try:
            plans.append(plan_pipeline(registry.pipeline(name), spark))
        except FlowError as error:
            if len(chosen) == 1:
                raise
            if isinstance(error, DatabaseMissing) and error.created_by in chosen:
                later[name] = error.created_by
            else:
                errors.append((name, error))
    if output == "json":
        made = {p.pipeline.name: p.to_json() for p in plans}
        made |= {name: {"pipeline": name, "error": problem.to_json()} for name, problem in errors}
        made |= {name: {"pipeline": name, "planned_after": creator} for name, creator in later.items()}
        write_json([{**made[name], "step": steps[name], "after": list(upstreams[name])} for name in chosen])
    else:
        if len(chosen) > 1:
            write_text(_run_order_text(steps, upstreams) + "\n")
        write_text("\n\n".join(p.to_text(verbose=verbose) for p in plans))
        for name, creator in later.items():
            write_text(
                f"\npipeline  {name}\n          planned after {creator} has run, "
                "which creates the database that it reads"
            )
        for name, problem in errors:
            show_error(problem, name)
    if errors:
        return 1
    return CHANGES_PENDING if check and (later or any(p.has_changes for p in plans)) else 0


def _run_order_text(steps: Mapping[str, int], upstreams: Mapping[str, Sequence[str]]) -> str:
    """The run order in steps. Pipelines of one step can run in parallel."""
    width = max(len(name) for name in steps)
    lines, before = ["run order"], 0
    for name in sorted(steps, key=lambda each: steps[each]):
        number = f"{steps[name]}." if steps[name] != before else ""
        after = f"after {', '.join(upstreams[name])}" if upstreams[name] else ""
        lines.append(f"  {number:<4}{name:<{width}}  {after}".rstrip())
        before = steps[name]
    return "\n".join(lines)
