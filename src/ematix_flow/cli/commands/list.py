"""``flow list``: the pipelines that a module declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.drawing import draw_graph
from ematix_flow.cli.group import new_app
from ematix_flow.cli.options import ModuleOption, OutputOption
from ematix_flow.cli.output import Column, write_json, write_table, write_text
from ematix_flow.cli.project import load_project
from ematix_flow.cli.terminal import say

if TYPE_CHECKING:
    from ematix_flow.spec.pipelines import PipelineSpec

app = new_app()


@app.command("list")
def list_pipelines(
    module: ModuleOption = None,
    graph: Annotated[bool, typer.Option("--graph", help="Draw what runs after what.")] = False,
    output: OutputOption = "text",
) -> None:
    """Show the pipelines that a module declares: target, schedule, dependencies, place."""
    registry = load_project(module)
    specs = [declared.spec for declared in registry.pipelines.values()]
    if output == "json":
        write_json([_as_json(spec) for spec in specs])
        return
    if not specs:
        say("the module declares no pipeline")
        return
    if graph:
        upstreams = {spec.name: spec.depends_on for spec in specs}
        write_text("\n".join(draw_graph(upstreams, {spec.name: f"→ {_targets(spec)}" for spec in specs})))
        return
    columns = (
        Column("pipeline"),
        Column("loads", wraps=True),
        Column("schedule"),
        Column("depends on", wraps=True),
        Column("declared at", wraps=True),
    )
    write_table(columns, [_row(spec) for spec in specs])


def _targets(spec: PipelineSpec) -> str:
    return ", ".join(target.label for target in spec.targets)


def _row(spec: PipelineSpec) -> tuple[object, ...]:
    loads = ", ".join(f"{target.mode} → {target.label}" for target in spec.targets)
    schedule = f"{spec.schedule} {spec.timezone}" if spec.schedule and spec.timezone else spec.schedule
    return spec.name, loads, schedule or "by hand", ", ".join(spec.depends_on), spec.where


def _as_json(spec: PipelineSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "kind": "pipeline",
        "description": spec.description,
        "targets": [{"target": t.label, "mode": t.mode} for t in spec.targets],
        "schedule": spec.schedule,
        "timezone": spec.timezone,
        "depends_on": list(spec.depends_on),
        "incremental": spec.source.incremental,
        "where": str(spec.where) if spec.where else None,
    }
